"""Camera paths: keyframes that a smooth curve joins, and the camera of every frame along it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast, overload

import numpy as np

from splatstudio.cameras.camera import Camera, similarity_scale

if TYPE_CHECKING:
    from splines.quaternion import UnitQuaternion

MAX_FRAMES = 1_000_000
MAX_SIZE = 16384  # px a side


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


VideoQuality = Literal["full", "small"]


@dataclass(frozen=True)
class FrameFormat:
    """What to put in the place of a path's own size, rate and length; None keeps them.

    Args:
        width: Pixels; with --height left away the shape stays.
        height: Pixels; with --width left away the shape stays.
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
    neighbours, so that nothing overshoots. `loop` leads from the last keyframe back to the first. Raises
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
        viewmat = np.eye(4)
        viewmat[:3, :3] = pose[:3, :3].T
        viewmat[:3, 3] = -pose[:3, :3].T @ pose[:3, 3]
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


def keyframe_of(camera: Camera, *, seconds: float | None = None, name: str = "") -> Keyframe:
    """Return the keyframe that shows what `camera` sees, but for its principal point."""
    return Keyframe(camera.camera_to_world, camera.fov_y, seconds, name)


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
    neighbours, and the curve closes smoothly.
    """

    def __init__(self, path: CameraPath):
        num, arrivals = len(path.keyframes), path.arrivals
        self._still = path.keyframes[0] if num == 1 else None
        if num == 1:
            return
        # Here alone: a rank of a training, which follows no path, shall not need it.
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
        pose = np.eye(4)
        quat = cast("UnitQuaternion", self._rotation.evaluate(number))  # one parameter gives one rotation
        pose[:3, :3] = _rotation(np.array(quat.wxyz))
        pose[:3, 3] = self._position.evaluate(number)
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


def _rotation(quat: np.ndarray) -> np.ndarray:
    """Return the rotation [3, 3] of a quaternion [4] wxyz of about unit length."""
    w, x, y, z = quat / np.linalg.norm(quat)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
