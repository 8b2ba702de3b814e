"""The lens of a frame of transforms.json, by all the names that programs and people give its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.error_text import first_of
from splatstudio.files.inputs import can_be_path
from splatstudio.scene.capture import MAX_COORDINATE
from splatstudio.scene.colmap_model import MAX_SIDE, panorama
from splatstudio.scene.lens import Lens
from splatstudio.scene.photo import picture_header

PINHOLE_MODELS = ("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "PERSPECTIVE")
PANORAMA = "EQUIRECTANGULAR"
# Lenses of instant-ngp (its common_device.cuh) that are not read: what they are, and what to do.
UNSUPPORTED = {
    "ftheta_p0": ("an f-theta lens", "undistort the images to a pinhole first"),
    "orthographic": ("a camera without perspective", "use pictures of a pinhole camera"),
    "equirectangular": (
        "a panorama whose rows are evenly spaced by the sine of their latitude",
        "write latlong in its place if the photos are panoramas as usual, of evenly spaced latitudes",
    ),
}
FOCAL = ("fl_x", "fl_y")
ANGLES = ("camera_angle_x", "camera_angle_y", "x_fov", "y_fov")
DISTORTION = ("k1", "k2", "k3", "k4", "p1", "p2")  # also nerfstudio's order in distortion_params
MOST_KEYS = 8  # that are named
FISHEYE_MODELS = ("OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE")


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

    def error(self, what: str, *names: str) -> ValueError:
        """Return the error that says `what` is wrong here and what to do; `names` are the values that are."""
        is_own = not names or any(name in self.values for name in names)
        return ValueError(f"{self.where} {what}; correct the file{' or remove the frame' if is_own else ''}")

    def number(self, name: str) -> float | None:
        """Return a finite number, or None when there is none; ValueError when it is something else."""
        value = self.get(name)
        if value is None:
            return None
        try:
            # As text, too: nerfstudio writes RealityScan's coefficients so.
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) < MAX_COORDINATE:
            raise self.error(f"has {name} = {str(value)[:60]!r}, which is not a number", name)
        return number

    def text(self, name: str) -> str | None:
        """Return a text, or None when there is none; ValueError when it is something else."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(f"has {name} = {str(value)[:60]!r}, which is not a text", name)
        if value is not None and not can_be_path(value):
            raise self.error(f"has {name} = {value[:60]!r}, which no file is called", name)
        return value


def records_of(path: Path, frames: list[dict[str, Any]], top: dict[str, Any]) -> list[Record]:
    """Return a record for each frame, in which its intrinsics have nerfstudio's names.

    Raises ValueError for a frame without a file_path, a K with skew, and distortion_params that are none.
    """
    file = _with_usual_names(Record(f"{path}", top, {}))
    others = {name: value for name, value in file.items() if name not in (*FOCAL, *ANGLES)}
    records = []
    for number, frame in enumerate(frames, 1):
        where = f"{path}, frame {number},"
        if not frame.get("file_path") or Record(where, frame, {}).text("file_path") is None:
            raise ValueError(f"{where} has no file_path")
        record = Record(f"{path}, frame {number} ({frame['file_path']}),", frame, {})
        own = _with_usual_names(record)
        # Angles of the frame's own go before focal lengths of the file.
        by_angle = any(name in own for name in ANGLES) and not any(name in own for name in FOCAL)
        records.append(Record(record.where, own, others if by_angle else file))
    return records


def _with_usual_names(record: Record) -> dict[str, Any]:
    """Return the values, those that fx, fy, K and distortion_params tell as fl_x, fl_y, cx, cy, k1 to p2."""
    values = {name: value for name, value in record.values.items() if value is not None}
    told: dict[str, Any] = {}
    for name, usual in (("fx", "fl_x"), ("fy", "fl_y")):
        if name in values:
            told[usual] = values[name]
    numbers = _numbers(values.get("K"), 9) or _numbers(values.get("K"), 16)
    if numbers is not None:
        matrix = np.reshape(numbers, (round(len(numbers) ** 0.5), -1))[:3, :3]
        (fx, skew, cx), (_, fy, cy), _ = (matrix.T if matrix[2, :2].any() else matrix).tolist()
        if abs(skew) > 1e-3 * abs(fx):
            raise ValueError(
                f"{record.where} has a K with the skew {skew:g}, which is not supported; undistort the images"
                " to a pinhole with square pixels first"
            )
        told |= {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy}
    if "distortion_params" in values:
        numbers = _numbers(values["distortion_params"], len(DISTORTION))
        if numbers is None:
            raise ValueError(
                f"{record.where} has distortion_params that are not the {len(DISTORTION)} numbers"
                f" {', '.join(DISTORTION)}; correct the file"
            )
        values |= dict(zip(DISTORTION, numbers, strict=True))
    return told | values


def _numbers(value: Any, num: int) -> list[float] | None:
    """Return the `num` numbers of a list, or of a list of rows, or None when it is none."""
    try:
        numbers = np.array(value, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers.tolist() if len(numbers) == num and np.isfinite(numbers).all() else None


def frame_lens(record: Record, picture: Path) -> Lens | float:
    """Return the lens of a frame, or its horizontal angle of view (radians) where that is all that is told.

    The file's header of `picture` tells the size where a focal length is told without one. Raises ValueError
    when neither a focal length nor an angle is told, or a value is impossible.
    """
    fisheye = is_fisheye(record)
    if _model_of(record) == PANORAMA:
        header = picture_header(picture)
        return panorama(header.width, header.height)
    width, height = record.number("w"), record.number("h")
    fx, fy = record.number("fl_x"), record.number("fl_y")
    angle_x, angle_y = _angle(record, "x"), _angle(record, "y")
    if all(told is None for told in (fx, fy, angle_x, angle_y)):
        raise _no_intrinsics(record)
    for name, angle in (("camera_angle_x", angle_x), ("camera_angle_y", angle_y)):
        if angle is not None and fx is None and not 0 < angle < math.pi:
            raise record.error(f"has {name} = {angle:g}; it must lie between 0 and pi (radians)", *ANGLES)
    if width is None or height is None:
        if fx is None and fy is None and angle_x is not None and not fisheye:
            return angle_x
        header = picture_header(picture)
        width, height = header.width, header.height
    if not (
        1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width == int(width) and height == int(height)
    ):
        raise record.error(f"has the image size {width:g} x {height:g}, which is impossible", "w", "h")
    if fx is None and angle_x is not None:
        fx = 0.5 * width / math.tan(0.5 * angle_x)
        fy = 0.5 * height / math.tan(0.5 * angle_y) if fy is None and angle_y is not None else fy
    elif fx is None and fy is None and angle_y is not None:
        fy = 0.5 * height / math.tan(0.5 * angle_y)
    fx, fy = fx if fx is not None else fy, fy if fy is not None else fx
    assert fx is not None and fy is not None
    if not (fx > 0 and fy > 0):
        raise record.error(f"has the focal length {fx:g} x {fy:g}, which is not positive", *FOCAL, *ANGLES)
    cx, cy = record.number("cx"), record.number("cy")
    k1, k2, k3, k4, p1, p2 = (record.number(name) or 0.0 for name in DISTORTION)
    # The fourth power of r^2 is Metashape's, whose cameras nerfstudio passes on as they are.
    brown = (k1, k2, p1, p2, k3) if k4 == 0 else (k1, k2, p1, p2, k3, k4)
    return Lens(
        width=int(width),
        height=int(height),
        fx=fx,
        fy=fy,
        cx=0.5 * width if cx is None else cx,
        cy=0.5 * height if cy is None else cy,
        kind="fisheye" if fisheye else "brown",
        distortion=(k1, k2, k3, k4) if fisheye else brown,
        model=_model_of(record),
    )


def _no_intrinsics(record: Record) -> ValueError:
    if record.get("K") is not None:  # and nothing came of it
        return record.error("has a K that is no matrix of 3 x 3 numbers", "K")
    own, file = (sorted(values.keys() - {"frames"}) for values in (record.values, record.outer))
    return ValueError(
        f"{record.where} has no intrinsics: fl_x, camera_angle_x, fx or K is neither in the frame (which has"
        f" {first_of(own, MOST_KEYS)}) nor in the file ({first_of(file, MOST_KEYS) or 'nothing'});"
        " write fl_x, or camera_angle_x, into the file"
    )


def _angle(record: Record, axis: str) -> float | None:
    """Return the angle of view along an axis (radians); instant-ngp knows it in degrees, too."""
    angle, degrees = record.number(f"camera_angle_{axis}"), record.number(f"{axis}_fov")
    return math.radians(degrees) if angle is None and degrees is not None else angle


def _has(record: Record, name: str) -> bool:
    value = record.get(name)
    return value is not None and value is not False


def _model_of(record: Record) -> str:
    """Return the name of the camera model, in capitals as COLMAP has it."""
    if model := record.text("camera_model"):
        return model.upper()
    if _has(record, "latlong"):  # instant-ngp's
        return PANORAMA
    return "OPENCV_FISHEYE" if record.get("is_fisheye") is True else "OPENCV"


def is_fisheye(record: Record) -> bool:
    """Return whether the frame is a fisheye's; ValueError where its camera is not supported."""
    for name, (what, advice) in UNSUPPORTED.items():
        if _has(record, name):
            raise ValueError(f"{record.where} has {name}, {what}, which is not supported; {advice}")
    model = _model_of(record)
    if model in FISHEYE_MODELS:
        return True
    if model not in (*PINHOLE_MODELS, PANORAMA):
        known = ", ".join((*PINHOLE_MODELS, *FISHEYE_MODELS, PANORAMA))
        raise ValueError(
            f"{record.where} has the camera_model {model!r}, which is not supported ({known} are);"
            " undistort the images to a pinhole first"
        )
    return False
