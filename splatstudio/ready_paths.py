"""Camera paths that need no keyframes: an orbit and a spiral that suit how a scene was captured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from splatstudio.camera import Camera, look_at
from splatstudio.camera_path import CameraPath, Keyframe

MAX_SIDE = 1920  # px, of frames whose size comes from photographs
ORBIT_KEYFRAMES = 24  # the curve through them keeps to the circle by 0.02 %, its speed by 1.2 %
GAP = math.radians(120)  # without a camera: beyond it a capture is not all around
ORIGIN = np.zeros(3)  # of a scene's frame: what the cameras look at
Z = np.array([0.0, 0.0, 1.0])


def orbit(
    center: np.ndarray,
    radius: float,
    height: float,
    *,
    up: np.ndarray = Z,
    start: np.ndarray | None = None,
    fov_y: float = math.radians(50),
    seconds: float = 12.0,
) -> CameraPath:
    """Return a loop once around `center` [3] at constant speed, looking at it with a level horizon.

    The circle of `radius` lies `height` above `center` along `up` [3] and begins on the side where the point
    `start` [3] lies. Raises ValueError when `radius` is not positive.
    """
    if not 0 < radius < math.inf:
        raise ValueError(f"an orbit needs a radius above 0, not {radius:g}")
    up, right, ahead = _axes(up, None if start is None else start - center)
    angles = np.linspace(0.0, 2.0 * math.pi, ORBIT_KEYFRAMES, endpoint=False)
    circle = np.cos(angles)[:, None] * right + np.sin(angles)[:, None] * ahead
    return _looking(center + radius * circle + height * up, center, up, fov_y=fov_y, seconds=seconds)


def orbit_of(cameras: Sequence[Camera], *, center: np.ndarray = ORIGIN, seconds: float = 12.0) -> CameraPath:
    """Return a loop around `center` [3] (z up) at the distance and height the capture's cameras have.

    Where the cameras stand on all sides it is a full orbit; where they leave a gap of more than GAP, it
    sways from one end of what they cover to the other, so that it never shows what no photograph shows.
    Raises ValueError without cameras and when they stand above `center`.
    """
    capture = _Capture.of(cameras, center)
    if capture.radius <= 1e-3 * abs(capture.height):
        raise ValueError("the cameras stand above what they look at: an orbit needs them around it")
    fov_y = capture.fov_y
    if capture.all_around:
        first = cameras[0].position
        path = orbit(center, capture.radius, capture.height, start=first, fov_y=fov_y, seconds=seconds)
    else:
        half = ORBIT_KEYFRAMES // 2
        sweep = np.linspace(capture.azimuths[0], capture.azimuths[-1], half + 1)
        angles = np.concatenate([sweep, sweep[-2:0:-1]])
        positions = center + _ring(angles, np.full(len(angles), capture.radius), capture.height)
        path = _looking(positions, center, Z, fov_y=fov_y, seconds=seconds)
    return _sized_as(path, cameras[0])


def spiral(cameras: Sequence[Camera], *, center: np.ndarray = ORIGIN, seconds: float = 12.0) -> CameraPath:
    """Return a loop that winds through the room the capture's cameras took, looking at `center` [3] (z up).

    Around a subject: two turns that rise and sink between the cameras' heights. Facing forward: a spiral
    about the cameras' mean place, as wide and high as most of them stand, as by Mildenhall et al. 2019.
    Raises ValueError without cameras and when their mean place is `center`.
    """
    capture = _Capture.of(cameras, center)
    phases = np.linspace(0.0, 2.0 * math.pi, 2 * ORBIT_KEYFRAMES, endpoint=False)
    offsets = np.stack([camera.position for camera in cameras]) - center
    if capture.all_around:
        low, high = np.percentile(offsets[:, 2], [10, 90])
        heights = (low + high) / 2 - (high - low) / 2 * np.cos(phases)
        angles = capture.azimuths[0] + 2 * phases
        positions, up = center + _ring(angles, capture.radius_at(heights, offsets), heights), Z
    else:
        mean = offsets.mean(axis=0)
        distance = float(np.linalg.norm(mean))
        if not distance > 0:
            raise ValueError("the cameras stand around what they look at: a spiral needs a side to stand on")
        upright = np.mean([-camera.viewmat[1, :3] for camera in cameras], axis=0)
        # Straight down there is no horizon: the photographs' own upper edge is kept up.
        up = Z if abs(mean[2]) < 0.9 * distance else upright
        axes = look_at(mean, ORIGIN, up)[:3, :3]
        spread = np.percentile(np.abs((offsets - mean) @ axes.T), 80, axis=0)
        wide, high, deep = np.clip(spread, 0.02 * distance, 0.5 * distance)
        winding = [wide * np.cos(2 * phases), high * np.sin(2 * phases), deep * np.sin(phases)]
        positions = center + mean + np.stack(winding, axis=1) @ axes
    return _sized_as(_looking(positions, center, up, fov_y=capture.fov_y, seconds=seconds), cameras[0])


@dataclass(frozen=True, eq=False)
class _Capture:
    """How the cameras of a scene stand around a point: medians, and azimuths [A] across their largest gap."""

    radius: float  # horizontal
    height: float
    fov_y: float
    azimuths: np.ndarray
    all_around: bool

    @classmethod
    def of(cls, cameras: Sequence[Camera], center: np.ndarray) -> _Capture:
        if not cameras:
            raise ValueError("a path around a capture needs its cameras")
        offsets = np.stack([camera.position for camera in cameras]) - center
        azimuths = np.sort(np.arctan2(offsets[:, 1], offsets[:, 0]))
        gaps = np.append(azimuths[1:], azimuths[0] + 2 * math.pi) - azimuths
        first = int(np.argmax(gaps)) + 1
        azimuths = np.concatenate([azimuths[first:], azimuths[:first] + 2 * math.pi])
        return cls(
            radius=float(np.median(np.linalg.norm(offsets[:, :2], axis=1))),
            height=float(np.median(offsets[:, 2])),
            fov_y=float(np.median([camera.fov_y for camera in cameras])),
            azimuths=azimuths,
            all_around=bool(gaps.max() <= GAP),
        )

    def radius_at(self, heights: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the horizontal distance the cameras have at `heights` [P]: a line fitted through them."""
        radii = np.linalg.norm(offsets[:, :2], axis=1)
        spread = offsets[:, 2] - offsets[:, 2].mean()
        slope = (spread @ radii) / (spread @ spread) if spread @ spread > 1e-12 else 0.0
        fitted = radii.mean() + slope * (heights - offsets[:, 2].mean())
        return np.clip(fitted, *np.percentile(radii, [10, 90]))


def _ring(angles: np.ndarray, radii: np.ndarray, heights: np.ndarray | float) -> np.ndarray:
    """Return the points [P, 3] at azimuths, distances from the z axis and heights [P]."""
    heights = np.broadcast_to(heights, angles.shape)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles), heights], axis=1)


def _axes(up: np.ndarray, toward: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return unit vectors: up, the horizontal direction `toward`, and the one 90 degrees to its left."""
    up = np.asarray(up, float) / np.linalg.norm(up)
    level = np.zeros(3) if toward is None else toward - (toward @ up) * up
    if not np.linalg.norm(level) > 1e-9:
        level = np.eye(3)[int(np.argmin(np.abs(up)))]
        level = level - (level @ up) * up
    level = level / np.linalg.norm(level)
    return up, level, np.cross(up, level)


def _looking(
    positions: np.ndarray, target: np.ndarray, up: np.ndarray, *, fov_y: float, seconds: float
) -> CameraPath:
    """Return the loop through `positions` [P, 3] in `seconds`, always looking at `target` [3]."""
    poses = [np.linalg.inv(look_at(position, target, up)) for position in positions]
    keyframes = tuple(Keyframe(pose, fov_y) for pose in poses)
    return CameraPath(keyframes, loop=True, default_seconds=seconds / len(keyframes))


def _sized_as(path: CameraPath, camera: Camera) -> CameraPath:
    """Return the path with frames of the photographs' size, at most MAX_SIDE."""
    ratio = min(1.0, MAX_SIDE / max(camera.width, camera.height))
    width, height = (max(2, round(side * ratio / 2) * 2) for side in (camera.width, camera.height))
    return replace(path, width=width, height=height)
