"""Read COLMAP's cameras.bin, images.bin and points3D.bin (little endian; the layout of all versions so far).

Each count is checked against the bytes that are left before anything is allocated for it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from splatstudio.error_text import unreadable
from splatstudio.files.inputs import open_input
from splatstudio.files.kinds import NUM_BYTES, refuse_pointer
from splatstudio.scene.colmap_model import (
    CAMERA_MODELS,
    ColmapImage,
    colmap_lens,
    colmap_pose,
    unsupported_model,
)
from splatstudio.scene.lens import Lens

IMAGE_HEAD = struct.Struct("<I7dI")  # id, quaternion, translation, camera id
CAMERA_HEAD = struct.Struct("<IiQQ")  # id, model, width, height
POINT_BYTES = 43  # id, position, color, error
COUNT = struct.Struct("<Q")
MAX_NAME_BYTES = 4096
FEWEST_PARAMS = 2  # of a camera, a panorama
NO_POINT = 2**64 - 1  # what an observation has for a point that was not triangulated


class _Cursor:
    """A position in a file that knows how many bytes are left and what record it is in."""

    def __init__(self, path: Path):
        self.path = path
        self.position = 0
        self.record = "the header"
        try:
            with open_input(path) as file:
                size = os.fstat(file.fileno()).st_size
                # Mapped, not read: most of images.bin are observations that are skipped.
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise ValueError(unreadable(path, error)) from error
        self.size = len(self.data)
        refuse_pointer(path, self.data[:NUM_BYTES])

    def damaged(self, what: str) -> ValueError:
        return ValueError(
            f"{self.path} is damaged at {self.record}: {what}; copy the file again or export the model again"
        )

    def need(self, count: int, each: int, what: str) -> None:
        """Raise ValueError unless `count` records of at least `each` bytes can still follow."""
        left = self.size - self.position
        if count * each > left:
            raise self.damaged(f"{what} needs {count * each} bytes and {left} are left")

    def unpack(self, layout: struct.Struct, what: str) -> tuple:
        self.need(1, layout.size, what)
        values = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return values

    def count(self, each: int, what: str) -> int:
        """Read a record count and check that so many records of at least `each` bytes can follow."""
        (count,) = self.unpack(COUNT, f"the number of {what}")
        if count * each > self.size - self.position:
            raise self.damaged(f"{count} {what} cannot fit into the {self.size - self.position} bytes left")
        return count

    def end(self) -> None:
        if self.position != self.size:
            self.record = "its end"
            raise self.damaged(f"{self.size - self.position} bytes follow after the last record")


def read_cameras(path: Path) -> dict[int, Lens]:
    """Return the cameras of `path` by id; raises ValueError for a damaged file or an unsupported model."""
    cursor = _Cursor(path)
    lenses = {}
    for i in range(cursor.count(CAMERA_HEAD.size + FEWEST_PARAMS * 8, "cameras")):
        cursor.record = f"camera {i + 1}"
        camera_id, model, width, height = cursor.unpack(CAMERA_HEAD, "a camera")
        where = f"{path}, camera {camera_id},"
        if model not in CAMERA_MODELS:
            raise unsupported_model(f"number {model}", where)
        known = CAMERA_MODELS[model]
        layout = struct.Struct(f"<{known.num_params}d")
        params = cursor.unpack(layout, f"the parameters of a {known.name} camera")
        lenses[camera_id] = colmap_lens(known, (width, height), list(params), where)
    cursor.end()
    return lenses


def _image_heads(cursor: _Cursor) -> Iterator[tuple[tuple, str]]:
    """Yield what each image begins with and its name; the caller reads its observations."""
    for i in range(cursor.count(IMAGE_HEAD.size + 1 + COUNT.size, "images")):
        cursor.record = f"image {i + 1}"
        values = cursor.unpack(IMAGE_HEAD, "an image")
        end = cursor.data.find(b"\0", cursor.position, cursor.position + MAX_NAME_BYTES)
        if end < 0:
            raise cursor.damaged("its name has no end")
        name = cursor.data[cursor.position : end].decode("utf-8", "backslashreplace")
        cursor.position = end + 1
        yield values, name


def read_images(path: Path) -> list[ColmapImage]:
    """Return the registered images of `path`; raises ValueError for a damaged file or an impossible pose."""
    cursor = _Cursor(path)
    images = []
    for values, name in _image_heads(cursor):
        num_points2d = cursor.count(24, "observations")
        cursor.position += num_points2d * 24
        where = f"{path}, image {name!r},"
        viewmat = colmap_pose(np.array(values[1:5]), np.array(values[5:8]), where)
        images.append(ColmapImage(name, values[8], viewmat))
    cursor.end()
    return images


def read_observed_points(path: Path) -> dict[str, np.ndarray]:
    """Return the ids [M] uint64 of the points that each image observes, by the image's name.

    Raises ValueError for a damaged file.
    """
    cursor = _Cursor(path)
    observed = {}
    layout = np.dtype([("place", "<f8", 2), ("point", "<u8")])
    for _, name in _image_heads(cursor):
        num = cursor.count(layout.itemsize, "observations")
        ids = np.frombuffer(cursor.data, layout, num, cursor.position)["point"].copy()
        cursor.position += num * layout.itemsize
        observed[name] = ids[ids != NO_POINT]
    cursor.end()
    return observed


def read_points(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids [P] uint64, positions [P, 3] float64 and colors [P, 3] uint8; ValueError when damaged."""
    cursor = _Cursor(path)
    count = cursor.count(POINT_BYTES + COUNT.size, "points")
    starts = np.empty(count, np.int64)
    data, size, position, unpack = cursor.data, cursor.size, cursor.position, COUNT.unpack_from
    for i in range(count):  # record lengths depend on each other, so this loop stays; the rest is vectorized
        starts[i] = position
        tail = position + POINT_BYTES + COUNT.size
        position = tail + unpack(data, tail - COUNT.size)[0] * 8 if tail <= size else size + 1
        if position > size:
            cursor.record = f"point {i + 1} of {count}"
            raise cursor.damaged("the file ends inside it")
    cursor.position = position
    cursor.end()
    if count == 0:
        return np.zeros(0, np.uint64), np.zeros((0, 3)), np.zeros((0, 3), np.uint8)
    raw = np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(POINT_BYTES)]
    ids = np.ascontiguousarray(raw[:, :8]).view("<u8")[:, 0]
    positions = np.ascontiguousarray(raw[:, 8:32]).view("<f8")
    return ids, positions.astype(np.float64), raw[:, 32:35].copy()
