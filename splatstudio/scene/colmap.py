"""Read a COLMAP scene folder: sparse/0 or sparse (.bin or .txt), images/ and masks/."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.scene import colmap_binary, colmap_text
from splatstudio.scene.capture import Capture, CapturedPhoto, ImageFolder, find_mask, missing_note
from splatstudio.scene.colmap_model import ColmapModel
from splatstudio.scene.scene import Scene

MODEL_FOLDERS = ("sparse/0", "sparse", "colmap/sparse/0")  # the last as nerfstudio keeps it
PARTS = ("cameras", "images", "points3D")


def visible_points(scene: Scene) -> dict[str, np.ndarray]:
    """Return the sparse points [M, 3] float64, in the scene's frame, that each photograph shows, by its name.

    Raises ValueError for a scene that is not COLMAP's, as no other tells it, and where no photograph of this
    scene has any.
    """
    folder = model_folder(scene.path) if scene.format == "COLMAP" else None
    if folder is None:
        raise ValueError(
            f"{scene.path} does not tell which photographs show its sparse points, as COLMAP's scenes do:"
            " their depths cannot guide the training; set depth.weight to 0"
        )
    reader, kind = colmap_binary, "bin"
    if not (folder / "images.bin").exists():
        reader, kind = colmap_text, "txt"
    ids, points, _ = reader.read_points(folder / f"points3D.{kind}")
    order = np.argsort(ids, kind="stable")
    ids, points = ids[order], points[order] @ scene.transform[:3, :3].T + scene.transform[:3, 3]
    shown: dict[str, np.ndarray] = {}
    for name, observed in reader.read_observed_points(folder / f"images.{kind}").items():
        places = np.searchsorted(ids, observed).clip(0, max(len(ids) - 1, 0))
        known = np.unique(places[ids[places] == observed]) if len(ids) else places
        if len(known):
            shown[name] = points[known]
    if not any(view.name in shown for view in scene.views):
        raise ValueError(
            f"the images in {folder} have no observations of sparse points: their depths cannot guide the"
            " training; set depth.weight to 0"
        )
    return shown


def model_folder(folder: Path) -> Path | None:
    """Return the folder below `folder` that holds a COLMAP model (even an incomplete one), or None.

    A transforms.json goes before the model that nerfstudio made it from.
    """
    for name in MODEL_FOLDERS:
        if name.startswith("colmap") and (folder / "transforms.json").exists():
            return None
        if any((folder / name / f"{part}.{kind}").exists() for kind in ("bin", "txt") for part in PARTS):
            return folder / name
    return None


def read_colmap(folder: Path, *, downscale: int, images: Path | None) -> Capture:
    """Return the capture in a COLMAP scene folder; photographs that do not exist are counted in a note.

    With `downscale` k, `images_k` is read when it exists and no folder `images` is given. Raises ValueError
    for a damaged model, a missing images folder, or when no listed photograph exists.
    """
    sparse = model_folder(folder)
    assert sparse is not None, "read_colmap is called for folders with a model"
    model = read_model(sparse)
    images_dir = _images_dir(folder, downscale) if images is None else images
    photographs = ImageFolder(images_dir)
    if not len(photographs):
        raise ValueError(
            f"{images_dir} holds no photographs; the model in {sparse} needs {len(model.images)}: put them"
            " there, or name their folder with --images FOLDER"
        )
    masks = _masks(folder, images_dir)
    shots, missing = [], []
    for image in model.images:
        lens = model.lenses.get(image.camera_id)
        if lens is None:
            raise ValueError(
                f"image {image.name!r} in {sparse} has the camera {image.camera_id}, which the cameras file "
                "does not hold; export the model again"
            )
        path = photographs.find(image.name)
        if path is None:
            missing.append(image.name)
            continue
        mask = find_mask(masks, image.name)
        shots.append(CapturedPhoto(image.name, image.viewmat, path, lens, mask_path=mask))
    notes = [*model.notes]
    if missing:
        note = missing_note(sorted(missing), str(images_dir))
        if not shots:
            raise ValueError(
                f"{note}; none is left, so put the photographs there under the names of the model, or name"
                " their folder with --images FOLDER"
            )
        notes.append(note)
    return Capture("COLMAP", tuple(shots), model.points, model.colors, tuple(notes))


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
    if sparse.name == "0":
        others = sorted(
            p.name for p in sparse.parent.iterdir() if p.is_dir() and p.name.isdigit() and p != sparse
        )
        if others:
            notes.append(f"{sparse.parent} holds more than one model; 0 is used, {', '.join(others)} not")
    path = sparse / f"points3D.{kind}"
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


def _images_dir(folder: Path, downscale: int) -> Path:
    chosen = folder / f"images_{downscale}"
    if downscale == 1 or not chosen.is_dir():
        chosen = folder / "images"
    if not chosen.is_dir():
        raise ValueError(
            f"the images folder {chosen} does not exist; put the photographs of the model there, or say "
            "where they are with --images FOLDER"
        )
    return chosen


def _masks(folder: Path, images_dir: Path) -> ImageFolder | None:
    """Return the masks beside the photographs, else those of the scene; None where there are none."""
    named = images_dir.with_name(images_dir.name.replace("images", "masks", 1))
    for place in (named, images_dir.parent / "masks", folder / "masks"):
        if place != images_dir and place.is_dir():
            return ImageFolder(place)
    return None
