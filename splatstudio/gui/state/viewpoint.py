"""Viser's camera of a browser, checked, as a camera that the renderer understands."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import viser
import viser.transforms

from splatstudio.cameras.camera import Camera
from splatstudio.runtime.channel.frame_slots import MAX_FRAME_PIXELS

MIN_SIDE, MAX_SIDE = 16, 8192  # px; below and above a window is closed or a lie
MIN_FOV, MAX_FOV = math.radians(1.0), math.radians(170.0)


@dataclass(frozen=True, eq=False)
class Viewpoint:
    """Where a browser looks from: camera to world, OpenCV axes; `fov` is vertical, radians."""

    wxyz: np.ndarray
    position: np.ndarray
    fov: float
    width: int  # px of the canvas
    height: int

    def scale_of(self, num_pixels: int) -> float:
        """Return the scale, at most 1, at which a picture of this canvas has so many pixels."""
        return min(1.0, math.sqrt(num_pixels / (self.width * self.height)))

    def camera(self, scale: float) -> Camera:
        """Return the camera that fills this canvas with `scale` times its pixels a side (at most 1)."""
        scale = min(scale, 1.0, math.sqrt(MAX_FRAME_PIXELS / (self.width * self.height)))
        width = max(MIN_SIDE, int(self.width * scale))
        height = max(MIN_SIDE, int(self.height * scale))
        # The picture is stretched over the whole canvas, so its field of view is the canvas's to the last
        # digit, also where rounding gave the picture another aspect.
        half_height = math.tan(self.fov / 2.0)
        half_width = half_height * self.width / self.height
        K = np.array(
            [
                [width / 2.0 / half_width, 0.0, width / 2.0],
                [0.0, height / 2.0 / half_height, height / 2.0],
                [0.0, 0.0, 1.0],
            ]
        )
        viewmat = np.eye(4)
        rotation = viser.transforms.SO3(self.wxyz).as_matrix()
        viewmat[:3, :3] = rotation.T
        viewmat[:3, 3] = -rotation.T @ self.position
        return Camera(viewmat, K, width, height)


def read_viewpoint(camera: viser.CameraHandle) -> Viewpoint | None:
    """Return what a browser says its camera is; None where it cannot be one (anyone may send anything)."""
    wxyz = np.asarray(camera.wxyz, np.float64)
    position = np.asarray(camera.position, np.float64)
    norm = float(np.linalg.norm(wxyz))
    width, height, fov = camera.image_width, camera.image_height, float(camera.fov)
    if wxyz.shape != (4,) or position.shape != (3,):
        return None
    if not (np.isfinite(position).all() and np.abs(position).max() < 1e8 and 1e-6 < norm < 1e6):
        return None
    if not (MIN_SIDE <= width <= MAX_SIDE and MIN_SIDE <= height <= MAX_SIDE and MIN_FOV <= fov <= MAX_FOV):
        return None
    return Viewpoint(wxyz / norm, position, fov, int(width), int(height))


def fly_to(client: viser.ClientHandle, camera: Camera, distance: float) -> None:
    """Move a browser's camera to where `camera` is, wide enough to see all that it sees.

    `distance` is how far ahead the point lies round which the mouse then turns, world units.
    """
    current = read_viewpoint(client.camera)
    canvas_aspect = current.width / current.height if current else 16.0 / 9.0
    rotation = viser.transforms.SO3.from_matrix(camera.viewmat[:3, :3].T)
    with client.atomic():
        client.camera.fov = fitting_fov(camera, canvas_aspect)
        client.camera.position = camera.position
        client.camera.look_at = camera.position + distance * camera.viewmat[2, :3]
        client.camera.wxyz = rotation.wxyz


def fitting_fov(camera: Camera, canvas_aspect: float) -> float:
    """Return the vertical field of view, radians, of a canvas (width / height) that holds `camera`'s."""
    K = camera.K
    # The principal point is the middle of the canvas, and may lie anywhere in the photograph.
    half_width = max(K[0, 2], camera.width - K[0, 2]) / K[0, 0]
    half_height = max(K[1, 2], camera.height - K[1, 2]) / K[1, 1]
    return min(2.0 * math.atan(max(half_height, half_width / canvas_aspect)), MAX_FOV)
