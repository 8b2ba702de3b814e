"""Read transforms.json of instant-ngp and nerfstudio, and Blender's transforms_train/val/test.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from splatstudio.error_text import first_of
from splatstudio.scene import colmap_binary
from splatstudio.scene.capture import (
    MAX_COORDINATE,
    Capture,
    CapturedPhoto,
    ImageFolder,
    find_mask,
    missing_note,
    note_on_masks,
    read_json,
    unposed_note,
)
from splatstudio.scene.frame_lens import MOST_KEYS, Record, frame_lens, is_fisheye, records_of
from splatstudio.scene.layout import NoPhotos, folder_called
from splatstudio.scene.lens import Lens
from splatstudio.scene.photo import DamagedPhoto
from splatstudio.scene.point_ply import read_point_ply, with_points_beside
from splatstudio.scene.posed_frames import view_of

SPLITS = ("train", "val", "test")


def read_frames(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Return the file's own values and its frames; ValueError when it is no JSON or has no frames."""
    top = read_json(path)
    frames = top.get("frames") if isinstance(top, dict) else None
    if not isinstance(frames, list) or not frames:
        raise ValueError(
            f"{path} has no frames: it must hold a list `frames` with file_path and transform_matrix"
        )
    for number, frame in enumerate(frames, 1):
        if not isinstance(frame, dict):
            raise ValueError(f"{path}, frame {number}, is not an object with file_path and transform_matrix")
    if all(frame.get("transform_matrix") is None for frame in frames):
        keys = first_of(sorted(frames[0]), MOST_KEYS) or "nothing"
        raise ValueError(
            f"no frame of {path} has a transform_matrix (the first has {keys}): write that of its camera to"
            " world, 4 x 4 numbers, into each"
        )
    return top, records_of(path, frames, top)


def frame_pose(record: Record) -> np.ndarray:
    """Return world to camera [4, 4] (OpenCV axes) from a frame's camera-to-world matrix (OpenGL axes).

    Raises ValueError when `transform_matrix` is not a finite 4 x 4 (or 3 x 4) rotation and shift.
    """
    matrix = matrix_3x4(record.get("transform_matrix"))
    if matrix is None:
        raise record.error("has no transform_matrix of 4 x 4 numbers")
    if not np.abs(matrix).max() < MAX_COORDINATE:
        raise record.error("has a transform_matrix that is not finite")
    axes = matrix[:, :3] * np.array([1.0, -1.0, -1.0])
    return view_of(record.error, axes, matrix[:, 3], "transform_matrix")


def matrix_3x4(value: Any) -> np.ndarray | None:
    """Return the upper three rows of a JSON matrix of 3 x 4 or 4 x 4 numbers, or None when it is none."""
    rows = value if isinstance(value, list) and len(value) in (3, 4) else []
    plain = all(
        isinstance(row, list)
        and len(row) == 4
        and all(isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e300 for x in row)
        for row in rows
    )
    # NaN fails the comparison above, so it is reported as a wrong matrix too.
    return np.array(rows[:3], dtype=np.float64) if rows and plain else None


def read_transforms(path: Path, images: Path | None = None) -> Capture:
    """Return the capture of one transforms.json; listed photos that do not exist are counted in a note.

    Photos are looked for beside the file, or in the folder `images` where it is given. Points come from
    `ply_file_path`, or from nerfstudio's colmap/ folder by `applied_transform`; nerfstudio's lists of
    filenames say what is held out. Raises ValueError for a damaged file, NoPhotos when no listed
    photo exists.
    """
    top, records = read_frames(path)
    frames = _frames(path.parent, records, images)
    if not frames.shots:
        raise NoPhotos(
            f"{missing_note(frames.missing, str(images or path.parent))}; none is left, so put the"
            f" photos beside {path.name} as it lists them, or name their folder with --images FOLDER"
        )
    notes = [*frames.notes]
    if frames.missing:
        notes.append(missing_note(frames.missing, str(images or path.parent)))
    shots, repeated = _unique(frames.shots)
    if repeated:
        notes.append(f"{repeated} frames list a photo a second time and are left out")
    notes += _note_on_dynamic_masks(frames)
    if any(record.get("fisheye_crop_radius") is not None for record in records):
        notes.append(
            "fisheye_crop_radius is not used, so what the photos show beyond that circle is trained on, too:"
            " masks that are black there leave it out"
        )
    notes += _notes_on_masks(path.parent, frames)
    unposed = _unposed(frames, records)
    if unposed:
        where = ", ".join(sorted({str(shot.image_path.parent) for shot in shots}))
        notes.append(unposed_note(len(unposed), len(unposed) + len(shots), where))
    test, unused, about_split = _split(path, top, frames)
    shots = [shot for shot in shots if shot.name not in unused]
    shots, test = _short_names(shots, test)
    points, colors, about_points = _points(path, top)
    capture = Capture(
        format="transforms.json",
        shots=tuple(shots),
        points=points,
        colors=colors,
        notes=(*notes, *about_split, *about_points),
        test_names=test or None,
        unposed=unposed,
    )
    return with_points_beside(capture, path.parent)


def _split(
    path: Path, top: dict[str, Any], frames: _Frames
) -> tuple[frozenset[str], frozenset[str], list[str]]:
    """Return what `_named_split` does by the file's lists, else by Blender's beside a transforms.json."""
    beside = [path.with_name(f"transforms_{split}.json") for split in ("test", "val")]
    beside = [file for file in beside if path.name == "transforms.json" and file.exists()]
    if not beside or any(f"{split}_filenames" in top for split in SPLITS):
        return _named_split(path.name, top, frames)
    try:
        named = [record.text("file_path") or "" for record in read_frames(beside[0])[1]]
    except ValueError as error:
        return frozenset(), frozenset(), [f"{beside[0].name} is not used: {error}"]
    if not {_posix(name).as_posix() for name in named} & set(frames.listed.values()):
        note = f"{beside[0].name} is not used: it names none of the photos of {path.name}"
        return frozenset(), frozenset(), [note]
    return _named_split(beside[0].name, {"test_filenames": named}, frames)


def _named_split(
    file: str, top: dict[str, Any], frames: _Frames
) -> tuple[frozenset[str], frozenset[str], list[str]]:
    """Return the names of the shots to test with, and of those not used, by nerfstudio's lists of filenames.

    Test views are those of `test_filenames`, else of `val_filenames`, else what is not in `train_filenames`.
    Both are empty, with a note, where nothing would be left to train on or to test with.
    """
    lists = {split: _filenames(file, top, f"{split}_filenames") for split in SPLITS}
    if all(names is None for names in lists.values()):
        return frozenset(), frozenset(), []
    every = set(frames.listed.values())
    lists = {split: _as_listed(names, every) for split, names in lists.items()}
    train, val, test = (every & (lists[split] or set()) for split in SPLITS)
    held_out = test or val or (every - train)
    learned = (train if lists["train"] is not None else every - val - test) - held_out
    if not learned or not held_out:
        return frozenset(), frozenset(), [f"the lists of filenames in {file} split nothing off for the test"]
    names = {name for name, listed in frames.listed.items() if listed in held_out}
    unused = {name for name, listed in frames.listed.items() if listed not in held_out | learned}
    notes = [f"{file} names the {len(names)} photos of the test"]
    passed_over = {name for name in unused if frames.listed[name] in val}
    if passed_over:
        notes.append(
            f"{counted_photos(len(passed_over))} of its val_filenames not used: test_filenames are the test"
        )
    if others := len(unused) - len(passed_over):
        notes.append(f"{counted_photos(others)} in none of the lists that {file} splits by: not used")
    return frozenset(names), frozenset(unused), notes


def counted_photos(num: int) -> str:
    """Return "1 photo is" or "2 photos are"."""
    return "1 photo is" if num == 1 else f"{num} photos are"


def _filenames(file: str, top: dict[str, Any], key: str) -> set[str] | None:
    names = top.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{file} has {key}, which is no list of file names; correct or remove it")
    return {_posix(name).as_posix() for name in names}


def _as_listed(names: set[str] | None, every: set[str]) -> set[str] | None:
    """Return names as the frames have them, where those of all lists are without the frames' folders."""
    alone = {PurePosixPath(path).name: path for path in every}
    if names is None or names & every or len(alone) < len(every):
        return names
    return {alone.get(PurePosixPath(name).name, name) for name in names}


def _posix(listed: str) -> PurePosixPath:
    return PurePosixPath(listed.replace("\\", "/"))


def read_blender(folder: Path, images: Path | None = None) -> Capture:
    """Return the capture of a Blender folder: transforms_train.json to train, transforms_test.json to test.

    Views of transforms_val.json are test views when there is no transforms_test.json, else not used. Points
    come from `ply_file_path` of the training file, or from the points3d.ply that the original trainer reads.
    Raises ValueError for a damaged file, NoPhotos when no listed photo of the training file exists.
    """
    notes, shots, test, top = [], [], frozenset(), {}
    held_out = "test" if (folder / "transforms_test.json").exists() else "val"
    for split in ("train", held_out):
        path = folder / f"transforms_{split}.json"
        if not path.exists():
            continue  # without test and val, every n-th view is held out
        content, records = read_frames(path)
        top = content if split == "train" else top
        frames = _frames(folder, records, images)
        notes += frames.notes
        if frames.missing:
            notes.append(f"{path.name}: {missing_note(frames.missing, str(images or folder))}")
        if split == "train" and not frames.shots:
            raise NoPhotos(
                f"{notes[-1]}; none is left to train on: name the photos' folder with --images FOLDER"
            )
        if split == held_out:
            test = frozenset(shot.name for shot in frames.shots)
        shots += frames.shots
    shots, repeated = _unique(shots)
    if repeated:
        notes.append(f"{repeated} frames list a photo a second time and are left out")
    if held_out == "test" and (folder / "transforms_val.json").exists():
        notes.append("the views of transforms_val.json are not used: transforms_test.json is the test")
    points, colors, about_points = _points(folder / "transforms_train.json", top)
    notes += about_points
    capture = Capture("Blender", tuple(shots), points, colors, notes=tuple(notes), test_names=test or None)
    return with_points_beside(capture, folder)


@dataclass(frozen=True, eq=False)
class _Frames:
    """The frames of a file: shots of those whose photos exist, and what is said of the others."""

    shots: list[CapturedPhoto]
    listed: dict[str, str]  # the path that the file lists, by the shot's name
    missing: list[str]
    notes: list[str]
    folders: dict[Path, ImageFolder | None]  # in which photos and masks were looked for
    without_mask: list[str] = field(default_factory=list)  # shots whose mask is listed and not there


class _Pictures:
    """The photos that a file lists, as found on this machine."""

    def __init__(self, paths: Sequence[PurePosixPath]):
        self.paths = paths
        self.folders: dict[Path, ImageFolder | None] = {}

    def folder(self, where: Path) -> ImageFolder | None:
        """Return the pictures in a folder, None where there is none."""
        if where not in self.folders:
            anchor = Path(where.anchor)
            place = where if where.is_dir() else folder_called(anchor, str(where.relative_to(anchor)))
            self.folders[where] = self.folders[place] = (
                ImageFolder(place, deep=False) if place.is_dir() else None
            )
        return self.folders[where]

    def found(self, base: Path, num_dropped: int) -> list[Path | None]:
        """Return each photo in `base` by its listed path, less the first folders of it."""
        places = [base.joinpath(*path.parts[num_dropped:]) for path in self.paths]
        return [self._picture(place) if place != base else None for place in places]

    def _picture(self, place: Path) -> Path | None:
        pictures = self.folder(place.parent)
        found = pictures.find(place.name) if pictures else None
        return None if found is None or found.is_dir() else found

    def best(self, bases: Sequence[Path]) -> tuple[Path, int, list[Path | None]]:
        """Return the folder and the number of dropped folders that find most, the first of equals.

        And what they find. Those that find one photo for two are passed over: names alone do not tell
        two cameras' pictures apart.
        """
        depth = max((len(path.parts) for path in self.paths), default=1)
        best, most = (bases[0], 0, self.found(bases[0], 0)), -1
        for base in bases:
            for num_dropped in range(depth):
                found = self.found(base, num_dropped)
                there = [path for path in found if path is not None]
                if (len(there) > most and len(set(there)) == len(there)) or most < 0:
                    best, most = (base, num_dropped, found), len(there)
                if most == len(self.paths):
                    return best
        return best


def _frames(folder: Path, records: list[Record], images: Path | None = None) -> _Frames:
    """Return a shot for each frame whose photo exists, and the names of those that do not.

    Each photo has the end of its listed path: all of it, or where that finds more without the first few
    folders, as for files that were written on another machine.
    """
    paths = [_posix(record.text("file_path") or "") for record in records]
    pictures = _Pictures(paths)
    bases = [images] if images is not None else [folder, folder / "images"]
    base, num_dropped, found = pictures.best(bases)
    frames = _Frames([], {}, [], [], pictures.folders)
    moved = images is None and (base, num_dropped) != (folder, 0)
    if moved:
        there = next(path for path in found if path is not None)
        frames.notes.append(
            f"the photos are not at the listed paths, as {paths[0]}: those of the same names in"
            f" {there.parent} are used"
        )
    for record, path, picture in zip(records, paths, found, strict=True):
        viewmat = frame_pose(record)
        if picture is None:
            is_fisheye(record)  # what a missing photo's frame says is checked as far as it can be
            frames.missing.append(path.as_posix())
            continue
        try:
            lens = frame_lens(record, picture)
        except DamagedPhoto:  # who opens all photos leaves it out
            lens = 1.0
        kept = PurePosixPath(*path.parts[num_dropped:]) if moved else path
        name = (kept.parent / picture.name).as_posix()
        measured = lens if isinstance(lens, Lens) else None
        angle = 0.0 if isinstance(lens, Lens) else lens
        places = [
            *_mask_places(base.joinpath(*path.parts[num_dropped:]).with_name(picture.name), base, folder)
        ]
        mask = _mask_of(record, folder, places, pictures)
        if mask is None and record.text("mask_path"):
            frames.without_mask.append(name)
        frames.shots.append(CapturedPhoto(name, viewmat, picture, measured, angle, mask))
        frames.listed[name] = path.as_posix()
    return frames


def _mask_places(place: Path, base: Path, folder: Path) -> Iterator[Path]:
    """Yield where the mask of the photo at `place` may lie: in folders masks beside those that it is in.

    Not above `base`, in which photos are looked for, nor outside of the scene's `folder`.
    """
    for parent in place.parents:
        if parent == folder:
            yield folder / "masks" / place.relative_to(folder)
            return
        yield parent.parent / "masks" / place.relative_to(parent)
        if parent == base or not place.is_relative_to(base):
            return


def _mask_of(record: Record, folder: Path, places: Sequence[Path], pictures: _Pictures) -> Path | None:
    """Return the mask that a frame lists, perhaps in a folder of masks, or else that of its photo."""
    listed = record.text("mask_path")
    if not listed:
        found = (find_mask(pictures.folder(place.parent), place.name) for place in places)
    else:
        path = _posix(listed)
        if (folder / path).exists():  # whoever opens it refuses what is no file
            return folder / path
        ends = [folder.joinpath(*path.parts[number:]) for number in range(1, len(path.parts))]
        found = (end for end in (*ends, *(place.with_name(path.name) for place in places)) if end.is_file())
    return next((mask for mask in found if mask is not None), None)


def _unposed(frames: _Frames, records: list[Record]) -> tuple[str, ...]:
    """Return the pictures beside the photos that no frame names, as a photo or as anything else."""
    named = {PurePosixPath(_posix(text).name).stem for record in records for text in _texts(record)}
    used = {shot.image_path for shot in frames.shots}
    others: set[str] = set()
    for place in {path.parent for path in used}:
        pictures = frames.folders.get(place)
        for name, path in (pictures.pictures if pictures else {}).items():
            if path not in used and path.stem not in named and not _is_dynamic_mask(path):
                others.add(name)
    return tuple(sorted(others))


def _is_dynamic_mask(path: Path) -> bool:
    """Return whether a picture beside the photos is one of instant-ngp's masks."""
    return path.name.startswith("dynamic_mask_")


def _notes_on_masks(folder: Path, frames: _Frames) -> list[str]:
    """Return sentences on masks that are listed and not there, and on a folder of masks of no photo."""
    notes = []
    if frames.without_mask:
        photos = "1 photo is" if len(frames.without_mask) == 1 else f"{len(frames.without_mask)} photos are"
        names = first_of(frames.without_mask, 3)
        notes.append(f"{photos} used without the mask that is listed, as that does not exist: {names}")
    used = [shot.mask_path for shot in frames.shots]
    for place, pictures in frames.folders.items():
        # Those elsewhere are of another scene.
        if place.is_relative_to(folder) and "masks" in place.relative_to(folder).parts:
            notes += note_on_masks(pictures, used)
    return notes


def _note_on_dynamic_masks(frames: _Frames) -> list[str]:
    """Return a sentence where instant-ngp's masks lie beside the photos: white where ours are black."""
    num = sum(
        _is_dynamic_mask(path)
        for folder in frames.folders.values()
        if folder
        for path in folder.pictures.values()
    )
    if not num:
        return []
    return [
        f"masks of instant-ngp (dynamic_mask_..., {num} in all) lie beside the photos and are not used: turn"
        " black and white around, and put each under its photo's name into a folder masks beside theirs"
    ]


def _texts(record: Record) -> list[str]:
    return [value for value in record.values.values() if isinstance(value, str)]


def _unique(shots: list[CapturedPhoto]) -> tuple[list[CapturedPhoto], int]:
    first = {shot.name: shot for shot in reversed(shots)}
    kept = [shot for shot in shots if first[shot.name] is shot]
    return kept, len(shots) - len(kept)


def _short_names(
    shots: list[CapturedPhoto], test: frozenset[str]
) -> tuple[list[CapturedPhoto], frozenset[str]]:
    """Return the shots and the names of the test by their paths below the folder that all of them share."""
    parents = {PurePosixPath(shot.name).parent for shot in shots}
    if len(parents) > 1:
        return shots, test
    short = [replace(shot, name=PurePosixPath(shot.name).name) for shot in shots]
    return short, frozenset(PurePosixPath(name).name for name in test)


def _no_points() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((0, 3)), np.zeros((0, 3), np.uint8)


def _points(path: Path, top: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return positions [P, 3], colors [P, 3], and a note where they are not at the listed path."""
    listed = Record(str(path), top, {}).text("ply_file_path")
    if listed is not None:
        place, beside = path.parent / _posix(listed), path.parent / _posix(listed).name
        if not place.exists() and not beside.exists():
            return *_no_points(), [f"the points {listed} are not there: training starts from random points"]
        if place.exists():
            return *read_point_ply(place), []
        return *read_point_ply(beside), [f"{listed} is not there: the points of {beside} are used"]
    # nerfstudio before version 1.0 wrote no PLY; its colmap/ folder is in the frame before applied_transform.
    model, applied = path.parent / "colmap/sparse/0/points3D.bin", top.get("applied_transform")
    if applied is None or not model.exists():
        return *_no_points(), []
    matrix = matrix_3x4(applied)
    if matrix is None:
        raise ValueError(f"{path} has an applied_transform that is no matrix of 3 x 4 numbers")
    ids, points, colors = colmap_binary.read_points(model)
    order = np.argsort(ids, kind="stable")
    return points[order] @ matrix[:, :3].T + matrix[:, 3], colors[order], []
