"""The training of one model: draw a photograph, render, compare, improve, and now and then grow and prune."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.checkpoints.checkpoint import Checkpoint
from splatstudio.checkpoints.share import load_share, save_together
from splatstudio.corrections import Corrections, check_agreement
from splatstudio.distributed import ALONE, Ranks
from splatstudio.distributed.failures import Fault, OutOfMemory, together
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.intersection_capacity import intersection_capacity_for
from splatstudio.optimization.depth_guide import DepthGuide
from splatstudio.optimization.losses import photometric, psnr
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.queued_step import descend_on
from splatstudio.optimization.train_step import (
    LossNotFinite,
    RenderOutput,
    StepInputs,
    StepPlan,
    StepResult,
    TrainView,
)
from splatstudio.rendering.render import RenderOptions, fastest_device, options_for_display
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed, check, declaration, with_whole_paths
from splatstudio.strategy import Population, number_rows, trainable
from splatstudio.strategy.choice import make_strategy
from splatstudio.strategy.growth import grow, with_lower_limit
from splatstudio.strategy.population import PERSISTENT_ID
from splatstudio.strategy.shapes import ShapeLimits
from splatstudio.strategy.survey import survey, views_of_step
from splatstudio.train.data.photo_queue import Batch, PhotoQueue
from splatstudio.train.data.resolution import sh_degree_at, survey_divisor_at
from splatstudio.train.data.train_views import TrainViewMaker
from splatstudio.train.lookahead import Course, Lookahead
from splatstudio.train.precision import fp16_packing_for
from splatstudio.train.resuming import config_to_go_on
from splatstudio.train.starting_model import first_gaussians
from splatstudio.train.step_plan import dropout_at, is_quiet, options_at, plan_at
from splatstudio.train.step_stats import StepStats, TrainingDiverged

EXTENT_MARGIN = 1.1  # gsplat's unit of learning rates and size rules: the cameras' radius and a tenth more
MOST_LEFT_OUT = 3  # steps in a row that memory may be short for


class Trainer:
    """Trains Gaussians on a scene, step by step, in the calling thread.

    A seed gives the same model bit for bit on the CPU, also when the training is saved and resumed. Other
    threads may read `live_gaussians` and call `update_setting` at any time.

    With several `ranks` each has a Trainer with a share of the Gaussians, and calls what changes or saves it,
    `train_step`, `save` and `update_setting`, as often and in the same order as the others.
    """

    def __init__(
        self,
        scene: Scene,
        config: TrainConfig,
        *,
        device: torch.device | str | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Initialise a model from `config.init`, else the scene's points, else at random between the cameras.

        `device` None: the fastest there is. Raises ValueError for a setting outside its range, a scene
        without training photographs, or a model to start from that cannot be read or is of another scene.
        """
        check(config)
        check_agreement(config)
        config = with_whole_paths(config, Path(scene.path))
        generator = torch.Generator().manual_seed(config.seed)
        first = first_gaussians(scene, config, generator)
        first = first[ranks.share(len(first))]
        gaussians = trainable(first.to(fastest_device() if device is None else device))
        self._prepare(scene, config, generator, ranks)
        counts = self._new_counts(gaussians)
        self._take(Population(gaussians, SplatAdam.zeros(gaussians), counts, ranks))

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
        config = config_to_go_on(checkpoint, scene, overrides, checkpoint_dir)
        trainer = cls.__new__(cls)
        trainer._prepare(scene, config, torch.Generator(), ranks)
        trainer._generator.set_state(checkpoint.rng_state)
        saved = checkpoint.population.to(fastest_device() if device is None else device)
        gaussians = trainable(saved.gaussians)
        # An older version may have saved fewer counts.
        counts = {**trainer._new_counts(gaussians.detach()), **saved.counts}
        trainer._take(Population(gaussians, saved.optimizer, counts, ranks))
        trainer._corrections.restore(checkpoint.corrections)
        trainer.step = checkpoint.step
        trainer._queue.draw_again(checkpoint.upcoming, checkpoint.view_costs, config)
        return trainer

    def _prepare(self, scene: Scene, config: TrainConfig, generator: torch.Generator, ranks: Ranks) -> None:
        if not scene.train_indices:
            raise ValueError(f"{scene.path} has no photographs to train on: all of them are test photographs")
        self.scene = scene
        self.config = config
        self.step = self._index = 0  # done; before the one that is drawn, which may be the next one already
        self.whole = True  # not while a step changes tensors one after the other: an error there tears them
        self.alive: Callable[[], None] = lambda: None  # called now and then in a step that may take long
        self._generator = generator
        self._extent = scene.extent * EXTENT_MARGIN
        self._strategy = make_strategy(
            scene, config, extent=self._extent, generator=generator, survey=self._survey
        )
        self.ranks = ranks
        self._queue = PhotoQueue(scene, generator, ranks)
        self._guide = DepthGuide.of(scene, config.depth)
        self._fault = Fault.from_environment()

    def _new_counts(self, gaussians: Gaussians) -> dict[str, Tensor]:
        counts = self._strategy.new_counts(gaussians)
        if self.config.dropout.rate > 0 and PERSISTENT_ID not in counts:
            counts[PERSISTENT_ID] = gaussians.means.new_zeros(len(gaussians), dtype=torch.int64)
        return counts

    def _take(self, population: Population) -> None:
        self._population = population
        self.halves = fp16_packing_for(self.config.precision, self.ranks)  # what ranks send in 16 bits
        self._room = intersection_capacity_for(population.gaussians.device)
        population.amid_edit = lambda: self.fail_if_asked("growth")
        device = population.gaussians.device
        self._corrections = Corrections(self.config, self.scene, device)
        self._shots = TrainViewMaker(self.scene, self._queue, self._corrections, self._generator, device)
        course = Course(
            quiet=lambda index, now: is_quiet(index, now, self._strategy),
            plan=self._plan,
            shots=self._shots_ahead,
            loss_of=lambda *args: self._loss_of(*args),
            corrections=self._corrections,
            follow=partial(self._strategy.after_step, population),
        )
        self._lookahead = Lookahead(population, self._queue, self._generator, course)
        self.num_gaussians = number_rows(population)  # of all ranks

    @property
    def gaussians(self) -> Gaussians:
        """Return the current model, without gradients.

        The tensors are the ones that are trained: a later step changes them in place. For the thread that
        trains, which lets go what it has begun of the next step; others take `live_gaussians`.
        """
        self._lookahead.take_back()
        self._population.optimizer.flush_lazy_rows(self._population.gaussians)
        return self.live_gaussians

    @property
    def live_gaussians(self) -> Gaussians:
        """Return the current model to any thread; its six tensors are always of one length.

        The view-dependent colour of Gaussians that the last photographs did not show may be late by a few
        thousandths (see `SplatAdam.flush_lazy_rows`).
        """
        return self._population.gaussians.detach()

    @property
    def display_options(self) -> RenderOptions:
        """Return the options with which the model is drawn and evaluated, with the sky as it is now."""
        return options_for_display(self.config, self._corrections.sky)

    def camera(self, index: int) -> Camera:
        """Return the camera of a training photograph of the scene: corrected, where poses are learnt."""
        return self._corrections.camera(index)

    @property
    def poses(self) -> dict[str, np.ndarray]:
        """Return the corrections of the training cameras, see `Model.poses`."""
        return self._corrections.poses()

    def train_step(self) -> StepStats:
        """Train on the next photograph.

        Raises TrainingDiverged when the loss is not finite or no Gaussians are left, ValueError when the
        photograph cannot be read.
        """
        started = time.perf_counter()
        config, index, strategy = self.config, self.step, self._strategy
        strategy.follow(config)
        plan = self._plan(index, config)
        batch, shot, descent, problem = self._descend_on_next(plan, config)
        self._queue.count(batch, descent.costs)
        if not descent.followed:
            self._corrections.finish(descent.others, step=index, config=config)
        self._corrections.move_cameras(batch.indices, descent.poses, step=index, config=config)
        limits = ShapeLimits(config.shapes, self._extent, replace(plan.options, absgrad=False), self.alive)
        change = None
        if not descent.followed:
            seen, cameras = descent.observations, self._corrections.cameras
            change = grow(self._population, strategy, limits, cameras, seen, index, config.order)
        if change is not None:
            self.num_gaussians = self._population.num_all()
            if change.short:
                told = self._lower_limit(change.short, change.left_out)
                problem = told if problem is None else f"{problem} {told}"
        if not self.num_gaussians > 0:
            raise TrainingDiverged(
                f"all Gaussians became transparent and were removed at step {index + 1}: the photographs and"
                " the cameras may not belong together; otherwise lower densify.prune_opacity"
            )
        self.step, self.whole = index + 1, True
        score = descent.psnr
        if score is None and plan.scored:
            score = psnr(self._corrections.picture(shot, descent.pictures[0]), shot.target, shot.mask)
        return StepStats(
            step=self.step,
            loss=math.fsum(descent.losses) / len(descent.losses),
            num_gaussians=self.num_gaussians,
            seconds=time.perf_counter() - started,
            view=shot.name,
            sh_degree=sh_degree_at(index, config, len(self.scene.train_indices)),
            change=change,
            psnr=score,
            problem=problem,
        )

    def _plan(self, index: int, config: TrainConfig) -> StepPlan:
        return plan_at(
            index,
            config,
            self.scene,
            self._strategy,
            extent=self._extent,
            poses=self._corrections.refines_poses(index, config),
            room=self._room,
            dropout=dropout_at(index, config, len(self.scene.train_indices), self._population),
        )

    def _descend_on_next(
        self, plan: StepPlan, config: TrainConfig
    ) -> tuple[Batch, TrainView, StepResult, str | None]:
        """Make a step on the next photographs that there is memory for, and say what had to be left out.

        Returns the photographs and the first shot of this rank.
        """
        problem = None
        for _ in range(MOST_LEFT_OUT):
            try:
                made = self._lookahead.descend(self.step, config, self._begin_change)
                if made is not None:
                    batch, shots, descent = made
                    return batch, shots[0], descent or self._descend(batch, [shots], plan), problem
                batch = together(self.ranks, self._next_photographs)
                rounds = together(self.ranks, partial(self._shots.of_batch, batch, self._index, self.config))
                return batch, rounds[0][0], self._descend(batch, rounds, plan), problem
            except OutOfMemory as error:
                short = error.ranks
            problem = self._lower_limit(short, "the photographs of a step were left out")
        raise MemoryError(f"there is no memory for a step, {MOST_LEFT_OUT} times in a row: {problem}")

    def _next_photographs(self) -> Batch:
        batch, self._index = self._queue.next(self.config), self.step
        if self._population.short:
            self._population.short = False
            raise MemoryError("there was no memory for what follows the step before")
        return batch

    def _descend(self, batch: Batch, rounds: Sequence[Sequence[TrainView]], plan: StepPlan) -> StepResult:
        self.whole, self._index = True, self.step  # whole also where a gate has kept a step from changing it
        work = StepInputs(self._loss_of, plan, self._corrections.begin(batch.indices), self.halves)
        try:
            return descend_on(
                self.ranks,
                self._population.gaussians,
                self._population.optimizer,
                rounds,
                work,
                order=batch.drawn,
                before_change=self._begin_change,
            )
        except LossNotFinite as error:
            name = self.scene.views[batch.indices[error.number]].name
            rank = f" (rank {error.rank})" if self.ranks.num_ranks > 1 else ""
            raise TrainingDiverged(
                f"the loss became {error.loss} at step {self.step + 1}, on {name}{rank}: go on from the"
                " last checkpoint with smaller learning rates"
            ) from error

    def _begin_change(self) -> None:
        self.whole = False

    def _lower_limit(self, short: Sequence[int], left_out: str) -> str:
        self.config, told = with_lower_limit(self.config, self.num_gaussians, self.ranks, short, left_out)
        return told

    def _loss_of(self, shot: TrainView, drawing: RenderOutput) -> Tensor:
        rgb = self._corrections.shown(shot, drawing)
        loss = photometric(rgb, shot.target, ssim_weight=self.config.ssim_weight, mask=shot.mask)
        guide = self._guide.penalty(shot, drawing, self.config, step=self._index)
        if self._fault is not None:
            loss = loss * self._fault.strike(self._index + 1, self.ranks.rank)
        for penalty in (self._corrections.penalty(shot, self.config), guide):
            loss = loss if penalty is None else loss + penalty
        return loss

    def fail_if_asked(self, site: str) -> None:
        """Let memory be short at a `site` where a test wants that (see `Fault`)."""
        if self._fault is not None:
            self._fault.strike(self.step + (site == "growth"), self.ranks.rank, site)

    def update_setting(self, path: str, value: Any) -> None:
        """Change a live setting, as "optim.means_lr"; the next step takes it.

        Raises ValueError for a setting that is unknown, not live, or a value outside its range, and for one
        that contradicts another.
        """
        if not declaration(TrainConfig, path).live:
            raise ValueError(f"setting {path} cannot be changed while training; it is read at the start")
        config = changed(self.config, path, value)
        check_agreement(config)
        self.config = config

    def checkpoint(self) -> Checkpoint:
        """Return all that the training needs to go on from here; its tensors are the ones being trained."""
        self._lookahead.take_back()
        self._population.optimizer.flush_lazy_rows(self._population.gaussians)
        return Checkpoint(
            step=self.step,
            config=self.config,
            population=self._population,
            scene_path=Path(self.scene.path).resolve(),
            scene_transform=self.scene.transform,
            rng_state=self._generator.get_state(),
            upcoming=self._queue.upcoming,
            view_costs=self._queue.costs,
            corrections=self._corrections.save(),
        )

    def save(self, run_dir: Path) -> Path:
        """Write a checkpoint below `run_dir`/ckpts and return its folder; call it between two steps.

        Raises OSError when the disk is full or fails.
        """
        return save_together(self.ranks, run_dir, self.checkpoint())

    def close(self) -> None:
        """Stop the threads that decode photographs, and let those go that were copied ahead."""
        self._lookahead.take_back()
        self._queue.close()
        self._shots.close()

    def _shots_ahead(self, index: int, batch: Batch) -> tuple[TrainView, ...]:
        self._index = index
        return tuple(shot for one in self._shots.of_batch(batch, index, self.config) for shot in one)

    def _survey(self, step: int, num_views: int | None) -> Iterator[Tensor]:
        """Yield what this rank's Gaussians contribute to photographs drawn for the step; None: to all."""
        config, background = self.config, self._corrections.behind(self.config)

        def shot_of(index: int) -> TrainView:
            self.alive()
            divisor = survey_divisor_at(self._index, config, self.scene.views[index].camera)
            return self._shots.of_photo(index, self._queue.photo(index), background, config, divisor)

        return survey(
            self._population,
            self.scene,
            views_of_step(self.scene, config.seed, step, num_views),
            shot_of,
            options_at(step, config, self.scene, self._strategy),
            config.fast.error_ratio,
            shown=self._corrections.shown_now,
        )
