"""The records of a COLMAP model, whichever of its two encodings they come from, and their checks."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.files.inputs import open_input, read_input
from splatstudio.scene.capture import MAX_COORDINATE
from splatstudio.scene.lens import Lens

# Number, name and parameter count of the models in COLMAP's src/colmap/sensor/models.h.
CAMERA_MODELS = {
    0: ("SIMPLE_PINHOLE", 3),
    1: ("PINHOLE", 4),
    2: ("SIMPLE_RADIAL", 4),
    3: ("RADIAL", 5),
    4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8),
    8: ("SIMPLE_RADIAL_FISHEYE", 4),
    9: ("RADIAL_FISHEYE", 5),
}
UNSUPPORTED_MODELS = {
    6: "FULL_OPENCV",
    7: "FOV",
    10: "THIN_PRISM_FISHEYE",
    11: "RAD_TAN_THIN_PRISM_FISHEYE",
}
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
            lines = read_input(text).split(b"\n")
            # A line of observations, which may be empty, follows each image's.
            return (sum(not line.startswith(b"#") for line in lines) - (not lines[-1])) // 2
        with open_input(binary) as file:
            (count,) = struct.unpack("<Q", file.read(8))
        return count if count <= binary.stat().st_size // SMALLEST_IMAGE else 0
    except (OSError, struct.error):
        return 0


def unsupported_model(model: object, where: str) -> ValueError:
    """Return the error for a camera model that is not read; `where` names file and record."""
    known = ", ".join(name for name, _ in CAMERA_MODELS.values())
    return ValueError(
        f"{where} has the camera model {model}, which is not supported ({known} are); "
        "run COLMAP's image_undistorter and open its output"
    )


def colmap_lens(model: str, size: tuple[int, int], params: list[float], where: str) -> Lens:
    """Return the lens of one camera record; raises ValueError, naming `where`, for impossible values."""
    width, height = size
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise ValueError(f"{where} has the image size {width} x {height}: the file is damaged, make it again")
    if not all(abs(p) < MAX_COORDINATE for p in params):
        raise ValueError(
            f"{where} has a parameter that is not a finite number: {params}; make the model again"
        )
    single = model in ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE")
    fx, fy, cx, cy = [params[0], *params[:3]] if single else params[:4]
    k = params[3:] if single else params[4:]
    if not (fx > 0 and fy > 0):
        raise ValueError(
            f"{where} has the focal length {fx:g} x {fy:g}, which is not positive; make the model again"
        )
    fisheye = "FISHEYE" in model
    distortion: tuple[float, ...] = ()
    if fisheye:
        distortion = tuple([*k, 0.0, 0.0, 0.0, 0.0][:4])
    elif single and k:
        k1, k2 = [*k, 0.0, 0.0][:2]
        distortion = (k1, k2, 0.0, 0.0, 0.0)
    elif k:
        distortion = (*k, 0.0)
    return Lens(width, height, fx, fy, cx, cy, "fisheye" if fisheye else "brown", distortion, model)


def colmap_pose(quaternion: np.ndarray, translation: np.ndarray, where: str) -> np.ndarray:
    """Return the world-to-camera [4, 4] of a quaternion wxyz of any length and a translation.

    Raises ValueError, naming `where`, when one is not finite or the quaternion is zero.
    """
    if not (np.abs(translation).max() < MAX_COORDINATE and np.abs(quaternion).max() < MAX_COORDINATE):
        raise ValueError(f"{where} has a pose that is not finite; remove the image from the model")
    length = float(np.linalg.norm(quaternion))
    if not length > 1e-9:
        raise ValueError(f"{where} has a zero quaternion as its rotation; remove the image from the model")
    w, x, y, z = quaternion / length
    viewmat = np.eye(4)
    viewmat[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    viewmat[:3, 3] = translation
    return viewmat
