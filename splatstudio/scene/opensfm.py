"""Read reconstruction.json of OpenSfM and of OpenDroneMap, which has it in a folder opensfm.

Poses are world to camera as angle-axis and translation, z is up. Image coordinates count from the center in
units of the longer side. Source: OpenSfM's documentation of its reconstruction file and its camera models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.cameras.camera import rigid
from splatstudio.scene.capture import read_json
from splatstudio.scene.colmap_model import panorama
from splatstudio.scene.lens import Lens
from splatstudio.scene.lens_models import LensKind
from splatstudio.scene.posed_frames import PosedFrame, PosedFrames, Values, fixed, focal_lens

# By projection_type: what lens it is, and the names of its coefficients in that lens's order.
PROJECTIONS: dict[str, tuple[LensKind, tuple[str, ...]]] = {
    "perspective": ("brown", ("k1", "k2")),
    "simple_radial": ("brown", ("k1",)),
    "radial": ("brown", ("k1", "k2")),
    "brown": ("brown", ("k1", "k2", "p1", "p2", "k3")),
    "fisheye": ("fisheye", ("k1", "k2")),
    "fisheye_opencv": ("fisheye", ("k1", "k2", "k3", "k4")),
    "fisheye62": ("opensfm_fisheye624", ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2")),
    "fisheye624": (
        "opensfm_fisheye624",
        ("k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2", "s0", "s1", "s2", "s3"),
    ),
}

GRAY = np.full(3, 128.0)  # of points without a color


def read_opensfm(path: Path) -> PosedFrames:
    """Return what the file holds; of several reconstructions the one with most photos, with a note.

    Raises ValueError for a damaged file and for a projection that cannot be undistorted, as of panoramas.
    """
    top = read_json(path)
    parts = [part for part in top if isinstance(part, dict)] if isinstance(top, list) else []
    if not parts or not all(isinstance(part.get("shots"), dict) for part in parts):
        raise ValueError(f"{path} is no reconstruction of OpenSfM: it must be a list with cameras and shots")
    largest = max(parts, key=lambda part: len(part["shots"]))
    if not largest["shots"]:
        raise ValueError(f"{path} holds no photo with a pose: run OpenSfM's reconstruct again")
    notes = ()
    if len(parts) > 1:
        sizes = ", ".join(str(len(part["shots"])) for part in parts)
        notes = (f"{path} holds {len(parts)} reconstructions of {sizes} photos: the largest is used",)
    cameras = _objects(path, largest, "cameras")
    lenses = {name: _lens(Values(f"{path}, camera {name[:60]!r},", each)) for name, each in cameras.items()}
    frames = []
    for name, shot in _objects(path, largest, "shots").items():
        values = Values(f"{path}, shot {name[:60]!r},", {**shot, "name": name})
        lens = lenses.get(str(shot.get("camera")))
        if lens is None:
            raise values.error("has a camera that the file does not hold")
        viewmat = rigid(_rotation(values.numbers("rotation", 3)), values.numbers("translation", 3))
        frames.append(PosedFrame(values.text("name"), viewmat, fixed(lens)))
    points = [Values(f"{path}, point {n},", point) for n, point in _objects(path, largest, "points").items()]
    return PosedFrames(
        tuple(frames),
        np.array([point.numbers("coordinates", 3) for point in points]).reshape(-1, 3),
        np.array([point.numbers("color", 3) if "color" in point.values else GRAY for point in points])
        .reshape(-1, 3)
        .clip(0, 255)
        .astype(np.uint8),
        notes,
        upright=True,
    )


def _objects(path: Path, part: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    objects = part.get(name, {})
    if not isinstance(objects, dict) or not all(isinstance(each, dict) for each in objects.values()):
        raise ValueError(f"{path} is damaged: its {name} are no objects; export it again")
    return objects


def _lens(values: Values) -> Lens:
    size = values.size()
    projection = str(values.values.get("projection_type"))
    if projection in ("spherical", "equirectangular"):
        return panorama(*size)
    if projection not in PROJECTIONS:
        raise values.error(f"has the projection_type {projection[:60]!r}, which is not supported")
    kind, names = PROJECTIONS[projection]
    longer = max(size)
    focal = values.number("focal" if "focal" in values.values else "focal_x")
    ratio = values.number("focal_y", focal) / focal if "focal_x" in values.values and focal else 1.0
    center = [
        0.5 * side + longer * values.number(c, 0.0) for side, c in zip(size, ("c_x", "c_y"), strict=True)
    ]
    plain = focal_lens(values, size, longer * focal, longer * focal * ratio, *center)
    coefficients = tuple(values.number(name, 0.0) for name in names)
    if kind == "brown":
        coefficients = (*coefficients, *[0.0] * 5)[:5]
    return Lens(*size, plain.fx, plain.fy, plain.cx, plain.cy, kind, coefficients, projection.upper())


def _rotation(axis: np.ndarray) -> np.ndarray:
    """Return the rotation by the length of `axis` (radians) about it (Rodrigues)."""
    angle = float(np.linalg.norm(axis))
    if angle < 1e-12:
        return np.eye(3)
    x, y, z = axis / angle
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.eye(3) + np.sin(angle) * cross + (1.0 - np.cos(angle)) * cross @ cross
