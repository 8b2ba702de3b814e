"""Clone, split, prune and opacity reset of Kerbl et al. 2023 (section 5), counted as gsplat counts."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import Gaussians, concatenated, opacities_of
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import StepGate, count_seen
from splatstudio.kernels.reference import rotation_matrices
from splatstudio.optimization.gradients import Observation
from splatstudio.rendering.render import stages_for
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.strategy.global_order import in_order, largest, normal_numbers
from splatstudio.strategy.population import (
    PERSISTENT_ID,
    Population,
    change_or_none,
    edit,
    reset_counts,
    unless_short,
)
from splatstudio.strategy.sampling import keys_of_parts

SPLIT_SHRINK = 1.6  # the two halves of a split are this much smaller than their parent


class DefaultStrategy:
    """Grow where the image gradient is large, drop what is transparent, reset opacities now and then.

    `extent` is the scene's radius in scene units, `steps` the length of the training, `generator` a CPU
    generator that places the halves of split Gaussians. `config` and `steps` may be replaced while training.
    Counts: `grad2d` (sum of gradient norms), `visible` (how often seen), `radius2d` (largest screen radius
    over the longer image side; zeros unless `stop_scale2d_step` asks for it).
    """

    absgrad = False
    owes = False

    def __init__(
        self, config: DensifyConfig, *, extent: float, steps: int, generator: torch.Generator
    ) -> None:
        self.config = config
        self.extent = extent
        self.steps = steps
        self.generator = generator

    def follow(self, config: TrainConfig, step: int) -> None:
        """Take the settings of a training, which may have changed, for the step after `step` others."""
        self.config, self.steps = config.densify, config.steps

    @property
    def start_step(self) -> int:
        """Return the step after which Gaussians are added and removed, earlier in a short training."""
        return min(self.config.start_step, self.steps // 6)

    @property
    def stop_step(self) -> int:
        """Return the step from which nothing is added, removed or reset any more."""
        return self.config.ends(self.steps)

    def new_counts(self, gaussians: Gaussians) -> dict[str, Tensor]:
        """Return the state before the first step: zeros, [N] by name."""
        return {name: gaussians.means.new_zeros(len(gaussians)) for name in ("grad2d", "visible", "radius2d")}

    def observes_at(self, step: int) -> bool:
        """Return whether `after_step` wants to know what the step after `step` others shows."""
        return self.config.enabled and step < self.stop_step

    def changes_at(self, step: int) -> bool:
        """Return whether `after_step` may do more than count, after `step` others."""
        return self.observes_at(step) and (self._densifies(step) or self._resets(step))

    def _densifies(self, step: int) -> bool:
        paused = step % self.config.reset_every < self.config.pause_after_reset
        return step > self.start_step and step % self.config.every == 0 and not paused

    def _resets(self, step: int) -> bool:
        return step > 0 and step % self.config.reset_every == 0

    @torch.no_grad()
    def after_step(self, population: Population, seen: tuple[Observation, ...], step: int) -> Change | None:
        """Count what was seen and, where the rules say so, grow, prune and reset.

        `step` is the number of steps done before this one. Returns None where no rule was due.
        """
        config = self.config
        if not self.observes_at(step):
            return None
        counts, sized = population.counts, step < config.stop_scale2d_step
        for observation in seen:
            radius2d = counts["radius2d"] if sized else None
            unless_short(population, partial(count, counts, observation, radius2d, population.gate))
        change = None
        if self._densifies(step):
            change = change_or_none(population, lambda: self._densify(population, step))
        if self._resets(step):
            reset_opacities(population, 2.0 * config.prune_opacity)
            change = replace(change or Change(), opacities_reset=True)
        return change

    def _densify(self, population: Population, step: int) -> Change:
        gaussians, counts = population.gaussians.detach(), population.counts
        ranks = population.ranks
        if population.steps_back is not None:
            # Ranks that got to different places draw the next photos alike.
            population.steps_back.append(partial(self.generator.set_state, self.generator.get_state()))
        clone, split, capped = self._to_grow(population, step)
        clones, splits = clone.nonzero().squeeze(1), split.nonzero().squeeze(1)
        parents, order, numbers = _insertion_order(population, clones, splits)
        others = torch.arange(len(parents), device=parents.device) >= len(clones) + len(splits)
        noise = normal_numbers(*numbers, self.generator)
        born = concatenated([gaussians[clones], _halves(gaussians[splits.repeat(2)], noise)])
        keep = ~split & ~self._to_prune(gaussians, counts["radius2d"], step)
        viable = ~self._to_prune(born, counts["radius2d"][parents], step)
        num_removed = int((~split & ~keep).sum()) + int((~viable).sum())
        del gaussians  # the old model can go as soon as there is a new one
        if not bool(viable.all()):
            born, parents, order, others = born[viable], parents[viable], order[viable], others[viable]
        edit(population, keep=keep, newborn=born, parents=parents, order=order)
        if PERSISTENT_ID in population.counts:
            own = population.counts[PERSISTENT_ID][len(population) - len(born) :]  # their parents' until now
            own.copy_(keys_of_parts(own, others.long(), step))
        reset_counts(population)
        changes = torch.tensor([len(clones), len(splits), num_removed], device="cpu")
        cloned, split_up, pruned = ranks.all_reduce(changes).tolist()
        return Change(cloned=cloned, split=split_up, pruned=pruned, capped=capped)

    def _to_grow(self, population: Population, step: int) -> tuple[Tensor, Tensor, int]:
        """Return who is cloned and who is split, [N] bool each, and how many more would have been."""
        config, ranks = self.config, population.ranks
        gaussians, counts = population.gaussians.detach(), population.counts
        gradient = counts["grad2d"] / counts["visible"].clamp_min(1)
        high = gradient > config.grow_grad
        small = gaussians.scales.amax(dim=1).exp() <= config.grow_scale3d * self.extent
        clone, split = high & small, high & ~small
        if step < config.stop_scale2d_step:
            split |= (counts["radius2d"] > config.grow_scale2d) & ~clone
        grow = clone | split
        room = max(config.max_gaussians - population.num_all(), 0)
        capped = max(int(ranks.all_reduce(grow.sum().cpu())) - room, 0)
        if capped:
            # The largest gradients of all ranks grow first; ties go to the first place, so that runs repeat.
            chosen, rows = torch.zeros_like(grow), grow.nonzero().squeeze(1)
            chosen[rows] = largest(population, rows, gradient[rows], room)
            clone, split = clone & chosen, split & chosen
        return clone, split, capped

    def _to_prune(self, gaussians: Gaussians, radius2d: Tensor, step: int) -> Tensor:
        config = self.config
        keep = opacities_of(gaussians.opacities) >= config.prune_opacity
        keep &= gaussians.finite_rows()
        if step > config.reset_every:
            keep &= gaussians.scales.amax(dim=1).exp() <= config.prune_scale3d * self.extent
            if step < config.stop_scale2d_step:
                keep &= radius2d <= config.prune_scale2d
        return ~keep


@torch.no_grad()
def count(
    counts: dict[str, Tensor], seen: Observation, radius2d: Tensor | None = None, gate: StepGate | None = None
) -> None:
    """Add what a picture showed to `grad2d` and `visible` of `counts` and, where given, to `radius2d`.

    On kernels, a `gate` may keep them from changing.
    """
    if stages_for(seen.gradients2d) is ops:
        size = (seen.width, seen.height)
        totals = (counts["grad2d"], counts["visible"], radius2d)
        count_seen(seen.gradients2d, seen.radii, size, *totals, gate)
        return
    visible = (seen.radii > 0).all(dim=1)
    # Pixels to normalized device coordinates, so that a threshold holds for every image size.
    to_ndc = seen.gradients2d.new_tensor([seen.width / 2.0, seen.height / 2.0])
    norms = (seen.gradients2d * to_ndc).norm(dim=1)
    counts["grad2d"] += torch.where(visible, norms, torch.zeros_like(norms))
    counts["visible"] += visible
    if radius2d is not None:
        radii = seen.radii.amax(dim=1) / float(max(seen.width, seen.height))
        torch.maximum(radius2d, radii.to(radius2d), out=radius2d)


@torch.no_grad()
def reset_opacities(population: Population, opacity: float) -> None:
    """Lower every opacity above `opacity` (0..1) to it, and forget Adam's moments of the opacities."""
    population.gaussians.opacities.detach().clamp_(max=math.log(opacity / (1.0 - opacity)))
    population.optimizer.forget("opacities")


def _insertion_order(
    population: Population, clones: Tensor, splits: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, int]]:
    """Return the parents of those to be born, their order among all ranks', and the numbers of the halves.

    The clones come first, then one half each of `splits` (indices, as `clones`), then the others; numbers are
    among all ranks' halves, with how many these are.
    """
    clone, num_clones = in_order(population, clones)
    half, num_splits = in_order(population, splits)
    halves = torch.cat([half, num_splits + half])
    parents, order = torch.cat([clones, splits, splits]), torch.cat([clone, num_clones + halves])
    return parents, order, (halves, 2 * num_splits)


def _halves(parents: Gaussians, noise: Tensor) -> Gaussians:
    along = noise.to(parents.means) * parents.scales.exp()
    offsets = rotation_matrices(parents.quats) @ along[..., None]
    return replace(
        parents, means=parents.means + offsets.squeeze(-1), scales=parents.scales - math.log(SPLIT_SHRINK)
    )
