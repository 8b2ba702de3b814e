"""Read a COLMAP scene: one of its sparse models (.bin or .txt), its photos and their masks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from splatstudio.scene import colmap_binary, colmap_text
from splatstudio.scene.capture import (
    Capture,
    CapturedPhoto,
    ImageFolder,
    ends_of,
    find_mask,
    missing_note,
    note_on_masks,
    unposed_note,
)
from splatstudio.scene.colmap_model import ColmapModel, num_registered
from splatstudio.scene.layout import NoPhotos, PoseFiles, folder_called
from splatstudio.scene.normalize import read_kept_frame
from splatstudio.scene.point_ply import read_point_ply
from splatstudio.scene.scene import Scene

SMALLER = re.compile(r"images_\d+")
IMAGES_OF_SIZES = (2, 4, 8)  # folders of smaller photos, images_2 and so on


class NoVisiblePoints(ValueError):
    """A scene does not tell which photos show its sparse points."""


def visible_points(scene: Scene) -> dict[str, np.ndarray]:
    """Return the sparse points [M, 3] float64, in the scene's frame, that each photo shows, by its name.

    Raises NoVisiblePoints for a scene that is not COLMAP's, as no other tells it, for one without points, and
    where no photo of this scene has any; ValueError and OSError for files that cannot be read.
    """
    folder = scene.model_folder if scene.format == "COLMAP" else None
    if folder is None:
        raise NoVisiblePoints(
            f"{scene.path} does not tell which photos show its sparse points, as COLMAP's scenes do"
        )
    if not len(scene.points):
        raise NoVisiblePoints(f"{scene.path} has no sparse points")
    reader, kind = colmap_binary, "bin"
    if not (folder / "images.bin").exists():
        reader, kind = colmap_text, "txt"
    if not (folder / f"points3D.{kind}").exists():  # they are of a PLY
        raise NoVisiblePoints(
            f"{folder} does not tell which photos show its points: it has no points3D.{kind}"
        )
    ids, points, _ = reader.read_points(folder / f"points3D.{kind}")
    order = np.argsort(ids, kind="stable")
    ids, points = ids[order], points[order] @ scene.transform[:3, :3].T + scene.transform[:3, 3]
    shown: dict[str, np.ndarray] = {}
    names = {view.name for view in scene.views}
    for listed, observed in reader.read_observed_points(folder / f"images.{kind}").items():
        name = listed if listed in names else next((e for e in ends_of(listed) if e in names), listed)
        places = np.searchsorted(ids, observed).clip(0, max(len(ids) - 1, 0))
        known = np.unique(places[ids[places] == observed]) if len(ids) else places
        if len(known):
            shown[name] = points[known]
    if not any(view.name in shown for view in scene.views):
        raise NoVisiblePoints(f"the images in {folder} have no observations of sparse points")
    return shown


def read_colmap(files: PoseFiles, *, downscale: int, images: Path | None, number: int = -1) -> Capture:
    """Return the capture of COLMAP's `files`; photos that do not exist are counted in a note.

    Of several models the one of that `number` is read, -1: the one with most images. With `downscale` k,
    `images_k` is read where it is complete and no folder `images` is given. Raises ValueError for a damaged
    model or an unknown number, NoPhotos when no listed photo is found.
    """
    sparse, notes = _chosen_model(files, number)
    model = read_model(sparse)
    names = [image.name for image in model.images]
    more: list[str] = []
    if images is None:
        photos, more = _photos(files, names, downscale)
    else:
        photos = ImageFolder(images)
    images_dir = photos.folder
    called = _found(photos, names) or _found(photos, names, by_ends=True)
    if any(name != end for name, end in called.items()):
        more.append(
            f"the photos are not at the listed paths, as {names[0]}: those of the same names in {images_dir}"
            " are used"
        )
    masks, full = _masks(files.folder, images_dir), _of_full_size(images_dir)
    shots, missing = [], []
    for image in model.images:
        lens = model.lenses.get(image.camera_id)
        if lens is None:
            raise ValueError(
                f"image {image.name!r} in {sparse} has the camera {image.camera_id}, which the cameras file "
                "does not hold; export the model again"
            )
        name = called.get(image.name)
        path = None if name is None else photos.find(name)
        if name is None or path is None:
            missing.append(image.name)
            continue
        mask = find_mask(masks, name)
        whole = None if full is None else full.find(name)
        shots.append(CapturedPhoto(name, image.viewmat, path, lens, mask_path=mask, full_image_path=whole))
    notes = [*notes, *model.notes, *more, *note_on_masks(masks, (shot.mask_path for shot in shots))]
    if missing:
        note = missing_note(sorted(missing), str(images_dir))
        if not shots:
            raise _nothing_to_show(sparse, photos, len(names), note)
        notes.append(note)
    unposed = _unposed(photos, shots, files)
    if unposed:
        notes.append(unposed_note(len(unposed), len(unposed) + len(shots), str(images_dir)))
    return Capture(
        format="COLMAP",
        shots=tuple(shots),
        points=model.points,
        colors=model.colors,
        notes=tuple(notes),
        unposed=unposed,
        model_folder=sparse,
        model=int(sparse.name) if len(files.models) > 1 and sparse.name.isdecimal() else -1,
        upright=files.upright,
        frame=read_kept_frame(sparse) if files.upright else None,
    )


def _chosen_model(files: PoseFiles, number: int) -> tuple[Path, list[str]]:
    """Return the folder of the model to read, and a note where there are others."""
    sizes = {model: num_registered(model) for model in files.models}
    listed = {model: f"{model.name} ({num} photos)" for model, num in sizes.items()}
    if number >= 0:
        chosen = next((model for model in sizes if model.name == str(number)), None)
        if chosen is None:
            there = ", ".join(listed.values())
            raise ValueError(f"{files.models[0].parent} holds no model {number}: choose one of {there}")
        return chosen, []
    chosen = max(sizes, key=lambda model: sizes[model])
    if len(sizes) == 1:
        return chosen, []
    others = ", ".join(text for model, text in listed.items() if model != chosen)
    note = f"{chosen.parent} holds {len(sizes)} models: {listed[chosen]} is used, {others} not"
    return chosen, [f"{note}; --model NUMBER chooses another"]


def _photos(files: PoseFiles, names: Sequence[str], downscale: int) -> tuple[ImageFolder, list[str]]:
    """Return the folder of the photos `names`, and a note where it is not the one to be expected.

    It is the first that has some; where none has, the first that has some by the ends of their paths.
    """
    first: ImageFolder | None = None
    for root, by_ends in [(root, by_ends) for by_ends in (False, True) for root in _roots(files)]:
        # Pictures as they were taken, whose lenses the models in distorted/ describe.
        taken = [[folder_called(root, "input")], [root]]
        smaller = [[root / f"images_{k}"] for k in IMAGES_OF_SIZES]
        usual = [[root / f"images_{downscale}"] * (downscale > 1) + [folder_called(root, "images")]]
        for places in taken if files.of_pictures_as_taken else usual + taken + smaller:
            deep = places != [root] or any("/" in name or (by_ends and "\\" in name) for name in names)
            folders = [ImageFolder(place, deep=deep) for place in places if place.is_dir()]
            counts = [len(_found(folder, names, by_ends=by_ends)) for folder in folders]
            if max(counts, default=0) == 0:
                if first is None and folders and places != [root]:
                    first = folders[-1]
                continue
            best = counts.index(max(counts))
            notes = []
            if best:
                notes.append(
                    f"{folders[0].folder} holds {counts[0]} of the {len(names)} photos, so those of"
                    f" {folders[best].folder} are used and made smaller"
                )
            elif places not in usual:
                notes.append(f"the photos in {folders[0].folder} are used: there is no folder images")
            return folders[best], notes
    sparse = files.models[0]
    if first is not None:
        note = missing_note(sorted(names), str(first.folder))
        raise _nothing_to_show(sparse, first, len(names), note)
    raise NoPhotos(
        f"the images folder {files.folder / 'images'} does not exist; put the photos of the model there,"
        " or say where they are with --images FOLDER"
    )


def _found(photos: ImageFolder, names: Sequence[str], *, by_ends: bool = False) -> dict[str, str]:
    """Return what those of the photos `names` that are in a folder are called there.

    That is their name, or the longest end of it that is there; what would be the end of several is none's.
    """
    if not by_ends:
        return {name: name for name in names if photos.find(name) is not None}
    ends = {name: end for name in names if (end := photos.end_found(name)) is not None}
    times = Counter(photos.find(end) for end in ends.values())
    return {name: end for name, end in ends.items() if times[photos.find(end)] == 1}


def _of_full_size(images_dir: Path) -> ImageFolder | None:
    """Return the photos of which those in a folder `images_k` are smaller copies; None: there are none."""
    full = folder_called(images_dir.parent, "images")
    return ImageFolder(full) if SMALLER.fullmatch(images_dir.name) and full.is_dir() else None


def _roots(files: PoseFiles) -> list[Path]:
    """Return the folders that a scene's photos may be in: its own, and those above that belong to it.

    They do where its own is a part of COLMAP's layout, or lies in the folder that was opened.
    """
    folder = files.folder
    roots = [folder]
    while folder.name in ("sparse", "colmap", "distorted") or folder.parent.name == "sparse":
        folder = folder.parent
        roots.append(folder)
    while files.opened is not None and files.opened in folder.parents:
        folder = folder.parent
        roots.append(folder)
    return roots


def _nothing_to_show(sparse: Path, photos: ImageFolder, num_needed: int, missing: str) -> NoPhotos:
    """Return the error for a model none of whose photos is in the folder where they should be."""
    if not len(photos):
        return NoPhotos(
            f"{photos.folder} holds no photos; the model in {sparse} needs {num_needed}: put them"
            " there, or name their folder with --images FOLDER"
        )
    return NoPhotos(
        f"{missing}; none is left, so put the photos there under the names of the model, or name"
        " their folder with --images FOLDER"
    )


def _unposed(photos: ImageFolder, shots: Sequence[CapturedPhoto], files: PoseFiles) -> tuple[str, ...]:
    """Return the names of the pictures in the folder that the model does not hold."""
    used, folders = {shot.image_path for shot in shots}, {shot.image_path.parent for shot in shots}
    others = {name: path for name, path in photos.pictures.items() if path not in used}
    if photos.folder in _roots(files):  # which has other pictures below, as masks
        others = {name: path for name, path in others.items() if path.parent in folders}
    return tuple(sorted(others))


def read_model(sparse: Path) -> ColmapModel:
    """Return the model in the folder `sparse`; binary files are preferred to text files."""
    reader, kind = colmap_binary, "bin"
    if not (sparse / "images.bin").exists() and (sparse / "images.txt").exists():
        reader, kind = colmap_text, "txt"
    lenses = reader.read_cameras(_present(sparse / f"cameras.{kind}"))
    images = reader.read_images(_present(sparse / f"images.{kind}"))
    if not images:
        raise ValueError(f"{sparse / f'images.{kind}'} holds no registered image: run COLMAP's mapper again")
    notes = []
    path, plain = sparse / f"points3D.{kind}", sparse / "points3D.ply"
    if not path.exists() and plain.exists():
        points, colors = read_point_ply(plain)
        return ColmapModel(
            lenses, images, points, colors, (f"{path} does not exist: {plain} has the points",)
        )
    if not path.exists():
        notes.append(f"{path} does not exist: training starts from random points")
        return ColmapModel(lenses, images, np.zeros((0, 3)), np.zeros((0, 3), np.uint8), tuple(notes))
    ids, points, colors = reader.read_points(path)
    order = np.argsort(ids, kind="stable")
    return ColmapModel(lenses, images, points[order], colors[order], tuple(notes))


def _present(path: Path) -> Path:
    if not path.exists():
        raise ValueError(
            f"{path} does not exist, though other files of the COLMAP model do; export the model again"
        )
    return path


def _masks(folder: Path, images_dir: Path) -> ImageFolder | None:
    """Return the masks beside the photos, else those of the scene; None where there are none."""
    named = images_dir.with_name(images_dir.name.replace("images", "masks", 1))
    beside = (named, images_dir.parent / "masks") if images_dir != folder else ()
    for place in (*beside, folder / "masks"):
        if place != images_dir and place.is_dir():
            return ImageFolder(place)
    return None
