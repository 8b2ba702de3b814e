"""What a path is that holds no scene: the errors that say so, and what to do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from splatstudio.error_text import first_of
from splatstudio.files.kinds import kind_of_file
from splatstudio.files.path_words import as_argument
from splatstudio.scene.capture import PHOTO_SUFFIXES, RAW_SUFFIXES
from splatstudio.scene.layout import COPIES, MADE_OF_PHOTOS, VIDEO_SUFFIXES
from splatstudio.scene.unread_poses import unread_poses

KNOWN = (
    "photos or a video, whose camera poses are estimated first, a COLMAP folder (sparse/0 and images), a"
    " transforms.json, Blender's transforms_train.json, or one of OpenSfM, OpenDroneMap, Metashape (XML),"
    " RealityScan (CSV), Polycam, Record3D or 3D Scanner App"
)

MOST_NAMED = 5  # of runs, or of folders of photos


def no_scene(path: Path) -> ValueError:
    """Return the error that says what a file is that is named in the place of a folder."""
    if (poses := unread_poses(path)) is not None:
        advice = f"; {poses.program.advice}" if poses.program.advice else ""
        return ValueError(
            f"{path} holds camera poses of {poses.program.name}, which are not read: give the folder of the"
            f" photos, whose poses are estimated anew{advice}"
        )
    try:
        kind = kind_of_file(path)
    except PermissionError:
        raise
    except OSError as error:  # a pipe or a device, which is not waited for
        kind = (error.strerror or "").removeprefix("it is ")
    if path.suffix.lower() in PHOTO_SUFFIXES:
        return ValueError(f"{path} is {kind or 'a picture'}; give the folder that it lies in")
    return ValueError(f"{path} is {kind or 'a file of unknown type'}; give the folder of a scene: {KNOWN}")


def nothing_found(folder: Path) -> ValueError:
    """Return the error that says what a folder without poses is and what to do."""
    entries = sorted(folder.iterdir())
    if not entries:
        return ValueError(f"the folder {folder} is empty; give the folder of a scene: {KNOWN}")
    for name in ("sparse/0", "sparse", "colmap/sparse/0"):
        if (folder / name).is_dir():
            return ValueError(
                f"{folder / name} holds no cameras.bin or cameras.txt: COLMAP's mapper has not finished or "
                "found nothing; run it again"
            )
    if runs := sorted(file.parent.name for file in folder.glob("*/run.json")):
        return ValueError(
            f"{folder} holds no scene but runs ({first_of(runs, MOST_NAMED)}): name one of them;"
            f" splatstudio info {as_argument(folder)} lists them"
        )
    found, poses = _photos_below(folder), unread_poses(folder)
    if not found:
        return ValueError(f"{folder} is not a scene; give the folder of one: {KNOWN}")
    photos = _counted(sum(found.values(), Counter[str]()))
    holds, estimates = f"{next(iter(found))} holds {photos}", "estimates them"
    if len(found) > 1:
        folders = [folder.name if place == folder else place.relative_to(folder) for place in found]
        counts = [f"{place}: {num.total()}" for place, num in zip(folders, found.values(), strict=True)]
        holds = f"{folder} holds {photos} in {len(found)} folders ({first_of(counts, MOST_NAMED)})"
        estimates += " as one scene, and for each of several scenes its folder can be named"
    return ValueError(
        f"{holds} but no camera poses{' that can be read' if poses else ''}, which training needs (nothing "
        f"was changed): `splatstudio poses {as_argument(folder)}` {estimates}"
        f"{'' if poses is None else f'; {poses.told(folder)}'}"
    )


def _photos_below(folder: Path) -> dict[Path, Counter[str]]:
    """Return which folders, this one or at most two levels below, have photos or videos, and how many each.

    Those in `images` count for the folder that it is in. Runs hold none.
    """
    found: dict[Path, Counter[str]] = {}
    for place, folders, files in os.walk(folder):
        if "run.json" in files and place != str(folder):
            folders.clear()
            continue
        here = _photos_in(name for name in files if name[0] != ".")
        holds = Path(place) if Path(place).name != "images" or place == str(folder) else Path(place).parent
        if here:
            found[holds] = found.get(holds, Counter[str]()) + here
        deep = len(Path(place).relative_to(folder).parts) >= 2
        folders[:] = [] if deep else sorted(name for name in folders if _may_hold_photos(name, folders))
    return found


def _photos_in(names: Iterable[str]) -> Counter[str]:
    """Return how many photos and videos files are: a raw one beside its picture is no photo of its own."""
    paths = [PurePosixPath(name) for name in names]
    photos = [path for path in paths if path.suffix.lower() in PHOTO_SUFFIXES]
    raw = [path for path in photos if path.suffix.lower() in RAW_SUFFIXES]
    pictures = {path.stem for path in photos if path not in raw}
    num_photos = len(photos) - sum(path.stem in pictures for path in raw)
    videos = sum(path.suffix.lower() in VIDEO_SUFFIXES for path in paths)
    return +Counter({"photo": num_photos, "video": videos})


def _counted(numbers: Counter[str]) -> str:
    """Return how many there are of each kind, as "3 photos and 1 video"."""
    return " and ".join(f"{num} {kind}{'s' * (num > 1)}" for kind, num in sorted(numbers.items()))


def _may_hold_photos(name: str, beside: Collection[str]) -> bool:
    """Return whether a folder may hold photos of its own: no masks or depths, nor copies of those beside."""
    copy = COPIES.fullmatch(name)
    return name[0] != "." and not MADE_OF_PHOTOS.fullmatch(name) and not (copy and copy[1] in beside)
