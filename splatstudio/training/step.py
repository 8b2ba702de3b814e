"""What a step of a training is made of: its photos, its plan, its loss, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.corrections.corrections import Corrections
from splatstudio.distributed.exchange import Fp16Packing
from splatstudio.distributed.failures import Fault, unless_out_of_memory
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.change import Change
from splatstudio.kernels.intersection_capacity import IntersectionCapacity
from splatstudio.kernels.ops_training import Regularization, has_step_gates
from splatstudio.optimization.gradients import RenderOutput, StepInputs, StepPlan, TrainView
from splatstudio.optimization.losses import DepthGuide, photometric
from splatstudio.optimization.optim import learning_rates
from splatstudio.optimization.train_step import TrainStep, begin_step
from splatstudio.rendering.dropout import Dropout
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy import Strategy
from splatstudio.strategy.population import PERSISTENT_ID, Population
from splatstudio.strategy.sampling import seeds_of
from splatstudio.strategy.shapes import changes_shapes
from splatstudio.strategy.survey import survey
from splatstudio.training.data.photo_queue import Batch, PhotoQueue
from splatstudio.training.data.resolution import sh_degree_at, survey_divisor_at
from splatstudio.training.data.train_views import TrainViewMaker

PSNR_EVERY = 10  # steps between two measurements of PSNR, for which the loss has no use
ALWAYS_ASKED = 1000  # photos that may be asked what they show, however few the steps
_DROPOUT = 0xD20  # tells its chance from that of the strategies


class TrainingDiverged(FloatingPointError, ValueError):
    """The training cannot go on: its loss is no longer finite, or no splats are left."""


@dataclass(frozen=True)
class StepStats:
    """What one training step did."""

    step: int  # steps done, with this one
    loss: float
    num_gaussians: int
    seconds: float
    view: str  # name of the photo
    sh_degree: int  # highest degree in use
    psnr: float | None = None  # dB on this photo before the step; measured every PSNR_EVERY steps
    change: Change | None = None  # what the strategy changed; None: no rule was due
    problem: str | None = None  # a sentence on what went wrong and was survived


class TrainingSurvey:
    """What a strategy may ask about the photos of a training: what each Gaussian contributes to them.

    `alive` is called before each photo, as many of them take long.
    """

    def __init__(
        self,
        scene: Scene,
        population: Population,
        queue: PhotoQueue,
        views: TrainViewMaker,
        corrections: Corrections,
        config: TrainConfig,
    ) -> None:
        self._scene = scene
        self._population = population
        self._queue = queue
        self._views = views
        self._corrections = corrections
        self.config = config  # of the step that is made
        self.alive: Callable[[], None] = lambda: None

    def __call__(self, step: int) -> Iterator[Tensor]:
        """Yield what this rank's Gaussians contribute to each photo that is asked, see `survey`."""
        scene, config = self._scene, self.config
        background = self._corrections.behind(config)

        def view_of(index: int) -> TrainView:
            self.alive()
            divisor = survey_divisor_at(step, config, scene.views[index].camera)
            return self._views.of_photo(index, self._queue.photo(index), background, config, divisor)

        return survey(
            self._population,
            scene,
            asked_photos(scene.train_indices, config.steps),
            view_of,
            options_at(step, config, scene),
        )


def asked_photos(photos: Sequence[int], steps: int) -> Sequence[int]:
    """Return which of the photos that are trained on are asked what they show: all, or of very many some.

    Each takes about half of a step, so that thousands of them would be most of a short training. Those that
    follow each other overlap: as many are asked as a tenth of the steps, from all along the capture.
    """
    most = max(ALWAYS_ASKED, steps // 10)
    if len(photos) <= most:
        return photos
    return [photos[number * len(photos) // most] for number in range(most)]


@dataclass(eq=False)
class StepParts:
    """What all steps of a training work on."""

    scene: Scene
    ranks: Ranks
    generator: torch.Generator
    queue: PhotoQueue
    views: TrainViewMaker
    corrections: Corrections
    strategy: Strategy
    survey: TrainingSurvey
    guide: DepthGuide
    population: Population
    extent: float  # unit of learning rates, in scene units
    capacity: IntersectionCapacity | None  # of the pictures on a GPU
    packing: Fp16Packing | None  # what ranks send each other in 16 bits
    fault: Fault | None  # that a test asks for


@dataclass(frozen=True, eq=False)
class StepLoss:
    """The training loss in the step after `index` others."""

    parts: StepParts
    index: int
    config: TrainConfig

    def __call__(self, view: TrainView, output: RenderOutput) -> Tensor:
        """Return the loss of a view, a scalar."""
        parts, config = self.parts, self.config
        rgb = parts.corrections.shown(view, output)
        loss = photometric(rgb, view.target, ssim_weight=config.ssim_weight, mask=view.mask)
        guide = parts.guide.penalty(view, output, config, step=self.index)
        if parts.fault is not None:
            loss = loss * parts.fault.strike(self.index + 1, parts.ranks.rank)
        for penalty in (parts.corrections.penalty(view, config), guide):
            loss = loss if penalty is None else loss + penalty
        return loss


@dataclass(frozen=True, eq=False)
class DrawnStep:
    """The step after `index` others, as far as its photos are drawn from the queue."""

    index: int
    config: TrainConfig
    plan: StepPlan
    batch: Batch
    rounds: list[list[TrainView]]  # this rank's views
    cameras: Sequence[Sequence[Sequence[Camera]]] = ()  # of all views, by round and rank; (): of a rank alone

    def begin(self, parts: StepParts, *, late: bool = False) -> TrainStep:
        """Return the step with its gradients; see `begin_step`, also for what it raises.

        `late`: the host reads the numbers later, and a PSNR is measured on the device.
        """
        population, corrections = parts.population, parts.corrections
        others = corrections.begin(self.batch.indices)
        inputs = StepInputs(StepLoss(parts, self.index, self.config), self.plan, others, parts.packing)
        return begin_step(
            parts.ranks,
            population.gaussians,
            population.optimizer,
            self.rounds,
            inputs,
            cameras=self.cameras,
            order=self.batch.drawn,
            late=corrections.picture if late else None,
        )


def options_at(index: int, config: TrainConfig, scene: Scene, *, absgrad: bool = False) -> RenderOptions:
    """Return how the step after `index` others renders; the background is each view's own."""
    return RenderOptions(
        sh_degree=sh_degree_at(index, config, len(scene.train_indices)),
        antialiased=config.antialiased,
        near=config.near,
        far=config.far,
        absgrad=absgrad,
    )


def plan_at(parts: StepParts, index: int, config: TrainConfig) -> StepPlan:
    """Return the plan of the step after `index` others; the strategy follows `config`."""
    scene, strategy = parts.scene, parts.strategy
    return StepPlan(
        options=options_at(index, config, scene, absgrad=strategy.absgrad),
        rates=learning_rates(config.optim, extent=parts.extent, step=index, steps=config.steps),
        observed=strategy.observes_at(index),
        visible_only=config.optim.visible_only,
        regularization=Regularization(config.shapes.opacity_weight, config.shapes.scale_weight),
        poses=parts.corrections.refines_poses(index, config),
        capacity=parts.capacity,
        scored=(index + 1) % PSNR_EVERY == 0,
        dropout=_dropout_at(index, config, len(scene.train_indices), parts.population),
    )


def _dropout_at(index: int, config: TrainConfig, num_photos: int, population: Population) -> Dropout | None:
    """Return who is left out of the step after `index` others; None: nobody."""
    rate = config.dropout.rate_at(index, num_photos)
    if not rate > 0:
        return None
    (seed,) = seeds_of(config.seed ^ _DROPOUT, index, 1)
    return Dropout(rate, seed, population.counts[PERSISTENT_ID])


def is_quiet(index: int, config: TrainConfig, strategy: Strategy) -> bool:
    """Return whether all that changes Gaussians in the step after `index` others can have a `StepGate`."""
    return not (strategy.changes_at(index) or changes_shapes(config.shapes, index))


@dataclass(frozen=True, eq=False)
class BegunStep:
    """A step whose pictures and gradients are queued; it has changed nothing."""

    drawn: DrawnStep
    step: TrainStep
    random_state: Tensor  # of the generator, before the views were made


class Lookahead:
    """The step of a training that is begun ahead; at most one is, and it can be taken back.

    Then its photos are the queue's next ones again, and the generator is as it was. On a CPU no step is
    begun ahead, nor on several ranks: what they send of it has to be counted first.
    """

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts
        device = parts.population.gaussians.device
        self.possible = parts.ranks.num_ranks == 1 and has_step_gates(device)
        self.begun: BegunStep | None = None

    def take(self, index: int, config: TrainConfig) -> BegunStep | None:
        """Return the step after `index` others, begun; None: its numbers are to be read before it is made.

        Then nothing was taken from the queue.
        """
        if self.begun is None or self.begun.drawn.config is not config or self._parts.population.short:
            self.take_back()
            self._begin(index, config)
        begun, self.begun = self.begun, None
        return begun

    def begin_after(self, drawn: DrawnStep) -> None:
        """Begin the step after `drawn`, unless that has to wait for what `drawn` does."""
        parts, index, config = self._parts, drawn.index, drawn.config
        then, now = parts.queue.decoded(config), drawn.batch.indices
        # Where `drawn` may move a camera of the next step, the host has to know first how.
        moving = parts.corrections.may_move(then, now=now, step=index, config=config)
        if index + 1 < config.steps and then and not moving:
            self._begin(index + 1, config)

    def take_back(self) -> None:
        """Give up the step that is begun, if any: who saves the training must find it between two steps."""
        begun, self.begun = self.begun, None
        if begun is not None:
            self._parts.queue.put_back(begun.drawn.batch)
            self._parts.generator.set_state(begun.random_state)

    def _begin(self, index: int, config: TrainConfig) -> None:
        """Begin a step where that is possible now and there is memory for it."""
        parts = self._parts
        if not self.possible or parts.population.short or not is_quiet(index, config, parts.strategy):
            return
        plan = plan_at(parts, index, config)
        known = plan.capacity is not None and plan.capacity.size is not None
        if not (known and parts.queue.decoded(config)):
            return
        batch, before = parts.queue.next(config), parts.generator.get_state()

        def begun() -> BegunStep:
            rounds = parts.views.of_batch(batch, index, config)
            drawn = DrawnStep(index, config, plan, batch, rounds)
            return BegunStep(drawn, drawn.begin(parts, late=True), before)

        self.begun = unless_out_of_memory(begun)
        if self.begun is None:
            parts.queue.put_back(batch)
            parts.generator.set_state(before)
