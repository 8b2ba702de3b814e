"""Camera paths: key frames, the smooth curve through them, and paths made from how a scene was captured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, cast, overload

import numpy as np

from splatstudio.cameras.camera import Camera, look_at, rigid, rotation_of, similarity_scale

if TYPE_CHECKING:
    from splines.quaternion import UnitQuaternion

MAX_FRAMES = 1_000_000
MAX_SIZE = 16384  # px a side

VideoQuality = Literal["full", "small"]

MIN_SIDE, MAX_SIDE = 1280, 1920  # px, of the longer side of frames that have the photos' shape
ORBIT_KEYFRAMES = 24  # the curve through them keeps to the circle by 0.02 %, its speed by 1.2 %
THROUGH_KEYFRAMES = 48
DENSE = 2001  # points of a curve along which keyframes are spread evenly
GAP = math.radians(120)  # without a camera: beyond it a capture is not all around
MIN_SWAY = math.radians(20)  # of an orbit where all cameras stand on one spot
STEEP = math.radians(80)  # of elevation: beyond it a capture is one from above
ORIGIN = np.zeros(3)  # of a scene's frame: what the cameras look at
Z = np.array([0.0, 0.0, 1.0])


@dataclass(frozen=True, eq=False)
class Keyframe:
    """A view that the path passes through.

    `camera_to_world` [4, 4] float64 (OpenCV axes), `fov_y` the vertical field of view in radians, `seconds`
    the time from the keyframe before (from the last one where a loop closes), None for the path's default.
    Raises ValueError for what is not finite, no pose or no angle.
    """

    camera_to_world: np.ndarray
    fov_y: float
    seconds: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        pose = self.camera_to_world
        if not (pose.shape == (4, 4) and np.isfinite(pose).all()):
            raise ValueError("a keyframe's pose must be 4 x 4 finite numbers")
        if not np.abs(pose[:3, :3] @ pose[:3, :3].T - np.eye(3)).max() < 1e-3 or not np.linalg.det(pose) > 0:
            raise ValueError("a keyframe's pose must be a rotation and a position")
        if not 0 < self.fov_y < math.pi:
            raise ValueError(
                f"a field of view lies between 0 and 180 degrees, not {math.degrees(self.fov_y):g}"
            )
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(
                f"the time between two keyframes must be more than 0 seconds, not {self.seconds:g}"
            )


@dataclass(frozen=True)
class FrameFormat:
    """What to put in the place of a path's own size, rate and length; None keeps them.

    Args:
        width: Pixels; without --height the shape stays.
        height: Pixels; without --width the shape stays.
        fps: Frames a second.
        seconds: Length of the whole path.
    """

    width: int | None = None
    height: int | None = None
    fps: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class CameraPath:
    """Keyframes and how they are joined into frames.

    Positions and orientations follow Kochanek-Bartels splines of `tension` -1..1 (0: Catmull-Rom; 1: the
    camera slows down to a stop at each keyframe); time and field of view run monotonously between
    neighbors, so that nothing overshoots. `loop` leads from the last keyframe back to the first. Raises
    ValueError for sizes, rates and times that cannot be rendered.
    """

    keyframes: tuple[Keyframe, ...]
    loop: bool = False
    tension: float = 0.0
    default_seconds: float = 2.0
    width: int = 1280
    height: int = 720
    fps: float = 30.0

    def __post_init__(self) -> None:
        if not (1 <= self.width <= MAX_SIZE and 1 <= self.height <= MAX_SIZE):
            raise ValueError(
                f"frames are 1 to {MAX_SIZE} pixels wide and high, not {self.width} x {self.height}"
            )
        if not 0.01 <= self.fps <= 1000:
            raise ValueError(f"a path has 0.01 to 1000 frames a second, not {self.fps:g}")
        if not 0 < self.default_seconds < math.inf:
            raise ValueError(
                f"the time between two keyframes must be more than 0, not {self.default_seconds:g}"
            )
        if not -1 <= self.tension <= 1:
            raise ValueError(f"a path's tension lies between -1 and 1, not {self.tension:g}")
        if not self.duration * self.fps <= MAX_FRAMES:
            raise ValueError(f"a path of {self.duration:g} s at {self.fps:g} frames a second is too long")

    def __reduce__(self) -> tuple[type[CameraPath], tuple[object, ...]]:
        # What is derived does not travel to another process.
        return CameraPath, tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def arrivals(self) -> np.ndarray:
        """Return the second at which each keyframe is reached; in a loop also when the first comes again.

        A single keyframe is shown for its own time: [0, seconds].
        """
        seconds = [key.seconds or self.default_seconds for key in self.keyframes]
        steps = seconds[1:] + (seconds[:1] if self.loop or len(seconds) == 1 else [])
        return np.concatenate([[0.0], np.cumsum(steps)])

    @property
    def duration(self) -> float:
        """Return the length of the path in seconds, 0 without keyframes."""
        return float(self.arrivals[-1])

    @cached_property
    def frame_times(self) -> np.ndarray:
        """Return each frame's second: an open path ends with its last keyframe, a loop before it closes."""
        if not self.keyframes:
            return np.zeros(0)
        num = max(1, round(self.duration * self.fps))
        if self.loop or len(self.keyframes) == 1:
            return np.arange(num) * (self.duration / num)
        return np.linspace(0.0, self.duration, num + 1)

    def camera_at(self, seconds: float) -> Camera:
        """Return the camera at a time, which is clamped to 0..duration; at least one keyframe is needed."""
        assert self.keyframes, "a path without keyframes has no camera"
        pose, fov_y = self._curve.at(min(max(float(seconds), 0.0), self.duration))
        viewmat = rigid(pose[:3, :3].T, -pose[:3, :3].T @ pose[:3, 3])
        focal = self.height / (2.0 * math.tan(fov_y / 2.0))
        K = np.array([[focal, 0.0, self.width / 2.0], [0.0, focal, self.height / 2.0], [0.0, 0.0, 1.0]])
        return Camera(viewmat, K, self.width, self.height)

    def cameras(self) -> Sequence[Camera]:
        """Return the camera of each frame, made when it is asked for; none without keyframes."""
        return _FrameCameras(self)

    def transformed(self, similarity: np.ndarray) -> CameraPath:
        """Return this path after every point p of the world became `similarity` @ p, [4, 4]."""
        if np.array_equal(similarity, np.eye(4)):
            return self
        scale = similarity_scale(similarity)
        keyframes: list[Keyframe] = []
        for key in self.keyframes:
            pose = similarity @ key.camera_to_world
            pose[:3, :3] /= scale
            keyframes.append(replace(key, camera_to_world=pose))
        return replace(self, keyframes=tuple(keyframes))

    def formatted(self, wanted: FrameFormat) -> CameraPath:
        """Return this path with the size, the rate and the length that are asked for.

        A width or height alone keeps the shape of the frames. Raises ValueError like the constructor.
        """
        width = self.width if wanted.width is None else wanted.width
        height = self.height if wanted.height is None else wanted.height
        if wanted.height is None:
            height = max(1, round(width * self.height / self.width))
        elif wanted.width is None:
            width = max(1, round(height * self.width / self.height))
        path = replace(self, width=width, height=height, fps=self.fps if wanted.fps is None else wanted.fps)
        if wanted.seconds is None or not self.keyframes:
            return path
        if not 0 < wanted.seconds < math.inf:
            raise ValueError(f"a path must take more than 0 seconds, not {wanted.seconds:g}")
        ratio = wanted.seconds / self.duration
        keys = [replace(key, seconds=key.seconds * ratio) if key.seconds else key for key in self.keyframes]
        return replace(path, keyframes=tuple(keys), default_seconds=self.default_seconds * ratio)

    @cached_property
    def _curve(self) -> _Curve:
        return _Curve(self)


def keyframe_of(camera: Camera, *, seconds: float | None = None) -> Keyframe:
    """Return the keyframe that shows what `camera` sees, but for its principal point."""
    return Keyframe(camera.camera_to_world, camera.fov_y, seconds)


class _FrameCameras(Sequence[Camera]):
    """The cameras of a path's frames: all those of a long one would take seconds to make."""

    def __init__(self, path: CameraPath):
        self._path = path

    def __len__(self) -> int:
        return len(self._path.frame_times)

    @overload
    def __getitem__(self, index: int) -> Camera: ...
    @overload
    def __getitem__(self, index: slice) -> list[Camera]: ...
    def __getitem__(self, index: int | slice) -> Camera | list[Camera]:
        if isinstance(index, slice):
            return [self._path.camera_at(time) for time in self._path.frame_times[index]]
        return self._path.camera_at(float(self._path.frame_times[index]))


class _Curve:
    """The splines of a path of at least one keyframe, over the keyframe's number as a real parameter.

    A loop is unrolled by two keyframes at either end: every tangent within it then comes from true
    neighbors, and the curve closes smoothly.
    """

    def __init__(self, path: CameraPath):
        num, arrivals = len(path.keyframes), path.arrivals
        self._still = path.keyframes[0] if num == 1 else None
        if num == 1:
            return
        # Here alone: a rank of a training, which follows no path, does not need it.
        from splines import KochanekBartels, PiecewiseMonotoneCubic
        from splines.quaternion import KochanekBartels as RotationSpline

        if path.loop:
            numbers = np.arange(-2, num + 3)
            turns, within = np.divmod(numbers, num)
            times = arrivals[within] + turns * arrivals[-1]
        else:
            numbers = within = np.arange(num)
            times = arrivals
        keys = [path.keyframes[index] for index in within]
        quats = [_quaternion(key.camera_to_world[:3, :3]) for key in keys]
        tcb, grid = (path.tension, 0.0, 0.0), numbers.astype(float).tolist()
        self._last = float(num if path.loop else num - 1)
        self._number = PiecewiseMonotoneCubic(numbers.astype(float), grid=times.tolist())
        self._fov_y = PiecewiseMonotoneCubic([key.fov_y for key in keys], grid=grid)
        self._position = KochanekBartels([key.camera_to_world[:3, 3] for key in keys], grid=grid, tcb=tcb)
        self._rotation = RotationSpline(quats, grid=grid, tcb=tcb)

    def at(self, time: float) -> tuple[np.ndarray, float]:
        """Return the pose [4, 4] camera to world and the vertical field of view at a time of the path."""
        if self._still is not None:
            return self._still.camera_to_world, self._still.fov_y
        number = min(max(float(self._number.evaluate(time)), 0.0), self._last)
        quat = cast("UnitQuaternion", self._rotation.evaluate(number))  # one parameter gives one rotation
        pose = rigid(rotation_of(np.array(quat.wxyz)), self._position.evaluate(number))
        return pose, float(self._fov_y.evaluate(number))


def _quaternion(rotation: np.ndarray) -> UnitQuaternion:
    """Return the unit quaternion of a rotation [3, 3], with either sign: the spline picks the shorter way.

    It is the eigenvector of the largest eigenvalue of a symmetric matrix (Bar-Itzhack 2000), which holds for
    every angle and evens out rounding errors of the matrix.
    """
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation
    matrix = np.array(
        [
            [xx + yy + zz, zy - yz, xz - zx, yx - xy],
            [zy - yz, xx - yy - zz, xy + yx, xz + zx],
            [xz - zx, xy + yx, yy - xx - zz, yz + zy],
            [yx - xy, xz + zx, yz + zy, zz - xx - yy],
        ]
    )
    from splines.quaternion import UnitQuaternion

    w, x, y, z = np.linalg.eigh(matrix)[1][:, -1].tolist()
    return UnitQuaternion.from_unit_xyzw((x, y, z, w))


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
    so that it never shows what no photo shows. Raises ValueError without cameras and when they stand
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
        # Straight down there is no horizon: the photos' own upper edge is kept up.
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
        """Return points [P, 3] about the center; `raised` -1..1: lowest to highest of the cameras there."""
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
    """Return the path with frames of the photos' shape and, within MIN_SIDE and MAX_SIDE, their size."""
    longer = max(camera.width, camera.height)
    ratio = min(max(longer, MIN_SIDE), MAX_SIDE) / longer
    width, height = (max(2, round(side * ratio / 2) * 2) for side in (camera.width, camera.height))
    return replace(path, width=width, height=height)
