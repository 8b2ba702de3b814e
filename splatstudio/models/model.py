"""A trained model and where it lies: read from disk, evaluated, written in any format."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from splatstudio.cameras.camera import similarity_scale
from splatstudio.cameras.camera_path import CameraPath, orbit
from splatstudio.cameras.placement import export_transform, knows_no_scene
from splatstudio.checkpoints.checkpoint import Checkpoint, load_checkpoint, load_shard, newest_and_passed_over
from splatstudio.checkpoints.manifest import SHARD_NAME
from splatstudio.checkpoints.rank_parts import RankPart, gsplat_steps, part_of
from splatstudio.corrections.corrections import saved_poses, saved_sky
from splatstudio.error_text import shown
from splatstudio.evaluation.evaluate import PSNR_AND_SSIM, Evaluation, Measures, OnImage, evaluate
from splatstudio.files.path_words import as_argument
from splatstudio.files.run import Run, is_checkpoint
from splatstudio.formats import Format, format_of, read_splats
from splatstudio.formats.ply import holds_points_alone, told_orientation
from splatstudio.gaussians.gaussians import Gaussians, central_bounds
from splatstudio.gaussians.initialize import from_points
from splatstudio.gaussians.transform import transformed, transformed_sky
from splatstudio.models.exporter import write_model
from splatstudio.models.other_outputs import frame_of_output, output_in, scene_of_output
from splatstudio.rendering.render import RenderOptions, options_for_display
from splatstudio.scene.load import load_scene, load_training_scene
from splatstudio.scene.ply_header import UNSAID, Orientation
from splatstudio.scene.point_ply import read_point_ply
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, with_whole_paths
from splatstudio.settings.setting import typed_path

log = logging.getLogger(__name__)

AS_IN_SCENES = RenderOptions()
POINT_SIZE, POINT_OPACITY = 0.4, 0.9  # of a point that is shown: its deviation over the distance to others
ORBIT_DISTANCE = 2.8  # of the radius in which half of the splats lie: they fill most of the picture
ORBIT_HEIGHT = 0.35  # of the distance, which looks down by 19 degrees
SCENE_UNKNOWN = (
    "{} tells how it lies in its scene, which is not found: without it the model may be turned; eval, export,"
    " render and mesh take --scene FOLDER"
)


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model: Gaussians in a scene's normalized frame and the way back to its files' coordinates."""

    gaussians: Gaussians
    transform: np.ndarray = field(default_factory=lambda: np.eye(4))  # [4, 4] from the files' world to this
    options: RenderOptions = field(default_factory=RenderOptions)
    step: int | None = None  # of the training, where it is known
    part: str | None = None  # a sentence, where this is the part that one of several ranks wrote
    # What the training learned of its cameras, by photo: [6] as of `corrected_camera`, in this frame.
    poses: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # sentences on what a file held that is left out or taken otherwise
    orientation: Orientation = UNSAID  # what a file of splats, in whose coordinates it lies, says of them

    def __len__(self) -> int:
        return len(self.gaussians)

    @property
    def known_up(self) -> np.ndarray | None:
        """Return where up is in this frame, a unit vector [3]: z in that of a scene, else as a file says."""
        if not knows_no_scene(self.transform):
            return np.array([0.0, 0.0, 1.0])
        return None if self.orientation.up is None else np.array(self.orientation.up)

    @property
    def up(self) -> np.ndarray:
        """Return where up is known to be, or as in the files of most programs, whose y points down."""
        return np.array([0.0, -1.0, 0.0]) if self.known_up is None else self.known_up

    def save_ply(self, path: str | Path) -> Path:
        """Write the model as a PLY in the coordinates of the scene's files; return the path."""
        return self._saved(path, format_of("model.ply"))

    def save(self, path: str | Path) -> Path:
        """Write the model in the format of the ending, in the scene's files' coordinates; return the path.

        What a file cannot keep is logged. Raises ValueError, naming the endings there are, for another one.
        """
        return self._saved(path, None)

    def _saved(self, path: str | Path, form: Format | None) -> Path:
        exported = write_model(self, typed_path(path), form=form)
        for note in (*self.notes, *exported.notes):
            log.warning("%s", note)
        return exported.output

    def evaluate(
        self,
        scene: Scene,
        measures: Measures = PSNR_AND_SSIM,
        on_image: OnImage | None = None,
    ) -> Evaluation:
        """Compare renders with the scene's test photos: PSNR, SSIM and `measures`, per image and mean.

        `on_image` gets each score, its render and the photo, [H, W, 3], as soon as they are there.
        """
        if not isinstance(scene, Scene):
            raise ValueError(f"evaluate compares with a Scene, as load_scene returns it, not {shown(scene)}")
        gaussians = self.in_frame_of(scene).gaussians
        evaluation = evaluate(gaussians, scene, options=self.options, measures=measures, on_image=on_image)
        if self.part is not None:
            evaluation = replace(evaluation, part=self.part, notes=(self.part, *evaluation.notes))
        return replace(evaluation, notes=(*self.notes, *evaluation.notes))

    def in_frame_of(self, scene: Scene) -> Model:
        """Return the model in `scene`'s frame, by way of the files' coordinates that both share."""
        if not isinstance(scene, Scene):
            raise ValueError(f"in_frame_of needs a Scene, as load_scene returns it, not {shown(scene)}")
        return self.in_frame(scene.transform)

    def in_frame(self, transform: np.ndarray) -> Model:
        """Return the model in the frame to which `transform` [4, 4] leads from the files' coordinates.

        One that was turned upright for its file is turned back instead.
        """
        own, options = self.transform, self.options
        if self.orientation.upright and knows_no_scene(own):
            own = export_transform(transform, upright=True) @ transform
        if np.allclose(own, transform, rtol=0.0, atol=1e-9):
            return self
        step = transform @ np.linalg.inv(own)
        if knows_no_scene(self.transform):
            options = replace(options, near=AS_IN_SCENES.near)
        if options.sky is not None:
            options = replace(options, sky=transformed_sky(options.sky, step))
        scale = np.array([similarity_scale(step)] * 3 + [1.0] * 3)  # a shift has a length, a turn has none
        return replace(
            self,
            gaussians=transformed(self.gaussians, step),
            transform=transform,
            orientation=UNSAID,
            options=options,
            poses={name: scale * correction for name, correction in self.poses.items()},
        )


def load_model(path: str | Path, *, strict: bool = False, scene: Path | None = None) -> Model:
    """Load a model from a file of Gaussians, a checkpoint, or a run folder (its newest good checkpoint).

    Of the folder that another program left (see `output_in`) the newest model is taken.
    One rank's file of several gives its part of the scene: `Model.part` tells, `merge` joins them.
    `scene` is where the scene of nerfstudio's or gsplat's model lies, where its settings do not say it.
    Raises ValueError, naming the file and the reason, when there is none or it is damaged; where `strict`,
    also for a file with splats that are left out, as a value of them is not finite.
    """
    path = typed_path(path)
    if SHARD_NAME.fullmatch(path.name) and path.is_file():
        return replace(model_of(load_shard(path)), part=_sentence(part_of(path)))
    if path.is_file() or (format_of(path) is not None and not path.is_dir()):
        return _model_in_file(path, strict, scene)
    if not path.exists():
        raise ValueError(f"{path} does not exist; name a file of splats, a checkpoint or a run")
    folder, passed_over = (path, ()) if is_checkpoint(path) else newest_and_passed_over(path)
    if folder is None and (other := output_in(path)) is not None:
        model = _model_in_file(other.file, strict, scene)
        return replace(model, notes=(other.note, *model.notes))
    if folder is None and (steps := gsplat_steps(path)):
        raise ValueError(
            f"{path} holds gsplat's checkpoints of {_steps(len(steps))}: merge the parts of the ranks with"
            f" splatstudio merge {as_argument(path)} -o model.ply, or name the file of a training of one rank"
        )
    if folder is None and passed_over:
        raise ValueError(f"no model in {path} can be read: {'; '.join(passed_over)}")
    if folder is None:
        files = ("sparse", "transforms.json", "transforms_train.json")
        hint = ""
        if any((path / name).exists() for name in files):
            hint = "; this is a scene, and its models are in the run folders, such as runs/NAME"
        elif (path.absolute().parent / "run.json").exists():
            hint = f"; the run that this folder belongs to is {path.parent}"
        raise ValueError(
            f"{path} holds no model: expected a file of splats, a checkpoint or a run with checkpoints{hint}"
        )
    model = model_of(load_checkpoint(folder))
    return replace(model, notes=(*passed_over, *model.notes))


def _steps(num: int) -> str:
    return "1 step" if num == 1 else f"{num} steps"


def _shown_points(path: Path) -> Model:
    note = (
        f"{path.name} holds points, not splats: each is shown as a small round one. To train from them, give"
        f" them to the training of their scene: splatstudio train SCENE --init {as_argument(path)}"
    )
    points, orientation = splats_of_points(path, POINT_SIZE, POINT_OPACITY), told_orientation(path)
    return Model(points, notes=(note,), orientation=orientation)


def splats_of_points(path: Path, size: float, opacity: float) -> Gaussians:
    """Return the points of a PLY file as round splats, in its own coordinates.

    `size` is their deviation over the distance to their neighbors, `opacity` is 0..1. Raises ValueError for a
    file without points, and a damaged one.
    """
    points, colors = read_point_ply(path)
    if not np.isfinite(points).all(axis=1).any():
        raise ValueError(f"{path} holds no splats, and no points with finite coordinates")
    generator = torch.Generator().manual_seed(0)
    return from_points(
        points, colors, sh_degree=0, init_scale=size, init_opacity=opacity, generator=generator
    )


def _model_in_file(path: Path, strict: bool, scene: Path | None) -> Model:
    if holds_points_alone(path):
        return _shown_points(path)
    file = read_splats(path)
    if strict and file.num_left_out:
        raise ValueError(
            f"{path} is refused: {file.num_left_out:,} of its splats have a value that is not finite; without"
            " --strict they are left out"
        )
    options, part = RenderOptions(antialiased=file.antialiased), _sentence(part_of(path))
    # Not `file.step`: only what a run has saved itself counts as the model of one of its steps.
    read = Model(file.gaussians, options=options, part=part, notes=file.notes, orientation=file.orientation)
    model = in_its_scene(read, path, scene)
    if knows_no_scene(model.transform):
        model = replace(model, options=replace(options, near=_near_of(file.gaussians)))
    return model


def in_its_scene(model: Model, file: Path, scene: Path | None) -> Model:
    """Return another program's model of `file` with the frame in which it lies in its scene, if it is found.

    `scene` is where that lies, None: where the settings beside the file say.
    """
    frame = frame_of_output(file, model.gaussians.means.numpy(), scene)
    if frame is None:
        return model
    notes = (frame.note,) if frame.note else ()
    if not notes and scene is None and scene_of_output(file) is None:
        notes = (SCENE_UNKNOWN.format(file.name),)
    return replace(model, transform=frame.transform, notes=(*model.notes, *notes))


def _near_of(gaussians: Gaussians) -> float:
    """Return from which distance on splats of unknown units are drawn: as in scenes, in small units less."""
    _, radius = central_bounds(gaussians)
    return AS_IN_SCENES.near * min(1.0, radius)


def _sentence(part: RankPart | None) -> str | None:
    return None if part is None else str(part)


def model_of(checkpoint: Checkpoint) -> Model:
    """Return the model that a checkpoint holds."""
    options = options_for_display(checkpoint.config, saved_sky(checkpoint.corrections))
    poses = saved_poses(checkpoint.corrections)
    return Model(checkpoint.gaussians, checkpoint.scene_transform, options, checkpoint.step, poses=poses)


@dataclass(frozen=True)
class Origin:
    """What a model was trained on, and how."""

    scene_path: Path
    config: TrainConfig
    is_ours: bool = True  # else other programs' settings beside it tell, and no more than scene and photos


def own_orbit(model: Model) -> CameraPath:
    """Return a loop around the half of a model that lies most centrally, where no scene tells of cameras."""
    center, radius = central_bounds(model.gaussians)
    distance = ORBIT_DISTANCE * radius
    return orbit(np.array(center), distance, ORBIT_HEIGHT * distance, up=model.up)


def run_folder_of(path: str | Path) -> Path | None:
    """Return the run folder that a run, a checkpoint of it or a file in it belongs to, or None."""
    path = Path(path).resolve()
    return next((place for place in [path, *path.parents[:3]] if (place / "run.json").exists()), None)


def origin_of(path: str | Path) -> Origin | None:
    """Return where the model in a run, in a file of a run, or in a checkpoint comes from; None: not known.

    Raises ValueError, naming the file, when the run or the checkpoint is damaged.
    """
    path, folder = Path(path).resolve(), run_folder_of(path)
    if folder is not None:
        run = Run.open(folder)
        return Origin(run.scene_path, run.config)
    folder = path.parent if SHARD_NAME.fullmatch(path.name) else path
    if is_checkpoint(folder):
        checkpoint = load_checkpoint(folder)
        if checkpoint.scene_path != Path():  # a model that was merged of another program's parts has none
            return Origin(checkpoint.scene_path, checkpoint.config)
        return None
    other = scene_of_output(path)
    if other is None:
        return None
    return Origin(other.path, TrainConfig(images=other.images, downscale=other.downscale), is_ours=False)


def scene_of_origin(origin: Origin, model: Path) -> Path:
    """Return where the scene of a model's training lies; ValueError where it is there no more."""
    if not origin.scene_path.exists():
        raise ValueError(
            f"the scene of {model} is no longer at {origin.scene_path}: say with --scene where it is now"
        )
    return origin.scene_path


def scene_shown_by(path: Path, scene: Path | None, images: str = "", *, full_size: bool) -> Scene:
    """Return the scene that a model shows: `scene` where it is named, else that of its training.

    `images` is as in `images_of`; the photos are of their full size, or of that of the training. Raises
    ValueError where the scene is not known or cannot be read.
    """
    origin = origin_of(path)
    place = scene or (scene_of_origin(origin, path) if origin else None)
    if place is None:
        raise ValueError(f"{path} does not say which scene it shows; name it with --scene FOLDER")
    downscale = 1 if full_size or origin is None else origin.config.downscale
    return load_scene(
        place,
        downscale=downscale,
        images_folder=images_of(images, scene, origin),
        model=colmap_model_of(scene, origin),
    )


def images_of(images: str, scene: Path | None, origin: Origin | None) -> str | None:
    """Return the folder of photos `images` that was named, else that of the training; None: the scene's.

    That of the training is for its own scene alone, which it is where no other `scene` was named.
    """
    return images or (origin.config.images if origin is not None and _is_own(scene, origin) else None) or None


def colmap_model_of(scene: Path | None, origin: Origin | None) -> int:
    """Return the number of the COLMAP model that was trained on, -1 where another `scene` was named."""
    return origin.config.model if origin is not None and _is_own(scene, origin) else -1


def _is_own(scene: Path | None, origin: Origin) -> bool:
    return scene is None or scene.resolve() == origin.scene_path.resolve()


def remember_images(run: Run, images: str) -> Run:
    """Note in a run where its photos lie now, if they are not where they were; return the run.

    `images` is where they were found, as in `images_of`: who opens the run the next time need not say it
    again. Raises OSError where run.json cannot be written.
    """
    try:
        load_training_scene(run.scene_path, run.config)
    except ValueError:
        return run.with_images(with_whole_paths(replace(run.config, images=images), run.scene_path).images)
    return run  # other photos of the scene, for once


def with_images_found(config: TrainConfig, run: Run, scene_path: Path) -> TrainConfig:
    """Return the settings of a checkpoint of `run` with where the photos of its scene lie now.

    What the checkpoint says wins where it holds: who went on with other photos goes on with those.
    """
    if config.images == run.config.images:
        return config
    try:
        load_training_scene(scene_path, config)
    except ValueError:
        return replace(config, images=run.config.images)
    return config
