"""The rules of mcmc with few Gaussians: more than enough grow, and the least needed go before the end.

Which are needed is a measure of our own: the weight with which a Gaussian is in the pixels of a photo, which
one pass back through the rasterizer gives. Pruning by what photos need follows Speedy-Splat (Hanson et al.
2025), by its paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from splatstudio.gaussians.change import Change
from splatstudio.optimization.gradients import Observation
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.global_order import largest
from splatstudio.strategy.mcmc import McmcStrategy
from splatstudio.strategy.population import Population, change_or_none, edit

SHORT_STEPS = 2000  # of a training up to which the number is the same
SMALL_PIXELS = 40_000  # of a photo up to which the number is in proportion to its pixels
SIZE_GROWTH = 0.4  # the power of the pixels with which it grows beyond, in few steps
LONG_STEPS = 30_000  # beyond which more steps ask for no more

# Given a step: the sums of the Gaussians' weights in each photo, px, [N] each; see `survey`.
Survey = Callable[[int], Iterable[Tensor]]


class FastStrategy(McmcStrategy):
    """Let more grow than there are to be, and at one step drop those that no photo needs much.

    Until then there are so many more that the rest is what the settings want; all else is as in *mcmc*.
    `detail` is what the number of Gaussians is in proportion to, see `FastConfig.density`; it also grows with
    the length of the training. `pixels` are those of a photo, 0: few.
    """

    def __init__(
        self, config: TrainConfig, *, extent: float, detail: float, pixels: float = 0.0, survey: Survey
    ) -> None:
        super().__init__(config, extent=extent, detail=detail)
        self._share = (SMALL_PIXELS / max(pixels, SMALL_PIXELS)) ** (1.0 - SIZE_GROWTH)
        self._survey = survey
        self.owes = False  # whether the step to thin out was passed over, as the steps became fewer

    def follow(self, config: TrainConfig, step: int) -> None:
        """Take the settings of a training, which may have changed, for the step after `step` others."""
        is_ahead = step <= self.thin_step
        super().follow(config, step)
        self.owes = (self.owes or is_ahead) and self.thin_step < step

    @property
    def thin_step(self) -> int:
        """Return the step after which the least needed are removed."""
        return self.config.fast.thins(self.config.steps)

    def chosen_at(self, step: int) -> int:
        """Return how many Gaussians the settings, the photos and the number of steps ask for after a step.

        Few steps cannot teach many Gaussians, and in many it is their number that holds the picture back.
        """
        fast = self.config.fast
        length = min(max(self.config.steps, SHORT_STEPS), LONG_STEPS) / SHORT_STEPS
        # Large photos want more Gaussians than few steps can teach.
        share = min(self._share * length, 1.0)
        left = fast.density * self.detail * share * length**fast.long_growth
        are_to_go = step <= self.thin_step < self.config.steps
        return max(int(left / (1.0 - fast.thin_share) if are_to_go else left), 1)

    def changes_at(self, step: int) -> bool:
        """Return whether `after_step` may do more than count and make noise, after `step` others."""
        return super().changes_at(step) or self._thins_out(step)

    def _thins_out(self, step: int) -> bool:
        return self.config.densify.enabled and (step == self.thin_step or self.owes)

    @torch.no_grad()
    def after_step(self, population: Population, seen: tuple[Observation, ...], step: int) -> Change | None:
        """Do what *mcmc* does, and thin out at the step for it."""
        change = super().after_step(population, seen, step)
        if not self._thins_out(step):
            return change
        thinned = change_or_none(population, lambda: self._thin_out(population, step))
        self.owes = False
        change = change or Change()
        return replace(change, pruned=change.pruned + thinned.pruned, short=change.short or thinned.short)

    def _thin_out(self, population: Population, step: int) -> Change:
        weights = self._largest_weights(population, step)
        num = population.num_all()
        num_kept = num - int(num * self.config.fast.thin_share)
        if self.owes:  # there may be fewer than were to grow by then
            num_kept = max(num_kept, min(num, self.chosen_at(step)))
        everybody = torch.arange(len(population), device=weights.device)
        kept = largest(population, everybody, weights, num_kept) & (weights >= self.config.fast.min_weight)
        return Change(pruned=_keep(population, kept))

    def _largest_weights(self, population: Population, step: int) -> Tensor:
        """Return for each Gaussian the largest sum of its weights in one photo of all, px, [N].

        Sums over photos, which do no better, would let go what few photos show.
        """
        weights = population.gaussians.means.new_zeros(len(population), requires_grad=False)
        for of_photo in self._survey(step):
            torch.maximum(weights, of_photo, out=weights)
        return weights


def _keep(population: Population, kept: Tensor) -> int:
    """Drop the rows outside `kept` [N] bool; return how many of all ranks were dropped."""
    num = int(population.ranks.all_reduce((~kept).sum().cpu()))
    if num > 0:
        nobody = torch.zeros(0, dtype=torch.int64, device=kept.device)
        edit(population, keep=kept, newborn=population.gaussians.detach()[nobody], parents=nobody)
    return num
