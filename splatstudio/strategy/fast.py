"""Few Gaussians, where several photos agree that they are needed.

After FastGS (Ren et al. 2025) and Speedy-Splat (Hanson et al. 2025), by their papers, with an own measure:
the weight with which a Gaussian is in chosen pixels, which one pass back through the rasterizer gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from splatstudio.gaussians.change import Change
from splatstudio.optimization.gradients import Observation
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.default import DefaultStrategy
from splatstudio.strategy.global_order import largest
from splatstudio.strategy.population import Population, change_or_none, edit

SHORT_STEPS = 2000  # of a training up to which the limit on the number is the same
SMALL_PIXELS = 40_000  # of a photo up to which the limit is in proportion to its pixels
SIZE_GROWTH = 0.4  # the power of the pixels with which it grows beyond, in few steps
SHOWN_WEIGHT = 0.5  # sum of its weights, px, from which on a photo shows a Gaussian
LONG_STEPS = 30_000  # beyond which more steps allow no more, as more do not let default grow for longer

# Given a step and a number of photos (None: all), what Gaussians contribute to each, see `survey`.
Survey = Callable[[int, int | None], Iterable[Tensor]]


class FastStrategy(DefaultStrategy):
    """Grow where several photos agree on an error, and drop what no photo needs.

    Gradients say who grows, as in *default*, but only of Gaussians that have a weight in the pixels of high
    error of several photos, or of all that show them where those are fewer. At some steps all photos are
    asked, and what has hardly a weight in any goes, with a share of all, the least needed. Opacities are
    never reset: that is what pruning by weight replaces.
    `detail` is what the limit on the number of Gaussians is in proportion to, see `FastConfig.density`; it
    also grows with the length of the training. `pixels` are those of a photo, 0: few.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        extent: float,
        detail: float,
        pixels: float = 0.0,
        generator: torch.Generator,
        survey: Survey,
    ) -> None:
        super().__init__(config.densify, extent=extent, steps=config.steps, generator=generator)
        self._share = (SMALL_PIXELS / max(pixels, SMALL_PIXELS)) ** (1.0 - SIZE_GROWTH)
        self._survey = survey
        self._detail = detail
        self.follow(config)

    def follow(self, config: TrainConfig) -> None:
        """Take the settings of a training, which may have changed since the last step."""
        super().follow(config)
        self.fast = config.fast
        self._most = min(config.densify.max_gaussians, self._wanted())
        self.config = replace(
            config.densify,
            grow_grad=config.fast.grow_grad,
            every=config.fast.every,
            reset_every=1 << 62,
            pause_after_reset=0,
            max_gaussians=self._most,
        )

    def _wanted(self) -> int:
        """Return the limit on the number that the settings, the photos and the number of steps say.

        Few steps cannot teach many Gaussians, and in many it is their number that holds the picture back.
        """
        length = min(max(self.steps, SHORT_STEPS), LONG_STEPS) / SHORT_STEPS
        # Large photos want more Gaussians than few steps can teach.
        share = min(self._share * length, 1.0)
        return max(int(self.fast.density * self._detail * share * length**self.fast.long_growth), 1)

    def limit_at(self, step: int) -> int:
        """Return above which number none are added after the step after `step` others.

        It grows with the square root of the growth's share that is done: small photos, with which *fast*
        starts, show where few are missing, and later ones then find room.
        """
        grown = min((step + self.config.every) / max(self.stop_step, 1), 1.0)
        return max(int(self._most * math.sqrt(grown)), 1)

    @property
    def start_step(self) -> int:
        """Return the step after which Gaussians are added and removed."""
        return min(self.config.start_step, int(self.steps * self.fast.grow_from))

    @property
    def stop_step(self) -> int:
        """Return the step from which none are added."""
        return self.fast.ends(self.steps, self.config)

    def changes_at(self, step: int) -> bool:
        """Return whether `after_step` may do more than count, after `step` others."""
        return super().changes_at(step) or self._thins_out(step)

    def _thins_out(self, step: int) -> bool:
        return self.config.enabled and step in self.fast.thins(self.steps)

    @torch.no_grad()
    def after_step(self, population: Population, seen: tuple[Observation, ...], step: int) -> Change | None:
        """Count what was seen, grow and prune where that is due, and thin out at the steps for it."""
        change = super().after_step(population, seen, step)
        if not self._thins_out(step):
            return change
        thinned = change_or_none(population, lambda: self._thin_out(population, step))
        change = change or Change()
        return replace(change, pruned=change.pruned + thinned.pruned, short=change.short or thinned.short)

    def _thin_out(self, population: Population, step: int) -> Change:
        weights = self._largest_weights(population, step)
        num_kept = population.num_all() - int(population.num_all() * self.fast.thin_share)
        everybody = torch.arange(len(population), device=weights.device)
        kept = largest(population, everybody, weights, num_kept) & (weights >= self.fast.min_weight)
        return Change(pruned=_keep(population, kept))

    def _densify(self, population: Population, step: int) -> Change:
        fast = self.fast
        agreed = torch.zeros(len(population), dtype=torch.int64, device=population.gaussians.means.device)
        shown = torch.zeros_like(agreed)
        for view in self._survey(step, fast.views):
            agreed += view[:, 0] > fast.min_error_weight
            shown += view[:, 2] > SHOWN_WEIGHT
        # Where few photos look, as all around a statue, fewer can agree.
        needed = shown.clamp(1, fast.min_views)
        population.counts["grad2d"] = population.counts["grad2d"] * (agreed >= needed)
        self.config = replace(self.config, max_gaussians=self.limit_at(step))
        return super()._densify(population, step)

    def _largest_weights(self, population: Population, step: int) -> Tensor:
        """Return for each Gaussian the largest sum of its weights in one photo of all, px, [N].

        Of some photos alone it would not say what the others need; sums over photos, which do no
        better, would let go what few photos show.
        """
        weights = population.gaussians.means.new_zeros(len(population), requires_grad=False)
        for view in self._survey(step, None):
            torch.maximum(weights, view[:, 2], out=weights)
        return weights


def _keep(population: Population, kept: Tensor) -> int:
    """Drop the rows outside `kept` [N] bool; return how many of all ranks were dropped."""
    num = int(population.ranks.all_reduce((~kept).sum().cpu()))
    if num > 0:
        nobody = torch.zeros(0, dtype=torch.int64, device=kept.device)
        edit(population, keep=kept, newborn=population.gaussians.detach()[nobody], parents=nobody)
    return num
