"""Small pictures of scenes and runs for the start page, made when a browser asks, and kept."""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path

from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import open_input
from splatstudio.files.outputs import make_folder
from splatstudio.files.recent import state_folder
from splatstudio.files.run import Run
from splatstudio.scene.capture import IMAGE_SUFFIXES
from splatstudio.scene.layout import estimated_poses, is_video
from splatstudio.scene.scaling import small_jpeg

SIDE = 240  # pixels of the longer side: what is shown, on a screen with two pixels to each of the page's
VERSION = 1  # part of every name: raise it when the pictures change
MOST_KEPT = 200
MOST_BYTES = 1 << 17  # of a picture that is kept; others were not made here
MOST_NAMES = 2000  # of a folder that are read
JPEG = b"\xff\xd8\xff"
# Where a scene has its photos: smaller copies of them first.
PHOTOS = ("images_8", "images_4", "images_2", "images", "input", "", "photos", "rgb", "train")
PHOTOS += ("keyframes/corrected_images", "keyframes/images", "opensfm/images", "dense/0/images")

PLACEHOLDER = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 96 64">
<rect width="96" height="64" fill="#24272d"/><g fill="#3c424c"><ellipse cx="38" cy="38" rx="15" ry="9"
transform="rotate(-25 38 38)"/><ellipse cx="58" cy="29" rx="13" ry="7" transform="rotate(20 58 29)"/>
<ellipse cx="52" cy="44" rx="9" ry="4"/></g></svg>"""

_at_work = threading.Lock()  # one picture at a time: a large photo takes half a gigabyte


def thumbnail_of(path: Path) -> bytes | None:
    """Return a JPEG of a scene or a run; None where there is no picture of it, or that is damaged."""
    try:
        source = picture_of(path)
        return None if source is None else _kept_or_made(source)
    except (OSError, ValueError, RuntimeError, MemoryError):
        return None


def picture_of(path: Path) -> Path | None:
    """Return what shows a scene or a run best: a run's newest render, else a photo of its scene.

    Raises OSError or ValueError where it cannot be read.
    """
    if (path / "run.json").is_file():
        return _newest_render(path / "renders") or _photo_of(Run.open(path).scene_path)
    return _photo_of(path)


def _newest_render(folder: Path) -> Path | None:
    """Return the picture in a folder that was written last; links, which may lead anywhere, do not count."""
    newest: tuple[int, str] | None = None
    with suppress(OSError), os.scandir(folder) as found:
        for item in islice(found, MOST_NAMES):
            if _is_picture(item) and not item.is_symlink() and item.is_file():
                changed = item.stat().st_mtime_ns, item.name
                newest = changed if newest is None else max(newest, changed)
    # The folder itself may be a link, too.
    return None if newest is None or folder.is_symlink() else folder / newest[1]


def _photo_of(scene: Path) -> Path | None:
    """Return the first photo of a scene by name, None where it is not found at once."""
    if is_video(scene):
        return _first_picture(estimated_poses(scene) / "images")
    places = (scene / name for name in PHOTOS)
    return next((picture for place in places if (picture := _first_picture(place)) is not None), None)


def _first_picture(folder: Path) -> Path | None:
    names: list[str] = []
    with suppress(OSError), os.scandir(folder) as found:
        names = [item.name for item in islice(found, MOST_NAMES) if _is_picture(item) and item.is_file()]
    return folder / min(names) if names else None


def _is_picture(item: os.DirEntry[str]) -> bool:
    return item.name.lower().endswith(IMAGE_SUFFIXES) and not item.name.startswith(".")


def _kept_or_made(source: Path) -> bytes:
    status = source.stat()
    told = f"{VERSION} {SIDE} {source.resolve()} {status.st_size} {status.st_mtime_ns}"
    place = state_folder() / "thumbnails" / f"{hashlib.sha256(os.fsencode(told)).hexdigest()}.jpg"
    with _at_work:
        kept = _kept(place)
        if kept is not None:
            return kept
        made = small_jpeg(source, SIDE)
        with suppress(OSError):  # it is made again the next time
            _keep(place, made)
        return made


def _kept(place: Path) -> bytes | None:
    with suppress(OSError), open_input(place) as file:
        data = file.read(MOST_BYTES + 1)
        # Its end tells that it is whole.
        if data.startswith(JPEG) and data.endswith(b"\xff\xd9") and len(data) <= MOST_BYTES:
            return data
    return None


def _keep(place: Path, data: bytes) -> None:
    """Keep a picture, and forget the oldest of too many."""
    make_folder(place.parent.parent)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    write_durably(place, data, mode=0o600)
    kept = [(file.lstat().st_mtime_ns, file) for file in place.parent.glob("*.jpg")]
    for _, file in sorted(kept, reverse=True)[MOST_KEPT:]:
        file.unlink(missing_ok=True)
