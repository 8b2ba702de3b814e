"""Where the poses of a scene lie in the folder that a user names: at its top, or a level or two below."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from splatstudio.files.inputs import read_input
from splatstudio.scene.colmap_model import num_registered

PARTS = ("cameras", "images", "points3D")
KINDS = ("bin", "txt")
DEEPEST = 2  # levels below the folder that is named
MOST_FOLDERS = 2000  # looked into; a folder with more is no scene's
MOST_LISTED = 8
STORE = ".splatstudio"  # the folder in which estimated poses are kept
VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mts", ".3gp")
# Folders of what belongs to a scene, beside its poses.
PICTURES = ("images", "masks", "depth", "normals")


class NoPhotographs(ValueError):
    """The poses of a scene are there, but not the photographs that they are of."""


@dataclass(frozen=True)
class PoseFiles:
    """The poses of one scene: its format, and the folder from which its other files are looked for."""

    folder: Path
    format: Literal["COLMAP", "transforms.json", "Blender"]
    models: tuple[Path, ...] = ()  # COLMAP's: folders, of which one is used
    opened: Path | None = None  # the folder that was named, where that is another one
    upright: bool = False  # z is up, as the program that made them knows

    @property
    def of_pictures_as_taken(self) -> bool:
        """Return whether COLMAP's models describe the pictures from before their distortion was removed."""
        return any("distorted" in (model.parent.name, model.parent.parent.name) for model in self.models)

    @property
    def num_photographs(self) -> int:
        """Return how many photographs have a pose: in the largest model, 0 for damaged files."""
        if self.models:
            return max(num_registered(model) for model in self.models)
        name = "transforms.json" if self.format == "transforms.json" else "transforms_train.json"
        try:
            return len(json.loads(read_input(self.folder / name))["frames"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return 0


def is_video(path: Path) -> bool:
    """Return whether `path` is a file that is called as a video."""
    return path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()


def estimated_poses(source: Path) -> Path:
    """Return the folder of the poses that are estimated of `source`, a folder of photographs or a video.

    It has the layout of a COLMAP scene, and need not exist.
    """
    if is_video(source):
        return source.parent / STORE / source.name
    return source / STORE / "poses"


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
    # The model's own folder may be named, or hold the photographs, too.
    whole = any(all((folder / f"{part}.{kind}").exists() for part in PARTS[:2]) for kind in KINDS)
    models = (folder,) if whole else _models_in(folder) if folder.name == "sparse" else ()
    # Of the pictures as they were taken, where those without distortion are not made yet.
    if models := models or _models_in(folder / "distorted/sparse"):
        return PoseFiles(folder, "COLMAP", models)
    # Those of this program; a video's are opened by their own folder, which is a COLMAP scene.
    store = estimated_poses(folder)
    models = _models_in(store / "sparse")
    return PoseFiles(store, "COLMAP", models, upright=True) if models else None


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

    Those of `besides` do not count. Raises ValueError, which lists the scenes with their sizes, where there
    are several.
    """
    known = () if besides is None else besides.models
    found = [files for files in _all_below(folder) if not set(files.models) & set(known)]
    if len(found) < 2:
        return replace(found[0], opened=folder) if found else None
    listed = [
        f"{files.folder.relative_to(folder)} ({files.num_photographs} photographs)"
        for files in found[:MOST_LISTED]
    ]
    more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    raise ValueError(f"{folder} holds {len(found)} scenes: {', '.join(listed)}{more}; open one of them")


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
    names = [name for name in names if not name.startswith((".", *PICTURES))]
    return [folder / name for name in names if not (folder / name / "run.json").exists()]
