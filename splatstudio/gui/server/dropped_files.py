"""Files that a browser brings to the start page: checked by names and sizes, and written below one folder.

They come over a WebSocket: first a list of names and sizes, then the bytes of all in that order.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from splatstudio.files.inputs import can_be_path
from splatstudio.files.outputs import make_folder
from splatstudio.gui.amounts import size
from splatstudio.gui.server.folder_listing import kind_of_file
from splatstudio.operating_system import hold, put_in_place
from splatstudio.scene.archives import ENDINGS, MIN_FREE_BYTES
from splatstudio.scene.capture import PHOTO_SUFFIXES

FOLDER = "dropped"  # below the folder where the command was started
PARTIAL = ".tmp-"  # how the folders begin whose files are still coming
MOST_BYTES = 8 * 10**9
MOST_FILES = 20_000
MOST_DEPTH = 12
MOST_NAME_BYTES = 200
_WHAT = "Drop photos, a video, a scene's folder or archive, or a file of splats, one thing at a time."


@dataclass(frozen=True)
class DroppedFiles:
    """What comes: the name under which it will lie, and the files of it with their bytes.

    `is_file`: it is one file, which `name` names; else files below a folder of that name.
    """

    name: str
    files: tuple[tuple[PurePosixPath, int], ...]
    is_file: bool

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(num for _, num in self.files)


def checked(told: object) -> DroppedFiles:
    """Return what a browser says that it brings: a list of pairs of a path and a size.

    Raises ValueError with one sentence for what the studio does not open, and what is too much.
    """
    if not isinstance(told, list) or not told:
        raise ValueError("Nothing came that can be copied.")
    if len(told) > MOST_FILES:
        raise ValueError(f"{len(told):,} files are more than the {MOST_FILES:,} that can be copied at once.")
    files = tuple(_file(each) for each in told)
    total = sum(num for _, num in files)
    if total > MOST_BYTES:
        raise ValueError(
            f"{size(total)} are more than the {size(MOST_BYTES)} that can be copied here: put them on the"
            " machine that runs splatstudio, and browse to them."
        )
    seen: set[PurePosixPath] = set()
    for place, _ in files:
        if place in seen:
            raise ValueError(f"Two of the files are called {place}: drop the folder above their folders.")
        seen.add(place)
    tops = {place.parts[0] for place, _ in files}
    loose = [place.name for place, _ in files if len(place.parts) == 1]
    if len(loose) == 1 == len(files) and kind_of_file(loose[0]) is not None:
        return DroppedFiles(loose[0], files, is_file=True)
    if len(loose) == len(files):
        wrong = next((name for name in loose if not name.lower().endswith(PHOTO_SUFFIXES)), None)
        if wrong is not None:
            raise ValueError(f"{wrong} cannot be opened together with what came, or at all. {_WHAT}")
        return DroppedFiles("photos", files, is_file=False)
    if loose or len(tops) > 1:
        raise ValueError(f"Several things came at once. {_WHAT}")
    (name,) = tops
    if not any(_is_of_use(place.name) for place, _ in files):
        raise ValueError(f"{name} holds no photos, no video and no splats. {_WHAT}")
    inside = tuple((PurePosixPath(*place.parts[1:]), num) for place, num in files)
    return DroppedFiles(name, inside, is_file=False)


def receive(dropped: DroppedFiles, folder: Path, next_block: Callable[[], bytes]) -> Path:
    """Write what comes below `folder`, complete or not at all, and return where it lies.

    `next_block` returns the next bytes, of one file each time. Nothing that is there is written over.
    Raises ValueError where there is no room or the bytes are not those that were announced, and OSError.
    """
    make_folder(folder)
    free = shutil.disk_usage(folder).free - MIN_FREE_BYTES
    if dropped.num_bytes > free:
        raise ValueError(f"{size(dropped.num_bytes)} came, and {size(max(free, 0))} can be used in {folder}.")
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder))
    held = hold(partial)  # as long as this process lives: see `clear_unused`
    try:
        whole = partial / "whole"
        for place, num_bytes in dropped.files:
            target = whole if dropped.is_file else whole / place
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, num_bytes, next_block)
        final = _free(folder, dropped.name)
        put_in_place(whole, final)
        return final
    finally:
        os.close(held)
        shutil.rmtree(partial, ignore_errors=True)


def _file(told: object) -> tuple[PurePosixPath, int]:
    """Return a file's place and size; ValueError where a browser would not say so."""
    if not (isinstance(told, list) and len(told) == 2 and isinstance(told[0], str) and type(told[1]) is int):
        raise ValueError("The list of files is damaged: reload the page, and drop them again.")
    name, num_bytes = told
    parts = name.split("/")
    plain = all(
        part
        and not part.startswith(".")
        and not set(part) & set("\\:")
        and part.isprintable()
        and len(part.encode(errors="replace")) <= MOST_NAME_BYTES
        for part in parts
    )
    if not plain or len(parts) > MOST_DEPTH or num_bytes < 0 or not can_be_path(name):
        raise ValueError(f"A file called {name[:80]!r} is not copied: give it a plain name.")
    return PurePosixPath(name), num_bytes


def _is_of_use(name: str) -> bool:
    return name.lower().endswith(PHOTO_SUFFIXES) or kind_of_file(name) is not None or name == "run.json"


def _write(target: Path, num_bytes: int, next_block: Callable[[], bytes]) -> None:
    with open(target, "xb") as file:
        while num_bytes:
            block = next_block()
            if not 0 < len(block) <= num_bytes:
                raise ValueError("A file has changed while it was copied: drop it again.")
            num_bytes -= len(block)
            file.write(block)


def _free(folder: Path, name: str) -> Path:
    """Return a path that nothing has yet: "scan", "scan-2", and of a file "scan-2.tar.gz"."""
    ending = next((end for end in ENDINGS if name.lower().endswith(end)), Path(name).suffix)
    stem = name[: len(name) - len(ending)]
    number, place = 2, folder / name
    while place.exists() or place.is_symlink():
        number, place = number + 1, folder / f"{stem}-{number}{ending}"
    return place
