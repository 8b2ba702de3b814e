"""Strategies: who is born and who dies while a model trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import Observation
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.global_order import number_rows
from splatstudio.strategy.population import Population, edit, trainable

__all__ = ["Change", "Observation", "Population", "Strategy", "edit", "number_rows", "trainable"]


@dataclass(frozen=True)
class Change:
    """What a strategy did after a step."""

    cloned: int = 0
    split: int = 0
    pruned: int = 0
    opacities_reset: bool = False
    relocated: int = 0  # transparent ones that went to where there is more
    capped: int = 0  # Gaussians that should have grown, but for the limit on their number
    short: tuple[int, ...] = ()  # ranks without memory for a change, which was left out on all
    left_out: str = "a change of their number was left out"  # what there was no memory for, in words

    @property
    def num_changed(self) -> int:
        """Return how many Gaussians were born of others or removed."""
        return self.cloned + self.split + self.pruned + self.relocated

    def __str__(self) -> str:
        parts = []
        if self.relocated:
            parts.append(f"{self.cloned} added, {self.relocated} moved")
        elif self.num_changed:
            parts.append(f"{self.cloned} cloned, {self.split} split, {self.pruned} removed")
        if self.capped:
            parts.append(f"{self.capped} not grown: the limit is reached")
        if self.short:
            parts.append("a change left out: no memory")
        if self.opacities_reset:
            parts.append("opacities reset")
        return "; ".join(parts) or "nothing to change"


class Strategy(Protocol):
    """Rules for the number of Gaussians.

    Its state is explicit: the tensors in `Population.counts`, which go through `edit` and into checkpoints.
    `absgrad` says that it wants the sums of the pixels' absolute gradients (see `Observation`).
    """

    absgrad: bool

    def follow(self, config: TrainConfig) -> None:
        """Take the settings of a training, which may have changed since the last step."""
        ...

    def new_counts(self, gaussians: Gaussians) -> dict[str, Tensor]:
        """Return the state before the first step: zeros, [N] by name."""
        ...

    def observes(self, step: int) -> bool:
        """Return whether `after_step` wants to know what the step after `step` others shows."""
        ...

    def changes(self, step: int) -> bool:
        """Return whether `after_step` may do what no `Population.gate` keeps it from, after `step` others."""
        ...

    def after_step(self, population: Population, seen: tuple[Observation, ...], step: int) -> Change | None:
        """Count what was seen and change the population where the rules say so.

        `seen` is what each picture of the step showed of this rank's Gaussians, `step` the number of steps
        done before this one. Returns None where no rule was due. Where `population` has a gate and no
        `changes` are due, all that is done has it, and can be done again where it was shut.
        """
        ...
