"""What every reader returns: photos with poses and lenses as the files tell them, in their own frame."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.error_text import as_utf8, first_of, unreadable
from splatstudio.files.inputs import read_input
from splatstudio.files.kinds import refuse_pointer
from splatstudio.scene.lens import Lens
from splatstudio.scene.normalize import KeptFrame

MAX_COORDINATE = 1e12  # beyond this a position is damage, and float32 loses everything anyway
NAMED_BY_INFO = ": `splatstudio info` names them"
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".avif", ".jp2", ".j2k")
# These are read only where poses are estimated.
HEIF_SUFFIXES = (".heic", ".heif")
RAW_SUFFIXES = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".rw2", ".orf")
UNREAD_SUFFIXES = (*HEIF_SUFFIXES, *RAW_SUFFIXES)
PHOTO_SUFFIXES = (*IMAGE_SUFFIXES, *UNREAD_SUFFIXES)
TO_JPEG = (
    "as HEIC or raw files, which are read only where camera poses are estimated: save them as JPEG under the"
    " same names (`mogrify -format jpg *.HEIC` of ImageMagick does that), and open the scene again"
)


@dataclass(frozen=True, eq=False)
class CapturedPhoto:
    """One photo as its files tell it: `viewmat` [4, 4] is world to camera with OpenCV axes.

    `lens` is None where only the angle of view `angle_x` (radians) is told and the picture gives the size.
    """

    name: str
    viewmat: np.ndarray
    image_path: Path
    lens: Lens | None
    angle_x: float = 0.0
    mask_path: Path | None = None
    full_image_path: Path | None = None  # where `image_path` is a smaller copy: the photo in its full size
    turned_lens: Lens | None = None  # that of the photo as EXIF turns it, where nothing tells which is meant


@dataclass(frozen=True, eq=False)
class Capture:
    """A scene folder as read, before images are measured and the frame is normalized."""

    format: str
    shots: tuple[CapturedPhoto, ...]
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))  # [P, 3] float64
    colors: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), np.uint8))  # [P, 3]
    notes: tuple[str, ...] = ()
    test_names: frozenset[str] | None = None  # None: every n-th is a test image
    unposed: tuple[str, ...] = ()  # photos that lie there and have no pose
    model_folder: Path | None = None  # COLMAP's model
    model: int = -1  # its number, where there are several
    upright: bool = False  # z is up in the files
    # In a file that may come and go beside poses without points: the frame does not follow them.
    points_apart: bool = False
    frame: KeptFrame | None = None  # of the poses before these, in which runs go on


class ImageFolder:
    """The picture files of one folder (`deep`: and below), found by name whatever their ending and case.

    Bytes of a name that are no UTF-8 are written out, here and where poses are read: names travel as text.
    """

    def __init__(self, folder: Path, *, deep: bool = True):
        self.folder = folder
        self._by_name: dict[str, Path] = {}
        self._by_folded: dict[str, list[Path]] = {}  # by the name, as `folded` writes it
        self._by_stem: dict[str, list[Path]] = {}
        self._by_last: dict[str, list[Path]] = {}  # by the stem without its folders
        self._unread: dict[str, set[str]] = {}  # raw files and HEIC: stems by their last part
        try:
            for root, below, names in os.walk(folder, onerror=_raise):
                # A hidden folder is no part of a scene: that of estimated poses has all photos again.
                below[:] = [name for name in below if deep and not name.startswith(".")]
                for name in sorted(names):
                    if is_apple_double(name):
                        continue
                    path = Path(root, name)
                    relative = as_utf8(path.relative_to(folder).as_posix())
                    if path.suffix.lower() in UNREAD_SUFFIXES:
                        self._unread.setdefault(_stem(as_utf8(name)), set()).add(_stem(relative))
                        continue
                    self._by_name[relative] = path
                    if path.suffix.lower() in IMAGE_SUFFIXES:
                        self._by_folded.setdefault(folded(relative), []).append(path)
                        self._by_stem.setdefault(_stem(relative), []).append(path)
                        self._by_last.setdefault(_stem(as_utf8(name)), []).append(path)
        except OSError as error:
            raise ValueError(f"the folder {folder} cannot be read: {error.strerror}") from error

    def __len__(self) -> int:
        return sum(len(paths) for paths in self._by_stem.values())

    @property
    def num_unread(self) -> int:
        """Return how many photos are there as HEIC or raw files, which no scene with poses is read of."""
        return sum(len(stems) for stems in self._unread.values())

    def has_unread(self, name: str) -> bool:
        """Return whether `name` is there as HEIC or a raw file, or below where it has no folder in it."""
        stem = _stem(name)
        return stem in self._unread.get(PurePosixPath(stem).name, ()) or stem in self._unread

    @property
    def pictures(self) -> dict[str, Path]:
        """Return the picture files by their paths below the folder."""
        return {name: path for name, path in self._by_name.items() if path.suffix.lower() in IMAGE_SUFFIXES}

    def called(self, name: str) -> list[Path]:
        """Return all pictures called `name`, which has no folder in it, whatever their ending."""
        return self._by_last.get(_stem(name), [])

    def find_below(self, name: str) -> Path | None:
        """Return the only picture called `name`, which has no folder in it, here and below, or None."""
        found = self._by_last.get(_stem(name), [])
        return found[0] if len(found) == 1 and not _leads_nowhere(found[0]) else None

    def find(self, name: str) -> Path | None:
        """Return the file called `name`, or the only picture that differs from it in its ending, or None.

        Case, and the way in which a letter with an accent is written, matter only where nothing else differs.
        """
        exact = self._by_name.get(name)
        if exact is not None:
            return None if _leads_nowhere(exact) else exact
        whole = folded(name)
        # The last: `name` has no ending but a dot in it.
        for paths in (self._by_folded.get(whole), self._by_stem.get(_stem(name)), self._by_stem.get(whole)):
            if paths is not None and len(paths) == 1:
                return None if _leads_nowhere(paths[0]) else paths[0]
        return None

    def end_found(self, listed: str) -> str | None:
        """Return the longest end of a listed path under which `find` finds something, or None.

        Paths of another machine begin with folders that are not here, or part them by backslashes.
        """
        return next((end for end in ends_of(listed) if self.find(end) is not None), None)


def ends_of(listed: str) -> Iterator[str]:
    """Yield a listed path with slashes, then what is left of it without its first folder, and so on."""
    parts = PurePosixPath(listed.replace("\\", "/")).parts
    for start in range(len(parts)):
        yield "/".join(parts[start:])


def folded(text: str) -> str:
    """Return a name as those are compared whose case or way to write an accent differs between systems."""
    return unicodedata.normalize("NFC", text).lower()


def _leads_nowhere(path: Path) -> bool:
    """Return whether a file is gone of which a link is kept, as by an estimation of poses."""
    return path.is_symlink() and not path.exists()


def is_apple_double(name: str) -> bool:
    """Return whether a file is of AppleDouble, as "._0001.jpg": what macOS keeps of a file that it copies."""
    return name.startswith("._")


def find_mask(folder: ImageFolder | None, name: str) -> Path | None:
    """Return the mask of the image `name`: `name`, `name`.png, or the same stem; None when there is none.

    Else one called as Metashape calls masks, 0001_mask.png, or RealityScan, 0001.jpg.mask.png.
    """
    if folder is None:
        return None
    stem = PurePosixPath(name).with_suffix("").as_posix()
    calls = (f"{name}.png", name, f"{stem}_mask.png", f"{name}.mask.png")
    return next((found for call in calls if (found := folder.find(call)) is not None), None)


def note_on_masks(folder: ImageFolder | None, masks: Iterable[Path | None]) -> list[str]:
    """Return a sentence where a folder of masks has pictures and no photo has found its `masks` there."""
    if folder is None or len(folder) == 0 or any(mask is not None for mask in masks):
        return []
    return [
        f"no photo is masked: none of the {len(folder)} pictures in {folder.folder} is called as one, as"
        " 0001.jpg.png or 0001.png for 0001.jpg"
    ]


def read_file(path: Path, what: str) -> bytes:
    """Return the bytes of `path`; raises ValueError with `what` it is when it cannot be read.

    Or where it is a pointer of Git LFS.
    """
    try:
        content = read_input(path)
    except OSError as error:
        raise ValueError(unreadable(f"{what} {path}", error)) from error
    refuse_pointer(path, content)
    return content


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; ValueError where it cannot be read or is none."""
    data = read_file(path, "the file")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}; repair the file or make it again"
        ) from error
    except (ValueError, RecursionError) as error:  # bytes that are no text, endless numbers or brackets
        raise ValueError(f"{path} is not valid JSON: it is no text in UTF-8 or nested without end") from error


def missing_note(missing: list[str], where: str) -> str:
    """Return one sentence that counts the `missing` image files and names the first three."""
    listed = f"{len(missing)} listed image" + ("s do" if len(missing) > 1 else " does")
    told = f"{listed} not exist in {where} and cannot be used: {first_of(missing, 3)}"
    there = ImageFolder(Path(where)) if Path(where).is_dir() else None
    num_unread = 0 if there is None else sum(there.has_unread(name) for name in missing)
    return f"{told}; {num_unread} of them are there {TO_JPEG}" if num_unread else told


def unposed_note(num_unposed: int, num_pictures: int, where: str) -> str:
    """Return the sentence that counts the photos in `where` that no pose is known of."""
    verb = "have no pose and are" if num_unposed > 1 else "has no pose and is"
    of_all = f"{num_unposed} of the {num_pictures} photos"
    return f"{of_all} in {where} {verb} not used{NAMED_BY_INFO}"


def _stem(name: str) -> str:
    path = Path(name)
    has_ending = path.suffix.lower() in PHOTO_SUFFIXES
    return folded((path.with_suffix("") if has_ending else path).as_posix())


def _raise(error: OSError) -> None:
    raise error


@dataclass(frozen=True, eq=False)
class View:
    """One photo and the camera that took it.

    `camera` is undistorted, in the scene's frame, of the size that `scene.photo` delivers. `lens` and
    `orientation` (EXIF 1..8, to be applied; 1: as stored) tell how the file differs from that.
    """

    name: str  # the image's path below its folder, "0001.jpg": the key for sorting and for the split
    camera: Camera
    image_path: Path
    lens: Lens
    mask_path: Path | None = None
    orientation: int = 1
    face: str = ""  # which part of the photo it is, where that is cut into several
    photo: str = ""  # the name of the whole photo; empty: this is it
    full_image_path: Path | None = None  # where `image_path` is a smaller copy: the photo in its full size

    @property
    def whole(self) -> str:
        """Return the name of the photo that this is, or is a part of."""
        return self.photo or self.name
