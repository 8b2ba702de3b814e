"""The model as it grows: what the mapping writes now and then, and the page shows while it goes on."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import read_input

if TYPE_CHECKING:
    import pycolmap

MOST_POINTS = 20_000  # that are looked up and sent
SHORTEST_PAUSE = 1.0  # seconds from one snapshot to the next
MOST_OF_TIME = 0.05  # that snapshots take of the mapping's


@dataclass(frozen=True, eq=False)
class GrowingModel:
    """The cameras with a pose and some points, in the frame that the mapping has at the time.

    `num_posed` of `num_photos` have a pose, in all groups together; those of the largest are here.
    """

    num_posed: int
    num_photos: int
    viewmats: np.ndarray  # [C, 4, 4] world to camera
    half_sizes: np.ndarray  # [C, 2] of the picture at depth 1
    points: np.ndarray  # [P, 3] float32
    colors: np.ndarray  # [P, 3] uint8


class GrowthWriter:
    """Writes snapshots of a mapping, as often as costs little."""

    def __init__(self, file: Path, num_photos: int):
        """Write to `file`, of an estimation of `num_photos`."""
        self._file, self._num_photos = file, num_photos
        self._due = 0.0

    def write(self, model: pycolmap.Reconstruction, num_posed: int) -> None:
        """Write what `model`, the largest group, is now, if the last time is long enough ago."""
        began = time.monotonic()
        if began < self._due or model.num_reg_images() == 0:
            return
        write_durably(self._file, _packed(_taken(model, num_posed, self._num_photos)))
        now = time.monotonic()
        self._due = now + max(SHORTEST_PAUSE, (now - began) / MOST_OF_TIME)


def read_growing(file: Path) -> GrowingModel | None:
    """Return the snapshot in `file`, None where there is none or it is damaged."""
    try:
        with np.load(io.BytesIO(read_input(file)), allow_pickle=False) as saved:
            return _unpacked(dict(saved))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _taken(model: pycolmap.Reconstruction, num_posed: int, num_photos: int) -> GrowingModel:
    images = [model.image(image) for image in model.reg_image_ids()]
    viewmats = np.tile(np.eye(4), (len(images), 1, 1))
    half_sizes = np.ones((len(images), 2))
    for row, image in enumerate(images):
        pose, camera = image.cam_from_world(), model.camera(image.camera_id)
        assert pose is not None, "only photos with a pose are asked"
        viewmats[row, :3] = pose.matrix()
        half_sizes[row] = np.array([camera.width, camera.height]) / (2 * camera.mean_focal_length())
    numbers = np.array(sorted(model.point3D_ids()), dtype=np.int64)
    if len(numbers) > MOST_POINTS:
        numbers = np.random.default_rng(0).choice(numbers, MOST_POINTS, replace=False)
    points = [model.point3D(number) for number in numbers.tolist()]
    return GrowingModel(
        num_posed,
        num_photos,
        viewmats,
        half_sizes,
        np.array([point.xyz for point in points], np.float32).reshape(-1, 3),
        np.array([point.color for point in points], np.uint8).reshape(-1, 3),
    )


def _packed(snapshot: GrowingModel) -> bytes:
    written = io.BytesIO()
    np.savez(written, **vars(snapshot))
    return written.getvalue()


def _unpacked(saved: Mapping[str, np.ndarray]) -> GrowingModel:
    """Return the snapshot of these arrays; ValueError where they are not of one."""
    num_cameras, num_points = len(saved["viewmats"]), len(saved["points"])
    shapes = {
        "viewmats": (num_cameras, 4, 4),
        "half_sizes": (num_cameras, 2),
        "points": (num_points, 3),
        "colors": (num_points, 3),
    }
    for name, shape in shapes.items():
        if saved[name].shape != shape or not np.isfinite(saved[name]).all():
            raise ValueError(f"{name} is damaged")
    if num_cameras == 0:
        raise ValueError("there is no camera")
    return GrowingModel(int(saved["num_posed"]), int(saved["num_photos"]), *(saved[name] for name in shapes))
