"""The one way in which a model becomes a file: placed, trimmed, and with notes on what is not kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.placement import export_transform, knows_no_scene
from splatstudio.corrections.poses import corrected_camera
from splatstudio.files.durable import write_durably
from splatstudio.files.outputs import make_folder
from splatstudio.formats import FileExtras, Format, format_to_write, write_gaussians
from splatstudio.formats.viewer_page import PageView
from splatstudio.gaussians.gaussians import Gaussians, unit_quats
from splatstudio.gaussians.transform import transformed
from splatstudio.gaussians.trimming import KEEP_ALL, Trim, trimmed
from splatstudio.kernels.reference import rotation_matrices
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.ply_header import Orientation, direction

CHUNK = 65_536
COARSE_STEP = 0.1  # of a splat's size: coordinates that are no finer show as noise

NO_SKY = (
    "The model has learned a sky, which no file of splats holds: other programs show their own background"
    " there, a web page the sky's mean color."
)
NO_BACKGROUND = (
    "The model was trained on a background of the color ({}), which no file of splats holds: only on that"
    " color does it look and score as it did, not on the black of most viewers."
)
BLURRED = (
    "The model is anti-aliased, which the file does not tell: switch that on where it is shown (some programs"
    " call it mip splatting), or what is small looks too bright."
)
BLURRED_PAGE = "The model is anti-aliased, which the page cannot draw: what is small looks too bright there."
REFINED = "The cameras of the training photos are written as the training has refined them."


@torch.no_grad()
def normals_of(gaussians: Gaussians, eyes: np.ndarray) -> Tensor:
    """Return unit normals [N, 3] float32 on the CPU: the shortest axis of each Gaussian.

    It points to the side of the nearest of `eyes` [E, 3], the places in the Gaussians' frame from which the
    surface was seen. Where there are none, it points away from the middle of the model (the median of its
    centers), which is right for an object and wrong for a room. Raises ValueError for a center that is not
    finite.
    """
    num = len(gaussians)
    means = gaussians.means.detach().float().cpu()
    wrong = torch.nonzero(~means.isfinite())
    if len(wrong):
        row, axis = wrong[0].tolist()
        raise ValueError(f"there are no normals: 'means' of splat {row} is {float(means[row, axis])}")
    normals = torch.empty(num, 3)
    from scipy.spatial import KDTree  # takes a third of a second to load

    nearest = KDTree(eyes) if len(eyes) else None
    middle = means.median(dim=0).values if num else means
    for start in range(0, num, CHUNK):
        rows = slice(start, min(start + CHUNK, num))
        axes = rotation_matrices(unit_quats(gaussians.quats.detach()[rows].float().cpu()))
        shortest = gaussians.scales.detach()[rows].argmin(dim=1).cpu()
        normal = axes[torch.arange(len(axes)), :, shortest]
        if nearest is not None:
            _, eye = nearest.query(means[rows].numpy())
            toward = torch.from_numpy(eyes[eye]).float() - means[rows]
        else:
            toward = means[rows] - middle
        behind = (normal * toward).sum(dim=1, keepdim=True) < 0.0
        normals[rows] = torch.where(behind, -normal, normal)
    return normals


def write_cameras(path: Path, cameras: Iterable[tuple[str, Camera]], transform: np.ndarray) -> None:
    """Write named cameras to `path` after every point p of the world became `transform` [4, 4] @ p.

    The layout is that of the original trainer: `rotation` holds the camera's axes (right, down, forward) as
    columns, `position` its center, `fx`, `fy` pixels; `cx`, `cy` are the principal point. The cameras are
    those of the undistorted photos. Raises OSError when the file cannot be written.
    """
    rows = [
        _row(number, name, camera.transformed(transform)) for number, (name, camera) in enumerate(cameras)
    ]
    make_folder(path.parent)
    write_durably(path, (json.dumps(rows, indent=1) + "\n").encode())


def _row(number: int, name: str, camera: Camera) -> dict[str, Any]:
    return {
        "id": number,
        "img_name": name,
        "width": camera.width,
        "height": camera.height,
        "position": camera.position.tolist(),
        "rotation": camera.camera_to_world[:3, :3].tolist(),
        "fx": float(camera.K[0, 0]),
        "fy": float(camera.K[1, 1]),
        "cx": float(camera.K[0, 2]),
        "cy": float(camera.K[1, 2]),
    }


class Exportable(Protocol):
    """What the exporter needs of a model, see `Model`."""

    @property
    def gaussians(self) -> Gaussians: ...
    @property
    def transform(self) -> np.ndarray: ...
    @property
    def options(self) -> RenderOptions: ...
    @property
    def step(self) -> int | None: ...
    @property
    def part(self) -> str | None: ...
    @property
    def poses(self) -> Mapping[str, np.ndarray]: ...
    @property
    def known_up(self) -> np.ndarray | None: ...
    @property
    def orientation(self) -> Orientation: ...


@dataclass(frozen=True, eq=False)
class ExportRequest:
    """How a model is written. Cameras and eyes are in the model's frame."""

    trim: Trim = KEEP_ALL
    box_in_files: bool = False  # the box of `trim` is in the coordinates of the scene's files
    upright: bool = False  # stand upright in other viewers, else lie in the coordinates of the scene's files
    normals: bool = False  # facing `eyes`, see `normals_of`
    eyes: Sequence[np.ndarray] = ()  # [3] from where the scene was photographed
    first: Camera | None = None  # from where a web page shows the model at first
    title: str | None = None  # of a web page; None: as the file is called
    cameras: Path | None = None  # also write the cameras of the photos to this file, see `write_refined`
    photos: tuple[tuple[str, Camera], ...] = ()  # their cameras, by name


AS_IT_IS = ExportRequest()


@dataclass(frozen=True)
class ExportedModel:
    """What was written."""

    output: Path
    num_gaussians: int
    num_left_out: int = 0
    form: Format | None = None  # None: a checkpoint folder
    notes: tuple[str, ...] = ()  # sentences on what the file does not keep, and on what could not be done
    part: str | None = None  # a sentence, where it is the part of a model that one of several ranks wrote

    @property
    def note(self) -> str | None:
        """Return the notes as one text; None: there are none."""
        return " ".join(self.notes) or None


def write_model(
    model: Exportable,
    output: Path,
    request: ExportRequest = AS_IT_IS,
    *,
    form: Format | None = None,
    announce: Callable[[str], object] | None = None,
) -> ExportedModel:
    """Write a model in the format `form`, by default that of the ending of `output`, and cameras where asked.

    `announce` is told, before anything is written, about how large the file will be. Raises ValueError for
    what cannot be written; where the cameras fail after the model, it says that the model is there.
    """
    form, num = form or format_to_write(output), len(model.gaussians)
    # Nobody sees the coordinates of a page, and those of a map may be too large for what is in them.
    upright = request.upright or (form.is_page and not knows_no_scene(model.transform))
    transform = export_transform(model.transform, upright=upright)
    gaussians = _placed(model, request, transform)
    normals = None
    if request.normals:
        eyes = [transform[:3, :3] @ eye + transform[:3, 3] for eye in request.eyes]
        normals = normals_of(gaussians, np.reshape(eyes, (-1, 3)))
    if announce is not None:
        megabytes = form.estimated_bytes(len(gaussians), gaussians.sh_degree) / 1e6
        announce(f"{len(gaussians):,} splats are written as {form.name}: about {megabytes:.1f} MB")
    page = page_view(model, np.linalg.inv(transform), request.first, title=request.title)
    up = None if model.known_up is None else direction(transform[:3, :3] @ model.known_up)
    orientation = Orientation(up, upright or (model.orientation.upright and knows_no_scene(model.transform)))
    extras = FileExtras(model.step, model.options.antialiased, normals, page, orientation)
    write_gaussians(output, gaussians, extras, form=form)
    notes = [*not_kept(model.options, form), *form.rounds(gaussians)]
    if form.has_sizes and not knows_no_scene(model.transform):  # else they came from such coordinates
        notes += coarse_splats(gaussians)
    if request.cameras is not None:
        try:
            notes += write_refined(model, request.cameras, request.photos, upright=request.upright)
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"{output} is written, but not {request.cameras}: {why}") from error
    return ExportedModel(output, len(gaussians), num - len(gaussians), form, tuple(notes), model.part)


def _placed(model: Exportable, request: ExportRequest, transform: np.ndarray) -> Gaussians:
    """Return what is left of the Gaussians, where `transform` [4, 4] from the model's frame brings them."""
    to_box = np.linalg.inv(model.transform) if request.box_in_files else None
    return transformed(trimmed(model.gaussians, request.trim, to_box), transform)


def write_refined(
    model: Exportable, file: Path, photos: Iterable[tuple[str, Camera]], *, upright: bool = False
) -> list[str]:
    """Write the cameras of photos, by name and in the model's frame, as the training has refined them.

    They lie in the coordinates of the scene's files, or `upright` as a model does. Returns the notes on them;
    raises OSError.
    """
    refined = [(name, refined_camera(model, name, camera)) for name, camera in photos]
    write_cameras(file, refined, export_transform(model.transform, upright=upright))
    return [REFINED] if model.poses else []


def refined_camera(model: Exportable, name: str, camera: Camera) -> Camera:
    """Return the camera of the photo `name`, in the model's frame, as the training refined it.

    Cameras of which nothing was learned, as those of test photos, stay as they are.
    """
    correction = model.poses.get(name)
    return camera if correction is None else corrected_camera(camera, correction)


def page_view(
    model: Exportable, upright: np.ndarray, camera: Camera | None = None, *, title: str | None = None
) -> PageView:
    """Return how a web page shows Gaussians that `upright` [4, 4] brings to the model's frame.

    `camera`, in the model's frame, is from where it is shown at first.
    """
    sky = model.options.sky
    background = model.options.background if sky is None else sky.mean_color
    if knows_no_scene(model.transform):
        return PageView(title=title, background=background)
    if camera is not None:
        camera = camera.transformed(np.linalg.inv(upright))
    return PageView(upright, camera, title=title, background=background)


def coarse_splats(gaussians: Gaussians) -> list[str]:
    """Return a sentence where files keep coordinates as large as these so coarsely that it is seen."""
    if not len(gaussians):
        return []
    # Where most of it lies: a few splats far away need no detail.
    farthest = float(gaussians.means.detach().abs().amax(dim=1).median())
    step = float(np.spacing(np.float32(farthest)))
    size = math.exp(float(gaussians.scales.detach().mean(dim=1).median()))
    if not step > COARSE_STEP * size:
        return []
    return [coarse_coordinates(farthest, step, f"a splat has a size of {size:.2g}")]


def coarse_coordinates(farthest: float, step: float, beside: str) -> str:
    """Return the sentence on coordinates whose `step`, as files have it, is large `beside` what they tell."""
    return (
        f"The coordinates are as large as {farthest:,.0f}, which files keep in steps of {step:.2g}, and"
        f" {beside}: with --upright (in the studio: Align upright) no detail is lost."
    )


def not_kept(options: RenderOptions, form: Format | None) -> list[str]:
    """Return a sentence on each thing besides its Gaussians that makes a model's look and is not kept.

    `form` None is a checkpoint folder.
    """
    sentences = [NO_SKY] if options.sky is not None and form is not None else []
    if any(options.background) and options.sky is None and form is not None and not form.is_page:
        sentences.append(NO_BACKGROUND.format(", ".join(f"{value:g}" for value in options.background)))
    if options.antialiased and form is not None and form.has_sizes and not form.tells_antialiased:
        sentences.append(BLURRED_PAGE if form.is_page else BLURRED)
    return sentences
