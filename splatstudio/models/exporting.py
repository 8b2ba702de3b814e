"""A model on disk, written anew for other programs: placed, trimmed, with its cameras beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.cameras.camera_file import write_cameras
from splatstudio.cameras.placement import AS_IN_THE_FILES, Placement, export_transform, knows_no_scene
from splatstudio.files.durable import refuse_unwritable
from splatstudio.formats import Format, format_to_write, write_gaussians
from splatstudio.formats.normals import normals_of
from splatstudio.gaussians.transform import transformed
from splatstudio.gaussians.trimming import KEEP_ALL, Trim, trimmed
from splatstudio.models.model import Model, load_model, scene_shown_by
from splatstudio.scene.scene import Scene

NO_SKY = (
    "The model has learnt a sky, which no file of Gaussians holds: other programs show their own background"
    " there, a web page the sky's mean colour."
)
BLURRED = (
    "The model is anti-aliased, which the file does not tell: switch that on where it is shown (some programs"
    " call it mip splatting), or what is small looks too bright."
)
BLURRED_PAGE = "The model is anti-aliased, which the page cannot draw: what is small looks too bright there."
REFINED = "The cameras of the training photographs are written as the training has refined them."


@dataclass(frozen=True)
class ExportedModel:
    """What was written."""

    form: Format
    num_gaussians: int
    num_left_out: int
    note: str | None = None  # a sentence about what was to be done beside and could not
    part: str | None = None  # a sentence, where it is the part of a model that one of several ranks wrote


def export_model(
    path: Path,
    output: Path,
    trim: Trim = KEEP_ALL,
    placement: Placement = AS_IN_THE_FILES,
    *,
    normals: bool = False,
    announce: Callable[[str], object] | None = None,
) -> ExportedModel:
    """Write the model at `path` in the format of the ending of `output`, and the cameras where asked.

    The box of `trim` is in the coordinates of the scene's files. `normals` face the cameras of the scene, if
    it is known (see `normals_of`). `announce` is told, before anything is written, about how large the file
    will be. Raises ValueError for what cannot be read, written or found, before anything is written; where
    the cameras fail after that, it says that the model is there.
    """
    form = format_to_write(output)
    _refuse_outputs(output, placement.cameras)
    model = load_model(path)
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
    transform = export_transform(model.transform, upright=placement.upright)
    gaussians = trimmed(transformed(model.gaussians, np.linalg.inv(model.transform)), trim)
    if placement.upright:
        gaussians = transformed(gaussians, transform @ model.transform)
    page = model.page_view(np.linalg.inv(transform), cameras[0] if cameras else None)
    eyes = [camera.transformed(transform).position for camera in cameras]
    facing = normals_of(gaussians, np.reshape(eyes, (-1, 3))) if normals else None
    if announce is not None:
        megabytes = form.estimated_bytes(len(gaussians), gaussians.sh_degree) / 1e6
        announce(f"{len(gaussians):,} Gaussians are written as {form.name}: about {megabytes:.1f} MB")
    antialiased = model.options.antialiased
    write_gaussians(output, gaussians, step=model.step, page=page, normals=facing, antialiased=antialiased)
    if placement.cameras is not None and scene is not None:
        refined = [(view.name, model.refined(view.name, view.camera)) for view in scene.views]
        try:
            write_cameras(placement.cameras, refined, transform)
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"{output} is written, but not {placement.cameras}: {why}") from error
    notes = [note, *not_kept(model, form)]
    notes += [REFINED if model.poses and placement.cameras is not None else None]
    told = " ".join(text for text in notes if text)
    return ExportedModel(form, len(gaussians), len(model) - len(gaussians), told or None, model.part)


def not_kept(model: Model, form: Format) -> list[str]:
    """Return a sentence on each thing beside its Gaussians that makes the model's look and is not kept."""
    sentences = [NO_SKY] if model.options.sky is not None else []
    if model.options.antialiased and form.has_sizes and not form.tells_antialiased:
        sentences.append(BLURRED_PAGE if form.is_page else BLURRED)
    return sentences


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
    """Return the scene that a model shows, at the size of photographs that it was trained on."""
    return scene_shown_by(path, placement.scene, placement.images, full_size=False)


def _scene_if_there(path: Path, placement: Placement) -> tuple[Scene | None, str | None]:
    """Return the scene for its cameras, or why there is none."""
    try:
        return _scene_of(path, placement), None
    except ValueError as error:
        # Pages and normals are possible without; they only are better with them.
        return None, f"The photographs' cameras are not known, and the file is made without them: {error}"
