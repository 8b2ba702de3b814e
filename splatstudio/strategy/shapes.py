"""Limits for the shapes of Gaussians, and a count of the photos that show each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import TrainView
from splatstudio.rendering.render import RenderOptions
from splatstudio.settings.capture_config import ShapeConfig
from splatstudio.strategy.population import Population, change_or_none, edit, unless_short
from splatstudio.strategy.survey import contributions

LIMIT_EVERY = 10  # steps between two looks at the shapes; a step changes them by less than a percent
SHOWN = 0.5  # pixels' worth of a picture that a Gaussian must make up to be shown by it


@dataclass(frozen=True)
class ShapeLimits:
    """What shapes may be: the settings, the scene's radius in scene units, and how pictures are drawn."""

    config: ShapeConfig
    extent: float
    options: RenderOptions
    alive: Callable[[], None] = lambda: None  # called for each photo of a long task


def changes_shapes(config: ShapeConfig, step: int) -> bool:
    """Return whether `hold_shapes` may change anything after the step after `step` others."""
    limited = max(config.max_scale, config.max_ratio, config.max_thickness) > 0
    if limited and (step + 1) % LIMIT_EVERY == 0:
        return True
    return config.min_views > 0 and (step + 1) % config.min_views_every == 0


def hold_shapes(
    population: Population,
    limits: ShapeLimits,
    cameras: Callable[[], Sequence[Camera]],
    change: Change | None,
    step: int,
) -> Change | None:
    """Hold the shapes in their limits, and when it is time remove what the training `cameras` do not show.

    `change` is what the strategy did in this step, after `step` others; returns that with what was removed.
    """
    config = limits.config
    if (step + 1) % LIMIT_EVERY == 0:
        unless_short(population, lambda: limit_shapes(population.gaussians, config, extent=limits.extent))
    if not config.min_views > 0 or (step + 1) % config.min_views_every:
        return change
    removed = change_or_none(population, lambda: Change(pruned=remove_unseen(population, cameras(), limits)))
    change = change or Change()
    return replace(change, pruned=change.pruned + removed.pruned, short=change.short or removed.short)


@torch.no_grad()
def limit_shapes(gaussians: Gaussians, config: ShapeConfig, *, extent: float) -> None:
    """Make the Gaussians that are larger or longer than the settings allow as large as they do, in place.

    No standard deviation above `max_scale` times `extent`, and the longest at most `max_ratio` times the
    middle one: so it is a disc at most, and no needle. The shortest is at most `max_thickness` times the
    middle one: discs lie on surfaces (Huang et al. 2024, "2D Gaussian Splatting"), balls around them.
    """
    scales = gaussians.scales.detach()
    if config.max_scale > 0:
        scales.clamp_(max=math.log(config.max_scale * extent))
    if config.max_ratio > 0:
        middle = scales.median(dim=1, keepdim=True).values
        torch.minimum(scales, middle + math.log(config.max_ratio), out=scales)
    if config.max_thickness > 0:
        middle = scales.median(dim=1, keepdim=True).values
        shortest, axis = scales.min(dim=1, keepdim=True)
        scales.scatter_(1, axis, torch.minimum(shortest, middle + math.log(config.max_thickness)))


def remove_unseen(population: Population, cameras: Sequence[Camera], limits: ShapeLimits) -> int:
    """Remove the Gaussians that fewer than `min_views` of `cameras` show; return how many of all ranks' rows.

    All ranks call this with the same cameras. What floats before a camera is seen by that one alone. Where
    nothing would be left nothing is removed.
    """
    ranks = population.ranks
    views = views_showing(ranks, population.gaussians.detach(), cameras, limits.options, alive=limits.alive)
    keep = views >= limits.config.min_views
    num_kept, num = ranks.all_reduce(torch.tensor([int(keep.sum()), len(keep)], device="cpu")).tolist()
    if num_kept == 0 or num_kept == num:
        return 0
    nobody = population.gaussians.detach()[:0]
    edit(population, keep=keep, newborn=nobody, parents=torch.zeros(0, dtype=torch.int64, device=keep.device))
    return num - num_kept


def views_showing(
    ranks: Ranks,
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    options: RenderOptions,
    *,
    alive: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return how many of `cameras` show each of this rank's Gaussians, [N] int64, what hides them counted in.

    One is shown where its weights in the pixels of a picture add up to `SHOWN` or more. The cameras are the
    same on all ranks, which draw one each at a time and call `alive` before it.
    """
    counts = torch.zeros(len(gaussians), dtype=torch.int64, device=gaussians.device)
    nothing = gaussians.means.new_zeros(0)  # there is no photo to compare with
    for start in range(0, len(cameras), ranks.num_ranks):
        alive()
        own = cameras[start : start + ranks.num_ranks][ranks.rank : ranks.rank + 1]
        views = [TrainView(0, "", camera, nothing, None, (0.0, 0.0, 0.0)) for camera in own]
        for weights in contributions(ranks, gaussians, views, options, _ones):
            counts += weights[:, 0] >= SHOWN
    return counts


def _ones(view: TrainView, rgb: Tensor, alpha: Tensor) -> Tensor:
    return torch.ones_like(rgb)
