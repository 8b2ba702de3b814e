"""The JSON of instant-ngp, nerfstudio and Blender: frames, poses and intrinsics, each value checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.scene.capture import MAX_COORDINATE, read_file, rigid
from splatstudio.scene.colmap_model import MAX_SIDE
from splatstudio.scene.lens import Lens

PINHOLE_MODELS = ("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
FISHEYE_MODELS = ("OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE")
ROTATION_TOLERANCE = 0.02  # of the matrix's scale; poses are printed with few digits by some programs


@dataclass(frozen=True)
class Record:
    """A JSON object and the place it stands at, for messages; `outer` supplies what it does not say."""

    where: str
    values: dict[str, Any]
    outer: dict[str, Any]

    def get(self, name: str) -> Any:
        """Return the value `name`, the frame's own before the file's, or None."""
        value = self.values.get(name)
        return self.outer.get(name) if value is None else value

    def error(self, what: str) -> ValueError:
        """Return the error that says `what` is wrong here and what to do."""
        return ValueError(f"{self.where} {what}; correct the file or remove the frame")

    def number(self, name: str) -> float | None:
        """Return a finite number, or None when there is none; ValueError when it is something else."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < MAX_COORDINATE:
            raise self.error(f"has {name} = {str(value)[:60]!r}, which is not a number")
        return float(value)

    def text(self, name: str) -> str | None:
        """Return a text, or None when there is none; ValueError when it is something else."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(f"has {name} = {str(value)[:60]!r}, which is not a text")
        return value


def read_frames(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Return the file's own values and its frames; ValueError when it is no JSON or has no frames."""
    data = read_file(path, "the file")
    try:
        top = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}; repair the file or make it again"
        ) from error
    except (ValueError, RecursionError) as error:  # bytes that are no text, endless numbers or brackets
        raise ValueError(f"{path} is not valid JSON: it is no text in UTF-8 or nested without end") from error
    frames = top.get("frames") if isinstance(top, dict) else None
    if not isinstance(frames, list) or not frames:
        raise ValueError(
            f"{path} has no frames: it must hold a list `frames` with file_path and transform_matrix"
        )
    records = []
    for number, frame in enumerate(frames, 1):
        where = f"{path}, frame {number},"
        if not isinstance(frame, dict):
            raise ValueError(f"{where} is not an object with file_path and transform_matrix")
        record = Record(where, frame, top)
        if not frame.get("file_path") or record.text("file_path") is None:
            raise ValueError(f"{where} has no file_path")
        records.append(Record(f"{path}, frame {number} ({frame['file_path']}),", frame, top))
    return top, records


def frame_pose(record: Record) -> np.ndarray:
    """Return world to camera [4, 4] (OpenCV axes) from a frame's camera-to-world matrix (OpenGL axes).

    Raises ValueError when `transform_matrix` is not a finite 4 x 4 (or 3 x 4) rotation and shift.
    """
    matrix = matrix_3x4(record.get("transform_matrix"))
    if matrix is None:
        raise record.error("has no transform_matrix of 4 x 4 numbers")
    if not np.abs(matrix).max() < MAX_COORDINATE:
        raise record.error("has a transform_matrix that is not finite")
    axes = matrix[:, :3] * np.array([1.0, -1.0, -1.0])
    scale = np.cbrt(np.linalg.det(axes))
    if not scale > 1e-9:
        raise record.error("has a transform_matrix that is no rotation (it mirrors or is flat)")
    u, _, vt = np.linalg.svd(axes / scale)
    if not np.abs(axes / scale - u @ vt).max() < ROTATION_TOLERANCE:
        raise record.error("has a transform_matrix that is no rotation (it shears)")
    rotation = (u @ vt).T
    return rigid(rotation, -rotation @ matrix[:, 3])


def matrix_3x4(value: Any) -> np.ndarray | None:
    """Return the upper three rows of a JSON matrix of 3 x 4 or 4 x 4 numbers, or None when it is none."""
    rows = value if isinstance(value, list) and len(value) in (3, 4) else []
    plain = all(
        isinstance(row, list)
        and len(row) == 4
        and all(isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e300 for x in row)
        for row in rows
    )
    # NaN fails the comparison above, so it is reported as a wrong matrix too.
    return np.array(rows[:3], dtype=np.float64) if rows and plain else None


def frame_lens(record: Record) -> Lens | float:
    """Return the lens of a frame, or its horizontal angle of view (radians) where the size is not told.

    Raises ValueError when neither a focal length nor an angle is told, or a value is impossible.
    """
    fisheye = _is_fisheye(record)
    width, height = record.number("w"), record.number("h")
    fx, fy = record.number("fl_x"), record.number("fl_y")
    angle_x, angle_y = record.number("camera_angle_x"), record.number("camera_angle_y")
    if fx is None and angle_x is None:
        raise record.error("has no intrinsics: neither the frame nor the file has fl_x or camera_angle_x")
    for name, angle in (("camera_angle_x", angle_x), ("camera_angle_y", angle_y)):
        if angle is not None and fx is None and not 0 < angle < math.pi:
            raise record.error(f"has {name} = {angle:g}; it must lie between 0 and pi (radians)")
    if width is None or height is None:
        if fx is None and angle_x is not None and not fisheye:
            return angle_x
        raise record.error("has a focal length but not the picture's size w and h")
    if not (
        1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width == int(width) and height == int(height)
    ):
        raise record.error(f"has the image size {width:g} x {height:g}, which is impossible")
    if fx is None:
        assert angle_x is not None
        fx = 0.5 * width / math.tan(0.5 * angle_x)
        fy = 0.5 * height / math.tan(0.5 * angle_y) if fy is None and angle_y is not None else fy
    fy = fx if fy is None else fy
    if not (fx > 0 and fy > 0):
        raise record.error(f"has the focal length {fx:g} x {fy:g}, which is not positive")
    cx, cy = record.number("cx"), record.number("cy")
    k1, k2, k3, k4, p1, p2 = (record.number(name) or 0.0 for name in ("k1", "k2", "k3", "k4", "p1", "p2"))
    if k4 != 0 and not fisheye:
        raise record.error(f"has the distortion k4 = {k4:g}, which only fisheye cameras may have")
    return Lens(
        width=int(width),
        height=int(height),
        fx=fx,
        fy=fy,
        cx=0.5 * width if cx is None else cx,
        cy=0.5 * height if cy is None else cy,
        kind="fisheye" if fisheye else "brown",
        distortion=(k1, k2, k3, k4) if fisheye else (k1, k2, p1, p2, k3),
        model=record.text("camera_model") or ("OPENCV_FISHEYE" if fisheye else "OPENCV"),
    )


def _is_fisheye(record: Record) -> bool:
    model = record.text("camera_model") or (
        "OPENCV_FISHEYE" if record.get("is_fisheye") is True else "OPENCV"
    )
    if model in FISHEYE_MODELS:
        return True
    if model not in PINHOLE_MODELS:
        raise ValueError(
            f"{record.where} has the camera_model {model!r}, which is not supported "
            f"({', '.join(PINHOLE_MODELS + FISHEYE_MODELS)} are); undistort the images to a pinhole first"
        )
    return False
