"""What the user opened: a scene to train, a run to look at and go on with, or a finished model."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.checkpoints.checkpoint import (
    checkpoint_folders,
    config_of_checkpoint,
    is_of_scene,
    known_photos,
    newest_and_passed_over,
    newest_known_checkpoint,
    newest_or_why,
)
from splatstudio.checkpoints.manifest import SHARD_NAME, read_manifest
from splatstudio.checkpoints.rank_parts import gsplat_steps, part_of
from splatstudio.corrections.corrections import check_agreement
from splatstudio.distributed.rank_devices import ONE_PROCESS, UNSAID, DeviceUse, RankDevices
from splatstudio.error_text import as_sentence, first_of
from splatstudio.files.path_words import as_argument, path_words
from splatstudio.files.run import Run, is_checkpoint, is_run, is_taken, new_run_path, run_name
from splatstudio.formats import format_of, refuse_write_only
from splatstudio.gui.state.status import Notice
from splatstudio.models.model import remember_images, run_folder_of, with_images_found
from splatstudio.models.other_outputs import OtherOutput, output_in, scene_of_output
from splatstudio.runtime.messages import Job, TrainJob, ViewJob
from splatstudio.runtime.sentences import checkpoint_step, joined_sentence
from splatstudio.scene.archives import is_archive, unpacked
from splatstudio.scene.layout import pose_files
from splatstudio.scene.load import load_training_scene, opened_again_by
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import (
    FREE_ON_RESUME,
    LIMIT,
    TrainConfig,
    changed,
    declaration,
    differing,
    resumed,
    value_of,
    with_whole_paths,
)
from splatstudio.settings.presets import PRESETS, applied_settings, notes_on_settings
from splatstudio.settings.setting import typed_path
from splatstudio.training.device_options import AS_FOUND, DeviceOptions
from splatstudio.training.memory_plan import describe, plan_memory, sizes_of, splats_wanted


@dataclass(frozen=True)
class Fit:
    """How the limit on the number of splats came about; None: nothing was made to fit yet."""

    options: DeviceOptions = AS_FOUND
    asked: int | None = None
    made: int | None = None  # of what was asked


@dataclass(frozen=True, eq=False)
class Project:
    """What is open. `scene` None: only a model; `run_dir` None: nothing that could be trained."""

    path: Path
    scene: Scene | None
    model_path: Path | None
    run_dir: Path | None
    config: TrainConfig
    notes: tuple[str, ...] = ()
    devices: RankDevices = ONE_PROCESS  # that a training runs on
    device_use: DeviceUse = UNSAID  # what is said of them
    fit: Fit = Fit()
    live_on_resume: tuple[str, ...] = ()  # settings of `config` that a run with a checkpoint takes at Resume
    given: frozenset[str] = frozenset()  # dotted names of settings that the user asked for by themselves
    preset: str = ""  # of what was chosen since it was opened
    before: Path | None = None  # the run beside which this one was begun, and which stays
    problem: str = ""  # a sentence: why what is open is not all there
    passed_over: tuple[str, ...] = ()  # a sentence on each damaged checkpoint that is newer than the one used

    @property
    def name(self) -> str:
        """Return what the user calls it."""
        if self.scene is not None:
            return self.scene.path.resolve().name
        return self.path.resolve().name

    @property
    def title(self) -> str:
        """Return what tells it from other runs of the same scene."""
        run = self.name if self.run_dir is None else self.run_dir.resolve().name
        return run if run.startswith(self.name) else f"{self.name} · {run}"

    @property
    def _place(self) -> Path:
        """Return beside what files go where there is no run: a checkpoint's folder holds its own alone."""
        return self.path.resolve().parent if SHARD_NAME.fullmatch(self.path.name) else self.path

    @property
    def can_train(self) -> bool:
        """Return whether there are photos to train on."""
        return self.scene is not None and self.run_dir is not None

    @property
    def can_evaluate(self) -> bool:
        """Return whether there are photos that are held out for the test."""
        return self.scene is not None and len(self.scene.test_indices) > 0

    @property
    def is_chosen(self) -> bool:
        """Return whether somebody has asked for settings that say how to train."""
        changed = {*differing(self.config, TrainConfig()), *self.given}
        return not changed <= {"images", "model", "test_every", "test_images", LIMIT}

    def checkpoint(self) -> Path | None:
        """Return the newest good checkpoint of the run."""
        return newest_known_checkpoint(self.run_dir) if self.can_train and self.run_dir else None

    @property
    def newest_step(self) -> int | None:
        """Return the step of the newest good checkpoint of the run, None where it has none."""
        checkpoint = self.checkpoint()
        return None if checkpoint is None else checkpoint_step(checkpoint)

    @property
    def resume_step(self) -> int | None:
        """Return the step at which the run would go on, None where it has no checkpoint or no steps left."""
        step = self.newest_step
        return step if step is not None and step < self.config.steps else None

    @property
    def run_folder_taken(self) -> bool:
        """Return whether the run's folder holds something already, so that no new training can use it."""
        assert self.run_dir is not None
        return is_taken(self.run_dir)

    def owns(self, job: Job) -> bool:
        """Return whether a job is of this project's run: its training, or one of its checkpoints on view."""
        if isinstance(job, TrainJob) or self.run_dir is None:
            return isinstance(job, TrainJob)
        return job.model_path.resolve().parent == (self.run_dir / "ckpts").resolve()

    def holds(self, model: Path) -> bool:
        """Return whether a model on the disk lies in this project's run."""
        return self.run_dir is not None and model.resolve().is_relative_to(self.run_dir.resolve())

    def first_job(self) -> Job:
        """Return what the worker does when the studio opens: show the model there is, else wait for Start."""
        if self.model_path is not None:
            return ViewJob(self.model_path)
        return self.training_job()

    def training_job(self) -> TrainJob:
        """Return the training to be started from its first step on."""
        return self._training_from(None)

    def resumed_job(self) -> tuple[TrainJob, tuple[str, ...]]:
        """Return the training that goes on, and a sentence on each newer checkpoint that is damaged.

        Raises ValueError where there is nothing to go on from.
        """
        assert self.run_dir is not None
        self.refuse_nothing_to_resume()
        checkpoint, passed_over = newest_and_passed_over(self.run_dir)
        return self._training_from(checkpoint), passed_over

    def refuse_nothing_to_resume(self) -> None:
        """Raise ValueError where the run has no checkpoint, as after the last one was deleted."""
        checkpoint, why = (None, "") if self.run_dir is None else newest_or_why(self.run_dir)
        if why:
            raise ValueError(f"no checkpoint can be used, and nothing was changed: {why}")
        if checkpoint is None:
            told = "this run" if self.run_dir is None else path_words(self.run_dir)
            raise ValueError(
                f"{told} has no checkpoint any more from which it could go on. The model in the view stays:"
                " export it; New training begins another run."
            )

    def _training_from(self, checkpoint: Path | None) -> TrainJob:
        assert self.scene is not None and self.run_dir is not None
        live = self.live_on_resume if checkpoint is not None else ()
        settings = tuple((name, value_of(self.config, name)) for name in live)
        path = self.scene.path.resolve()
        return TrainJob(path, self.run_dir, self.config, checkpoint, settings, before=self.before)

    def with_new_run(self) -> Project:
        """Return the project with a new, empty run; what the old run holds stays."""
        assert self.scene is not None and self.run_dir is not None
        before = self.run_dir if self.checkpoint() is not None else self.before
        run_dir = new_run_path(self.scene.path, self.run_dir.parent)
        return replace(self, model_path=None, run_dir=run_dir, before=before)

    def config_with(self, values: Mapping[str, Any]) -> TrainConfig:
        """Return the settings with other `values` by dotted paths; ValueError for what cannot be."""
        config = self.config
        for path, value in values.items():
            config = changed(config, path, value)
        check_agreement(config)
        return config

    def config_later(self, values: Mapping[str, Any], step: int) -> TrainConfig:
        """Return the same of a training that has done `step` steps; ValueError also for what is too late."""
        for path in values:
            if not declaration(TrainConfig, path).live:
                raise ValueError(f"setting {path} is read at the start and cannot be changed any more")
        config = self.config_with(values)
        if config.steps < step:
            raise ValueError(f"{step:,} steps are done already, which is more than {config.steps:,}")
        return config

    def folder_of(self, kind: str) -> Path:
        """Return where files of a kind go, as "renders": in the run, or beside a model without one."""
        if self.run_dir is None:
            return self._place.with_name(f"{self._place.stem}-{kind}")
        return self.run_dir / kind

    def export_path(self, step: int | None, shown: Path | None = None) -> Path:
        """Return where the model goes, as a PLY, when the user names no other place.

        `shown` is the model from the disk that is in the view: one of another run goes to that run.
        """
        if self.run_dir is None:
            return self._place.with_name(f"{self._place.stem}-export.ply")
        suffix = f"-{step}" if step else ""
        if shown is None or self.holds(shown):
            return self.run_dir / "exports" / f"{self.run_dir.resolve().name}{suffix}.ply"
        owner = run_folder_of(shown)
        if owner is None:  # of another program: its folder is not ours
            return self.run_dir / "exports" / f"{shown.stem}.ply"
        return owner / "exports" / f"{owner.name}{suffix}.ply"


def open_project(
    path: Path, config: TrainConfig, run_dir: Path | None, given: Collection[str] | None = None
) -> Project:
    """Tell what `path` is and read what the page needs of it.

    `given` are the dotted names of the settings that the user asked for one by one, None: those that differ
    from the defaults; `config` may have the others of a preset. Raises ValueError with one sentence when it
    is nothing that can be opened.
    """
    path = typed_path(path)
    config = with_whole_paths(config, path)
    given = frozenset(differing(config, TrainConfig()) if given is None else given)
    asked = given | applied_settings(config, given)
    if not path.exists():
        raise ValueError(f"{path} does not exist; open photos, a video, a scene, a run or a file of splats")
    project = replace(_opened(path, config, run_dir, asked), given=given)
    if not project.can_train:
        return project
    notes = [*project.notes, *notes_on_settings(project.config, given)]
    part = part_of(Path(config.init)) if config.init else None
    if part is not None:
        notes.append(f"A new training starts from a part: {part}")
    return replace(project, notes=tuple(notes))


def _opened(path: Path, config: TrainConfig, run_dir: Path | None, given: Collection[str]) -> Project:
    refuse_write_only(path)
    if path.is_file() and (format_of(path) is not None or SHARD_NAME.fullmatch(path.name)):
        return Project(path, None, path, None, config, _notes_on_part(path))
    run_folder = next((p for p in (path, *path.resolve().parents[:2]) if (p / "run.json").exists()), None)
    if run_folder is not None:
        chosen = path if is_checkpoint(path) else None
        return _open_run(path, Run.open(run_folder), chosen, config, given)
    if is_checkpoint(path):
        return Project(path, None, path, None, config)
    other = output_in(path.parent if path.name == "meta.json" else path)
    if other is not None and pose_files(path) is None:
        return Project(other.file, None, other.file, None, config, _notes_on_other(other))
    if path.is_dir() and pose_files(path) is None and (steps := gsplat_steps(path)):
        part = steps[max(steps)][0]  # of several ranks: the page offers to merge it with the others
        return Project(part, None, part, None, config, _notes_on_part(part))
    return _open_scene(unpacked(path) if is_archive(path) else path, config, run_dir, given)


def _notes_on_other(other: OtherOutput) -> tuple[str, ...]:
    scene = scene_of_output(other.file)
    known = () if scene is None else (f"It was trained on {scene.path}: `splatstudio eval` compares them.",)
    return (as_sentence(other.note), *known)


def _notes_on_part(path: Path) -> tuple[str, ...]:
    part = part_of(path)
    if part is None:
        return ()
    if not part.complete:
        return (f"{part}. Copy it there to merge them.",)
    command = f"splatstudio open {as_argument(path)} --merge"
    return (f"{part} The page has a button that does it, and so does {command}",)


def _open_run(
    path: Path, run: Run, chosen: Path | None, config: TrainConfig, given: Collection[str]
) -> Project:
    newest, passed_over = newest_and_passed_over(run.path)
    model_path = chosen or newest
    scene, notes, problem = None, (), ""
    images = config.images if "images" in given else run.config.images
    try:
        known = known_photos(newest)
        scene = load_training_scene(run.scene_path, replace(run.config, images=images), known)
    except ValueError as error:
        # The model can still be shown; only its photos are gone.
        problem = f"The scene of this run cannot be read, so only the model is shown: {error}"
        notes = (problem,)
    if scene is not None and images != run.config.images:
        run, notes = _with_images(run, images)
    if model_path is None:
        if scene is None:
            raise ValueError(f"{run.path} has no checkpoint to show. {problem}")
        run_dir = new_run_path(scene.path, run.path.parent)
        # Nothing was trained with the run's settings yet: all that the user gave can be followed.
        asked = run.config
        for name in given:
            asked = changed(asked, name, value_of(config, name))
        if _photos(asked) != _photos(run.config):
            scene = load_training_scene(run.scene_path, asked)
        return Project(path, scene, None, run_dir, asked, passed_over=passed_over)
    if scene is not None:
        notes += _notes_on_unchanged(run, _conflicts(config, run.config, given))
        notes += _notes_on_joined(model_path, scene)
    kept = _gone_on_with(run, config, given)
    project = Project(path, scene, model_path, run.path, kept, notes, problem=problem)
    return replace(project, passed_over=passed_over)


def _with_images(run: Run, images: str) -> tuple[Run, tuple[str, ...]]:
    """Note where the photos of a run lie now; return the run, and a note where that cannot be."""
    try:
        return remember_images(run, images), ()
    except OSError as error:
        return run, (f"{run.path} cannot keep where its photos are ({error}): name --images again.",)


def _open_scene(path: Path, config: TrainConfig, run_dir: Path | None, given: Collection[str]) -> Project:
    folder = opened_again_by(path)
    if run_dir is not None and is_run(run_dir):
        existing, notes = _named_run(folder, config, run_dir), ()
    else:
        existing, notes = (None, ()) if run_dir is not None else _newest_run(folder)
    if existing is not None and not config.images:
        config = replace(config, images=_latest_config(existing).images)  # where they were the last time
    checkpoint, passed_over = (None, ()) if existing is None else newest_and_passed_over(existing.path)
    known = known_photos(checkpoint)
    scene = load_training_scene(path, config, known)
    if existing is None:
        chosen = run_dir or new_run_path(scene.path)
        return Project(path, scene, None, chosen, config, scene.notes + notes)
    conflicts = _conflicts(config, existing.config, given)
    if conflicts and run_dir is None:
        scene = scene if known is None else load_training_scene(path, config)
        chosen = new_run_path(scene.path)
        notes += (
            f"{existing.path} was trained with other settings ({_in_words(conflicts)}), "
            f"so this is a new run, {chosen}.",
        )
        return Project(path, scene, None, chosen, config, scene.notes + notes)
    notes += _notes_on_unchanged(existing, conflicts)
    if run_dir is None and set(given) & set(FREE_ON_RESUME):
        notes += (f"{existing.path} goes on, with what was asked for; New training begins another run.",)
    kept = _gone_on_with(existing, config, given)
    if _photos(kept) != _photos(config):
        scene = load_training_scene(path, kept, known)
    notes = scene.notes + notes + (() if checkpoint is None else _notes_on_joined(checkpoint, scene))
    return Project(path, scene, checkpoint, existing.path, kept, notes, passed_over=passed_over)


def _notes_on_joined(checkpoint: Path, scene: Scene) -> tuple[str, ...]:
    joined = joined_sentence(checkpoint, scene)
    return () if joined is None else (f"{joined}.",)


def _named_run(scene_path: Path, config: TrainConfig, run_dir: Path) -> Run:
    """Return the run that the user named to go on with a scene; ValueError where it cannot."""
    run, checkpoint = Run.open(run_dir), newest_known_checkpoint(run_dir)
    if checkpoint is None:
        raise ValueError(
            f"the run folder {run_dir} has no checkpoint to go on from: name another one with --run"
        )
    own = with_images_found(run.replanned(config_of_checkpoint(checkpoint)), run, scene_path)
    # Its scene may have moved, or be a copy: what is in it decides.
    moved = run.scene_path != scene_path.resolve()
    if moved and not is_of_scene(checkpoint, _scene_as_in(own, scene_path, config.images, checkpoint)):
        raise ValueError(
            f"the run folder {run_dir} belongs to {run.scene_path}, and {scene_path} has other cameras:"
            " name another one with --run"
        )
    return run


def _scene_as_in(own: TrainConfig, scene_path: Path, images: str, checkpoint: Path) -> Scene:
    """Return a scene as a run with the settings `own` reads it, or else with its own photos."""
    known = known_photos(checkpoint)
    try:
        return load_training_scene(scene_path, replace(own, images=images or own.images), known)
    except ValueError:
        if images or not own.images:
            raise
        return load_training_scene(scene_path, replace(own, images=""), known)


def _newest_run(scene_path: Path) -> tuple[Run | None, tuple[str, ...]]:
    """Return the newest run of this scene below runs/, None: there is none, and notes on unreadable ones."""
    scene_path = scene_path.resolve()
    name = glob.escape(run_name(scene_path))
    notes: list[str] = []
    found = {*Path("runs").glob(name), *Path("runs").glob(f"{name}-*")}
    for folder in sorted(filter(is_run, found), key=os.path.getmtime, reverse=True):
        try:
            run = Run.open(folder)
        except ValueError as error:
            notes.append(f"The run {folder} is left aside: {error}")
            continue
        if run.scene_path != scene_path:
            continue
        if newest_known_checkpoint(folder) is not None:
            return run, tuple(notes)
        if checkpoint_folders(folder):
            notes.append(
                f"The run {folder} is left aside: splatstudio info {folder} says why no model is good."
            )
    return None, tuple(notes)


def _photos(config: TrainConfig) -> tuple[object, ...]:
    """Return the settings that say which photos are read, and how."""
    return config.downscale, config.test_every, config.test_images, config.images, config.model


def _latest_config(run: Run) -> TrainConfig:
    """Return the settings of a run as they were last: while it trained some may have been changed."""
    checkpoint = newest_known_checkpoint(run.path)
    if checkpoint is None:
        return run.config
    return with_images_found(run.replanned(config_of_checkpoint(checkpoint)), run, run.scene_path)


def _gone_on_with(run: Run, config: TrainConfig, given: Collection[str]) -> TrainConfig:
    """Return the settings of a run that goes on as it was last, but for when to stop, evaluate and save."""
    return resumed(_latest_config(run), config, set(given) & set(FREE_ON_RESUME))


def _conflicts(config: TrainConfig, existing: TrainConfig, given: Collection[str]) -> list[str]:
    """Return the settings the user gave that a run with the settings `existing` cannot follow."""
    return [name for name in differing(config, existing) if name in given and name not in FREE_ON_RESUME]


def _notes_on_unchanged(run: Run, names: list[str]) -> tuple[str, ...]:
    if not names:
        return ()
    verb = "is" if len(names) == 1 else "are"
    return (f"This run goes on with its own settings; {_in_words(names)} {verb} not changed: {run.path}",)


MOST_NAMES = 3  # of settings in one sentence


def _in_words(names: list[str]) -> str:
    """Return the names of settings, the strategy first; of the many of a preset some and a count."""
    return first_of(sorted(names, key=lambda name: name != "strategy"), MOST_NAMES)


def on_devices(project: Project, options: DeviceOptions) -> Project:
    """Return the project with where it trains; settings of a new training are made to fit as asked.

    Of a run that goes on the limit on the number of splats alone. Raises ValueError for devices that are not
    there, or without the memory for any training.
    """
    options.check_alone()
    chosen = options.chosen()
    project = replace(project, devices=chosen, device_use=options.use_of(chosen))
    if project.scene is None or not project.can_train:
        return project
    if project.model_path is not None:
        return _limited(project, project.scene, options)
    fitting, sentence = _fitted(replace(project, fit=Fit(options)), project.config)
    return replace(fitting, notes=(*project.notes, sentence))


def with_settings(project: Project, values: Mapping[str, Any]) -> tuple[Project, Notice | None]:
    """Return the project with other settings by dotted names, and what is to be told of what fits.

    A limit that the user types is not made smaller. Raises ValueError for what cannot be.
    """
    config = project.config_with(values)
    project = replace(project, given=project.given | values.keys())
    if LIMIT in values:
        project = replace(project, fit=Fit(replace(project.fit.options, max_splats=values[LIMIT])))
    if not _moves_what_fits(project, values):
        return replace(project, config=config), None
    return _fitted_and_told(project, config)


def _moves_what_fits(project: Project, values: Mapping[str, Any]) -> bool:
    """Return whether what fits, or how many splats *fast* chooses, depends on one of `values`."""
    chooses = project.config.strategy == "fast" and project.fit.options.max_splats is None
    return not values.keys().isdisjoint({LIMIT, "downscale", "steps"} if chooses else {LIMIT, "downscale"})


def with_plan(project: Project, preset: str, values: Mapping[str, Any]) -> tuple[Project, Notice | None]:
    """Return the project with a preset's settings and other `values` by dotted names, and the same."""
    config = PRESETS[preset].apply(project.config, project.given)
    for path, value in values.items():
        config = changed(config, path, value)
    return _fitted_and_told(replace(project, preset=preset), config)


def _fitted_and_told(project: Project, config: TrainConfig) -> tuple[Project, Notice | None]:
    fitting, sentence = _fitted(project, config)
    asked = changed(config, LIMIT, fitting.fit.asked)
    if _numbers(fitting.config) not in (_numbers(asked), _numbers(project.config)):
        return fitting, Notice("Made to fit", sentence)
    return fitting, _shortage(fitting) if isinstance(fitting.fit.options.max_splats, int) else None


def _shortage(project: Project) -> Notice | None:
    """Return what to tell of a training for which there is not the memory, None where there is."""
    assert project.scene is not None
    scene = project.scene.resized(project.config.downscale)
    plan = plan_memory(project.config, sizes_of(scene), project.devices)
    wanted = splats_wanted(project.config, scene)
    if wanted <= plan.num_splats:
        return None
    sentences = describe(plan, wanted, "lower Max splats, or choose smaller photos")
    return Notice("May not fit", sentences, bad=True)


def _numbers(config: TrainConfig) -> tuple[int, ...]:
    return config.densify.max_gaussians, config.batch_size, config.accumulate


def _fitted(project: Project, config: TrainConfig) -> tuple[Project, str]:
    """Return the project with `config` as it fits, and a sentence on what it needs.

    The limit on splats is made from the one that was asked for, so that it rises again with more room; one
    that a running training was given since is kept.
    """
    assert project.scene is not None
    fit, limit = project.fit, config.densify.max_gaussians
    if limit == fit.made:
        config = changed(config, LIMIT, fit.asked)
    elif fit.made is not None:
        fit = Fit(replace(fit.options, max_splats=limit))
    scene = project.scene.resized(config.downscale)
    fitting, sentence = fit.options.fitted(config, scene, project.devices)
    fit = replace(fit, asked=config.densify.max_gaussians, made=fitting.densify.max_gaussians)
    return replace(project, config=fitting, fit=fit), sentence


def _limited(project: Project, scene: Scene, options: DeviceOptions) -> Project:
    notes = project.notes
    if options.fit_batch:
        notes += ("This run goes on with its own batches: --batch-size auto is not followed.",)
    if options.max_splats is None:
        return replace(project, notes=notes)
    options = replace(options, fit_batch=False)
    config, sentence = options.fitted(project.config, scene, project.devices)
    # For the run that follows with New training.
    fit = Fit(options, project.config.densify.max_gaussians, config.densify.max_gaussians)
    notes = (*notes, sentence)
    return replace(project, config=config, notes=notes, live_on_resume=(LIMIT,), fit=fit)


def has_sky(path: Path) -> bool:
    """Return whether the model in a checkpoint or a file has a sky; no file of another program's has."""
    folder = path.parent if SHARD_NAME.fullmatch(path.name) else path
    if not is_checkpoint(folder):
        return False
    try:
        return config_of_checkpoint(folder).sky.enabled
    except ValueError:  # damaged: who opens it says so
        return False


def frame_of(project: Project) -> tuple[tuple[float, ...], ...] | None:
    """Return what `transform_of` does, as it is sent to another process."""
    transform = transform_of(project)
    return None if transform is None else tuple(map(tuple, transform.tolist()))


def transform_of(project: Project) -> np.ndarray | None:
    """Return the transform from the coordinates of the files to the page's, [4, 4]; None: the same."""
    if project.scene is not None:
        return project.scene.transform
    folder = project.model_path
    if folder is None or not is_checkpoint(folder):
        return None
    try:
        # A checkpoint whose scene is gone still lies in that scene's frame.
        return np.array(read_manifest(folder)["scene"]["transform"], dtype=np.float64)
    except ValueError:
        # The worker, which needs all of the checkpoint, says what is wrong with it.
        return None
