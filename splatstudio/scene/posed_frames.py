"""Poses as programs other than COLMAP and nerfstudio tell them: checked values, and their photos."""

from __future__ import annotations

import codecs
import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from splatstudio.cameras.camera import rigid
from splatstudio.error_text import first_of
from splatstudio.files.inputs import can_be_path
from splatstudio.scene.capture import (
    MAX_COORDINATE,
    Capture,
    CapturedPhoto,
    ImageFolder,
    find_mask,
    missing_note,
    note_on_masks,
    read_file,
    unposed_note,
)
from splatstudio.scene.colmap_model import MAX_SIDE
from splatstudio.scene.layout import NoPhotos, PoseFiles
from splatstudio.scene.lens import Lens
from splatstudio.scene.photo import EXIF_SIDEWAYS, DamagedPhoto, picture_header
from splatstudio.scene.point_ply import with_points_beside

# Axes of a camera that looks along -z with y up (OpenGL, ARKit), in those of one along z with y down.
OPENGL_CAMERA = np.diag([1.0, -1.0, -1.0])
Y_UP_TO_Z_UP = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
ROTATION_TOLERANCE = 0.02  # of a matrix's scale; poses are printed with few digits by some programs


@dataclass(frozen=True, eq=False)
class PosedFrame:
    """One photo as a file of poses tells it; `lens_of` gives its lens in a picture of a size."""

    name: str
    viewmat: np.ndarray  # [4, 4] world to camera, OpenCV axes
    lens_of: Callable[[int, int], Lens]


@dataclass(frozen=True, eq=False)
class PosedFrames:
    """What a file of poses holds."""

    frames: tuple[PosedFrame, ...]
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))  # [P, 3]
    colors: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), np.uint8))  # [P, 3]
    notes: tuple[str, ...] = ()
    upright: bool = False  # z is up
    few_pictures: str = ""  # why frames have no picture, where the program keeps only those of some


def capture_of(files: PoseFiles, read: PosedFrames, images: Path | None) -> Capture:
    """Return the capture of a file of poses, with its photos as they lie on this machine.

    They are looked for in the folder `images`, else in the folders `images` and others of the scene, and in
    the scene's own. Raises NoPhotos where none of them is found.
    """
    names = [frame.name for frame in read.frames]
    folder, found = _folder_with_most(files, names, images)
    where, notes = str(folder.folder), [*read.notes]
    masks = files.folder / "masks"
    mask_folder = ImageFolder(masks) if masks.is_dir() else None
    shots = [
        _shot(frame, path, folder, mask_folder)
        for frame, path in zip(read.frames, found, strict=True)
        if path is not None
    ]
    unique, note = _of_one_frame(shots)
    if not unique:
        raise ValueError(f"{files.file} cannot be used: {note}")
    if note is not None:
        notes.append(note)
    missing = [name for name, path in zip(names, found, strict=True) if path is None]
    if missing and read.few_pictures and not folder.num_unread:
        verb = "is" if len(missing) == 1 else "are"
        notes.append(f"{len(missing)} of {len(names)} frames {verb} not used: {read.few_pictures}")
    else:
        notes += _not_found_notes(missing, folder)
    notes += note_on_masks(mask_folder, (shot.mask_path for shot in shots))
    used, beside = {shot.image_path for shot in shots}, {shot.image_path.parent for shot in shots}
    used |= {shot.mask_path for shot in shots if shot.mask_path is not None}
    pictures = folder.pictures.items()
    unposed = tuple(sorted(name for name, path in pictures if path not in used and path.parent in beside))
    unposed = unposed if files.pictures or images is not None else ()  # pictures of depth lie there, too
    if unposed:
        notes.append(unposed_note(len(unposed), len(unposed) + len(shots), where))
    capture = Capture(
        files.format,
        _under_their_paths(unique, folder.folder),
        read.points,
        read.colors,
        tuple(notes),
        unposed=unposed,
        upright=read.upright,
    )
    complete = with_points_beside(capture, files.folder)
    if complete is not capture or len(capture.points):
        return complete
    better = "put a PLY of points beside them, and it starts from those"
    note = f"the poses in {files.folder} come without points: training starts from random points; {better}"
    return replace(capture, notes=(*capture.notes, note))


def _folder_with_most(
    files: PoseFiles, names: list[str], images: Path | None
) -> tuple[ImageFolder, list[Path | None]]:
    """Return the folder that has most photos of these names, and each of them; NoPhotos where none has."""
    candidates = [images] if images is not None else [files.folder / name for name in (*files.pictures, "")]
    folders = [ImageFolder(place, deep=place != files.folder) for place in candidates if place.is_dir()]
    found = [[_picture_of(name, folder) for name in names] for folder in folders]
    counts = [sum(path is not None for path in paths) for paths in found]
    if not max(counts, default=0):
        alike = [note for folder in folders for note in _alike_note(names, folder)]
        raise NoPhotos(
            f"{files.file} cannot be used: {alike[0]}"
            if alike
            else f"none of the {len(names)} photos that {files.file} tells of, as {names[0]}, is in"
            f" {images or files.folder} or its folder images: put them there, or name their folder with"
            " --images FOLDER"
        )
    best = counts.index(max(counts))
    return folders[best], found[best]


def _shot(frame: PosedFrame, path: Path, folder: ImageFolder, masks: ImageFolder | None) -> CapturedPhoto:
    """Return the photo of a frame, with the mask that lies in the folder of masks, or else beside it."""
    name = path.relative_to(folder.folder).as_posix()
    mask = find_mask(masks, frame.name) or find_mask(masks, name)
    mask = mask or folder.find(f"{name}.mask.png")  # as RealityScan has it
    shot = CapturedPhoto(path.name, frame.viewmat, path, None, mask_path=mask)
    try:
        header = picture_header(path)
    except DamagedPhoto:  # who opens all photos leaves it out
        return shot
    lens = frame.lens_of(header.width, header.height)
    if header.orientation not in EXIF_SIDEWAYS:
        return replace(shot, lens=lens)
    turned = frame.lens_of(header.height, header.width)
    if (turned.width, turned.height) == (lens.width, lens.height):
        return replace(shot, lens=lens)
    # The file tells no size. Where it tells a center in pixels, that is near the middle of the picture.
    if (turned.cx, turned.cy) == (lens.cx, lens.cy):
        return replace(shot, lens=min(lens, turned, key=_off_center))
    return replace(shot, lens=lens, turned_lens=turned)


def _off_center(lens: Lens) -> float:
    return math.hypot(lens.cx / lens.width - 0.5, lens.cy / lens.height - 0.5)


def _not_found_notes(missing: list[str], folder: ImageFolder) -> list[str]:
    alike = _alike_note(missing, folder)
    gone = [name for name in missing if len(_called(name, folder)) < 2]
    return [*alike, *([missing_note(gone, str(folder.folder))] if gone else [])]


def _alike_note(names: list[str], folder: ImageFolder) -> list[str]:
    """Return a sentence where several photos are called as one of `names`, and so none is used for it."""
    alike = {name: found for name in names if len(found := _called(name, folder)) > 1}
    if not alike:
        return []
    name, found = next(iter(alike.items()))
    places = first_of([path.relative_to(folder.folder).as_posix() for path in found], 3)
    photos = "1 photo cannot" if len(alike) == 1 else f"{len(alike)} photos cannot"
    return [
        f"{photos} be used, as several files in {folder.folder} are called so, as {name}: {places};"
        " give each photo a name of its own before its poses are found, or take the other files away"
    ]


def _called(name: str, folder: ImageFolder) -> list[Path]:
    return folder.called(PurePosixPath(name.replace("\\", "/")).name)


def _picture_of(name: str, folder: ImageFolder) -> Path | None:
    """Return the photo of a frame: labels are often names alone, while the photos lie in several folders."""
    if (exact := folder.find(name)) is not None:
        return exact
    end = folder.end_found(name)
    return folder.find_below(PurePosixPath(name.replace("\\", "/")).name) if end is None else folder.find(end)


def _of_one_frame(shots: list[CapturedPhoto]) -> tuple[list[CapturedPhoto], str | None]:
    """Return the shots whose photo no other frame has, and a note on those that are left out.

    Which of two poses is the photo's, as of two flights whose photos are called alike, nobody can tell.
    """
    poses: dict[Path, list[np.ndarray]] = {}
    for shot in shots:
        poses.setdefault(shot.image_path, []).append(shot.viewmat)
    unclear = {path for path, found in poses.items() if any(not np.array_equal(found[0], o) for o in found)}
    if not unclear:
        return shots, None
    names = first_of(sorted(path.name for path in unclear), 3)
    left_out = sum(shot.image_path in unclear for shot in shots)
    return [shot for shot in shots if shot.image_path not in unclear], (
        f"{left_out} frames are left out, as several poses name one photo and which is right is not known:"
        f" {names}; give each photo a name of its own before its poses are found"
    )


def _under_their_paths(shots: list[CapturedPhoto], folder: Path) -> tuple[CapturedPhoto, ...]:
    """Return the shots by their paths below the folder, where names alone are not different; each once."""
    once = {shot.image_path: shot for shot in shots}
    if len({shot.name for shot in once.values()}) == len(once):
        return tuple(once.values())
    return tuple(replace(shot, name=path.relative_to(folder).as_posix()) for path, shot in once.items())


class Values:
    """An object of a file of poses, whose values are checked as they are asked for; `where` names it."""

    def __init__(self, where: str, values: Mapping[str, Any]):
        self.where, self.values = where, values

    def error(self, what: str) -> ValueError:
        """Return the error that says `what` is wrong here and what to do."""
        return ValueError(f"{self.where} {what}; export it again")

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number; ValueError where it is none, or missing without a `default`."""
        value = self.values.get(name, default)
        if value is None:
            raise self.error(f"has no {name}")
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) < MAX_COORDINATE:
            raise self.error(f"has {name} = {str(value)[:60]!r}, which is not a number")
        return number

    def numbers(self, name: str, num: int) -> np.ndarray:
        """Return `num` finite numbers, [num] float64."""
        value = self.values.get(name)
        row = value.split() if isinstance(value, str) else value
        try:
            numbers = np.array(row, np.float64)
        except (TypeError, ValueError, OverflowError):
            numbers = np.zeros(0)
        if numbers.shape != (num,) or not np.abs(numbers).max() < MAX_COORDINATE:
            raise self.error(f"has {name} that is not {num} numbers")
        return numbers

    def size(self, width: str = "width", height: str = "height") -> tuple[int, int]:
        """Return a size in pixels."""
        sides = self.number(width), self.number(height)
        if not all(1 <= side <= MAX_SIDE and side == int(side) for side in sides):
            raise self.error(f"has the image size {sides[0]:g} x {sides[1]:g}, which is impossible")
        return int(sides[0]), int(sides[1])

    def text(self, name: str) -> str:
        """Return a text that can be a file's name."""
        value = self.values.get(name)
        if not isinstance(value, str) or not value or not can_be_path(value):
            raise self.error(f"has no {name} that is the name of a file")
        return value


def fixed(lens: Lens) -> Callable[[int, int], Lens]:
    """Return the lens of a file that tells the size of its pictures."""
    return lambda width, height: lens


def focal_lens(values: Values, size: tuple[int, int], fx: float, fy: float, cx: float, cy: float) -> Lens:
    """Return a pinhole's lens; ValueError for a focal length that is not positive."""
    if not (fx > 0 and fy > 0):
        raise values.error(f"has the focal length {fx:g} x {fy:g}, which is not positive")
    return Lens(*size, fx, fy, cx, cy)


def view_of(
    error: Callable[[str], ValueError], camera_to_world: np.ndarray, position: np.ndarray, what: str = "pose"
) -> np.ndarray:
    """Return world to camera [4, 4] of the axes [3, 3] of a camera (OpenCV's) in the world and its place.

    Raises `error`, by which the file calls it `what`, for axes that are no rotation, times any scale.
    """
    scale = np.cbrt(np.linalg.det(camera_to_world))
    if not scale > 1e-9:
        raise error(f"has a {what} that is no rotation (it mirrors or is flat)")
    u, _, vt = np.linalg.svd(camera_to_world / scale)
    rotation = (u @ vt).T
    if not np.abs(rotation.T - camera_to_world / scale).max() < ROTATION_TOLERANCE:
        raise error(f"has a {what} that is no rotation (it shears)")
    return rigid(rotation, -rotation @ position)


def rows_of(path: Path, first_column: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file, by the names in its header, and the number of each one's line.

    The header is the first line that begins with `first_column`.
    """
    content = read_file(path, "the file")
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    lines = content.decode(encoding, errors="replace").splitlines()
    header = next((n for n, line in enumerate(lines) if line.lstrip().startswith(first_column)), 0)
    table = csv.DictReader(lines[header:], skipinitialspace=True)
    try:
        for row in table:
            yield header + table.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path} is no table: {error}; export it again") from error
