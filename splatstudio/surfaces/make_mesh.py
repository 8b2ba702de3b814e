"""The one way in which a model becomes a mesh: views, field, surface, colors, report, files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import similarity_scale
from splatstudio.cameras.placement import export_transform, knows_no_scene
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.files.durable import partial_path, refuse_unwritable, write_json_durably
from splatstudio.gaussians.trimming import Trim, trimmed
from splatstudio.models.exporter import COARSE_STEP, coarse_coordinates
from splatstudio.models.model import Model, load_model, origin_of, scene_shown_by
from splatstudio.operating_system import put_in_place
from splatstudio.scene.scene import Scene
from splatstudio.surfaces import quality
from splatstudio.surfaces.colors import ColoredMesh, colored_by, reliability_colors
from splatstudio.surfaces.depth_views import ModelViews, Survey
from splatstudio.surfaces.extract import all_keys, memory_of_rank, surface_by_ranks
from splatstudio.surfaces.ground import find_ground, ground_rectangle
from splatstudio.surfaces.mesh import (
    NO_SIMPLIFICATION,
    Mesh,
    can_simplify,
    simplified,
    smoothed,
    watertight,
    without_islands,
)
from splatstudio.surfaces.mesh_files import check_mesh_output, write_mesh
from splatstudio.surfaces.mesh_options import PLAIN_MESH, MeshOptions, MeshTask
from splatstudio.surfaces.quality import MeshReport
from splatstudio.surfaces.shown_mesh import ShownMesh, shown_mesh
from splatstudio.surfaces.texture import NO_UNWRAPPING, can_unwrap, textured
from splatstudio.surfaces.tsdf import BLOCK_BYTES, Grid, Tsdf, find_blocks, fuse

MEMORY_SHARE = 0.5  # of what is free, for the field and what is made of it
VIEWS_SHARE = 0.15  # of what is free, for pictures that are kept
BYTES_A_BLOCK = 4 * BLOCK_BYTES  # with what finding the surface in it takes
# Of the photos, on the surface. At one, the roughness of the splats is finer than their colors.
PIXELS_OF_A_VOXEL = 2.0
FEWEST_VOXELS = 16  # along the longest side: of fewer nothing can be made
COARSER = 1.05  # than what just fits
MARGIN = 2  # blocks around the box of the survey
FEW_PHOTOS = 8  # with fewer one view is enough to tell of a surface
MIN_VIEWS = 2  # that agree on a surface, else
SEEN_WITHIN = 0.75  # of the truncation distance: a view that sees so near to a vertex sees the vertex

Progress = Callable[[int, int, str], object]

FAR, FEW_FOUND = 0.05, 0.1  # of the diagonal; of the points: of a model of the scene both are far better
ELSEWHERE = (
    "The scene's points do not lie at this surface: the model may be of another scene, or in other"
    " coordinates than the scene's files"
)
NOTHING_SEEN = (
    "no view sees a surface: the model is empty or transparent where the cameras look; train it longer,"
    " or open it with the scene that it was trained on, if that is another one"
)
NOTHING_SEEN_ALONE = "no view sees a surface: the model is empty or transparent; train it longer"
NO_SCENE = (
    "The model does not say which photos it was trained on: its surface and colors are those of its own"
    " renders from an orbit around it; name the scene with --scene FOLDER for those of the photos."
)


@dataclass(frozen=True, eq=False)
class MadeMesh:
    """A mesh in the coordinates of its file, and its report."""

    mesh: Mesh
    report: MeshReport
    shown: ShownMesh | None  # for a page: in the model's frame


@dataclass(frozen=True)
class WrittenMesh:
    """What was written."""

    output: Path
    report_file: Path
    report: MeshReport
    shown: ShownMesh | None  # for a page; None: it would have too many triangles


def _untold(done: int, total: int, what: str) -> None:
    """Tell nobody."""


def mesh_of_task(task: MeshTask, on_progress: Progress = _untold, ranks: Ranks = ALONE) -> WrittenMesh:
    """Make a mesh of a model on disk and write it and its report, each complete or not there.

    `on_progress` gets how many views of all are done, and what is done now. Of several `ranks` this is rank
    0, and the others call `help_with_mesh`. Raises ValueError for a model, a scene or options that cannot be
    used, and where a file cannot be written, and MemoryError.
    """
    for file in task.files:
        refuse_unwritable(file)
    on_progress(0, 0, "loading the model")
    options, model, scene = _read(task)
    photos = None
    if options.texture is not None and scene is not None:
        photos = scene_shown_by(task.path, task.scene, task.images, full_size=True)
    made = mesh_of_model(
        model, scene, options, photos=photos, upright=task.upright, on_progress=on_progress, ranks=ranks
    )
    on_progress(0, 0, f"writing {task.output.name}")
    # Where the report has no room, or who waits cancels, an earlier mesh and its report stay.
    report, before = partial_path(task.report_file), _identity(task.output)
    try:
        write_json_durably(report, made.report.values)
        write_mesh(task.output, made.mesh, z_up=task.upright)
        put_in_place(report, task.report_file)
    except OSError as error:
        kept = "nothing of it was kept" + ("" if before is None else ", and the earlier file is as it was")
        if _identity(task.output) != before:
            kept = "it is there, but not all that belongs to it"
        why = error.strerror or error
        raise ValueError(
            f"{task.output} cannot be written: {why}; {kept}. Make room there, or name another place"
        ) from error
    finally:
        report.unlink(missing_ok=True)
    return WrittenMesh(task.output, task.report_file, made.report, made.shown)


def _identity(file: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced, None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def help_with_mesh(task: MeshTask, ranks: Ranks) -> None:
    """Draw, fuse and find this rank's share of the mesh that rank 0 makes by `mesh_of_task`."""
    options, model, scene = _read(task)
    model = model if scene is None else model.in_frame_of(scene)
    views = ModelViews(model, scene, _room(VIEWS_SHARE, ranks), between=options.between, ranks=ranks)
    _surface(views, options, similarity_scale(model.transform), ranks, _untold)
    if options.mesh_preset != "ground":
        for _ in views.all():  # of which rank 0 takes the colors
            pass


def _read(task: MeshTask) -> tuple[MeshOptions, Model, Scene | None]:
    """Return what a task says of the mesh, and the model and the scene, if there is one, that it names."""
    options = task.options.with_preset()
    check_mesh_output(task.output, textured=options.texture is not None)
    refuse_options(options)
    model = load_model(task.path, scene=task.scene)
    scene = None
    if task.scene is not None or origin_of(task.path) is not None:
        scene = scene_shown_by(task.path, task.scene, task.images, full_size=False)
    own = model.transform
    cropped = task.box_frame is not None and task.trim.crop is not None
    frame = np.array(task.box_frame) if cropped else own
    model = replace(model, gaussians=trimmed(model.gaussians, task.trim, frame @ np.linalg.inv(own)))
    return options, model, None if scene is None else _with_points_in(scene, frame, task.trim)


def _with_points_in(scene: Scene, frame: np.ndarray, trim: Trim) -> Scene:
    """Return the scene with the sparse points alone that lie in the box of `trim`.

    `frame` [4, 4] leads from the coordinates of the scene's files to those of the box.
    """
    if trim.crop is None or not len(scene.points):
        return scene
    to_box = frame @ np.linalg.inv(scene.transform)
    points = np.asarray(scene.points, np.float64) @ to_box[:3, :3].T + to_box[:3, 3]
    corners = np.reshape(trim.crop, (2, 3))
    inside = ((points >= corners.min(axis=0)) & (points <= corners.max(axis=0))).all(axis=1)
    return replace(scene, points=scene.points[inside])


def refuse_options(options: MeshOptions) -> None:
    """Raise ValueError for options that cannot be followed, before there is work to lose."""
    options.check()
    if options.triangles is not None and not can_simplify():
        raise ValueError(NO_SIMPLIFICATION)
    if options.texture is not None and not can_unwrap():
        raise ValueError(NO_UNWRAPPING)


def mesh_of_model(
    model: Model,
    scene: Scene | None = None,
    options: MeshOptions = PLAIN_MESH,
    *,
    photos: Scene | None = None,
    upright: bool = False,
    on_progress: Progress = _untold,
    ranks: Ranks = ALONE,
) -> MadeMesh:
    """Return the surface of a model by TSDF fusion of its median depth (see `tsdf`), and how good it is.

    It lies in the coordinates of the scene's files, or stands `upright`, z up, centered and scaled as in
    the studio. Without a scene the views are an orbit. `photos` is the scene in the size from which a
    texture is taken, where that is another one. Raises ValueError where nothing is seen or left.
    """
    refuse_options(options)
    model = model if scene is None else model.in_frame_of(scene)
    views = ModelViews(model, scene, _room(VIEWS_SHARE, ranks), between=options.between, ranks=ranks)
    found = _surface(views, options, similarity_scale(model.transform), ranks, on_progress)
    mesh, survey, grid = _finished(found.mesh, options), found.survey, found.grid
    facts = _Facts(
        views, scene, grid, found.chosen_by, found.dropped, tuple(_notes(views, scene, model)), model.step
    )
    if options.mesh_preset == "ground":
        return _ground(mesh, model, facts, upright=upright)
    colored = colored_by(
        mesh,
        views.all(),
        SEEN_WITHIN * grid.truncation,
        lambda done: on_progress(done, len(views), "coloring the surface"),
    )
    on_progress(0, 0, "measuring the mesh")
    accuracy = quality.point_scores(mesh, _points_within_reach(facts, survey))
    styled = _styled(colored.mesh, facts, survey, options, photos, on_progress)
    mesh, placed = _placed(model, styled, upright=upright)
    if not knows_no_scene(model.transform):
        facts = replace(facts, notes=(*facts.notes, *_coarse(mesh, grid.voxel_size * placed)))
    return MadeMesh(mesh, _report(mesh, colored, facts, accuracy, placed), shown_mesh(colored.mesh))


@dataclass(frozen=True, eq=False)
class _Surface:
    """The surface as it was found, and where."""

    mesh: Mesh  # without its islands
    survey: Survey
    grid: Grid
    chosen_by: str
    dropped: int  # triangles of islands


def _surface(
    views: ModelViews, options: MeshOptions, scale: float, ranks: Ranks, on_progress: Progress
) -> _Surface:
    """Return the surface that the views show, which all ranks find together."""
    survey = views.survey(lambda done: on_progress(done, len(views), "looking at the model"))
    if survey is None:
        raise ValueError(NOTHING_SEEN if views.are_photos else NOTHING_SEEN_ALONE)
    field, keys, chosen = _fused(views, survey, options, scale, ranks, on_progress)
    on_progress(0, 0, "finding the surface")
    min_views = MIN_VIEWS if len(views) >= FEW_PHOTOS else 1
    grid, whole = field.grid, surface_by_ranks(field, keys, min_views, ranks)
    del field
    mesh = without_islands(whole, options.min_island)
    if not mesh.num_triangles:
        if grid.voxel_size * FEWEST_VOXELS < survey.longest_side:
            raise ValueError(
                "no surface is left: too few views agree on one; train longer, or choose a larger"
                " --voxel-size"
            )
        length, side = survey.longest_side / scale, grid.voxel_size / scale
        raise ValueError(
            f"no surface is left: what the views see is {length:.3g} long, and a voxel {side:.3g}; choose a"
            " smaller --voxel-size"
        )
    return _Surface(mesh, survey, grid, chosen, whole.num_triangles - mesh.num_triangles)


def _room(share: float, ranks: Ranks) -> int:
    """Return that share of the memory, in bytes, that this rank may take."""
    return int(share * memory_of_rank(ranks))


@dataclass(frozen=True, eq=False)
class _Facts:
    """What the report tells beside what is measured on the mesh."""

    views: ModelViews
    scene: Scene | None
    grid: Grid
    chosen_by: str
    dropped: int
    notes: tuple[str, ...]
    step: int | None


def _ground(mesh: Mesh, model: Model, facts: _Facts, *, upright: bool) -> MadeMesh:
    """Return the rectangle of the ground below a mesh. Raises ValueError where there is none."""
    ground = find_ground(mesh, model.up)
    rectangle = ground_rectangle(mesh, ground)
    note = (
        f"{ground.share:.0%} of what is level lies in the ground, which leans by {ground.tilt:.1f} degrees to"
        " the scene's up"
    )
    placed, scale = _placed(model, rectangle, upright=upright)
    unseen = torch.zeros(len(rectangle.vertices), dtype=torch.int64)
    gray = torch.full((len(rectangle.vertices), 3), 0.5)
    shown = shown_mesh(replace(rectangle, colors=gray, num_seen=unseen))
    told = replace(facts, notes=(note, *facts.notes))
    return MadeMesh(placed, _report(placed, ColoredMesh(placed, None), told, (None, None), scale), shown)


def _fused(
    views: ModelViews, survey: Survey, options: MeshOptions, scale: float, ranks: Ranks, on_progress: Progress
) -> tuple[Tsdf, Tensor, str]:
    """Return the field at the resolution that was asked for, or at the finest that memory has room for.

    It has this rank's share of the blocks, whose keys [B] follow, and then what its resolution was chosen by.
    """
    size, chosen = chosen_voxel_size(survey, options, scale)
    room = _room(MEMORY_SHARE, ranks) * ranks.num_ranks
    most, num = max(1, room // BYTES_A_BLOCK), views.num_depths
    while True:
        views.sharpen(survey, size)
        grid = Grid(np.array(survey.low) - MARGIN * 8 * size, size)
        own = find_blocks(
            grid,
            views.own_depths(),
            lambda done: on_progress(min(num, done * ranks.num_ranks), num, "finding where surfaces are"),
        )
        keys = all_keys(own, ranks)
        if len(keys) <= most:
            break
        # What is near a surface grows with its area.
        size *= COARSER * math.sqrt(len(keys) / most)
        chosen = (
            f"as {room / 1e9:.2g} GB of memory have room for; what was asked for needs"
            f" {len(keys) * BYTES_A_BLOCK / 1e9:.2g} GB"
        )
    own = keys[ranks.share(len(keys))]
    fused = fuse(grid, own, views.depths(), lambda done: on_progress(done, num, "fusing the depth"))
    return fused, keys, chosen


def chosen_voxel_size(survey: Survey, options: MeshOptions, scale: float) -> tuple[float, str]:
    """Return the side of a voxel in the model's frame, and what it was chosen by.

    `scale` is that of the similarity from the files' coordinates to the model's frame.
    """
    if options.voxel_size is not None:
        return options.voxel_size * scale, "as asked for"
    by_resolution = survey.longest_side / options.resolution
    by_pixels = PIXELS_OF_A_VOXEL * survey.pixel
    if by_pixels > by_resolution:
        return by_pixels, "two pixels of the photos on the surface"
    return by_resolution, f"{options.resolution} along the longest side"


def _finished(mesh: Mesh, options: MeshOptions) -> Mesh:
    mesh = smoothed(mesh, options.smoothing)
    if options.watertight:  # before triangles are saved: those that close holes count, too
        mesh = watertight(mesh)
    if options.triangles is not None:
        mesh = simplified(mesh, options.triangles)
        mesh = watertight(mesh) if options.watertight else mesh
    return mesh


def _styled(
    mesh: Mesh,
    facts: _Facts,
    survey: Survey,
    options: MeshOptions,
    photos: Scene | None,
    on_progress: Progress,
) -> Mesh:
    """Return the colored mesh as the options want it to look."""
    views = facts.views
    if options.texture is not None:
        on_progress(0, 0, "laying the surface out flat")
        return textured(
            mesh,
            lambda texel: views.pictures(photos, survey, texel),
            options.texture,
            SEEN_WITHIN * facts.grid.truncation,
            lambda done: on_progress(done, len(views), "painting the texture"),
        )
    if options.colors == "reliability":
        return reliability_colors(mesh)
    return replace(mesh, colors=None) if options.colors == "none" else mesh


def _points_within_reach(facts: _Facts, survey: Survey) -> np.ndarray:
    """Return the sparse points that are near enough to a camera to count, [P, 3]."""
    if facts.scene is None or not len(facts.scene.points):
        return np.zeros((0, 3))
    from scipy.spatial import KDTree  # takes a third of a second to load

    points = np.asarray(facts.scene.points, np.float64)
    away, _ = KDTree(facts.views.positions).query(points)
    return points[away <= survey.farthest]


def _placed(model: Model, mesh: Mesh, *, upright: bool) -> tuple[Mesh, float]:
    """Return a mesh in the coordinates of its file, and how many units of it one of the frame has."""
    if upright:
        if knows_no_scene(model.transform):
            export_transform(model.transform, upright=True)  # raises the sentence on it
        return mesh, 1.0
    back = np.linalg.inv(model.transform)
    return mesh.transformed(back), similarity_scale(back)


def _coarse(mesh: Mesh, voxel_size: float) -> list[str]:
    """Return a sentence where files keep coordinates as large as this mesh's in steps that blur voxels."""
    farthest = float(mesh.vertices.abs().max())
    step = float(np.spacing(np.float32(farthest)))
    if step <= COARSE_STEP * voxel_size:
        return []
    return [coarse_coordinates(farthest, step, f"the voxels have a side of {voxel_size:.2g}")]


def _is_there(diagonal: float, accuracy: float | None, completeness: float | None) -> bool:
    """Return whether a surface lies where the scene's points do, as far as those tell; see `MeshReport`.

    `diagonal` and `accuracy` are of one unit.
    """
    if accuracy is None or completeness is None:
        return True
    return accuracy < FAR * diagonal or completeness > FEW_FOUND


def _notes(views: ModelViews, scene: Scene | None, model: Model) -> list[str]:
    notes = [*model.notes]
    if scene is None:
        notes.append(NO_SCENE)
    elif len(views) < FEW_PHOTOS:
        notes.append(
            f"{len(views)} photos are few for a surface: what one alone sees is as the model guessed it"
        )
    if model.part is not None:
        notes.append(model.part)
    return notes


def _report(
    mesh: Mesh, colored: ColoredMesh, facts: _Facts, scores: tuple[float | None, float | None], scale: float
) -> MeshReport:
    accuracy, completeness = scores
    low, high = mesh.vertices.amin(dim=0), mesh.vertices.amax(dim=0)
    x, y, z = (high - low).tolist()
    photographed = facts.views.are_photos
    return MeshReport(
        step=facts.step,
        triangles=mesh.num_triangles,
        vertices=len(mesh.vertices),
        size=(x, y, z),
        diagonal=mesh.diagonal,
        voxel_size=facts.grid.voxel_size * scale,
        truncation_distance=facts.grid.truncation * scale,
        resolution_chosen_by=facts.chosen_by,
        views=len(facts.views),
        views_are="photos" if photographed else "an orbit",
        seen_by_three=quality.seen_share(mesh) if photographed else None,
        accuracy=None if accuracy is None else accuracy * scale,
        completeness=completeness,
        sparse_points=0 if facts.scene is None else len(facts.scene.points),
        residual_color=colored.residual if photographed else None,
        holes=quality.num_holes(mesh),
        dropped_triangles=facts.dropped,
        scale=scale,
        notes=facts.notes if _is_there(mesh.diagonal / scale, *scores) else (ELSEWHERE, *facts.notes),
    )
