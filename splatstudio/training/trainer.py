"""The training of one model: draw a photo, render, compare, improve, and now and then grow and prune."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.checkpoints.checkpoint import Checkpoint, load_share, same_frame
from splatstudio.checkpoints.saver import save_on_all_ranks
from splatstudio.corrections.corrections import Corrections, check_agreement
from splatstudio.distributed.failures import Fault, OutOfMemory, together, told_together
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.error_text import first_of
from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.intersection_capacity import intersection_capacity_for
from splatstudio.optimization.gradients import LossNotFinite, StepPlan, TrainView
from splatstudio.optimization.losses import DepthGuide, psnr
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.train_step import StepResult, TrainStep
from splatstudio.rendering.render import RenderOptions, fastest_device, options_for_display
from splatstudio.rendering.sharded_view import by_round, camera_records
from splatstudio.scene.scene import KnownPhotos, Scene
from splatstudio.settings.config import TrainConfig, changed, check, declaration, test_names, with_whole_paths
from splatstudio.strategy.after_step import grow, with_lower_limit
from splatstudio.strategy.global_order import number_rows
from splatstudio.strategy.make_strategy import make_strategy
from splatstudio.strategy.population import PERSISTENT_ID, Population, trainable, unless_short
from splatstudio.strategy.shapes import ShapeLimits
from splatstudio.training.data.photo_queue import PhotoQueue
from splatstudio.training.data.resolution import sh_degree_at
from splatstudio.training.data.train_views import TrainViewMaker
from splatstudio.training.memory_plan import photos_to_keep
from splatstudio.training.precision import fp16_packing_for
from splatstudio.training.starting_model import first_gaussians, note_on_start
from splatstudio.training.step import (
    DrawnStep,
    Lookahead,
    StepParts,
    StepStats,
    TrainingDiverged,
    TrainingSurvey,
    plan_at,
)

__all__ = ["StepStats", "Trainer", "TrainingDiverged"]

EXTENT_MARGIN = 1.1  # gsplat's unit of learning rates and size rules: the cameras' radius and a tenth more
FIXED_AT_START = (
    *("seed", "sh_degree", "init_opacity", "init_scale", "init", "init_random"),
    *("test_every", "test_images", "strategy"),
)
MOST_LEFT_OUT = 3  # steps in a row that memory may be short for


class Trainer:
    """Trains Gaussians on a scene, step by step, in the calling thread.

    A seed gives the same model bit for bit on the CPU, also when the training is saved and resumed. Other
    threads may read `live_gaussians` and call `update_setting` at any time.

    With several `ranks` each has a Trainer with a share of the Gaussians, and calls what changes or saves it,
    `train_step`, `save` and `update_setting`, as often and in the same order as the others.
    """

    start_note: str | None = None  # a sentence where it begins with what its user may not have meant

    def __init__(
        self,
        scene: Scene,
        config: TrainConfig,
        *,
        device: torch.device | str | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Initialize a model from `config.init`, else the scene's points, else at random between the cameras.

        `device` None: the fastest there is. Raises ValueError for a setting outside its range, a scene
        without training photos, or a model to start from that cannot be read or is of another scene.
        """
        check(config)
        check_agreement(config)
        self._begun_here = True
        # The model that was chosen stays the run's: a larger one that COLMAP makes has other coordinates.
        config = replace(with_whole_paths(config, Path(scene.path)), model=scene.model)
        _require_photos(scene)
        generator = torch.Generator().manual_seed(config.seed)
        first = first_gaussians(scene, config, generator)
        self.start_note = note_on_start(scene, config, first)  # of the whole: a share may lie in one corner
        first = first[ranks.share(len(first))]
        gaussians = trainable(first.to(fastest_device() if device is None else device))
        self._assemble(scene, config, generator, Population(gaussians, SplatAdam.zeros(gaussians), {}, ranks))

    @classmethod
    def resume(
        cls,
        scene: Scene,
        checkpoint_dir: Path,
        *,
        device: torch.device | str | None = None,
        ranks: Ranks = ALONE,
        **overrides: Any,
    ) -> Trainer:
        """Return the training of a checkpoint, as if it had never stopped.

        `overrides` are settings to change, by their dotted paths. On as many ranks as have saved it, each has
        the rows that it had; otherwise they share them evenly.
        Raises ValueError when the checkpoint is damaged, belongs to another scene, or when an override cannot
        be changed any more.
        """
        checkpoint = load_share(Path(checkpoint_dir), ranks)
        config = _config_to_go_on(checkpoint, scene, overrides, checkpoint_dir)
        _require_photos(scene)
        trainer, generator = cls.__new__(cls), torch.Generator()
        trainer._begun_here = False
        generator.set_state(checkpoint.rng_state)
        saved = checkpoint.population.to(fastest_device() if device is None else device)
        population = Population(trainable(saved.gaussians), saved.optimizer, saved.counts, ranks)
        trainer._assemble(scene, config, generator, population)
        trainer.parts.corrections.restore(checkpoint.corrections)
        trainer.parts.queue.draw_again(checkpoint.upcoming, checkpoint.view_costs, config)
        trainer.step = checkpoint.step
        # What it has done went by the settings of then; the first step takes those of now.
        trainer.parts.strategy.follow(checkpoint.config, checkpoint.step)
        trainer.parts.strategy.owes = checkpoint.owes
        return trainer

    def _assemble(
        self, scene: Scene, config: TrainConfig, generator: torch.Generator, population: Population
    ) -> None:
        """Put together what trains `population`; counts that it lacks take their first values."""
        ranks, device = population.ranks, population.gaussians.device
        extent = scene.extent * EXTENT_MARGIN
        self.scene = scene
        self.config = config
        self.ranks = ranks
        self.step = 0  # steps done
        self.whole = True  # not while a step changes tensors one after the other: an error there tears them
        self.halves = fp16_packing_for(config.precision, ranks)  # what ranks send in 16 bits
        queue, corrections = PhotoQueue(scene, generator, ranks), Corrections(config, scene, device)
        present = len(population.gaussians) * ranks.num_ranks
        keep = photos_to_keep(config, scene, present, device, ranks.num_ranks)
        views = TrainViewMaker(scene, queue, corrections, generator, device, keep)
        survey = TrainingSurvey(scene, population, queue, views, corrections, config)
        strategy = make_strategy(scene, config, extent=extent, generator=generator, survey=survey)
        self.parts = StepParts(
            scene=scene,
            ranks=ranks,
            generator=generator,
            queue=queue,
            views=views,
            corrections=corrections,
            strategy=strategy,
            survey=survey,
            guide=DepthGuide.of(scene, config.depth),
            population=population,
            extent=extent,
            capacity=intersection_capacity_for(device),
            packing=self.halves,
            fault=Fault.from_environment(),
        )
        gaussians = population.gaussians.detach()
        counts = strategy.new_counts(gaussians)
        if config.dropout.rate > 0 and PERSISTENT_ID not in counts:
            counts[PERSISTENT_ID] = gaussians.means.new_zeros(len(gaussians), dtype=torch.int64)
        population.counts = {**counts, **population.counts}
        self.lookahead = Lookahead(self.parts)
        self.num_gaussians = number_rows(population)  # of all ranks

    @property
    def gaussians(self) -> Gaussians:
        """Return the current model, without gradients.

        The tensors are the ones that are trained: a later step changes them in place. For the thread that
        trains, which lets go what it has begun of the next step; others take `live_gaussians`.
        """
        self.lookahead.take_back()
        self.parts.population.optimizer.flush_lazy_rows(self.parts.population.gaussians)
        return self.live_gaussians

    @property
    def live_gaussians(self) -> Gaussians:
        """Return the current model to any thread; its six tensors are always of one length.

        The view-dependent color of Gaussians that the last photos did not show may be late by a few
        thousandths (see `SplatAdam.flush_lazy_rows`).
        """
        return self.parts.population.gaussians.detach()

    @property
    def display_options(self) -> RenderOptions:
        """Return the options with which the model is drawn and evaluated, with the sky as it is now."""
        return options_for_display(self.config, self.parts.corrections.sky)

    def camera(self, index: int) -> Camera:
        """Return the camera of a training photo of the scene: corrected, where poses are learned."""
        return self.parts.corrections.camera(index)

    @property
    def poses(self) -> dict[str, np.ndarray]:
        """Return the corrections of the training cameras, see `Model.poses`."""
        return self.parts.corrections.poses()

    def train_step(self) -> StepStats:
        """Train on the next photos.

        Raises TrainingDiverged when the loss is not finite or no Gaussians are left, ValueError when a
        photo cannot be read.
        """
        started = time.perf_counter()
        config, index, parts = self.config, self.step, self.parts
        parts.survey.config = config
        parts.strategy.follow(config, index)
        made = self._make(index, config)
        change, problem = made.change, made.problem
        if change is not None:
            self.num_gaussians = parts.population.num_all()
            if change.short:
                told = self._lower_limit(change.short, change.left_out)
                problem = told if problem is None else f"{problem} {told}"
        if not self.num_gaussians > 0:
            raise TrainingDiverged(
                f"all splats became transparent and were removed at step {index + 1}: the photos and"
                f" the cameras may not belong together{_masks_may_hide(self.scene)}; otherwise lower"
                f" {_LIMIT_OF_OPACITY.get(config.strategy, 'densify.prune_opacity')}"
            )
        self.step, self.whole = index + 1, True
        losses = made.result.losses
        return StepStats(
            step=self.step,
            loss=math.fsum(losses) / len(losses),
            num_gaussians=self.num_gaussians,
            seconds=time.perf_counter() - started,
            view=made.drawn.rounds[0][0].name,
            sh_degree=sh_degree_at(index, config, len(self.scene.train_indices)),
            change=change,
            psnr=self._psnr_of(made),
            problem=problem,
        )

    def _make(self, index: int, config: TrainConfig) -> _MadeStep:
        """Make the step after `index` others, and begin the one after it where that is possible."""
        begun, drawn = self.lookahead.take(index, config), None
        if begun is not None:
            drawn, report, gate = begun.drawn, begun.step.report, begun.step.gate
            assert report is not None and gate is not None, "its numbers are read late"
            change = self._apply(drawn, begun.step)
            assert change is None, "what a quiet step does has the gate"
            del begun  # its memory is for the next step
            self.lookahead.begin_after(drawn)
            result = report.read()
            capacity = self.parts.capacity
            assert capacity is not None, "or there is no gate"
            for needed in result.num_instances:
                capacity.held(needed)  # which may have grown since the pictures were queued
            if max(result.num_instances) <= gate.room and math.isfinite(result.total):
                self._learn_from(drawn, result)
                return _MadeStep(drawn, result)
            # The gate was shut, and nothing has changed: the step is made again on the same photos.
            self.parts.population.optimizer.uncount()
            self.lookahead.take_back()
            self.whole = True
        drawn, step, problem = self._agreed_step(index, config, drawn)
        assert step.result is not None, "its numbers were read"
        change = self._apply(drawn, step)
        return _MadeStep(drawn, step.result, step.pictures, change, problem)

    def _agreed_step(
        self, index: int, config: TrainConfig, drawn: DrawnStep | None
    ) -> tuple[DrawnStep, TrainStep, str | None]:
        """Return a step that all ranks can make, and a sentence on what had to be left out.

        It is on the photos of `drawn`, or on the next ones where those are None or too much for memory.
        """
        plan, problem = plan_at(self.parts, index, config), None
        for _ in range(MOST_LEFT_OUT):
            try:
                drawn = drawn or self._next_photos(index, config, plan)
                return drawn, self._begin(drawn), problem
            except OutOfMemory as error:
                short, drawn = error.ranks, None
            problem = self._lower_limit(short, "the photos of a step were left out")
        raise MemoryError(f"there is no memory for a step, {MOST_LEFT_OUT} times in a row: {problem}")

    def _next_photos(self, index: int, config: TrainConfig, plan: StepPlan) -> DrawnStep:
        parts = self.parts
        batch = parts.queue.next(config)
        short, parts.population.short = parts.population.short, False

        def views_of_batch() -> list[list[TrainView]]:
            rounds = parts.views.of_batch(batch, index, config)
            if short:  # only now: what all ranks draw by chance this one has drawn, too
                raise MemoryError("there was no memory for what follows the step before")
            return rounds

        if self.ranks.num_ranks == 1:
            return DrawnStep(index, config, plan, batch, together(self.ranks, views_of_batch), ())
        rounds, told = told_together(self.ranks, views_of_batch, _cameras_told)
        return DrawnStep(index, config, plan, batch, rounds, by_round(told, [len(one) for one in rounds]))

    def _begin(self, drawn: DrawnStep) -> TrainStep:
        begin = partial(drawn.begin, self.parts)
        try:
            # Several ranks agree on what takes memory in it, but not on what is learned beside the Gaussians:
            # they would send each other more than that takes.
            return together(self.ranks, begin) if self.ranks.num_ranks == 1 else begin()
        except LossNotFinite as error:
            name = self.scene.views[drawn.batch.indices[error.number]].name
            rank = f" (rank {error.rank})" if self.ranks.num_ranks > 1 else ""
            raise TrainingDiverged(
                f"the loss became {error.loss} at step {self.step + 1}, on {name}{rank}: go on from the"
                " last checkpoint with smaller learning rates"
            ) from error

    def _apply(self, drawn: DrawnStep, step: TrainStep) -> Change | None:
        """Change all that a step changes, unless its gate is shut; return what the strategy changed."""
        parts, index, config, gate = self.parts, drawn.index, drawn.config, step.gate
        population, corrections = parts.population, parts.corrections
        self.whole = False
        step.apply()
        finish = partial(corrections.finish, step.others, step=index, config=config, gate=gate)
        if self.ranks.num_ranks == 1:
            unless_short(population, finish)
        else:  # those of all ranks are to stay the same
            finish()
        if step.result is not None:
            self._learn_from(drawn, step.result)
        options = replace(drawn.plan.options, absgrad=False)
        limits = ShapeLimits(config.shapes, parts.extent, options, parts.survey.alive)
        if parts.fault is not None:
            population.amid_edit = partial(parts.fault.strike, index + 1, self.ranks.rank, "growth")
        population.gate = gate
        try:
            return grow(
                population,
                parts.strategy,
                limits,
                corrections.cameras,
                step.observations,
                index,
                config.order,
            )
        finally:
            population.gate = None

    def _learn_from(self, drawn: DrawnStep, result: StepResult) -> None:
        """Take in the numbers of a step that is made: what its photos cost, and where cameras move."""
        batch, corrections = drawn.batch, self.parts.corrections
        self.parts.queue.count(batch, result.costs)
        corrections.move_cameras(batch.indices, result.poses, step=drawn.index, config=drawn.config)

    def _psnr_of(self, made: _MadeStep) -> float | None:
        """Return the PSNR of the first picture of this rank, where the plan asks for it."""
        if made.result.psnr is not None or not made.drawn.plan.scored:
            return made.result.psnr
        view = made.drawn.rounds[0][0]
        picture = self.parts.corrections.picture(view, made.pictures[0])
        return psnr(picture, view.target, view.mask)

    def _lower_limit(self, short: Sequence[int], left_out: str) -> str:
        self.parts.views.keep_none()
        self.config, told = with_lower_limit(self.config, self.num_gaussians, self.ranks, short, left_out)
        return told

    def fail_if_asked(self, site: str) -> None:
        """Let memory be short at a `site` where a test wants that (see `Fault`)."""
        if self.parts.fault is not None:
            self.parts.fault.strike(self.step + (site == "growth"), self.ranks.rank, site)

    def update_setting(self, path: str, value: Any) -> None:
        """Change a live setting, as "optim.means_lr"; the next step takes it.

        Raises ValueError for a setting that is unknown, not live, or a value outside its range, and for one
        that contradicts another.
        """
        if not declaration(TrainConfig, path).live:
            raise ValueError(f"setting {path} cannot be changed while training; it is read at the start")
        config = changed(self.config, path, value)
        check_agreement(config)
        if path == "steps" and config.steps < self.step:
            raise ValueError(
                f"{self.step:,} steps are done already: steps cannot be {config.steps:,} any more"
            )
        self.config = config

    def checkpoint(self) -> Checkpoint:
        """Return all that the training needs to go on from here; its tensors are the ones being trained."""
        self.lookahead.take_back()
        self.parts.population.optimizer.flush_lazy_rows(self.parts.population.gaussians)
        # Settings that were changed since the last step count for what is kept of the strategy, too.
        self.parts.strategy.follow(self.config, self.step)
        return Checkpoint(
            step=self.step,
            config=self.config,
            population=self.parts.population,
            scene_path=Path(self.scene.path).resolve(),
            scene_transform=self.scene.transform,
            rng_state=self.parts.generator.get_state(),
            upcoming=self.parts.queue.upcoming,
            view_costs=self.parts.queue.costs,
            corrections=self.parts.corrections.save(),
            photos=self._known_photos(),
            owes=self.parts.strategy.owes,
        )

    def _known_photos(self) -> KnownPhotos:
        """Return the photos that this training has had, of one that was resumed also those that are gone."""
        scene = self.scene
        there = scene.photos.keys() if self._begun_here else set(scene.known_names) | scene.held_out
        names = tuple(name for name in scene.known_names if name in there)
        return KnownPhotos(names, scene.held_out & there, scene.num_framed)

    def save(self, run_dir: Path) -> Path:
        """Write a checkpoint below `run_dir`/ckpts and return its folder; call it between two steps.

        Raises OSError when the disk is full or fails.
        """
        return save_on_all_ranks(self.ranks, run_dir, self.checkpoint())

    def close(self) -> None:
        """Stop the threads that decode photos, and let those go that were copied ahead."""
        self.lookahead.take_back()
        self.parts.queue.close()
        self.parts.views.close()


@dataclass(frozen=True, eq=False)
class _MadeStep:
    """A step that is made, and what came of it."""

    drawn: DrawnStep
    result: StepResult
    pictures: tuple[Tensor, ...] = ()  # of this rank's views; none where the numbers were read late
    change: Change | None = None
    problem: str | None = None  # a sentence on what was left out


def _cameras_told(rounds: Sequence[Sequence[TrainView]]) -> Tensor:
    return camera_records([view.camera for one in rounds for view in one])


def _require_photos(scene: Scene) -> None:
    if not scene.train_indices:
        raise ValueError(f"{scene.path} has no photos to train on: all of them are test photos")


# What a strategy removes splats by.
_LIMIT_OF_OPACITY = {"mcmc": "mcmc.min_opacity", "fast": "fast.min_weight"}


def _masks_may_hide(scene: Scene) -> str:
    """Return what else may be wrong where photos have masks, a part of a sentence."""
    if all(view.mask_path is None for view in scene.views):
        return ""
    return ", or the masks hide what they show (what is black in a mask does not count)"


def _config_to_go_on(
    checkpoint: Checkpoint, scene: Scene, overrides: Mapping[str, Any], folder: Path
) -> TrainConfig:
    """Return the settings of a checkpoint, read from `folder`, with `overrides` by their dotted paths.

    Raises ValueError when one of them cannot be changed any more, and when the checkpoint is of another scene
    than `scene` is now.
    """
    config = checkpoint.config
    for path, value in overrides.items():
        new = changed(config, path, value)
        if path in FIXED_AT_START and new != config:
            raise ValueError(f"setting {path} cannot be changed when a training is resumed")
        config = new
    if overrides:  # else what was saved goes on, in which a sky wins
        check_agreement(config)
    known = scene.known or checkpoint.photos
    gone = sorted(set(known.names) - scene.photos.keys())
    moved = not same_frame(checkpoint.scene_transform, scene.transform)
    if moved and gone and len(gone) < len(known.names):
        raise ValueError(
            f"{folder} was trained with {len(gone)} photos that {scene.path} no longer has, or has damaged"
            f" ({first_of(gone, 3)}): put them back, or start a new training"
        )
    if moved:
        raise ValueError(
            f"{folder} is not of {scene.path} as that is now: it is another scene, or its cameras have"
            " changed since; name the run's own scene, or start a new training"
        )
    same_photos = test_names(scene.test_images) == test_names(config.test_images)
    if scene.test_every != config.test_every or not same_photos:
        raise ValueError(
            f"{folder} was trained with {_split(config)}, but {scene.path} was "
            f"loaded with {_split(scene)}: test photos would be trained on"
        )
    return config


def _split(of: TrainConfig | Scene) -> str:
    return f"test_images {','.join(of.test_images)}" if of.test_images else f"test_every {of.test_every}"
