"""When a step on one GPU begins: before the host has read the numbers of the step before it.

All that changes in a step has a gate on the device. The step is applied, and the next one begun behind it,
before the host reads anything; only then does it read the loss and the number of instances, for which the GPU
need not stop. Where the gate was shut nothing has changed, and the next step is taken back: pictures and
gradients change nothing. So the steps, and what they leave, are the same to the bit as one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from splatstudio.distributed.failures import unless_out_of_memory
from splatstudio.kernels.ops_training import has_step_gates
from splatstudio.optimization.train_step import TrainStep
from splatstudio.settings.config import TrainConfig
from splatstudio.training.step import DrawnStep, StepParts, is_quiet, plan_at


@dataclass(frozen=True, eq=False)
class BegunStep:
    """A step whose pictures and gradients are queued; it has changed nothing."""

    drawn: DrawnStep
    step: TrainStep
    random_state: Tensor  # of the generator, before the views were made


class Lookahead:
    """The step of a training that is begun ahead; at most one is, and it can be taken back.

    Then its photographs are the queue's next ones again, and the generator is as it was. On a CPU and on
    several ranks no step is begun ahead.
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
