"""Undistorted photos on disk, so that each is undistorted once for all trainings of a scene."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.files.inputs import read_input
from splatstudio.operating_system import put_in_place
from splatstudio.scene.capture import View

VERSION = 2  # part of every key: raise it when undistortion changes
MAX_BYTES = 8 << 30
MIN_FREE_BYTES = 2 << 30  # a cache must never fill the user's disk

MAGIC = b"splatpix"
HEAD = struct.Struct("<8sIIBB2xI")  # magic, width, height, mask?, alpha?, CRC-32 of what follows

Stored = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]  # rgb, mask, alpha


def cache_folder() -> Path:
    """Return the folder of undistorted photos: below XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    return base / "splatstudio" / "undistorted"


def key(view: View) -> str | None:
    """Return the name under which a view's picture is kept, or None when its files cannot be told apart.

    It depends on the files' paths, sizes and times, on the lens, the orientation and the size delivered.
    """
    parts: list[object] = [VERSION, view.lens, view.orientation, view.camera.width, view.camera.height]
    parts += [view.face] if view.face else []
    try:
        for path in (view.image_path, view.mask_path):
            if path is not None:
                status = path.stat()
                parts += [str(path.resolve()), status.st_size, status.st_mtime_ns]
    except OSError:
        return None  # reading the picture will tell why
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()


def load(name: str, camera: Camera) -> Stored | None:
    """Return what `store` kept under `name`, or None when there is nothing or it is damaged."""
    try:
        data = read_input(_path(name))
    except OSError:
        return None
    if len(data) < HEAD.size:
        return None
    magic, width, height, has_mask, has_alpha, checksum = HEAD.unpack_from(data)
    pixels = width * height
    length = 3 * pixels + (pixels if has_mask else 0) + (pixels if has_alpha else 0)
    body = memoryview(data)[HEAD.size :]
    if magic != MAGIC or (width, height) != (camera.width, camera.height) or len(body) != length:
        return None
    if zlib.crc32(body) != checksum:
        return None
    planes = np.frombuffer(body, np.uint8).copy()  # writable, as torch wants its arrays
    rgb = planes[: 3 * pixels].reshape(height, width, 3)
    mask = planes[3 * pixels : 4 * pixels].reshape(height, width) > 0 if has_mask else None
    alpha = planes[-pixels:].reshape(height, width) if has_alpha else None
    return rgb, mask, alpha


def store(name: str, rgb: np.ndarray, mask: np.ndarray | None, alpha: np.ndarray | None) -> None:
    """Keep a picture under `name`, atomically; without room or permission nothing is kept.

    Pixels are written plainly behind a head with their checksum: packing them as PNG takes longer than
    undistorting the photo again.
    """
    height, width = rgb.shape[:2]
    body = b"".join(np.ascontiguousarray(a, np.uint8).tobytes() for a in (rgb, mask, alpha) if a is not None)
    head = HEAD.pack(MAGIC, width, height, mask is not None, alpha is not None, zlib.crc32(body))
    path = _path(name)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < MIN_FREE_BYTES:
            return
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            temporary = file.name
            file.write(head)
            file.write(body)
        put_in_place(Path(temporary), path)
    except OSError:
        # The cache only saves time; the picture itself is already in hand.
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def prune() -> None:
    """Remove the least recently written pictures beyond `MAX_BYTES`, and what a killed process left."""
    try:
        files = [
            (entry.stat(), entry.path) for sub in os.scandir(cache_folder()) for entry in os.scandir(sub)
        ]
        files.sort(key=lambda item: item[0].st_mtime, reverse=True)
        total = 0
        for status, path in files:
            total += status.st_size
            if total > MAX_BYTES:
                Path(path).unlink(missing_ok=True)
    except OSError:
        return  # no cache yet, or another process is cleaning it


def _path(name: str) -> Path:
    return cache_folder() / name[:2] / f"{name}.pixels"
