"""Camera paths that need no keyframes: orbit, spiral and fly-through that suit how a scene was captured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.cameras.camera_path import CameraPath, Keyframe, keyframe_of

MAX_SIDE = 1920  # px, of frames whose size comes from photographs
ORBIT_KEYFRAMES = 24  # the curve through them keeps to the circle by 0.02 %, its speed by 1.2 %
THROUGH_KEYFRAMES = 48
DENSE = 2001  # points of a curve along which keyframes are spread evenly
GAP = math.radians(120)  # without a camera: beyond it a capture is not all around
MIN_SWAY = math.radians(20)  # of an orbit where all cameras stand on one spot
STEEP = math.radians(80)  # of elevation: beyond it a capture is one from above
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
    """Return a loop around `center` [3] (z up) at the heights and distances the capture's cameras have.

    Where the cameras stand on all sides it goes all around, tilted as they are where one side was taken from
    higher up; where they leave a gap of more than GAP, it sways from one end of what they cover to the other,
    so that it never shows what no photograph shows. Raises ValueError without cameras and when they stand
    above `center`.
    """
    capture = _Capture(cameras, center)
    if np.median(np.abs(capture.elevations)) > STEEP:
        raise ValueError("the cameras stand above what they look at: an orbit needs them around it")
    first, last = capture.covered
    if capture.all_around:
        azimuths = first + np.linspace(0.0, 2.0 * math.pi, DENSE)
        places = _evenly(capture.places(azimuths, np.zeros(DENSE)), ORBIT_KEYFRAMES)
    else:
        sweep = np.linspace(first, last, ORBIT_KEYFRAMES // 2 + 1)
        azimuths = np.concatenate([sweep, sweep[-2:0:-1]])
        places = capture.places(azimuths, np.zeros(ORBIT_KEYFRAMES))
    return _sized_as(_looking(center + places, center, Z, fov_y=capture.fov_y, seconds=seconds), cameras[0])


def spiral(cameras: Sequence[Camera], *, center: np.ndarray = ORIGIN, seconds: float = 12.0) -> CameraPath:
    """Return a loop that winds through the room the capture's cameras took, looking at `center` [3] (z up).

    Around a subject: two turns that rise and sink between the cameras' heights. Facing forward: a spiral
    about the cameras' mean place, as wide and high as most of them stand, as by Mildenhall et al. 2019.
    Raises ValueError without cameras and when their mean place is `center`.
    """
    capture = _Capture(cameras, center)
    phases, up = np.linspace(0.0, 2.0 * math.pi, DENSE), Z
    if capture.all_around:
        places = capture.places(capture.covered[0] + 2 * phases, -np.cos(phases))
    else:
        mean = capture.offsets.mean(axis=0)
        distance = float(np.linalg.norm(mean))
        if not distance > 0:
            raise ValueError("the cameras stand around what they look at: a spiral needs a side to stand on")
        upright = np.mean([-camera.viewmat[1, :3] for camera in cameras], axis=0)
        # Straight down there is no horizon: the photographs' own upper edge is kept up.
        up = Z if abs(mean[2]) < math.sin(STEEP) * distance else upright
        axes = look_at(mean, ORIGIN, up)[:3, :3]
        spread = np.percentile(np.abs((capture.offsets - mean) @ axes.T), 80, axis=0)
        wide, high, deep = np.clip(spread, 0.02 * distance, 0.5 * distance)
        winding = [wide * np.cos(2 * phases), high * np.sin(2 * phases), deep * np.sin(phases)]
        places = mean + np.stack(winding, axis=1) @ axes
    places = _evenly(places, 2 * ORBIT_KEYFRAMES)
    return _sized_as(_looking(center + places, center, up, fov_y=capture.fov_y, seconds=seconds), cameras[0])


def through(cameras: Sequence[Camera], *, seconds: float = 12.0) -> CameraPath:
    """Return an open path through the capture's cameras in their order, at an even pace.

    Of more than THROUGH_KEYFRAMES cameras every n-th is taken: the hand's tremor is left out with the rest.
    Raises ValueError without cameras.
    """
    if not cameras:
        raise ValueError("a path through a capture's cameras needs them")
    num = min(len(cameras), THROUGH_KEYFRAMES)
    chosen = [cameras[index] for index in np.linspace(0, len(cameras) - 1, num).round().astype(int)]
    positions = np.stack([camera.position for camera in chosen])
    walked = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    turned = np.array([_angle(first, second) for first, second in pairwise(chosen)])
    # A turn on the spot takes time as well: all turns together as long as all ways.
    effort = _shares(walked) + _shares(turned) + 0.1 / max(1, num)
    times = [None, *(seconds * effort / effort.sum()).tolist()] if num > 1 else [seconds]
    keyframes = [keyframe_of(camera, seconds=time) for camera, time in zip(chosen, times, strict=True)]
    return _sized_as(CameraPath(tuple(keyframes), default_seconds=seconds / max(1, num - 1)), cameras[0])


def _angle(first: Camera, second: Camera) -> float:
    """Return the angle between two cameras' orientations, radians."""
    cosine = (np.trace(first.viewmat[:3, :3] @ second.viewmat[:3, :3].T) - 1.0) / 2.0
    return float(np.arccos(np.clip(cosine, -1.0, 1.0)))


def _shares(values: np.ndarray) -> np.ndarray:
    total = float(values.sum())
    return values / total if total > 0 else np.zeros_like(values)


class _Capture:
    """How C cameras stand around a point: where they are by azimuth, and how high and far there.

    The sparse points' up is seldom exact and few people hold a camera at one height, so elevation and
    distance are fitted as first harmonics of the azimuth: a tilted circle.
    """

    def __init__(self, cameras: Sequence[Camera], center: np.ndarray):
        if not cameras:
            raise ValueError("a path around a capture needs its cameras")
        self.offsets = np.stack([camera.position for camera in cameras]) - center  # [C, 3]
        self.fov_y = float(np.median([camera.fov_y for camera in cameras]))
        self.distances = np.linalg.norm(self.offsets, axis=1)
        azimuths = np.arctan2(self.offsets[:, 1], self.offsets[:, 0])
        self.elevations = np.arctan2(self.offsets[:, 2], np.linalg.norm(self.offsets[:, :2], axis=1))
        self._rise = np.linalg.lstsq(_harmonics(azimuths), self.elevations, rcond=None)[0]
        raised = self.elevations - _harmonics(azimuths) @ self._rise
        self._spread = float(np.percentile(np.abs(raised), 80))
        design = np.column_stack([_harmonics(azimuths), raised])
        self._reach = np.linalg.lstsq(design, self.distances, rcond=None)[0]
        azimuths = np.sort(azimuths)
        gaps = np.append(azimuths[1:], azimuths[0] + 2 * math.pi) - azimuths
        widest = int(np.argmax(gaps))
        first, span = float(azimuths[(widest + 1) % len(azimuths)]), 2 * math.pi - float(gaps[widest])
        self.all_around = bool(gaps[widest] <= GAP)
        slack = max(0.0, MIN_SWAY - span) / 2
        self.covered = (first - slack, first + span + slack)

    def places(self, azimuths: np.ndarray, raised: np.ndarray) -> np.ndarray:
        """Return points [P, 3] about the centre; `raised` -1..1: lowest to highest of the cameras there."""
        raised = raised * self._spread
        elevations = _harmonics(azimuths) @ self._rise + raised
        elevations = np.clip(elevations, self.elevations.min(), self.elevations.max())
        distances = np.column_stack([_harmonics(azimuths), raised]) @ self._reach
        distances = np.clip(distances, *np.percentile(self.distances, [10, 90]))
        level = np.cos(elevations)
        directions = [level * np.cos(azimuths), level * np.sin(azimuths), np.sin(elevations)]
        return distances[:, None] * np.stack(directions, axis=1)


def _evenly(curve: np.ndarray, num: int) -> np.ndarray:
    """Return `num` points [num, 3] at equal distances along a closed curve [P, 3], whose ends coincide."""
    walked = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])
    stops = np.linspace(0.0, walked[-1], num, endpoint=False)
    return np.stack([np.interp(stops, walked, axis) for axis in curve.T], axis=1)


def _harmonics(azimuths: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(azimuths), np.cos(azimuths), np.sin(azimuths)], axis=1)


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
