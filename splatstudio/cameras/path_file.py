"""Camera paths on disk, in the layout of nerfstudio's camera_path.json.

Poses are written camera to world with OpenGL axes (x right, y up, z backward) as 16 numbers row by row,
angles as vertical degrees. A file of ours holds the coordinates of the scene's files, whatever frame the path
is in. A file of nerfstudio's viewer holds those of nerfstudio's own normalized frame, a file of nerfview's
viewer the world's divided by its `scale_ratio` (10 unless the program said otherwise); neither says so.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.cameras.camera_path import MAX_FRAMES, CameraPath, Keyframe
from splatstudio.error_text import shown
from splatstudio.files.durable import write_json_durably
from splatstudio.files.inputs import read_input

OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])  # from OpenCV's camera axes, and back
MAX_BYTES = 512 << 20
DEFAULT_SECONDS = 2.0


def write_camera_path(
    path: Path,
    camera_path: CameraPath,
    scene_transform: np.ndarray | None = None,
    *,
    with_frames: bool = True,
) -> None:
    """Write `camera_path` to `path`, which holds the old or the new file at any time.

    `scene_transform` [4, 4] is the similarity from the coordinates of the scene's files to the path's frame
    (`Scene.transform`, `Model.transform`); None: they are the same. `read_camera_path` returns the path
    exactly, with a transform up to rounding. Without the camera of every frame, which a long path takes
    seconds to compute, it can be edited but not be rendered by nerfstudio. Raises OSError when the disk
    refuses.
    """
    if scene_transform is not None:
        camera_path = camera_path.transformed(np.linalg.inv(scene_transform))
    aspect = camera_path.width / camera_path.height
    keys = camera_path.keyframes
    values = {
        "default_fov": math.degrees(keys[0].fov_y) if keys else 50.0,
        "default_transition_sec": camera_path.default_seconds,
        "keyframes": [
            {
                "matrix": (key.camera_to_world @ OPENGL).ravel().tolist(),
                "fov": math.degrees(key.fov_y),
                "fov_y_radians": key.fov_y,
                "aspect": aspect,
                "override_transition_enabled": key.seconds is not None,
                "override_transition_sec": key.seconds,
                "name": key.name,
            }
            for key in keys
        ],
        "camera_type": "perspective",
        "render_height": camera_path.height,
        "render_width": camera_path.width,
        "fps": camera_path.fps,
        "seconds": camera_path.duration,
        "is_cycle": camera_path.loop,
        "smoothness_value": camera_path.tension,
        "camera_path": [
            {
                "camera_to_world": (camera.camera_to_world @ OPENGL).ravel().tolist(),
                "fov": math.degrees(camera.fov_y),
                "aspect": aspect,
            }
            for camera in (camera_path.cameras() if with_frames else ())
        ],
    }
    write_json_durably(path, values)


def read_camera_path(
    path: Path, scene_transform: np.ndarray | None = None, *, scale_ratio: float = 1.0
) -> CameraPath:
    """Return the path in a camera_path.json of ours, of nerfstudio or of nerfview.

    `scene_transform` [4, 4] as for writing; `scale_ratio` multiplies the file's positions first (10 for files
    of nerfview's viewer). A file without keyframes gives a path with one keyframe a frame. Raises ValueError
    with one sentence, naming the file and the record, for everything else.
    """
    values = _json_object(path)
    try:
        camera_path = _path_of(values)
    except ValueError as error:
        raise ValueError(f"{path} is no camera path that can be used: {error}") from error
    if not 0 < scale_ratio < math.inf:
        raise ValueError(f"the scale of a camera path's positions must be above 0, not {scale_ratio:g}")
    if scale_ratio != 1.0:
        camera_path = camera_path.transformed(np.diag([scale_ratio, scale_ratio, scale_ratio, 1.0]))
    return camera_path if scene_transform is None else camera_path.transformed(scene_transform)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"{path} is no camera path: it has {size / 1e6:.0f} MB")
        values = json.loads(read_input(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a JSON file, or a damaged one") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no camera path: expected a JSON object with keyframes or camera_path")
    return values


def _path_of(values: dict[str, Any]) -> CameraPath:
    kind = values.get("camera_type", "perspective")
    if kind not in ("perspective", "pinhole"):
        raise ValueError(f"its camera_type is {shown(kind)}; perspective can be rendered")
    stops, frames = _records(values, "keyframes"), _records(values, "camera_path")
    width, height = (_whole(values, f"render_{side}", default) for side, default in _SIZES)
    fps = _number(values, "fps", 30.0)
    loop = values.get("is_cycle", False) is True
    if not stops and not frames:
        raise ValueError("it has neither keyframes nor camera_path")
    # A path can only be edited by its keyframes; a lone one beside many frames is no description of them,
    # unless we have written it: then the camera stands still in all of them.
    lone = len(stops) == 1 and len(frames) > 1 and "fov_y_radians" not in stops[0]
    if stops and not lone:
        default = values.get("default_fov")
        keys = [_keyframe(stop, "matrix", f"keyframe {i}", default) for i, stop in enumerate(stops)]
        seconds = values.get("default_transition_sec")
        if seconds is None:
            # Older files know only the whole time.
            parts = len(keys) if loop or len(keys) == 1 else len(keys) - 1
            seconds = _number(values, "seconds", DEFAULT_SECONDS * parts) / parts
        tension = _number(values, "smoothness_value", 0.0)
        default_seconds = _number({"default_transition_sec": seconds}, "default_transition_sec", None)
    else:
        keys = [_keyframe(frame, "camera_to_world", f"frame {i}", None) for i, frame in enumerate(frames)]
        tension, default_seconds = 0.0, 1.0 / fps if fps > 0 else math.nan
    return CameraPath(tuple(keys), loop, tension, default_seconds, width, height, fps)


_SIZES = (("width", 1280), ("height", 720))


def _records(values: dict[str, Any], key: str) -> list[dict[str, Any]]:
    records = values.get(key) or []
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"its {key} is no list of objects")
    if len(records) > MAX_FRAMES:
        raise ValueError(f"its {key} has {len(records)} entries, more than {MAX_FRAMES}")
    return records


def _keyframe(record: dict[str, Any], key: str, which: str, default_fov: object) -> Keyframe:
    try:
        fov = math.radians(_number({"fov": record.get("fov", default_fov)}, "fov", None))
        exact = record.get("fov_y_radians")
        if isinstance(exact, float) and abs(exact - fov) < 1e-12:
            fov = exact  # degrees do not hold every value of radians
        seconds = None
        if record.get("override_transition_enabled") and record.get("override_transition_sec") is not None:
            seconds = _number(record, "override_transition_sec", None)
        name = record.get("name", "")
        pose = _pose(record.get(key), key) @ OPENGL
        return Keyframe(pose, fov, seconds, name[:200] if isinstance(name, str) else "")
    except ValueError as error:
        raise ValueError(f"{which}: {error}") from error


def _pose(numbers: object, key: str) -> np.ndarray:
    """Return the 4 x 4 matrix of 16 numbers, which may be nested, or text (older viewers, by columns)."""
    by_columns = isinstance(numbers, str)
    if isinstance(numbers, str):
        try:
            numbers = json.loads(numbers)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"its {key} is no list of 16 numbers") from error
    if isinstance(numbers, list) and all(isinstance(row, list) for row in numbers):
        numbers = [number for row in numbers for number in row]
    if not isinstance(numbers, list) or len(numbers) != 16:
        raise ValueError(f"its {key} is no list of 16 numbers")
    pose = np.array([_finite(number, key) for number in numbers]).reshape(4, 4)
    last = np.array([0.0, 0.0, 0.0, 1.0])
    rows, columns = np.allclose(pose[3], last), np.allclose(pose[:, 3], last)
    if not (rows or columns):
        raise ValueError(f"its {key} is no pose: the last row must be 0 0 0 1")
    if not rows or (columns and by_columns):
        pose = pose.T.copy()
    return _rigid(pose, key)


def _rigid(pose: np.ndarray, key: str) -> np.ndarray:
    """Return a pose whose axes have unit length; programs that store few digits or a scale are common."""
    pose[3] = [0.0, 0.0, 0.0, 1.0]
    scale = np.cbrt(np.linalg.det(pose[:3, :3]))
    if not scale > 1e-12:
        raise ValueError(f"its {key} is no pose: the axes are not right-handed")
    turned = pose[:3, :3] / scale
    error = np.abs(turned @ turned.T - np.eye(3)).max()
    if not error < 1e-2:
        raise ValueError(f"its {key} is no pose: the axes are not at right angles and of one length")
    if error > 1e-9 or abs(scale - 1.0) > 1e-9:
        left, _, right = np.linalg.svd(turned)
        pose[:3, :3] = left @ right
    return pose


def _number(values: dict[str, Any], key: str, default: float | None) -> float:
    value = values.get(key)
    if value is None and default is not None:
        return default
    return _finite(value, key)


def _whole(values: dict[str, Any], key: str, default: int) -> int:
    number = _number(values, key, default)
    if number != int(number):
        raise ValueError(f"its {key} is {number:g}, no whole number")
    return int(number)


def _finite(value: object, key: str) -> float:
    # An integer beyond the range of floats would raise OverflowError.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"its {key} is {shown(value)}, no number")
    return float(value)
