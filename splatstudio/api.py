"""The Python interface: load a scene, train it, render it, keep it. What the README shows is here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from splatstudio.cameras.camera import Camera
from splatstudio.checkpoints.checkpoint import config_of_checkpoint, known_photos, newest_or_why
from splatstudio.error_text import reason, shown
from splatstudio.files.run import Run, newest_step, refuse_gone_on
from splatstudio.gui.notebook import show
from splatstudio.models.merging import merge
from splatstudio.models.model import Model, load_model, remember_images, with_images_found
from splatstudio.operating_system import in_forked_children
from splatstudio.poses.estimate import estimate_poses
from splatstudio.rendering.render import render_image
from splatstudio.runtime.stop_signals import HeldInterrupt
from splatstudio.scene.load import load_scene, load_training_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import FREE_ON_RESUME, TrainConfig, changed, differing, resumed, value_of
from splatstudio.settings.presets import PRESETS, PresetName, notes_on_settings
from splatstudio.settings.setting import typed_path
from splatstudio.surfaces.make_mesh import mesh_of_task
from splatstudio.surfaces.mesh_options import MeshOptions, MeshTask
from splatstudio.surfaces.quality import MeshReport
from splatstudio.training.session import Advance, EvaluationAbandoned, Session
from splatstudio.training.trainer import Trainer

log = logging.getLogger(__name__)
# A fork has none of the threads that torch has started, and waits for them for ever: one needs no other.
in_forked_children(partial(torch.set_num_threads, 1))

__all__ = ["Model", "estimate_poses", "load_model", "load_scene", "merge", "mesh", "render", "show", "train"]


def train(
    scene: Scene | str | Path,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    on_step: Callable[[Advance], None] | None = None,
    preset: PresetName | None = None,
    config: TrainConfig | None = None,
    max_splats: int | None = None,
    **settings: object,
) -> Model:
    """Train a model of `scene` and return it; `settings` are fields of TrainConfig, as steps=2000.

    Settings of a group are a dict, optim={"means_lr": 1e-4}, a config object, or written with two
    underscores, optim__means_lr=1e-4. Those by which a Scene was loaded (downscale, test_every, ...) stay.
    `preset` names a set of settings, of which `settings` and what `config` has changed win; `max_splats` is
    densify.max_gaussians. With `run_dir` the run keeps checkpoints, metrics and evaluations there; without it
    nothing is written. `resume` continues the run in `run_dir` from its newest good checkpoint, with its own
    settings but for when to stop, evaluate and save. `on_step` is called after each step; when it raises, and
    at Ctrl-C, the training is saved in its run and ends. Raises ValueError for a scene, a run or a setting
    that cannot be used.
    """
    if config is not None and not isinstance(config, TrainConfig):
        raise ValueError(f"config is to be a TrainConfig, not {shown(config)}; settings go by name, steps=9")
    if max_splats is not None:
        settings["densify__max_gaussians"] = max_splats
    if (dtype := torch.get_default_dtype()) != torch.float32:
        raise ValueError(f"this trains in float32, and torch's default is {dtype}: set that back before")
    given = _dotted(settings)
    # Whoever calls may have switched gradients off.
    with torch.inference_mode(False), torch.enable_grad(), HeldInterrupt() as interrupt:
        if resume:
            begun = _resumed(scene, config or TrainConfig(), run_dir, preset, given)
        else:
            begun = _new(scene, _chosen(config or TrainConfig(), preset, given), run_dir, given)
        return _trained(*begun, on_step, interrupt)


def _new(
    scene: Scene | str | Path, config: TrainConfig, run_dir: str | Path | None, given: Mapping[str, object]
) -> tuple[Trainer, Callable[[], Run] | None]:
    """Return a training from the start, and what makes its run; None: it has none."""
    for note in notes_on_settings(config, given.keys() & set(differing(config, TrainConfig()))):
        log.warning("%s", note)
    if config.stop_when_flat and run_dir is None:
        log.warning("stop_when_flat needs a run_dir, where scores are kept: all steps are trained")
    if isinstance(scene, Scene):
        config = _as_loaded(config, scene)
    else:
        scene = load_training_scene(scene, config)
    trainer = Trainer(scene, config)
    if run_dir is None:
        return trainer, None
    return trainer, partial(Run.create, typed_path(run_dir), scene.path, trainer.config)


def _resumed(
    scene: Scene | str | Path,
    config: TrainConfig,
    run_dir: str | Path | None,
    preset: PresetName | None,
    settings: Mapping[str, object],
) -> tuple[Trainer, Callable[[], Run]]:
    """Return the training of a run that goes on; ValueError where it cannot, or not with these settings."""
    if run_dir is None:
        raise ValueError("resume needs run_dir, the folder of the run to continue")
    if preset is not None:
        raise ValueError("a run continues with its own settings: omit preset, or start a new training")
    given = {*settings, *differing(config, TrainConfig())}
    run = Run.open(typed_path(run_dir))
    known = newest_step(run.path)
    checkpoint, why = newest_or_why(run.path)
    if checkpoint is None:
        raise ValueError(why or f"{run.path} has no checkpoint to resume from: omit resume")
    config = resumed(run.replanned(config_of_checkpoint(checkpoint)), _chosen(config, None, settings), given)
    if isinstance(scene, Scene):
        for name in ("downscale", "model"):
            if getattr(scene, name) != getattr(config, name):
                raise ValueError(
                    f"the scene was loaded with {name}={getattr(scene, name)}, and the run was trained with"
                    f" {name}={getattr(config, name)}: load it so, or give its path"
                )
    else:
        config = config if "images" in given else with_images_found(config, run, typed_path(scene))
        scene = load_training_scene(scene, config, known_photos(checkpoint))
    free = {name: value_of(config, name) for name in FREE_ON_RESUME}
    trainer = Trainer.resume(scene, checkpoint, **free)
    if trainer.step >= config.steps:
        log.warning("nothing to do: the run is at step %d, and it is to have %d", trainer.step, config.steps)

    def begin() -> Run:
        refuse_gone_on(run.path, known)
        return run if run.config.images == config.images else remember_images(run, config.images)

    return trainer, begin


def _trained(
    trainer: Trainer,
    make_run: Callable[[], Run] | None,
    on_step: Callable[[Advance], None] | None,
    interrupt: HeldInterrupt,
) -> Model:
    config, session = trainer.config, None
    try:
        for note in filter(None, (trainer.start_note, trainer.parts.guide.note(config))):
            log.warning("%s", note)
        if make_run is not None:
            session = Session(trainer, make_run())
            session.breathe = partial(_make_way, interrupt)
        while trainer.step < config.steps:
            with interrupt.until_done():
                advance = session.advance() if session else Advance(trainer.train_step())
            for problem in filter(None, (advance.problem, advance.unsaved)):
                log.warning("%s", problem)
            if on_step is not None:
                _tell(on_step, advance, session)
            if session is not None and advance.flat is not None and advance.flat.stops:
                _save(session)
                break
        options, poses = trainer.display_options, trainer.poses
        return Model(trainer.gaussians, trainer.scene.transform, options, trainer.step, poses=poses)
    except KeyboardInterrupt:  # as a notebook's Stop
        if make_run is None:
            log.warning("nothing is kept of the %d steps: name a run_dir, where they are saved", trainer.step)
        elif session is not None:
            _save_interrupted(session)
        raise
    finally:
        if session is not None:
            session.close()
        trainer.close()


def _make_way(interrupt: HeldInterrupt) -> None:
    if interrupt.came:
        raise EvaluationAbandoned


def _tell(on_step: Callable[[Advance], None], advance: Advance, session: Session | None) -> None:
    """Call the user's function; what is trained is saved where that fails."""
    try:
        on_step(advance)
    except BaseException:  # also a task that is cancelled, or sys.exit
        if session is not None:
            _save(session)
        raise


def _save_interrupted(session: Session) -> None:
    """Save what an interrupt has left, and say where it is and how to go on."""
    if not session.trainer.whole:
        log.warning("a step was torn: what was trained since the last checkpoint is lost")
        return
    _save(session)
    if session.saved is not None:
        log.warning("saved in %s: train with resume=True to continue", session.saved)


def _save(session: Session) -> None:
    """Save the steps that are not saved yet; where that fails it is told, and the model is in memory."""
    try:
        session.save_if_needed()
    except OSError as error:
        log.warning("step %d could not be saved: %s", session.trainer.step, reason(error))


def mesh(
    run: str | Path,
    output: str | Path,
    *,
    scene: str | Path | None = None,
    upright: bool = False,
    on_progress: Callable[[int, int, str], object] = lambda done, total, what: None,
    **options: Any,
) -> MeshReport:
    """Make a triangle mesh of the model of a run, a checkpoint or a file, and return how good it is.

    `output` ends in .glb, .obj, .ply or .stl; the report is written beside it. `options` are fields of
    MeshOptions, as resolution=256. `scene` names the scene where it is not that of the training; `upright`
    lets the mesh stand, z up, centered and scaled as in the studio. `on_progress` gets how much of
    how much is done, and what. A file that is there is replaced. Raises ValueError for what cannot be read or
    meshed.
    """
    try:
        chosen = MeshOptions(**options)
    except TypeError as error:
        names = [field.name for field in fields(MeshOptions)]
        wrong = next((name for name in options if name not in names), "")
        raise ValueError(f"a mesh has no option {wrong}; its options are {', '.join(names)}") from error
    place = None if scene is None else typed_path(scene)
    task = MeshTask(typed_path(run), typed_path(output), chosen, place, upright=upright)
    return mesh_of_task(task, on_progress).report


def _dotted(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the values of single settings by their dotted names."""
    dotted: dict[str, object] = {}
    for given, value in settings.items():
        name = given.replace("__", ".")
        if is_dataclass(value) and not isinstance(value, type):
            value = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, Mapping):
            dotted |= _dotted({f"{name}.{inner}": each for inner, each in value.items()})
        else:
            dotted[name] = value
    return dotted


def _chosen(config: TrainConfig, preset: PresetName | None, settings: Mapping[str, object]) -> TrainConfig:
    for name, value in settings.items():
        config = changed(config, name, value)
    if preset is None:
        return config
    if preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}: it is one of {', '.join(PRESETS)}")
    return PRESETS[preset].apply(config, {*settings, *differing(config, TrainConfig())})


def _as_loaded(config: TrainConfig, scene: Scene) -> TrainConfig:
    """Return the settings with those by which a scene was loaded; ValueError where they say something else.

    What is kept of a run must say what it was trained on: it is resumed and evaluated by that.
    """
    usual = TrainConfig()
    for name in ("downscale", "test_every", "test_images", "images", "model"):
        loaded, asked = getattr(scene, name), getattr(config, name)
        if asked not in (loaded, getattr(usual, name)):
            raise ValueError(
                f"the scene was loaded with {name}={loaded!r}, and the training is to have {name}={asked!r}:"
                f" give it to load_scene ({'images_folder' if name == 'images' else name}=...), or train the"
                " path of the scene"
            )
        config = changed(config, name, loaded)
    return config


def render(model: Model, camera: Camera) -> np.ndarray:
    """Render `model` from `camera` as an image, [H, W, 3] uint8.

    For gradients and depth use `splatstudio.rendering.render.render`, which works on tensors.
    """
    if not isinstance(model, Model) or not isinstance(camera, Camera):
        raise ValueError("render draws a Model (load_model) from a Camera, as scene.cameras are")
    return render_image(model.gaussians, camera, model.options)
