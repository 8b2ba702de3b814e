"""Undistorted photographs on disk, so that each is undistorted once for all trainings of a scene."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from splatstudio.camera import Camera

if TYPE_CHECKING:
    from splatstudio.scene.scene import View

VERSION = 1  # part of every key: raise it when undistortion changes
MAX_BYTES = 8 << 30
MIN_FREE_BYTES = 2 << 30  # a cache must never fill the user's disk

Stored = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]  # rgb, mask, alpha


def cache_folder() -> Path:
    """Return the folder of undistorted photographs: below XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    return base / "splatstudio" / "undistorted"


def key(view: View) -> str | None:
    """Return the name under which a view's picture is kept, or None when its files cannot be told apart.

    It depends on the files' paths, sizes and times, on the lens, the orientation and the size delivered.
    """
    parts: list[object] = [VERSION, view.lens, view.orientation, view.camera.width, view.camera.height]
    try:
        for path in (view.image_path, view.mask_path):
            if path is not None:
                status = path.stat()
                parts += [str(path.resolve()), status.st_size, status.st_mtime_ns]
    except OSError:
        return None  # reading the picture will tell why
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()


def load(name: str, camera: Camera) -> Stored | None:
    """Return what `store` kept under `name`, or None when there is nothing or it is damaged.

    The file is a PNG of 5 stacked planes; PNG's checksums tell a damaged one.
    """
    try:
        data = _path(name).read_bytes()
    except OSError:
        return None
    try:
        planes = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    except cv2.error:
        return None
    height, width = camera.height, camera.width
    if planes is None or b"IEND" not in data[-16:] or planes.ndim != 3 or planes.shape[2] != 4:
        return None
    if planes.shape[:2] not in ((height, width), (2 * height, width)):
        return None
    rgb = np.ascontiguousarray(planes[:height, :, 2::-1])
    mask = planes[:height, :, 3] > 0
    alpha = planes[height:, :, 0].copy() if planes.shape[0] > height else None
    return rgb, None if mask.all() else mask, alpha


def store(name: str, rgb: np.ndarray, mask: np.ndarray | None, alpha: np.ndarray | None) -> None:
    """Keep a picture under `name`, atomically; without room or permission nothing is kept."""
    height, width = rgb.shape[:2]
    planes = np.zeros((height if alpha is None else 2 * height, width, 4), np.uint8)
    planes[:height, :, :3] = rgb[..., ::-1]
    planes[:height, :, 3] = 255 if mask is None else mask.astype(np.uint8) * 255
    if alpha is not None:
        planes[height:] = alpha[..., None]
    encoded, data = cv2.imencode(".png", planes, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    assert encoded, "PNG encodes every 8-bit picture"
    path = _path(name)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < MIN_FREE_BYTES:
            return
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            temporary = file.name
            file.write(data.tobytes())
        os.replace(temporary, path)
    except OSError:
        # The cache only saves time; the picture itself is already in hand.
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def prune() -> None:
    """Remove the least recently written pictures beyond `MAX_BYTES`, and what a killed process left."""
    try:
        files = [
            (entry.stat(), Path(entry.path))
            for sub in os.scandir(cache_folder())
            for entry in os.scandir(sub)
        ]
    except OSError:
        return  # no cache yet
    files.sort(key=lambda item: item[0].st_mtime, reverse=True)
    total = 0
    for status, path in files:
        total += status.st_size
        if total > MAX_BYTES:
            path.unlink(missing_ok=True)


def _path(name: str) -> Path:
    return cache_folder() / name[:2] / f"{name}.png"
