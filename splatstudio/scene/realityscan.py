"""Read the internal and external camera parameters that RealityScan (RealityCapture) exports as CSV.

Focal lengths are those of 36 mm film, lengths on the picture parts of its longer side. Heading, pitch and
roll turn a camera that looks down with its top to the north: z is up. Of the tangential coefficients t2 is
OpenCV's p1 and t1 its p2. Source: RealityScan's help on camera math and export, and its own template of an
export for OpenCV.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from splatstudio.error_text import first_of
from splatstudio.scene.lens import Lens
from splatstudio.scene.posed_frames import (
    OPENGL_CAMERA,
    PosedFrame,
    PosedFrames,
    Values,
    focal_lens,
    rows_of,
    view_of,
)

NAME, FILM = "#name", 36.0  # mm
NEEDED = ("x", "y", "alt", "heading", "pitch", "roll", "f", "px", "py")
RENAMED = {"heading": "yaw", "f": "f_35mm", "px": "px_norm", "py": "py_norm"}  # since RealityScan 2
MOST_UPRIGHT = 200  # times as high as wide; more tells of degrees, each of which is 111 km


def read_realityscan(path: Path) -> PosedFrames:
    """Return what the file holds; ValueError for a column that is missing and a row that lacks a number."""
    frames = []
    for number, row in rows_of(path, NAME):
        values = Values(f"{path}, line {number},", _as_called_before(row))
        _refuse_other_columns(path, values.values)
        heading, pitch, roll = (np.deg2rad(values.number(name)) for name in ("heading", "pitch", "roll"))
        axes = _about("z", -heading) @ _about("x", pitch) @ _about("y", roll) @ OPENGL_CAMERA
        position = np.array([values.number(name) for name in ("x", "y", "alt")])
        frames.append(PosedFrame(values.text(NAME), view_of(values.error, axes, position), _lens_of(values)))
    if not frames:
        raise ValueError(f"{path} holds no camera: export the internal and external camera parameters again")
    _refuse_degrees(path, np.stack([np.linalg.inv(frame.viewmat)[:3, 3] for frame in frames]))
    return PosedFrames(tuple(frames), upright=True)


def _as_called_before(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row by the names of its columns from before RealityScan renamed some of them."""
    renamed = {new: old for old, new in RENAMED.items() if old not in row}
    return {renamed.get(name, name): value for name, value in row.items()}


def _refuse_other_columns(path: Path, row: Mapping[str, str]) -> None:
    lacking = [name for name in NEEDED if name not in row]
    if lacking:
        raise ValueError(
            f"{path} has no column {first_of(lacking, 3)}: export 'Internal/External camera parameters' from"
            " RealityScan, not another table"
        )


def _refuse_degrees(path: Path, positions: np.ndarray) -> None:
    """Raise ValueError for positions [C, 3] in degrees of longitude and latitude, with a height in meters."""
    width, depth, height = np.ptp(positions, axis=0)
    longitude, latitude = np.abs(positions[:, :2]).max(axis=0)
    if longitude <= 180 and latitude <= 90 and max(width, depth) * MOST_UPRIGHT < height:
        raise ValueError(
            f"{path} tells x and y in degrees, it seems: export the camera parameters again in a coordinate"
            " system in meters, as the local one (Euclidean) or UTM"
        )


def _lens_of(values: Values) -> Callable[[int, int], Lens]:
    """Return what gives the lens for a picture's size, which the table does not tell."""
    focal, px, py = (values.number(name) for name in ("f", "px", "py"))
    k1, k2, k3, k4, t1, t2 = (values.number(name, 0.0) for name in ("k1", "k2", "k3", "k4", "t1", "t2"))
    distortion = (k1, k2, t2, t1, k3) if k4 == 0 else (k1, k2, t2, t1, k3, k4)

    def lens_of(width: int, height: int) -> Lens:
        longer = max(width, height)
        center = 0.5 * width + px * longer, 0.5 * height + py * longer
        plain = focal_lens(values, (width, height), focal / FILM * longer, focal / FILM * longer, *center)
        return Lens(width, height, plain.fx, plain.fy, plain.cx, plain.cy, "brown", distortion, "BROWN")

    return lens_of


def _about(axis: str, angle: float) -> np.ndarray:
    """Return the rotation about a coordinate axis."""
    first, second = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    matrix = np.eye(3)
    matrix[first, first] = matrix[second, second] = np.cos(angle)
    matrix[first, second], matrix[second, first] = -np.sin(angle), np.sin(angle)
    return matrix
