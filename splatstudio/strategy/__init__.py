"""Strategies: which Gaussians are added, moved and removed while a model trains."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import Observation
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.population import Population


class Strategy(Protocol):
    """Rules for the number of Gaussians.

    Its state is explicit: the tensors in `Population.counts`, which go through `edit` and into checkpoints.
    `absgrad` says that it wants the sums of the pixels' absolute gradients (see `Observation`). `owes` says
    that what was to be done at one step is to be done at the next, as fewer steps have put that behind.
    """

    absgrad: bool
    owes: bool

    def follow(self, config: TrainConfig, step: int) -> None:
        """Take the settings of a training, which may have changed, for the step after `step` others."""
        ...

    def new_counts(self, gaussians: Gaussians) -> dict[str, Tensor]:
        """Return the state before the first step: zeros, [N] by name."""
        ...

    def observes_at(self, step: int) -> bool:
        """Return whether `after_step` wants to know what the step after `step` others shows."""
        ...

    def changes_at(self, step: int) -> bool:
        """Return whether `after_step` may do what no `Population.gate` keeps it from, after `step` others."""
        ...

    def after_step(self, population: Population, seen: tuple[Observation, ...], step: int) -> Change | None:
        """Count what was seen and change the population where the rules say so.

        `seen` is what each picture of the step showed of this rank's Gaussians, `step` the number of steps
        done before this one. Returns None where no rule was due. Where `population` has a gate and no
        `changes_at` is due, all that is done has it, and can be done again where it was shut.
        """
        ...
