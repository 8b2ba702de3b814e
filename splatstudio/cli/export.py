"""`splatstudio export`: a model on disk written again for other programs, with the cameras of its scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from splatstudio.cameras.placement import AS_IN_THE_FILES, Placement, knows_no_scene
from splatstudio.files.durable import refuse_unwritable
from splatstudio.formats import format_to_write
from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.models.exporter import ExportedModel, ExportRequest, write_model
from splatstudio.models.model import load_model, scene_shown_by
from splatstudio.scene.scene import Scene


def export_model(
    path: Path,
    output: Path,
    trim: Trim = KEEP_ALL,
    placement: Placement = AS_IN_THE_FILES,
    *,
    normals: bool = False,
    strict: bool = False,
    announce: Callable[[str], object] | None = None,
) -> ExportedModel:
    """Write the model at `path` in the format of the ending of `output`, and the cameras where asked.

    The box of `trim` is in the coordinates of the scene's files. `normals` face the cameras of the scene, if
    it is known (see `normals_of`); `strict` is as of `load_model`. `announce` is told, before anything is
    written, about how large the file will be. Raises ValueError for what cannot be read, written or found,
    before anything is written; where the cameras fail after that, it says that the model is there.
    """
    form = format_to_write(output)
    _refuse_outputs(output, placement.cameras)
    model = load_model(path, strict=strict, scene=placement.scene)
    # A checkpoint knows its frame; a file of Gaussians needs the scene to tell which way is up.
    shown = placement.upright or ((form.is_page or normals) and placement.scene is not None)
    lost = shown and knows_no_scene(model.transform)
    scene = _scene_of(path, placement) if lost or placement.cameras is not None else None
    if scene is not None:
        model = model.in_frame_of(scene)
    cameras, note = (), None
    if (form.is_page or normals) and not knows_no_scene(model.transform):
        seen, note = (scene, None) if scene is not None else _scene_if_there(path, placement)
        if seen is not None:
            there = model.transform @ np.linalg.inv(seen.transform)
            cameras = tuple(camera.transformed(there) for camera in seen.cameras)
    photos = () if scene is None else tuple((view.name, view.camera) for view in scene.views)
    request = ExportRequest(
        trim=trim,
        box_in_files=True,
        upright=placement.upright,
        normals=normals,
        eyes=[camera.position for camera in cameras],
        first=cameras[0] if cameras else None,
        cameras=placement.cameras,
        photos=photos,
    )
    exported = write_model(model, output, request, announce=announce)
    told = [*model.notes, *([] if note is None else [note])]
    return replace(exported, notes=(*told, *exported.notes))


def _refuse_outputs(output: Path, cameras: Path | None) -> None:
    """Raise ValueError where the model, or the cameras beside it, could not be written."""
    refuse_unwritable(output)
    if cameras is None:
        return
    if cameras.parent.exists():  # a folder that is missing is made for them
        refuse_unwritable(cameras)
    if cameras.name == output.name and cameras.parent.resolve() == output.parent.resolve():
        raise ValueError(f"the model and its cameras cannot both be written to {output}: name two files")


def _scene_of(path: Path, placement: Placement) -> Scene:
    """Return the scene that a model shows, at the size of photos that it was trained on."""
    return scene_shown_by(path, placement.scene, placement.images, full_size=False)


def _scene_if_there(path: Path, placement: Placement) -> tuple[Scene | None, str | None]:
    """Return the scene for its cameras, or why there is none."""
    try:
        return _scene_of(path, placement), None
    except ValueError as error:
        # Pages and normals are possible without; they only are better with them.
        return None, f"The photos' cameras are not known, so the file is written without them: {error}."
