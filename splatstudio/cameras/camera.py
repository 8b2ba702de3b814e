"""Cameras: one pose and one set of intrinsics, and ways to make new ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

CameraModel = Literal["pinhole", "ortho", "fisheye"]


@dataclass(frozen=True, eq=False)
class Camera:
    """One view without lens distortion.

    `viewmat` [4, 4] float64 maps world to camera (OpenCV axes: x right, y down, z forward). `K` [3, 3]
    float64 holds the intrinsics in pixels (for `ortho` pixels a world unit, for `fisheye` pixels a radian);
    the center of the top-left pixel is (0.5, 0.5). `width` and `height` are pixels.
    """

    viewmat: np.ndarray
    K: np.ndarray
    width: int
    height: int
    model: CameraModel = "pinhole"

    @property
    def position(self) -> np.ndarray:
        """Return the camera center in the world, [3]."""
        return -self.viewmat[:3, :3].T @ self.viewmat[:3, 3]

    @property
    def camera_to_world(self) -> np.ndarray:
        """Return the inverse of `viewmat`, [4, 4]."""
        return rigid(self.viewmat[:3, :3].T, self.position)

    @property
    def fov_y(self) -> float:
        """Return the vertical field of view of a pinhole with this focal length, radians."""
        return 2.0 * float(np.arctan(self.height / (2.0 * self.K[1, 1])))

    def resized(self, width: int, height: int) -> Camera:
        """Return this view sampled by another number of pixels; the field of view stays."""
        K = self.K.copy()
        K[0] *= width / self.width
        K[1] *= height / self.height
        return replace(self, K=K, width=width, height=height)

    def cropped(self, left: int, top: int, width: int, height: int) -> Camera:
        """Return the part of this view that starts at a pixel, `left` and `top`, and has so many pixels."""
        K = self.K.copy()
        K[:2, 2] -= left, top
        return replace(self, K=K, width=width, height=height)

    def transformed(self, similarity: np.ndarray) -> Camera:
        """Return this view after every point p of the world became `similarity` @ p.

        `similarity` is [4, 4]: a rotation times a positive scale, and a shift.
        """
        K = self.K.copy()
        if self.model == "ortho":
            K[:2, :2] /= similarity_scale(similarity)
        return replace(self, viewmat=moved_viewmat(self.viewmat, similarity), K=K)


def rigid(rotation: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return the [4, 4] matrix of a rotation [3, 3], or one times a scale, and a shift [3]."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation, shift
    return matrix


def moved_viewmat(viewmat: np.ndarray, similarity: np.ndarray) -> np.ndarray:
    """Return world to camera [4, 4] where the world was moved by a [4, 4] similarity, the camera with it."""
    back = viewmat[:3, :3].T
    pose = similarity @ rigid(back, -back @ viewmat[:3, 3])
    rotation = (pose[:3, :3] / similarity_scale(similarity)).T
    return rigid(rotation, -rotation @ pose[:3, 3])


def rotation_of(quat: np.ndarray) -> np.ndarray:
    """Return the rotation [3, 3] of a quaternion [4] wxyz of any length but 0."""
    w, x, y, z = quat / np.linalg.norm(quat)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def similarity_scale(similarity: np.ndarray) -> float:
    """Return the scale of a [4, 4] similarity."""
    return float(np.cbrt(np.linalg.det(similarity[:3, :3])))


def look_at(position: np.ndarray, target: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Return the [4, 4] world-to-camera matrix of a camera at `position` that looks at `target`.

    Raises ValueError when `position` and `target` coincide.
    """
    forward = np.asarray(target, float) - np.asarray(position, float)
    distance = np.linalg.norm(forward)
    if not distance > 0:
        raise ValueError("a camera cannot look at its own position")
    forward = forward / distance
    right = np.cross(forward, up)
    if np.linalg.norm(right) < 1e-9:
        # Looking along `up`: any perpendicular direction serves as the image's right.
        right = np.cross(forward, np.roll(np.asarray(up, float), 1))
    right = right / np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    return rigid(rotation, -rotation @ np.asarray(position, float))
