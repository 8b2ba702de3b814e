"""Lenses: how a real camera maps directions to the pixels of its file, and the pinhole picture inside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

MAX_HALF_ANGLE = math.radians(65.0)  # wider pictures are cropped: a pinhole image of 180 degrees has no end
BORDER_SAMPLES = 65


@dataclass(frozen=True)
class Lens:
    """Intrinsics of one picture file in pixels, with the center of its top-left pixel at (0.5, 0.5).

    `kind` "brown" has distortion (k1, k2, p1, p2, k3) on the image plane (Brown 1966, as OpenCV and COLMAP
    write it), or with a k4 behind, of the radius' eighth power, as Metashape has it; "fisheye" has
    (k1, k2, k3, k4) on the angle (Kannala and Brandt 2006). `model` is the file's own word for it and has no
    influence.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    kind: Literal["brown", "fisheye"] = "brown"
    distortion: tuple[float, ...] = ()
    model: str = "PINHOLE"

    @property
    def distorted(self) -> bool:
        """Return whether the picture differs from a pinhole's."""
        return self.kind == "fisheye" or any(k != 0 for k in self.distortion)

    @property
    def K(self) -> np.ndarray:
        """Return the intrinsic matrix, [3, 3] float64."""
        return np.array([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]], dtype=np.float64)

    def resized(self, width: int, height: int) -> Lens:
        """Return the lens of the same picture resampled to `width` x `height` pixels."""
        sx, sy = width / self.width, height / self.height
        return replace(
            self,
            width=width,
            height=height,
            fx=self.fx * sx,
            fy=self.fy * sy,
            cx=self.cx * sx,
            cy=self.cy * sy,
        )


def distort(lens: Lens, points: np.ndarray) -> np.ndarray:
    """Return where pinhole points (x/z, y/z) [..., 2] fall on the distorted image plane, [..., 2]."""
    x, y = points[..., 0], points[..., 1]
    if lens.kind == "fisheye":
        k1, k2, k3, k4 = lens.distortion or (0.0,) * 4
        radius = np.hypot(x, y)
        angle = np.arctan(radius)
        s = angle * angle
        bent = angle * (1 + s * (k1 + s * (k2 + s * (k3 + s * k4))))
        # The ratio tends to 1 on the axis.
        factor = np.where(radius > 1e-12, bent / np.maximum(radius, 1e-12), 1.0)
        return points * factor[..., None]
    k1, k2, p1, p2, k3, k4 = (*lens.distortion, *(0.0,) * 6)[:6]
    s = x * x + y * y
    radial = 1 + s * (k1 + s * (k2 + s * (k3 + s * k4)))
    bent_x = x * radial + 2 * p1 * x * y + p2 * (s + 2 * x * x)
    bent_y = y * radial + 2 * p2 * x * y + p1 * (s + 2 * y * y)
    return np.stack([bent_x, bent_y], axis=-1)


def pinhole_radius(lens: Lens) -> float:
    """Return the largest pinhole radius (tangent of the angle to the axis) at which the lens can be inverted.

    Beyond the first maximum of the distorted radius a polynomial model folds back and means nothing.
    """
    limit = math.tan(MAX_HALF_ANGLE)
    if lens.kind == "fisheye":
        k1, k2, k3, k4 = lens.distortion or (0.0,) * 4
        roots = np.roots([9 * k4, 7 * k3, 5 * k2, 3 * k1, 1.0])
    else:
        k1, k2, _, _, k3, k4 = (*lens.distortion, *(0.0,) * 6)[:6]
        roots = np.roots([9 * k4, 7 * k3, 5 * k2, 3 * k1, 1.0])
    turning = [math.sqrt(r.real) for r in roots if abs(r.imag) < 1e-9 and r.real > 0]
    if not turning:
        return limit
    first = 0.98 * min(turning)
    return min(limit, math.tan(min(first, MAX_HALF_ANGLE)) if lens.kind == "fisheye" else first)


def undistort(lens: Lens, points: np.ndarray) -> np.ndarray:
    """Return the pinhole points [N, 2] of points on the distorted image plane [N, 2].

    Points outside what the lens can show (`pinhole_radius`) are pulled in to that radius.
    """
    limit = pinhole_radius(lens)
    # Newton's method with the Jacobian by differences: at most 40 steps for a few hundred border points.
    guess = (
        points * np.minimum(1.0, 0.5 * limit / np.maximum(np.linalg.norm(points, axis=-1), 1e-12))[:, None]
    )
    h = 1e-6
    dx, dy = np.array([h, 0.0]), np.array([0.0, h])
    for _ in range(40):
        error = distort(lens, guess) - points
        if np.abs(error).max(initial=0.0) < 1e-12:
            break
        jx = (distort(lens, guess + dx) - distort(lens, guess - dx)) / (2 * h)
        jy = (distort(lens, guess + dy) - distort(lens, guess - dy)) / (2 * h)
        det = jx[:, 0] * jy[:, 1] - jx[:, 1] * jy[:, 0]
        det = np.where(np.abs(det) > 1e-9, det, 1e-9)
        step = np.stack(
            [
                (jy[:, 1] * error[:, 0] - jy[:, 0] * error[:, 1]) / det,
                (jx[:, 0] * error[:, 1] - jx[:, 1] * error[:, 0]) / det,
            ],
            axis=-1,
        )
        guess = guess - step
        radius = np.linalg.norm(guess, axis=-1, keepdims=True)
        guess = guess * np.minimum(1.0, limit / np.maximum(radius, 1e-12))
    return guess


@lru_cache(maxsize=4096)
def pinhole(lens: Lens) -> Lens:
    """Return the largest upright pinhole picture without empty borders that `lens` contains.

    Focal lengths are kept, so that the center keeps its resolution; the size may grow or shrink. Raises
    ValueError when the distortion leaves no such picture.
    """
    if not lens.distorted:
        return replace(lens, distortion=())
    focal, center = np.array([lens.fx, lens.fy]), np.array([lens.cx, lens.cy])
    plain = {side: points * focal + center for side, points in _border(lens).items()}
    left, right = plain["left"][:, 0].max(), plain["right"][:, 0].min()
    top, bottom = plain["top"][:, 1].max(), plain["bottom"][:, 1].min()
    if not (right - left >= 1 and bottom - top >= 1):
        raise ValueError(
            f"the lens distortion {lens.distortion} of a camera of {lens.width} x {lens.height} pixels "
            "cannot be undone: its coefficients leave no picture; calibrate the camera again or undistort "
            "the images first"
        )
    return Lens(
        width=int(right - left + 1e-6) + 1,
        height=int(bottom - top + 1e-6) + 1,
        fx=lens.fx,
        fy=lens.fy,
        cx=float(lens.cx - left + 0.5),
        cy=float(lens.cy - top + 0.5),
        model=lens.model,
    )


@lru_cache(maxsize=4096)
def cropped(lens: Lens) -> bool:
    """Return whether a part of the lens's picture is left out because no pinhole picture can hold it."""
    limit = 0.999 * pinhole_radius(lens)
    return lens.distorted and any((np.hypot(*p.T) >= limit).any() for p in _border(lens).values())


def _border(lens: Lens) -> dict[str, np.ndarray]:
    """Return the pinhole points [N, 2] of the pixels along each side of the lens's picture."""
    xs = np.linspace(0.5, lens.width - 0.5, BORDER_SAMPLES)
    ys = np.linspace(0.5, lens.height - 0.5, BORDER_SAMPLES)
    sides = {
        "left": np.stack([np.full_like(ys, xs[0]), ys], -1),
        "right": np.stack([np.full_like(ys, xs[-1]), ys], -1),
        "top": np.stack([xs, np.full_like(xs, ys[0])], -1),
        "bottom": np.stack([xs, np.full_like(xs, ys[-1])], -1),
    }
    focal, center = np.array([lens.fx, lens.fy]), np.array([lens.cx, lens.cy])
    return {side: undistort(lens, (pixels - center) / focal) for side, pixels in sides.items()}


@lru_cache(maxsize=3)
def undistortion_maps(lens: Lens) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return for each pixel of `pinhole(lens)` its place in the file: x, y [H, W] float32, for cv2.remap.

    The third is None, or bool [H, W], False where the place lies outside the file's picture.
    """
    target = pinhole(lens)
    x = (np.arange(target.width) + 0.5 - target.cx) / target.fx
    y = (np.arange(target.height) + 0.5 - target.cy) / target.fy
    bent = distort(lens, np.stack(np.meshgrid(x, y), axis=-1))
    map_x = (bent[..., 0] * lens.fx + lens.cx - 0.5).astype(np.float32)
    map_y = (bent[..., 1] * lens.fy + lens.cy - 0.5).astype(np.float32)
    # Half a pixel of tolerance: the outermost half pixel is replicated, not invented.
    inside = (map_x > -0.5) & (map_x < lens.width - 0.5) & (map_y > -0.5) & (map_y < lens.height - 0.5)
    return map_x, map_y, None if inside.all() else inside
