"""The folders of this machine as the start page shows them: what can be opened there, within bounds.

Names and a few stats tell what something is. No picture is decoded and no model is read, so that a folder is
listed at once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from splatstudio.files.run import saved_step
from splatstudio.gui.amounts import counted, size
from splatstudio.poses.input import IMAGE_FOLDERS
from splatstudio.scene.archives import ENDINGS as ARCHIVES
from splatstudio.scene.capture import PHOTO_SUFFIXES
from splatstudio.scene.layout import VIDEO_SUFFIXES, pose_files

# Those that `splatstudio.formats` reads, which needs torch: a test compares.
MODELS = (".ply", ".spz", ".sog", ".splat", ".ksplat", ".pt", ".pth", ".ckpt")
MOST_NAMES = 20_000  # of a folder that are read
MOST_SHOWN = 100  # at a time
MOST_LOOKED_AT = 1000  # names of a folder below, which tell what it is
MOST_FILES_OF_POSES = 50  # that may hold poses of another program, and are looked into
FEWEST_PHOTOS = 3
LOOK_SECONDS = 2.0  # for all entries: on a slow disk the others are just folders

Kind = Literal["Folder", "Scene", "Run", "Model", "Photos", "Video", "Archive", "Closed"]


@dataclass(frozen=True)
class FolderEntry:
    """A folder or a file that can be opened."""

    path: Path
    kind: Kind
    detail: str = ""
    is_folder: bool = False

    @property
    def can_open(self) -> bool:
        """Return whether the studio opens it."""
        return self.kind not in ("Folder", "Closed")

    @property
    def can_train(self) -> bool:
        """Return whether a new training can be started of it."""
        return self.kind in ("Scene", "Photos", "Video", "Archive")


@dataclass(frozen=True)
class FolderListing:
    """What a folder holds: some of its entries, from number `first` of `total` on."""

    here: FolderEntry
    entries: tuple[FolderEntry, ...]
    first: int
    total: int
    num_pictures: int = 0
    num_unnamed: int = 0  # entries whose names are no text
    cut: bool = False  # there are more names than were read


@dataclass(frozen=True)
class Bounds:
    """The folders, with all that lies in them, that the page shows; paths without links."""

    roots: tuple[Path, ...]

    @classmethod
    def around(cls, folders: Iterable[Path]) -> Bounds:
        """Return the bounds of those of the folders that are there."""
        places = (_resolved(folder) for folder in folders)
        return cls(tuple(dict.fromkeys(place for place in places if place is not None and place.is_dir())))

    def inside(self, path: Path) -> Path | None:
        """Return where a path leads to in the end; None where that is outside, or not there."""
        place = _resolved(path)
        if place is None or not any(place.is_relative_to(root) for root in self.roots):
            return None
        return place

    def above(self, folder: Path) -> tuple[Path, ...]:
        """Return the folders above one that are shown, the highest first."""
        return tuple(parent for parent in reversed(folder.parents) if self.inside(parent) is not None)


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # not there, a NUL in the name, links in a circle
        return None


def list_folder(folder: Path, bounds: Bounds, first: int = 0) -> FolderListing:
    """Return what lies in a folder: folders, and files that can be opened, by name; hidden ones are left out.

    Links count as what they lead to, and as dead ends where that is outside of the bounds. Raises OSError for
    a folder that cannot be read.
    """
    folders, files = list[str](), list[str]()
    num_pictures = num_unnamed = num_names = 0
    with os.scandir(folder) as found:
        for item in found:
            num_names += 1
            if num_names > MOST_NAMES:
                break
            if item.name.startswith("."):
                continue
            if not _is_text(item.name):
                num_unnamed += 1
            elif os.path.isdir(item.path):  # where `item.is_dir` raises for a link in a circle
                folders.append(item.name)
            elif item.name.lower().endswith(PHOTO_SUFFIXES):
                num_pictures += 1
            elif kind_of_file(item.name) is not None and os.path.isfile(item.path):
                files.append(item.name)
    names = [*sorted(folders, key=_natural), *sorted(files, key=_natural)]
    first = min(first, max(0, len(names) - 1)) // MOST_SHOWN * MOST_SHOWN
    here = entry_of(folder, bounds, is_folder=True)
    # What a scene or a run is made of is not opened by itself.
    seconds = 0.0 if here.kind in ("Scene", "Run") else LOOK_SECONDS
    deadline = time.monotonic() + seconds
    are_folders = set(folders)
    entries = tuple(
        entry_of(folder / name, bounds, is_folder=name in are_folders, deadline=deadline)
        for name in names[first : first + MOST_SHOWN]
    )
    return FolderListing(
        here, entries, first, len(names), num_pictures, num_unnamed, cut=num_names > MOST_NAMES
    )


def entry_of(path: Path, bounds: Bounds, *, is_folder: bool, deadline: float = float("inf")) -> FolderEntry:
    """Return what a folder or a file is; after the deadline, a time of the monotonic clock, just a folder."""
    try:
        if path.is_symlink() and bounds.inside(path) is None:
            return FolderEntry(path, "Closed", "leads out of the folders that are shown here")
        if not is_folder:
            kind = kind_of_file(path.name)
            assert kind is not None, "it was chosen by its name"
            return FolderEntry(path, kind, size(path.stat().st_size))
        if time.monotonic() >= deadline:
            return FolderEntry(path, "Folder", is_folder=True)
        return FolderEntry(path, *_kind_of_folder(path), is_folder=True)
    except OSError as error:
        return FolderEntry(path, "Closed", error.strerror or "cannot be read")


def kind_of_file(name: str) -> Kind | None:
    """Return what a file is by its name, None for one that is not opened."""
    name = name.lower()
    kinds: tuple[tuple[Kind, tuple[str, ...]], ...] = (
        ("Model", MODELS),
        ("Video", VIDEO_SUFFIXES),
        ("Archive", ARCHIVES),
    )
    return next((kind for kind, endings in kinds if name.endswith(endings)), None)


def _kind_of_folder(folder: Path) -> tuple[Kind, str]:
    if (folder / "run.json").exists():
        return "Run", saved_step(folder)[1]
    names = _names_in(folder)
    told = sum(name.endswith((".xml", ".csv")) for name in names)
    if told <= MOST_FILES_OF_POSES and (poses := pose_files(folder)) is not None:
        return "Scene", f"camera poses of {poses.format}"
    if _is_other_output(names):
        return "Model", "the output of another program"
    if not any(name.endswith(PHOTO_SUFFIXES) for name in names):
        below = next((name for name in IMAGE_FOLDERS if name in names), None)
        names = [] if below is None else _names_in(folder / below)
    num_pictures = sum(name.endswith(PHOTO_SUFFIXES) for name in names)
    if num_pictures < FEWEST_PHOTOS:  # videos are listed one by one
        return "Folder", ""
    more = "more than " if len(names) == MOST_LOOKED_AT else ""
    return "Photos", more + counted(num_pictures, "photo")


def _names_in(folder: Path) -> list[str]:
    """Return some of the names in a folder, in small letters."""
    with os.scandir(folder) as found:
        names = (item.name.lower() for item in found if not item.name.startswith("."))
        return list(islice(names, MOST_LOOKED_AT))


def _is_other_output(names: Iterable[str]) -> bool:
    """Return whether a folder with these names is what another trainer has written."""
    held = set(names)
    return bool({"cfg_args", "nerfstudio_models", "point_cloud.ply"} & held) or {"cfg.yml", "ckpts"} <= held


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return what sorts names as people do, scan2 before scan10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name.casefold())
    return tuple((0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts)
