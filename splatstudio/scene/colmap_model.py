"""The records of a COLMAP model, whichever of its two encodings they come from, and their checks."""

from __future__ import annotations

import codecs
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.cameras.camera import rigid, rotation_of
from splatstudio.files.inputs import open_input, read_input
from splatstudio.scene.capture import MAX_COORDINATE
from splatstudio.scene.lens import Lens
from splatstudio.scene.lens_models import LensKind

WHOLE = re.compile(r"-?\d+(\.0*)?")


@dataclass(frozen=True)
class ColmapCameraModel:
    """One of COLMAP's camera models: its number of focal lengths and coefficients, and what lens it is."""

    name: str
    kind: LensKind
    num_focal: int
    num_coefficients: int = 0

    @property
    def num_params(self) -> int:
        """Return the number of its parameters: focal lengths, center, coefficients."""
        return self.num_focal + 2 + self.num_coefficients


# By the number that COLMAP 4.2 gives them in its files.
CAMERA_MODELS = {
    0: ColmapCameraModel("SIMPLE_PINHOLE", "brown", 1),
    1: ColmapCameraModel("PINHOLE", "brown", 2),
    2: ColmapCameraModel("SIMPLE_RADIAL", "brown", 1, 1),
    3: ColmapCameraModel("RADIAL", "brown", 1, 2),
    4: ColmapCameraModel("OPENCV", "brown", 2, 4),
    5: ColmapCameraModel("OPENCV_FISHEYE", "fisheye", 2, 4),
    6: ColmapCameraModel("FULL_OPENCV", "rational", 2, 8),
    7: ColmapCameraModel("FOV", "fov", 2, 1),
    8: ColmapCameraModel("SIMPLE_RADIAL_FISHEYE", "fisheye", 1, 1),
    9: ColmapCameraModel("RADIAL_FISHEYE", "fisheye", 1, 2),
    10: ColmapCameraModel("THIN_PRISM_FISHEYE", "thin_prism_fisheye", 2, 8),
    11: ColmapCameraModel("RAD_TAN_THIN_PRISM_FISHEYE", "rad_tan_thin_prism_fisheye", 2, 12),
    12: ColmapCameraModel("SIMPLE_DIVISION", "division", 1, 1),
    13: ColmapCameraModel("DIVISION", "division", 2, 1),
    14: ColmapCameraModel("SIMPLE_FISHEYE", "fisheye", 1),
    15: ColmapCameraModel("FISHEYE", "fisheye", 2),
    16: ColmapCameraModel("EUCM", "eucm", 2, 2),
    17: ColmapCameraModel("EQUIRECTANGULAR", "equirectangular", 0),  # its parameters are the picture's size
}
MODELS_BY_NAME = {model.name: model for model in CAMERA_MODELS.values()}
SMALLEST_IMAGE = 73  # bytes of a record of images.bin, with a name of no letters and no observations
MAX_SIDE = 100_000  # pixels; no camera has more, a damaged file often does


@dataclass(frozen=True, eq=False)
class ColmapImage:
    """One registered image: world-to-camera [4, 4] and the id of its camera."""

    name: str
    camera_id: int
    viewmat: np.ndarray


@dataclass(frozen=True, eq=False)
class ColmapModel:
    """A sparse model: cameras by id, images in file order, points sorted by id."""

    lenses: dict[int, Lens]
    images: list[ColmapImage]
    points: np.ndarray  # [P, 3] float64
    colors: np.ndarray  # [P, 3] uint8
    notes: tuple[str, ...] = ()


def num_registered(model: Path) -> int:
    """Return how many images the model in the folder `model` has registered; 0 where no file tells it.

    Only a count is read of a binary file, so that a folder of models is looked through in a moment.
    """
    try:
        binary, text = model / "images.bin", model / "images.txt"
        if not binary.exists():
            lines = read_input(text).removeprefix(codecs.BOM_UTF8).rstrip().split(b"\n")
            lines = [line for line in lines if not line.startswith(b"#")]
            if not any(lines):
                return 0
            # A line of observations, which may be empty, follows each image's; some programs leave them out.
            second = b"".join(lines[1:2]).decode("utf-8", "replace")
            return (len(lines) + 1) // 2 if are_observations(second) else len(lines)
        with open_input(binary) as file:
            (count,) = struct.unpack("<Q", file.read(8))
        return count if count <= binary.stat().st_size // SMALLEST_IMAGE else 0
    except (OSError, struct.error):
        return 0


def are_observations(line: str) -> bool:
    """Return whether a line holds x, y and the number of a point, any times; only the first are looked at."""
    words = line.split()
    return len(words) % 3 == 0 and all(WHOLE.fullmatch(word) for word in words[2:12:3])


def unsupported_model(model: object, where: str) -> ValueError:
    """Return the error for a camera model that is not read; `where` names file and record."""
    return ValueError(
        f"{where} has the camera model {model}, which is not supported ({', '.join(MODELS_BY_NAME)} are); "
        "cut its pictures into views of a pinhole camera first, and open those"
    )


def colmap_lens(model: ColmapCameraModel, size: tuple[int, int], params: list[float], where: str) -> Lens:
    """Return the lens of one camera record; raises ValueError, naming `where`, for impossible values."""
    width, height = size
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise ValueError(f"{where} has the image size {width} x {height}: the file is damaged, make it again")
    if not all(abs(p) < MAX_COORDINATE for p in params):
        raise ValueError(
            f"{where} has a parameter that is not a finite number: {params}; make the model again"
        )
    if model.kind == "equirectangular":
        return panorama(width, height)
    fx, fy = params[0], params[model.num_focal - 1]
    cx, cy, *coefficients = params[model.num_focal :]
    if not (fx > 0 and fy > 0):
        raise ValueError(
            f"{where} has the focal length {fx:g} x {fy:g}, which is not positive; make the model again"
        )
    if model.kind == "brown" and model.num_focal == 1 and coefficients:
        coefficients = [*[*coefficients, 0.0][:2], 0.0, 0.0, 0.0]
    elif model.kind in ("brown", "fisheye") and coefficients:
        coefficients = [*coefficients, *[0.0] * 4][: 5 if model.kind == "brown" else 4]
    return Lens(width, height, fx, fy, cx, cy, model.kind, tuple(coefficients), model.name)


def panorama(width: int, height: int) -> Lens:
    """Return the lens of a panorama that shows all directions by longitude and latitude."""
    focal = width / (2 * np.pi), height / np.pi
    return Lens(width, height, *focal, 0.5 * width, 0.5 * height, "equirectangular", (), "EQUIRECTANGULAR")


def colmap_pose(quaternion: np.ndarray, translation: np.ndarray, where: str) -> np.ndarray:
    """Return the world-to-camera [4, 4] of a quaternion wxyz of any length and a translation.

    Raises ValueError, naming `where`, when one is not finite or the quaternion is zero.
    """
    if not (np.abs(translation).max() < MAX_COORDINATE and np.abs(quaternion).max() < MAX_COORDINATE):
        raise ValueError(f"{where} has a pose that is not finite; remove the image from the model")
    if not np.linalg.norm(quaternion) > 1e-9:
        raise ValueError(f"{where} has a zero quaternion as its rotation; remove the image from the model")
    return rigid(rotation_of(quaternion), translation)
