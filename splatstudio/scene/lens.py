"""Lenses: how a real camera maps directions to the pixels of its file, and the pinhole picture inside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import cv2
import numpy as np

from splatstudio.scene.lens_models import LensKind, project

MAX_HALF_ANGLE = math.radians(65.0)  # wider pictures are cropped: a pinhole image of 180 degrees has no end
BORDER_SAMPLES = 65
WIDEST = math.radians(150.0)  # seen along a side: wider pictures are cut into the sides of a cube
LEAST_SHOWN = 0.02  # of a side
COARSE, FINE = (
    64,
    400,
)  # pixels of a side, at which it is measured; points of a picture's, interpolated between
ANGLES, DIRECTIONS = 1025, 8  # at which a lens is looked at to find where it folds back


@dataclass(frozen=True)
class Lens:
    """Intrinsics of one picture file in pixels, with the center of its top-left pixel at (0.5, 0.5).

    `kind` "brown" has distortion (k1, k2, p1, p2, k3) on the image plane (Brown 1966, as OpenCV and COLMAP
    write it), or with Metashape's two behind: a k4 of the radius' eighth power, and the skew of the pixels
    over fx; "fisheye" has (k1, k2, k3, k4) on the angle (Kannala and Brandt 2006). The others have COLMAP's
    parameters in its order (see `lens_models`), that of Metashape's fisheye with the skew behind;
    "equirectangular" is a panorama, with pixels a radian as its focal lengths. `model` is the file's own
    word for it and has no influence.
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    kind: LensKind = "brown"
    distortion: tuple[float, ...] = ()
    model: str = "PINHOLE"

    @property
    def distorted(self) -> bool:
        """Return whether the picture differs from a pinhole's."""
        return self.kind != "brown" or any(k != 0 for k in self.distortion)

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
    directions = np.concatenate([points, np.ones_like(points[..., :1])], axis=-1)
    return project(lens.kind, lens.distortion, directions)


@lru_cache(maxsize=4096)
def pinhole_radius(lens: Lens) -> float:
    """Return the largest pinhole radius (tangent of the angle to the axis) at which the lens can be inverted.

    Beyond the first maximum of the distorted radius a model folds back and means nothing.
    """
    tangents = np.tan(np.linspace(0, MAX_HALF_ANGLE, ANGLES))
    around = np.linspace(0, 2 * math.pi, DIRECTIONS, endpoint=False)
    points = tangents[:, None, None] * np.stack([np.cos(around), np.sin(around)], axis=-1)
    radii = np.linalg.norm(distort(lens, points), axis=-1)
    turns = np.flatnonzero(~(np.diff(radii, axis=0) > 0).all(axis=1))
    return float(tangents[-1] if not len(turns) else 0.98 * tangents[turns[0]])


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
        guess = guess - _solved(jx, jy, error)
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
        return replace(lens, kind="brown", distortion=())
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


@dataclass(frozen=True)
class Face:
    """A pinhole picture in that of a lens: its name among several, its turn, and its own lens.

    `turn` [3, 3] brings directions in the lens's axes to its own.
    """

    name: str
    turn: tuple[tuple[float, float, float], ...]
    lens: Lens


IDENTITY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
CUBE = {
    "front": IDENTITY,
    "right": ((0.0, 0.0, -1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0)),
    "back": ((-1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, -1.0)),
    "left": ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (-1.0, 0.0, 0.0)),
    "up": ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0)),
    "down": ((1.0, 0.0, 0.0), (0.0, 0.0, -1.0), (0.0, 1.0, 0.0)),
}


@lru_cache(maxsize=4096)
def faces(lens: Lens) -> tuple[Face, ...]:
    """Return the pinhole pictures that a lens's is cut into: one without a name, or the sides of a cube.

    Several where it is a panorama or sees more than `WIDEST`; sides of which it shows next to nothing are
    left out. Raises ValueError as `pinhole` does.
    """
    if not _is_wide(lens):
        return (Face("", IDENTITY, pinhole(lens)),)
    side = 2 * max(1, round(max(lens.fx, lens.fy)))
    plain = Lens(side, side, 0.5 * side, 0.5 * side, 0.5 * side, 0.5 * side, model=lens.model)
    small = plain.resized(COARSE, COARSE)
    found = []
    for name, turn in CUBE.items():
        inside = undistortion_maps.__wrapped__(Face(name, turn, small), lens)[2]
        if inside is None or inside.mean() > LEAST_SHOWN:
            found.append(Face(name, turn, plain))
    return tuple(found)


def _is_wide(lens: Lens) -> bool:
    """Return whether a picture is more than a pinhole's can hold: measured along its width and its height."""
    if lens.kind == "equirectangular":
        return True
    angles = np.linspace(0, widest_angle(lens), ANGLES)
    seen = []
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        directions = np.stack([x * np.sin(angles), y * np.sin(angles), np.cos(angles)], axis=-1)
        pixels = project(lens.kind, lens.distortion, directions) * [lens.fx, lens.fy] + [lens.cx, lens.cy]
        inside = ((pixels >= 0) & (pixels <= [lens.width, lens.height])).all(axis=-1)
        seen.append(angles[inside].max(initial=0.0))
    return max(seen[0] + seen[1], seen[2] + seen[3]) > WIDEST


@lru_cache(maxsize=4096)
def widest_angle(lens: Lens) -> float:
    """Return the angle to the axis, radians, up to which a lens shows different directions apart."""
    if lens.kind == "equirectangular":
        return math.pi
    angles = np.linspace(0, 0.999 * math.pi, 2 * ANGLES)
    around = np.linspace(0, 2 * math.pi, DIRECTIONS, endpoint=False)
    sideways = np.sin(angles)[:, None, None] * np.stack([np.cos(around), np.sin(around)], axis=-1)
    ahead = np.broadcast_to(np.cos(angles)[:, None, None], (*sideways.shape[:2], 1))
    directions = np.concatenate([sideways, ahead], axis=-1)
    radii = np.linalg.norm(project(lens.kind, lens.distortion, directions), axis=-1)
    turns = np.flatnonzero(~(np.diff(radii, axis=0) > 0).all(axis=1))
    return float(angles[-1] if not len(turns) else 0.98 * angles[turns[0]])


@lru_cache(maxsize=2)
def directions_through(lens: Lens) -> np.ndarray:
    """Return the direction [H, W, 3] float32 of each pixel of a wide lens; NaN where it shows nothing."""
    u, v = (np.linspace(0.5, size - 0.5, min(size, FINE)) for size in (lens.width, lens.height))
    plane = np.stack(np.meshgrid((u - lens.cx) / lens.fx, (v - lens.cy) / lens.fy), axis=-1)
    if lens.kind == "equirectangular":
        longitude, latitude = plane[..., 0], plane[..., 1]
        sides = np.cos(latitude)
        grid = np.stack([sides * np.sin(longitude), np.sin(latitude), sides * np.cos(longitude)], axis=-1)
    else:
        grid = _inverted(lens, plane)
    x = np.linspace(0, grid.shape[1] - 1, lens.width, dtype=np.float32)
    y = np.linspace(0, grid.shape[0] - 1, lens.height, dtype=np.float32)
    return cv2.remap(grid.astype(np.float32), *np.meshgrid(x, y), cv2.INTER_LINEAR)


def _inverted(lens: Lens, plane: np.ndarray) -> np.ndarray:
    """Return the directions [..., 3] that a lens shows at points of its image plane, by Newton's method.

    The unknown is the direction's angle to the axis, as a vector toward its side of the picture.
    """

    def direction(bent: np.ndarray) -> np.ndarray:
        angle = np.linalg.norm(bent, axis=-1, keepdims=True)
        return np.concatenate([bent * np.sinc(angle / math.pi), np.cos(angle)], axis=-1)

    def shown(bent: np.ndarray) -> np.ndarray:
        return project(lens.kind, lens.distortion, direction(bent))

    limit, h = widest_angle(lens), 1e-6
    bent = plane.copy()
    for _ in range(12):
        length = np.linalg.norm(bent, axis=-1, keepdims=True)
        bent = bent * np.minimum(1.0, limit / np.maximum(length, 1e-12))
        error = np.nan_to_num(shown(bent) - plane)
        along_x, along_y = (
            np.nan_to_num(shown(bent + h * axis) - shown(bent - h * axis)) / (2 * h) for axis in np.eye(2)
        )
        bent = bent - _solved(along_x, along_y, error)
    missed = np.abs(shown(bent) - plane).max(axis=-1) * max(lens.fx, lens.fy)
    known = (missed < 0.01) & (np.linalg.norm(bent, axis=-1) <= limit)
    return np.where(known[..., None], direction(bent), np.nan)


def _solved(along_x: np.ndarray, along_y: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the steps [..., 2] whose linear effects, with these columns [..., 2], are `error`."""
    det = along_x[..., 0] * along_y[..., 1] - along_y[..., 0] * along_x[..., 1]
    det = np.where(np.abs(det) > 1e-9, det, 1e-9)
    x = (along_y[..., 1] * error[..., 0] - along_y[..., 0] * error[..., 1]) / det
    y = (along_x[..., 0] * error[..., 1] - along_x[..., 1] * error[..., 0]) / det
    return np.stack([x, y], axis=-1)


def _angles(directions: np.ndarray) -> np.ndarray:
    """Return the angles of directions [..., 3] to the axis, radians."""
    return np.arctan2(np.hypot(directions[..., 0], directions[..., 1]), directions[..., 2])


@lru_cache(maxsize=6)
def undistortion_maps(face: Face, lens: Lens) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return for each pixel of a face of `lens` its place in the file: x, y [H, W] float32, for cv2.remap.

    The third is None, or bool [H, W], False where the place lies outside the file's picture, or where the
    lens shows nothing.
    """
    target = face.lens
    x = (np.arange(target.width) + 0.5 - target.cx) / target.fx
    y = (np.arange(target.height) + 0.5 - target.cy) / target.fy
    plane = np.stack(np.meshgrid(x, y), axis=-1)
    directions = np.concatenate([plane, np.ones_like(plane[..., :1])], axis=-1) @ np.array(face.turn)
    bent = project(lens.kind, lens.distortion, directions)
    if face.name:
        bent = np.where((_angles(directions) <= widest_angle(lens))[..., None], bent, np.nan)
        bent = np.nan_to_num(bent, nan=-1e6)
    map_x = (bent[..., 0] * lens.fx + lens.cx - 0.5).astype(np.float32)
    map_y = (bent[..., 1] * lens.fy + lens.cy - 0.5).astype(np.float32)
    # Half a pixel of tolerance: the outermost half pixel is replicated, not invented.
    inside = (map_x > -0.5) & (map_x < lens.width - 0.5) & (map_y > -0.5) & (map_y < lens.height - 0.5)
    return map_x, map_y, None if inside.all() else inside
