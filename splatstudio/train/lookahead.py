"""Steps on one GPU that are queued before the host knows how the steps before them went.

All that changes in a step has a gate on the device. It is queued, and the next picture and its gradients
behind it, before the host asks for anything; only then does it read the loss and the number of instances, for
which the GPU need not stop. Where the gate was shut nothing has changed, and what was begun is given up:
pictures and gradients change nothing. So the steps, and what they leave, are the same to the bit as one at a
time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.corrections import Corrections
from splatstudio.distributed.failures import unless_out_of_memory
from splatstudio.kernels.intersection_capacity import IntersectionCapacity
from splatstudio.kernels.ops_training import has_step_gates
from splatstudio.optimization.queued_step import Findings, Report, find
from splatstudio.optimization.train_step import (
    LossOf,
    Observation,
    StepInputs,
    StepPlan,
    StepResult,
    TrainView,
)
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy import Change, Population
from splatstudio.train.data.photo_queue import Batch, PhotoQueue


@dataclass(frozen=True)
class Course:
    """What a training knows of a step beforehand, by the number of steps before it.

    `quiet`: whether all that changes in it can have a gate. `corrections`: what is learnt beside the
    Gaussians. `follow`: what is to be done, with the population's gate, once the optimiser's step is queued;
    in a quiet one no Change.
    """

    quiet: Callable[[int, TrainConfig], bool]
    plan: Callable[[int, TrainConfig], StepPlan]
    shots: Callable[[int, Batch], tuple[TrainView, ...]]  # may draw from the generator
    loss_of: LossOf  # of the step whose shots were made last
    corrections: Corrections
    follow: Callable[[tuple[Observation, ...], int], Change | None]


@dataclass(frozen=True, eq=False)
class _Begun:
    """A step whose pictures and gradients are queued; it has changed nothing."""

    config: TrainConfig
    batch: Batch
    random_state: Tensor  # of the generator, before the shots were made
    shots: tuple[TrainView, ...]
    room: IntersectionCapacity
    findings: Findings


@dataclass(frozen=True, eq=False)
class _Queued:
    """A step that is queued as a whole: what is still needed of it."""

    batch: Batch
    shots: tuple[TrainView, ...]
    report: Report
    size: int  # of the room that the pictures had

    def made(self, room: IntersectionCapacity) -> StepResult | None:
        """Return what the step did, as soon as the host knows; None where its gate was shut."""
        told = self.report.read()
        for needed in told.needed:
            room.held(needed)  # which may have grown since the pictures were queued
        if not (max(told.needed) <= self.size and math.isfinite(told.total)):
            return None
        return self.report.descent(told, followed=True)


class Lookahead:
    """The steps of a training on one GPU, of which the next is begun before the last is known to be made.

    At most one is, and it can be taken back: then the photograph is the queue's next again, and the generator
    as it was. Of a training on a CPU or on several ranks this makes no step.
    """

    def __init__(
        self, population: Population, queue: PhotoQueue, generator: torch.Generator, course: Course
    ) -> None:
        self._possible = population.ranks.num_ranks == 1 and has_step_gates(population.gaussians.device)
        self._population = population
        self._queue = queue
        self._generator = generator
        self._course = course
        self._begun: _Begun | None = None

    def descend(
        self, step: int, config: TrainConfig, before_change: Callable[[], None]
    ) -> tuple[Batch, tuple[TrainView, ...], StepResult | None] | None:
        """Make the step after `step` others on the next photographs, and begin the one after it.

        `before_change` is called before the model may change. None: it is no step for this, and nothing was
        taken of the queue. Without a StepResult nothing changed, for want of room or of a finite loss:
        it is to be made on those shots in the usual way.
        """
        corrections = self._course.corrections
        if not (self._possible and self._begin(step, config)):
            return None
        before_change()
        queued, room = self._queue_step(step, config)
        then, now = self._queue.decoded(config), queued.batch.indices
        # Where a camera of the next step may move in this one, the host has to know first how.
        moving = corrections.may_move(then, now=now, step=step, config=config)
        if step + 1 < config.steps and then and not moving:
            self._begin(step + 1, config)
        descent = queued.made(room)
        if descent is None:
            self._population.optimizer.uncount()
            self.take_back()
        return queued.batch, queued.shots, descent

    def take_back(self) -> None:
        """Give up the step that is begun, if any: whoever saves the training must find it between steps."""
        if self._begun is not None:
            self._queue.put_back(self._begun.batch)
            self._generator.set_state(self._begun.random_state)
            self._begun = None

    def _begin(self, step: int, config: TrainConfig) -> bool:
        """Queue the pictures and the gradients of a step, unless they are; return whether they are then."""
        if self._begun is not None and self._begun.config is config and not self._population.short:
            return True
        self.take_back()
        plan = self._course.plan(step, config)
        room = None if plan.room is None else plan.room.size
        ready = self._course.quiet(step, config) and bool(self._queue.decoded(config))
        if room is None or not ready or self._population.short:
            return False
        batch, before = self._queue.next(config), self._generator.get_state()
        self._begun = unless_out_of_memory(lambda: self._begun_on(batch, before, step, config, plan))
        if self._begun is None:
            self._queue.put_back(batch)
            self._generator.set_state(before)
        return self._begun is not None

    def _begun_on(
        self, batch: Batch, before: Tensor, step: int, config: TrainConfig, plan: StepPlan
    ) -> _Begun:
        assert plan.room is not None and plan.room.size is not None
        course, model = self._course, (self._population.gaussians, self._population.optimizer)
        shots = course.shots(step, batch)
        work = StepInputs(course.loss_of, plan, course.corrections.begin(batch.indices))
        findings = find(*model, shots, work, course.corrections.picture)
        return _Begun(config, batch, before, shots, plan.room, findings)

    def _queue_step(self, step: int, config: TrainConfig) -> tuple[_Queued, IntersectionCapacity]:
        """Queue all that changes in the step that is begun; its gradients' memory is for the next ones."""
        begun, self._begun = self._begun, None
        assert begun is not None and begun.findings.gate is not None
        found, gate = begun.findings, begun.findings.gate
        found.improve(gate)
        self._course.corrections.finish(found.others, step=step, config=config, gate=gate)
        self._population.gate = gate
        try:
            change = self._course.follow(found.observations, step)
        finally:
            self._population.gate = None
        assert change is None, "what a quiet step does has the gate"
        return _Queued(begun.batch, begun.shots, found.report, gate.room), begun.room
