"""Where the poses of a scene lie in the folder that a user names: at its top, or a level or two below."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from splatstudio.error_text import as_utf8, first_of
from splatstudio.files.inputs import open_input, read_input
from splatstudio.scene.capture import folded
from splatstudio.scene.colmap_model import num_registered

PARTS = ("cameras", "images", "points3D")
KINDS = ("bin", "txt")
DEEPEST = 2  # levels below the folder that is named
MOST_FOLDERS = 2000  # looked into; a folder with more is no scene's
MOST_LISTED = 8
STORE = ".splatstudio"  # the folder in which estimated poses are kept
REPLACED = "sparse.before"  # there, what others are being put in place of, for a moment
VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mts", ".3gp")
# Folders of what belongs to a scene, beside its poses: its photos, smaller copies of them, and what other
# programs make for each photo. Others whose names begin so, as images_of_the_church, are the user's own.
COPIES = re.compile(r"(images|input)_\d+(_png)?")
MADE_OF_PHOTOS = re.compile(r"(masks?|depths?|normals?|confidences?)(_(\d+|maps?|npy|png))?")


class NoPhotos(ValueError):
    """The poses of a scene are there, but not the photos that they are of."""


class SeveralScenes(ValueError):
    """A folder with more than one scene below it; `scenes` has their folders and sizes."""

    def __init__(self, folder: Path, scenes: Sequence[tuple[Path, str]]):
        self.scenes = tuple(scenes)
        listed = [f"{place.relative_to(folder)} ({size})" for place, size in scenes]
        names = first_of(listed, MOST_LISTED)
        super().__init__(f"{folder} holds {len(scenes)} scenes: {names}; open one of them")


Format = Literal[
    "COLMAP",
    "transforms.json",
    "Blender",
    "OpenSfM",
    "Polycam",
    "Record3D",
    "3D Scanner App",
    "Metashape",
    "RealityScan",
]

# Files of poses of other programs: where in a scene's folder, what is in them, and where the pictures are.
OTHERS: tuple[tuple[Format, str, bytes, tuple[str, ...]], ...] = (
    ("OpenSfM", "reconstruction.json", b"", ("images",)),
    ("OpenSfM", "opensfm/reconstruction.json", b"", ("images", "opensfm/images")),  # OpenDroneMap's
    ("Polycam", "keyframes/corrected_cameras", b"", ("keyframes/corrected_images",)),
    ("Polycam", "keyframes/cameras", b"", ("keyframes/images",)),
    ("Record3D", "rgb/../metadata", b"{", ("rgb",)),  # beside a folder rgb alone
    ("Record3D", "rgbd/../metadata", b"{", ("rgbd",)),  # as in a .r3d
    ("Record3D", "rgb/../metadata.json", b'"poses"', ("rgb",)),  # other programs have one, too
    ("Record3D", "rgbd/../metadata.json", b'"poses"', ("rgbd",)),
    ("3D Scanner App", "frame_*.json", b'"cameraPoseARFrame"', ()),  # the first, whatever its number
    ("Metashape", "*.xml", b"<chunk", ("images", "photos")),
    ("RealityScan", "*.csv", b"#name,", ("images", "photos")),
)
NUM_BYTES = 4096  # that a mark is looked for in; a key of JSON may be anywhere
MOST_BYTES = 1 << 26
PARTS_OF_OTHERS = {part for *_, names in OTHERS for name in names for part in name.split("/")}
EXPORTS = (".xml", ".csv")  # of which a folder may hold several


@dataclass(frozen=True)
class PoseFiles:
    """The poses of one scene: its format, and the folder from which its other files are looked for."""

    folder: Path
    format: Format
    models: tuple[Path, ...] = ()  # COLMAP's: folders, of which one is used
    opened: Path | None = None  # the folder that was named, where that is another one
    upright: bool = False  # z is up, as the program that made them knows
    file: Path | None = None  # of another program
    pictures: tuple[str, ...] = ()  # folders in which that has its photos
    notes: tuple[str, ...] = ()  # on files that are not used

    @property
    def of_pictures_as_taken(self) -> bool:
        """Return whether COLMAP's models describe the pictures from before their distortion was removed."""
        return any("distorted" in (model.parent.name, model.parent.parent.name) for model in self.models)

    @property
    def size(self) -> str:
        """Return how large the scene is, as "12 photos"; of other programs' scenes the program."""
        return f"{self.num_photos} photos" if self.file is None else self.format

    @property
    def num_photos(self) -> int:
        """Return how many photos have a pose: in the largest model, 0 for damaged files."""
        if self.models:
            return max(num_registered(model) for model in self.models)
        name = "transforms.json" if self.format == "transforms.json" else "transforms_train.json"
        try:
            frames = json.loads(read_input(self.folder / name))["frames"]
            listed = {str(frame["file_path"]) for frame in frames}
            # Not all that are listed may be there; where none is at its path, they are found elsewhere.
            there = sum((self.folder / path).is_file() for path in listed)
            return there or len(listed)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return 0


def is_video(path: Path) -> bool:
    """Return whether `path` is a file that is called as a video."""
    return path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()


def estimated_poses(source: Path) -> Path:
    """Return the folder of the poses that are estimated of `source`, a folder of photos or a video.

    It has the layout of a COLMAP scene, and need not exist.
    """
    if is_video(source):
        return source.parent / STORE / source.name
    return source / STORE / "poses"


def estimated_state(source: Path) -> object:
    """Return what tells the estimated poses of `source` from others that replace them.

    It is equal as long as they stay, and equals nothing while others are being put in their place.
    """
    store = estimated_poses(source)
    try:
        status = (store / "sparse").stat()
    except OSError:
        # Not a path's own `exists`, which fails where nothing may be looked at.
        return object() if os.path.lexists(store / REPLACED) else None
    return status.st_ino, status.st_mtime_ns


def pose_files(folder: Path) -> PoseFiles | None:
    """Return the poses at the top of `folder`, None where there are none; incomplete files count as some.

    A transforms.json goes before the model of colmap/, from which nerfstudio made it.
    """
    if models := _models_in(folder / "sparse"):
        return PoseFiles(folder, "COLMAP", models, upright=folder.parent.name == STORE)
    if (folder / "transforms.json").exists():
        return PoseFiles(folder, "transforms.json")
    if models := _models_in(folder / "colmap/sparse"):
        return PoseFiles(folder, "COLMAP", models)
    if (folder / "transforms_train.json").exists():
        return PoseFiles(folder, "Blender")
    # The model's own folder may be named, or hold the photos, too.
    whole = any(all((folder / f"{part}.{kind}").exists() for part in PARTS[:2]) for kind in KINDS)
    models = (folder,) if whole else _models_in(folder) if folder.name == "sparse" else ()
    # Of the pictures as they were taken, where those without distortion are not made yet.
    if models := models or _models_in(folder / "distorted/sparse"):
        return PoseFiles(folder, "COLMAP", models)
    if (others := _of_others(folder)) is not None:
        return others
    # Those of this program; a video's are opened by their own folder, which is a COLMAP scene.
    store = estimated_poses(folder)
    models = _models_in(store / "sparse")
    return PoseFiles(store, "COLMAP", models, upright=True) if models else None


def posed_by(file: Path) -> PoseFiles | None:
    """Return the poses in a file of another program, None for other files."""
    for folder in reversed(file.parents[:2]):
        for each in _all_of_others(folder):
            if each.file == file:
                return each
    return None


def _of_others(folder: Path) -> PoseFiles | None:
    """Return the poses of another program, the first of those with pictures; a note names files not used."""
    found = list(_all_of_others(folder))
    if not found:
        return None
    # Polycam's corrected poses are none of its pictures as taken.
    chosen = next((each for each in found if each.format != "Polycam" or _has_pictures(each)), found[0])
    if chosen != found[0]:
        note = f"{found[0].file} is not used: its pictures are not in {found[0].pictures[0]}"
        return replace(chosen, notes=(note,))
    others = [each.file for each in found if each.file is not None and each.file.suffix.lower() in EXPORTS]
    if chosen.file not in others or len(others) < 2:
        return chosen
    used, *unused = (as_utf8(file.name) for file in others)
    note = f"{folder} holds {len(others)} files of camera poses: {used} is used,"
    note = f"{note} {first_of(unused, MOST_LISTED)} not; open one of them by its own name to use that"
    return replace(chosen, notes=(note,))


def _has_pictures(files: PoseFiles) -> bool:
    return any((files.folder / name).is_dir() for name in files.pictures)


def _all_of_others(folder: Path) -> Iterator[PoseFiles]:
    for form, where, mark, pictures in OTHERS:
        for file in _called(folder, where) if "*" in where else [folder / where]:
            if _holds_json(file) if not file.suffix and not mark else _holds(file, mark):
                there = tuple(folder_called(folder, name).relative_to(folder).as_posix() for name in pictures)
                yield PoseFiles(folder, form, file=Path(os.path.normpath(file)), pictures=there)


def _called(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern whatever their case; of numbered frames the first alone."""
    beginning, ending = pattern.split("*")
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(ending))
    except OSError:  # who opens it says so
        return []
    names = [name for name in names if name.startswith(beginning)]
    return [folder / name for name in (names[:1] if beginning else names)]


def folder_called(folder: Path, name: str) -> Path:
    """Return the folder `name` in another, or the only one that differs in case or how letters are written.

    Where there is none, its path as it is named.
    """
    place = folder
    for part in Path(name).parts:
        if not (place / part).is_dir():
            alike = [each for each in _folders_in(place) if folded(each) == folded(part)]
            part = alike[0] if len(alike) == 1 else part
        place = place / part
    return place


def _folders_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _holds_json(folder: Path) -> bool:
    return folder.is_dir() and next(folder.glob("*.json"), None) is not None


def _holds(file: Path, mark: bytes) -> bool:
    """Return whether a mark is in a file, near its beginning where it is no key; UTF-16 is read, too."""
    try:
        with open_input(file) as opened:
            content = opened.read(MOST_BYTES if mark.startswith(b'"') else NUM_BYTES)
    except OSError:
        return False
    return mark in content or mark in content.replace(b"\0", b"")


def _models_in(base: Path) -> tuple[Path, ...]:
    """Return the folders of COLMAP's models (even incomplete ones) in `base`: 0, 1, ... or itself."""
    if not base.is_dir():
        return ()
    below = sorted(folder for folder in base.iterdir() if folder.is_dir() and _has_model(folder))
    numbered = sorted((folder for folder in below if folder.name.isdecimal()), key=lambda f: int(f.name))
    return tuple(numbered or ([base] if _has_model(base) else below))


def _has_model(folder: Path) -> bool:
    return any((folder / f"{part}.{kind}").exists() for part in PARTS for kind in KINDS)


def poses_below(folder: Path, besides: PoseFiles | None = None) -> PoseFiles | None:
    """Return the poses of the only scene in the folders below, to a depth of two; None where there is none.

    Those of `besides` do not count. Raises SeveralScenes where there are several.
    """
    known = () if besides is None else besides.models
    found = [files for files in _all_below(folder) if not set(files.models) & set(known)]
    if len(found) < 2:
        return replace(found[0], opened=folder) if found else None
    raise SeveralScenes(folder, [(files.folder, files.size) for files in found])


def scene_of_pictures(folder: Path) -> Path | None:
    """Return the folder of the scene whose photos are in `folder`, as `images` beside `sparse`.

    Or in a part of it, as Polycam's `keyframes`. None for other folders, and for one that has poses itself.
    """
    folder = folder.absolute()
    usual = folder.name.lower() == "images" or COPIES.fullmatch(folder.name)
    if not usual and folder.name.lower() not in PARTS_OF_OTHERS:
        return None
    try:
        if pose_files(folder) is not None:
            return None
        if usual and pose_files(folder.parent) is not None:
            return folder.parent
        for above in folder.parents[:2]:
            if any(_is_part(folder, files) for files in _all_of_others(above)):
                return above
    except OSError:  # whoever opens that says so
        return None
    return None


def _is_part(folder: Path, files: PoseFiles) -> bool:
    """Return whether a folder is that of the pictures of poses, or has it, as one of several parts."""
    places = [files.folder / name for name in files.pictures]
    return folder != files.folder and folder in (*places, *(place.parent for place in places))


def holds_several(path: Path) -> bool:
    """Return whether `path` is a folder that has no scene at its top and several below."""
    try:
        if path.is_dir() and pose_files(path) is None:
            poses_below(path)
    except SeveralScenes:
        return True
    except OSError:  # who opens it says so
        return False
    return False


def _all_below(folder: Path) -> list[PoseFiles]:
    found, level, num_left = list[PoseFiles](), [folder], MOST_FOLDERS
    for _ in range(DEEPEST):
        level = [below for parent in level for below in _subfolders(parent)][:num_left]
        num_left -= len(level)
        without = []
        for place in level:
            try:
                files = pose_files(place)
            except PermissionError:
                continue
            if files is None:
                without.append(place)
            else:
                found.append(files)
        level = without
    return found


def _subfolders(folder: Path) -> list[Path]:
    """Return the folders in which a scene may lie: no hidden ones, no pictures, no runs."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []
    names = [name for name in names if not (name.startswith(".") or _is_of_a_scene(name))]
    return [folder / name for name in names if not (folder / name / "run.json").exists()]


def _is_of_a_scene(name: str) -> bool:
    return name == "images" or bool(COPIES.fullmatch(name) or MADE_OF_PHOTOS.fullmatch(name))
