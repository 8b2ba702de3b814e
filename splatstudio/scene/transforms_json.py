"""Read transforms.json of instant-ngp and nerfstudio, and Blender's transforms_train/val/test.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from splatstudio.scene import colmap_binary
from splatstudio.scene.capture import Capture, CapturedPhoto, ImageFolder, find_mask, missing_note
from splatstudio.scene.lens import Lens
from splatstudio.scene.point_file import read_point_ply
from splatstudio.scene.transforms_file import Record, frame_lens, frame_pose, matrix_3x4, read_frames


def read_transforms(path: Path, images: Path | None = None) -> Capture:
    """Return the capture of one transforms.json; listed photographs that do not exist are counted in a note.

    Photographs are looked for beside the file, or in the folder `images` where it is given. Points come from
    `ply_file_path`, or from nerfstudio's colmap/ folder by `applied_transform`. Raises ValueError for a
    damaged file or when no listed photograph exists.
    """
    top, records = read_frames(path)
    shots, missing = _shots(path.parent, records, images)
    notes = []
    if missing:
        notes.append(missing_note(missing, str(images or path.parent)))
    if not shots:
        raise ValueError(
            f"{notes[0]}; none is left, so put the photographs beside {path.name} as it lists them, or name"
            " their folder with --images FOLDER"
        )
    shots, repeated = _unique(shots)
    if repeated:
        notes.append(f"{repeated} frames list a photograph a second time and are left out")
    points, colors = _points(path, top)
    return Capture("transforms.json", tuple(_short_names(shots)), points, colors, tuple(notes))


def read_blender(folder: Path, images: Path | None = None) -> Capture:
    """Return the capture of a Blender folder: transforms_train.json to train, transforms_test.json to test.

    Views of transforms_val.json are test views when there is no transforms_test.json, else not used. Raises
    ValueError for a damaged file or when no listed photograph of the training file exists.
    """
    notes, shots, test = [], [], frozenset()
    held_out = "test" if (folder / "transforms_test.json").exists() else "val"
    for split in ("train", held_out):
        path = folder / f"transforms_{split}.json"
        if not path.exists():
            continue  # without test and val, every n-th view is held out
        _, records = read_frames(path)
        found, missing = _shots(folder, records, images)
        if missing:
            notes.append(f"{path.name}: {missing_note(missing, str(images or folder))}")
        if split == "train" and not found:
            raise ValueError(
                f"{notes[0]}; none is left to train on: name the photographs' folder with --images FOLDER"
            )
        if split == held_out:
            test = frozenset(shot.name for shot in found)
        shots += found
    shots, repeated = _unique(shots)
    if repeated:
        notes.append(f"{repeated} frames list a photograph a second time and are left out")
    if held_out == "test" and (folder / "transforms_val.json").exists():
        notes.append("the views of transforms_val.json are not used: transforms_test.json is the test")
    return Capture("Blender", tuple(shots), notes=tuple(notes), test_names=test or None)


def _shots(
    folder: Path, records: list[Record], images: Path | None = None
) -> tuple[list[CapturedPhoto], list[str]]:
    """Return a shot for each frame whose photograph exists, and the names of those that do not.

    In the folder `images` each has the end of its listed path: all of it, or without the first few folders,
    as many for all frames as it takes to find any.
    """
    folders: dict[Path, ImageFolder | None] = {}

    def indexed(where: Path) -> ImageFolder | None:
        if where not in folders:
            folders[where] = ImageFolder(where, deep=False) if where.is_dir() else None
        return folders[where]

    def picture(listed: PurePosixPath, num_dropped: int) -> tuple[Path, Path | None]:
        place = folder / listed if images is None else images.joinpath(*listed.parts[num_dropped:])
        pictures = indexed(place.parent)
        found = pictures.find(place.name) if pictures else None
        return place, None if found is None or found.is_dir() else found

    paths = [PurePosixPath((record.text("file_path") or "").replace("\\", "/")) for record in records]
    depth = 0 if images is None else max((len(path.parts) for path in paths), default=0)
    num_dropped = next((n for n in range(depth) if any(picture(path, n)[1] for path in paths)), 0)
    shots, missing = [], []
    for record, path in zip(records, paths, strict=True):
        name, (place, found) = path.as_posix(), picture(path, num_dropped)
        viewmat, lens = frame_pose(record), frame_lens(record)
        if found is None:
            missing.append(name)
            continue
        mask = record.text("mask_path")
        mask_path = (
            folder / mask.replace("\\", "/") if mask else find_mask(indexed(_mask_folder(place)), found.name)
        )
        if mask_path is not None and not mask_path.exists():
            raise ValueError(
                f"{record.where} has the mask_path {mask}, which does not exist; correct or remove it"
            )
        name = (PurePosixPath(name).parent / found.name).as_posix()
        measured = lens if isinstance(lens, Lens) else None
        angle = 0.0 if isinstance(lens, Lens) else lens
        shots.append(CapturedPhoto(name, viewmat, found, measured, angle, mask_path))
    return shots, missing


def _mask_folder(picture: Path) -> Path:
    """Return the masks/ folder beside the folder of a picture."""
    return picture.parent.parent / "masks"


def _unique(shots: list[CapturedPhoto]) -> tuple[list[CapturedPhoto], int]:
    first = {shot.name: shot for shot in reversed(shots)}
    kept = [shot for shot in shots if first[shot.name] is shot]
    return kept, len(shots) - len(kept)


def _short_names(shots: list[CapturedPhoto]) -> list[CapturedPhoto]:
    """Return the shots named by their path below the folder that all of them share."""
    parents = {PurePosixPath(shot.name).parent for shot in shots}
    if len(parents) > 1:
        return shots
    return [replace(shot, name=PurePosixPath(shot.name).name) for shot in shots]


def _points(path: Path, top: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    listed = Record(str(path), top, {}).text("ply_file_path")
    if listed is not None:
        return read_point_ply(path.parent / listed)
    # nerfstudio before version 1.0 wrote no PLY; its colmap/ folder is in the frame before applied_transform.
    model, applied = path.parent / "colmap/sparse/0/points3D.bin", top.get("applied_transform")
    if applied is None or not model.exists():
        return np.zeros((0, 3)), np.zeros((0, 3), np.uint8)
    matrix = matrix_3x4(applied)
    if matrix is None:
        raise ValueError(f"{path} has an applied_transform that is no matrix of 3 x 4 numbers")
    ids, points, colors = colmap_binary.read_points(model)
    order = np.argsort(ids, kind="stable")
    return points[order] @ matrix[:, :3].T + matrix[:, 3], colors[order]
