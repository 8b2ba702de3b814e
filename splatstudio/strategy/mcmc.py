"""A given number of Gaussians that go to where they are needed (Kheradmand et al. 2024, 3DGS as MCMC).

Two things differ from the paper unless the settings say otherwise. Samples are drawn by the mean absolute
gradient of the projected means in place of the opacity: they go to where the picture wants a change. And
the parts of a Gaussian lie at random in what it was and are smaller, not all alike in its center: of two that
are alike in all, gradients never make two, and what is large makes no detail.
A third holds always: parents keep their Adam moments, which the authors' code sets to zero.
In a step on several photos the noise grows by the square root of their number, as the rates do.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import Gaussians, opacities_of
from splatstudio.kernels import ops_training
from splatstudio.kernels.reference import rotation_matrices
from splatstudio.kernels.reference_training import normal_noise
from splatstudio.optimization.gradients import Observation
from splatstudio.optimization.optim import learning_rates
from splatstudio.rendering.render import training_stages_for
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import McmcConfig
from splatstudio.strategy.default import count
from splatstudio.strategy.population import (
    PERSISTENT_ID,
    Population,
    change_or_none,
    edit,
    reset_counts,
    unless_short,
)
from splatstudio.strategy.sampling import Samples, sample_parents, seeds_of

MOST_COPIES = 51  # a Gaussian is parted into as many at most; beyond, the sum below would lose its digits


class McmcStrategy:
    """Move the dead to where more is needed, add as many as are missing, and inject noise into positions.

    `extent` is the scene's radius in scene units, `detail` what the number of Gaussians is in proportion to,
    see `McmcConfig.density`. What is random follows from the seed, the step and the key
    of each Gaussian, see `sample_parents`.
    Counts: `grad2d` (sum of gradient norms) and `visible` (how often seen) since the last relocation. The
    method needs the weights of mean opacity and mean scale, see `ShapeConfig`.
    """

    absgrad = True
    owes = False

    def __init__(self, config: TrainConfig, *, extent: float, detail: float) -> None:
        self.config = config
        self.extent = extent
        self.detail = detail

    def follow(self, config: TrainConfig, step: int) -> None:
        """Take the settings of a training, which may have changed, for the step after `step` others."""
        self.config = config

    @property
    def start_step(self) -> int:
        """Return the step after which Gaussians move and are added, earlier in a short training."""
        return min(self.config.mcmc.start_step, self.config.steps // 6)

    @property
    def stop_step(self) -> int:
        """Return the step from which none moves or is added any more."""
        return self.config.mcmc.ends(self.config.steps)

    @property
    def cap(self) -> int:
        """Return how many Gaussians there are to be at most, over all ranks."""
        return self.limit_at(0)

    def limit_at(self, step: int) -> int:
        """Return how many Gaussians there are to be after the step after `step` others, over all ranks."""
        return min(self.chosen_at(step), self.config.densify.max_gaussians)

    def chosen_at(self, step: int) -> int:
        """Return how many there would be without the limit that holds for all strategies."""
        return self.config.mcmc.max_gaussians or max(int(self.detail * self.config.mcmc.density), 1)

    def new_counts(self, gaussians: Gaussians) -> dict[str, Tensor]:
        """Return the state before the first step: zeros, [N] by name."""
        counts = {name: gaussians.means.new_zeros(len(gaussians)) for name in ("grad2d", "visible")}
        return counts | {PERSISTENT_ID: gaussians.means.new_zeros(len(gaussians), dtype=torch.int64)}

    def observes_at(self, step: int) -> bool:
        """Return whether `after_step` wants to know what the step after `step` others shows."""
        return self.config.mcmc.guided and self.config.densify.enabled and step < self.stop_step

    def changes_at(self, step: int) -> bool:
        """Return whether `after_step` may do more than count and make noise, after `step` others."""
        return self.config.densify.enabled and self._redistributes(step)

    def _redistributes(self, step: int) -> bool:
        return self.start_step < step < self.stop_step and step % self.config.mcmc.every == 0

    @torch.no_grad()
    def after_step(self, population: Population, seen: tuple[Observation, ...], step: int) -> Change | None:
        """Count what was seen, move and add Gaussians where that is due, and move the faint ones by noise."""
        mcmc = self.config.mcmc
        if not self.config.densify.enabled:
            return None
        for observation in seen:
            unless_short(population, partial(count, population.counts, observation, gate=population.gate))
        to_move, *to_redistribute = seeds_of(self.config.seed, step, 3)
        change = None
        if self._redistributes(step):
            change = change_or_none(
                population, lambda: self._relocate_and_add(population, step, *to_redistribute)
            )
        if step % mcmc.noise_every == 0:
            amount = self._noise_at(step, population.ranks.num_ranks)
            unless_short(population, lambda: inject_noise(population, amount, mcmc.min_opacity, to_move))
        return change

    def _noise_at(self, step: int, num_ranks: int) -> float:
        """Return the size of the noise: its variance is that of the steps and photos since the last one."""
        config = self.config
        rates = learning_rates(config.optim, extent=self.extent, step=step, steps=config.steps)
        num_photos = config.batch_size * config.accumulate * num_ranks
        return config.mcmc.noise * rates["means"] * math.sqrt(num_photos * config.mcmc.noise_every)

    def _relocate_and_add(self, population: Population, step: int, to_deal: int, to_part: int) -> Change:
        ranks, mcmc = population.ranks, self.config.mcmc
        population.optimizer.flush_lazy_rows(population.gaussians)
        alive, masses = self._judged(population)
        numbers = torch.tensor([len(population), int(alive.sum())], device="cpu")
        num, num_alive = ranks.all_reduce(numbers).tolist()
        num_wanted, capped = self._wanted(num, num_alive, step)
        births = sample_parents(population, masses, num_wanted - num_alive, to_deal)
        newborn = part(population, births, mcmc, to_part)
        edit(population, keep=alive, newborn=newborn, parents=births.parents, order=births.numbers)
        population.counts[PERSISTENT_ID][len(population) - len(newborn) :] = births.keys
        reset_counts(population)
        num_dead, num_born = num - num_alive, births.num_all
        moved = min(num_dead, num_born)
        return Change(cloned=num_born - moved, relocated=moved, pruned=num_dead - moved, capped=capped)

    def _judged(self, population: Population) -> tuple[Tensor, Tensor]:
        """Return who is alive, [N] bool, and with which masses births are drawn, [N], 0 for the dead."""
        gaussians, counts = population.gaussians.detach(), population.counts
        opacities = opacities_of(gaussians.opacities)
        alive = (opacities > self.config.mcmc.min_opacity) & gaussians.finite_rows()
        masses = opacities
        if self.config.mcmc.guided:
            # What one picture says of a Gaussian may be no number; that speaks for no birth.
            guided = (counts["grad2d"] / counts["visible"].clamp_min(1)).nan_to_num(0.0, 0.0, 0.0)
            found = torch.where(alive, guided, torch.zeros_like(guided)).sum().double()
            if float(population.ranks.all_reduce(found.cpu())) > 0:
                masses = guided
        return alive, torch.where(alive, masses, torch.zeros_like(masses))

    def _wanted(self, num: int, num_alive: int, step: int) -> tuple[int, int]:
        """Return how many Gaussians there are to be after this step, and how many more but for the limit.

        As many times more each time; the factor is such that all are there by the middle of the steps between
        start and stop at the latest. None of the living goes, but where there are too many the dead do.
        """
        every = self.config.mcmc.every
        half = (self.start_step + self.stop_step) // 2
        times = max((half - step) // every + 1, 1)
        chosen = self.chosen_at(step)
        factor = max(self.config.mcmc.grow_factor, (chosen / num) ** (1.0 / times))
        free = max(num_alive, min(chosen, math.ceil(num * factor)))
        wanted = max(num_alive, min(self.limit_at(step), free))
        return wanted, free - wanted


@torch.no_grad()
def part(population: Population, births: Samples, mcmc: McmcConfig, seed: int) -> Gaussians:
    """Make each parent of `births` one of as many equal parts as it is named there, and one more.

    Together the parts look as the whole did: opacity and size follow Kheradmand et al. 2024, equation 9, and
    `beside` says where they lie. In place; the other parts, [M] in the order of the births, are returned.
    """
    model = population.gaussians.detach()
    rows, of_row, times = torch.unique(births.parents, return_inverse=True, return_counts=True)
    whole = model[rows]
    opacity, factor = compute_relocation(opacities_of(whole.opacities), times + 1)
    opacity = torch.logit(opacity.clamp(mcmc.min_opacity, 1.0 - 1e-6)).to(whole.opacities)
    scales = whole.scales + factor.log().to(whole.scales)[:, None]
    parts = replace(whole, opacities=opacity, scales=scales)
    if population.steps_back is not None:
        # Not `whole`, whose colors nobody changes: this waits through the edit, where memory is shortest.
        before = (whole.means, whole.scales, whole.opacities)
        population.steps_back.append(partial(_put, population, rows, before))
    newborn, moved = parts[of_row], parts
    if mcmc.spread > 0:
        keys = population.counts[PERSISTENT_ID][rows]
        newborn = beside(newborn, mcmc.spread, normal_noise(births.keys, seed, whole.means))
        moved = beside(parts, mcmc.spread, normal_noise(keys, seed, whole.means))
    _put(population, rows, (moved.means, moved.scales, moved.opacities))
    return newborn


def _put(population: Population, rows: Tensor, values: tuple[Tensor, Tensor, Tensor]) -> None:
    """Give `rows` (indices) of the population other means, scales and opacities."""
    model = population.gaussians.detach()
    model.means[rows], model.scales[rows], model.opacities[rows] = values


def compute_relocation(opacities: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Return the opacity of each of `copies` [M] int64 equal parts, and by what to multiply their size.

    `opacities` [M] in 0..1 are of the whole; float64, see `reference_training.compute_relocation`.
    """
    return training_stages_for(opacities).compute_relocation(opacities, copies.clamp_max(MOST_COPIES))


def beside(gaussians: Gaussians, spread: float, noise: Tensor) -> Gaussians:
    """Return the same Gaussians, each somewhere in itself, by `spread` (0 to below 1) of its size.

    They are as much smaller: many parts of one have together the covariance that it had. `noise` [N, 3] are
    normal numbers.
    """
    along = spread * noise.to(gaussians.means) * gaussians.scales.exp()
    offsets = rotation_matrices(gaussians.quats) @ along[..., None]
    means = gaussians.means + offsets.squeeze(-1)
    return replace(gaussians, means=means, scales=gaussians.scales + 0.5 * math.log1p(-(spread**2)))


@torch.no_grad()
def inject_noise(population: Population, amount: float, min_opacity: float, seed: int) -> None:
    """Move positions at random, in place, the fainter a Gaussian the more, along its own axes.

    See `reference_training.inject_noise`; what is random follows from `seed` and the Gaussian's key.
    On kernels, the population's gate may keep them from moving.
    """
    if not amount > 0:
        return
    gaussians, keys = population.gaussians.detach(), population.counts[PERSISTENT_ID]
    if population.gate is None:
        kernels = training_stages_for(gaussians.means)
        kernels.inject_noise(gaussians, amount=amount, min_opacity=min_opacity, seed=seed, places=keys)
        return
    gate = population.gate
    ops_training.inject_noise(
        gaussians, amount=amount, min_opacity=min_opacity, seed=seed, places=keys, gate=gate
    )
