"""The training of one model: draw a photograph, render, compare, improve, and now and then grow and prune."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatstudio.camera import Camera
from splatstudio.checkpoint import Checkpoint
from splatstudio.checkpoint_share import load_share, save_together
from splatstudio.config import TrainConfig, changed, check, declaration, with_whole_init
from splatstudio.corrections import Corrections
from splatstudio.descent import Descent, DescentPlan, Drawing, LossNotFinite, Shot, descend
from splatstudio.distributed import ALONE, Ranks
from splatstudio.distributed.failures import Fault, OutOfMemory, unless_out_of_memory
from splatstudio.evaluate import target_image
from splatstudio.gaussians import Gaussians
from splatstudio.initialize import from_points, random_in_cameras
from splatstudio.losses import photometric, psnr
from splatstudio.ops_training import Regularization
from splatstudio.optim import SplatAdam, learning_rates
from splatstudio.rendering import RenderOptions, fastest_device, options_for_display
from splatstudio.scene.images import PhotoLoader
from splatstudio.scene.scene import Scene
from splatstudio.starting_model import gaussians_to_start_from
from splatstudio.strategy import Change, Population, trainable
from splatstudio.strategy.choice import make_strategy

EXTENT_MARGIN = 1.1  # gsplat's unit of learning rates and size rules: the cameras' radius and a tenth more
LOOKAHEAD = 8  # photographs decoded ahead of their step
PSNR_EVERY = 10  # steps between two measurements of PSNR, for which the loss has no use
FIXED_AT_START = (
    *("seed", "sh_degree", "init_opacity", "init_scale", "init", "init_random"),
    *("test_every", "test_images", "strategy"),
)


class TrainingDiverged(FloatingPointError, ValueError):
    """The training cannot go on: its loss is no longer a number, or no Gaussians are left."""


@dataclass(frozen=True)
class StepStats:
    """What one training step did."""

    step: int  # steps done, with this one
    loss: float
    num_gaussians: int
    seconds: float
    view: str  # name of the photograph
    sh_degree: int  # highest degree in use
    psnr: float | None = None  # dB on this photograph before the step; measured every PSNR_EVERY steps
    change: Change | None = None  # what the strategy changed; None: no rule was due


class Trainer:
    """Trains Gaussians on a scene, step by step, in the calling thread.

    A seed gives the same model bit for bit on the CPU, also when the training is saved and resumed. Other
    threads may read `live_gaussians` and call `update_setting` at any time.
    """

    def __init__(
        self, scene: Scene, config: TrainConfig, *, device: torch.device | str | None = None
    ) -> None:
        """Initialise a model from `config.init`, else the scene's points, else at random between the cameras.

        `device` None: the fastest there is. Raises ValueError for a setting outside its range, a scene
        without training photographs, or a model to start from that cannot be read or is of another scene.
        """
        check(config)
        config = with_whole_init(config)
        generator = torch.Generator().manual_seed(config.seed)
        first = _first_gaussians(scene, config, generator)
        gaussians = trainable(first.to(fastest_device() if device is None else device))
        self._prepare(scene, config, generator)
        counts = self._strategy.new_counts(gaussians)
        self._population = Population(gaussians, SplatAdam.zeros(gaussians), counts)
        self._corrections = Corrections(config, scene, gaussians.device)
        self._prefetch()

    @classmethod
    def resume(cls, scene: Scene, checkpoint_dir: Path, **overrides: Any) -> Trainer:
        """Return the training of a checkpoint, as if it had never stopped.

        `overrides` are settings to change, by their dotted paths.
        Raises ValueError when the checkpoint is damaged, belongs to another scene, or when an override cannot
        be changed any more.
        """
        checkpoint = load_checkpoint(Path(checkpoint_dir))
        config = checkpoint.config
        for path, value in overrides.items():
            new = changed(config, path, value)
            if path in FIXED_AT_START and new != config:
                raise ValueError(f"setting {path} cannot be changed when a training is resumed")
            config = new
        if not np.allclose(checkpoint.scene_transform, scene.transform, rtol=1e-6, atol=1e-6):
            raise ValueError(
                f"{checkpoint_dir} was trained in another frame than {scene.path} has now: its cameras have"
                " changed since; train the scene anew"
            )
        if (scene.test_every, scene.test_images) != (config.test_every, config.test_images):
            raise ValueError(
                f"{checkpoint_dir} was trained with {_split(config)}, but {scene.path} was "
                f"loaded with {_split(scene)}: test photographs would be trained on"
            )
        trainer = cls.__new__(cls)
        trainer._prepare(scene, config, torch.Generator())
        trainer._generator.set_state(checkpoint.rng_state)
        saved = checkpoint.population.to(fastest_device())
        trainer._population = Population(trainable(saved.gaussians), saved.optimizer, saved.counts)
        trainer._corrections = Corrections(config, scene, saved.gaussians.device)
        trainer._corrections.restore(checkpoint.corrections)
        trainer.step = checkpoint.step
        trainer._draw_again(checkpoint.upcoming)
        trainer._prefetch()
        return trainer

    def _prepare(self, scene: Scene, config: TrainConfig, generator: torch.Generator) -> None:
        if not scene.train_indices:
            raise ValueError(f"{scene.path} has no photographs to train on: all of them are test photographs")
        self.scene = scene
        self.config = config
        self.step = 0
        self.whole = True  # not while a step changes tensors one after the other: an error there tears them
        self._generator = generator
        self._extent = scene.extent * EXTENT_MARGIN
        self._strategy = make_strategy(config, extent=self._extent, generator=generator)
        self._upcoming: deque[int] = deque()
        self._loader = PhotoLoader(scene)

    @property
    def gaussians(self) -> Gaussians:
        """Return the current model, without gradients.

        The tensors are the ones that are trained: a later step changes them in place. For the thread that
        trains; others take `live_gaussians`.
        """
        self._population.optimizer.settle(self._population.gaussians)
        return self.live_gaussians

    @property
    def live_gaussians(self) -> Gaussians:
        """Return the current model to any thread; its six tensors are always of one length.

        The view-dependent colour of Gaussians that the last photographs did not show may be late by a few
        thousandths (see `SplatAdam.settle`).
        """
        return self._population.gaussians.detach()

    @property
    def display_options(self) -> RenderOptions:
        """Return the options with which the model is drawn and evaluated, with the sky as it is now."""
        return options_for_display(self.config, self._corrections.sky)

    def camera(self, index: int) -> Camera:
        """Return the camera of a training photograph of the scene: corrected, where poses are learnt."""
        return self._corrections.camera(index)

    def train_step(self) -> StepStats:
        """Train on the next photograph.

        Raises TrainingDiverged when the loss is not finite or no Gaussians are left, ValueError when the
        photograph cannot be read.
        """
        started = time.perf_counter()
        config, index = self.config, self.step
        strategy = self._strategy
        strategy.follow(config)
        shots = self._next_shots(config)
        plan = DescentPlan(
            options=self._options_at(index, config),
            rates=learning_rates(config.optim, extent=self._extent, step=index, steps=config.steps),
            observed=strategy.observes(index),
            visible_only=config.optim.visible_only,
            regularization=Regularization(config.shapes.opacity_weight, config.shapes.scale_weight),
            poses=self._corrections.refines_poses(index, config),
        )
        descent = self._descend(shots, plan)
        poses = tuple(zip((shot.index for shot in shots), descent.poses, strict=False))
        self._corrections.finish(descent.others, poses, step=index, config=config)
        change = strategy.after_step(self._population, descent.observations, index)
        if not len(self._population) > 0:
            raise TrainingDiverged(
                f"all Gaussians became transparent and were removed at step {index + 1}: the photographs and"
                " the cameras may not belong together; otherwise lower densify.prune_opacity"
            )
        self.step, self.whole = index + 1, True
        shot = shots[0]
        picture = self._corrections.picture(shot, descent.pictures[0])
        return StepStats(
            step=self.step,
            loss=descent.losses[0],
            num_gaussians=len(self._population),
            seconds=time.perf_counter() - started,
            view=shot.name,
            sh_degree=_sh_degree_at(index, config),
            change=change,
            psnr=psnr(picture, shot.target, shot.mask) if self.step % PSNR_EVERY == 0 else None,
        )

    def _descend(self, shots: list[Shot], plan: DescentPlan) -> Descent:
        def before_change() -> None:
            self.whole = False

        (shot,) = shots
        population = self._population
        try:
            return descend(
                population.gaussians,
                population.optimizer,
                shot,
                self._loss_of,
                plan,
                others=self._corrections.begin([shot.index]),
                before_change=before_change,
            )
        except LossNotFinite as error:
            raise TrainingDiverged(
                f"the loss became {error.loss} at step {self.step + 1}, on {error.shot.name}: go on from the"
                " last checkpoint with smaller learning rates"
            ) from error

    def _loss_of(self, shot: Shot, drawing: Drawing) -> Tensor:
        rgb = self._corrections.shown(shot, drawing)
        loss = photometric(rgb, shot.target, ssim_weight=self.config.ssim_weight, mask=shot.mask)
        penalty = self._corrections.penalty(shot, self.config)
        return loss if penalty is None else loss + penalty

    def _options_at(self, index: int, config: TrainConfig) -> RenderOptions:
        return RenderOptions(
            sh_degree=_sh_degree_at(index, config),
            antialiased=config.antialiased,
            near=config.near,
            far=config.far,
            absgrad=self._strategy.absgrad,
        )

    def update_setting(self, path: str, value: Any) -> None:
        """Change a live setting, as "optim.means_lr"; the next step takes it.

        Raises ValueError for a setting that is unknown, not live, or a value outside its range.
        """
        if not declaration(TrainConfig, path).live:
            raise ValueError(f"setting {path} cannot be changed while training; it is read at the start")
        self.config = changed(self.config, path, value)

    def checkpoint(self) -> Checkpoint:
        """Return all that the training needs to go on from here; its tensors are the ones being trained."""
        self._population.optimizer.settle(self._population.gaussians)
        return Checkpoint(
            step=self.step,
            config=self.config,
            population=self._population,
            scene_path=Path(self.scene.path).resolve(),
            scene_transform=self.scene.transform,
            rng_state=self._generator.get_state(),
            upcoming=tuple(self.scene.views[index].name for index in self._upcoming),
            corrections=self._corrections.save(),
        )

    def save(self, run_dir: Path) -> Path:
        """Write a checkpoint below `run_dir`/ckpts and return its folder; call it between two steps.

        Raises OSError when the disk is full or fails.
        """
        return save_together(self.ranks, run_dir, self.checkpoint())

    def close(self) -> None:
        """Stop the threads that decode photographs."""
        self._queue.close()

    def _shots_of(self, batch: Batch) -> list[list[Shot]]:
        """Return this rank's shots of a step, a round at a time, each over a background of its own."""
        backgrounds = [self._background() for _ in batch.indices]
        return [
            [self._shot(batch.indices[place], batch.photos[place], backgrounds[place]) for place in places]
            for places in batch.rounds
        ]

    def _shot(self, index: int, photo: Photo, background: tuple[float, float, float]) -> Shot:
        target, mask = target_image(photo, background, self._population.gaussians.device)
        camera = self._corrections.camera(index)
        return Shot(index, self.scene.views[index].name, camera, target, mask, background)

    def _background(self) -> tuple[float, float, float]:
        if self.config.random_background:
            red, green, blue = torch.rand(3, generator=self._generator).tolist()
            return red, green, blue
        return self._corrections.behind(self.config.background)


def _split(of: TrainConfig | Scene) -> str:
    return f"test_images {','.join(of.test_images)}" if of.test_images else f"test_every {of.test_every}"


def _sh_degree_at(index: int, config: TrainConfig) -> int:
    """Return the highest degree in use at the step after `index` steps."""
    # A model to start from has settled base colours already, and must not lose what depends on the view.
    reached = config.sh_degree if config.init else index // config.sh_degree_every
    return min(reached, config.sh_degree, config.sh_degree_limit)


def _first_gaussians(scene: Scene, config: TrainConfig, generator: torch.Generator) -> Gaussians:
    if config.init and scene.train_indices:
        return gaussians_to_start_from(scene, config)
    if len(scene.points):
        return from_points(
            scene.points,
            scene.colors,
            sh_degree=config.sh_degree,
            init_scale=config.init_scale,
            init_opacity=config.init_opacity,
            generator=generator,
        )
    return random_in_cameras(
        [scene.views[index].camera for index in scene.train_indices],
        config.init_random,
        sh_degree=config.sh_degree,
        init_scale=config.init_scale,
        init_opacity=config.init_opacity,
        generator=generator,
    )
