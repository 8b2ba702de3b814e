"""Limits for the shapes of Gaussians, and a count of the photographs that show each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.distributed.exchange import return_buffers, sent_back
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.stages import RasterSettings
from splatstudio.optimization.gradients import TrainView
from splatstudio.rendering.render import RenderOptions, stages_for
from splatstudio.rendering.sharded_view import (
    COLUMNS,
    cameras_of_all,
    project_for_all,
    project_settings,
    projected_from,
    rows_of_camera,
    share,
)
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ShapeConfig
from splatstudio.strategy.chance import generator_of
from splatstudio.strategy.population import Population, change_or_none, edit, unless_short

MapsOf = Callable[[TrainView, Tensor, Tensor], Tensor]


@torch.enable_grad()
def contributions(
    ranks: Ranks, gaussians: Gaussians, views: Sequence[TrainView], options: RenderOptions, maps_of: MapsOf
) -> list[Tensor]:
    """Return for each view of all ranks, rank 0's first, what this rank's Gaussians contribute, [N, 3].

    `views` are this rank's; each is drawn, and `maps_of` it, its picture [H, W, 3] and its alpha [H, W] gives
    the three maps [H, W, 3]. All ranks must call this together, and `options` must be the same on all.
    """
    by_rank = cameras_of_all(ranks, [view.camera for view in views])
    settings = project_settings(gaussians, options)
    with torch.no_grad():
        shared = project_for_all(
            gaussians.detach(), [camera for part in by_rank for camera in part], settings
        )
    received = share(ranks, shared, [len(part) for part in by_rank])
    v_rows = torch.zeros_like(received.rows)
    colors = slice(sum(COLUMNS) - COLUMNS[-1], sum(COLUMNS))
    for number, view in enumerate(views):
        rows = rows_of_camera(received, number)
        seen = projected_from(received.rows[rows], received.radii[rows])
        seen.colors.requires_grad_()
        background = seen.means2d.new_tensor(view.background)
        sizes = RasterSettings(view.camera.width, view.camera.height, background)
        raster = stages_for(seen.means2d).rasterize(seen, sizes)
        maps = maps_of(view, raster.rgb.detach(), raster.alpha.detach())
        # Of a scalar: for `grad_outputs` torch would load its symbolic shapes, which takes a second.
        (weights,) = torch.autograd.grad((raster.rgb * maps).sum(), seen.colors)
        full = torch.zeros_like(v_rows[rows])
        full[:, colors] = weights
        v_rows[rows] = full
    v_sent = sent_back(v_rows, received.route, return_buffers(v_rows, received.route))
    result, first = [], 0
    for visible in shared.visible:
        each = gaussians.means.new_zeros((len(gaussians), 3), requires_grad=False)
        each[visible] = v_sent[first : first + len(visible), colors]
        first += len(visible)
        result.append(each.detach())
    return result


def views_of_step(scene: Scene, seed: int, step: int, num: int | None) -> list[int]:
    """Return `num` of the views to train on, drawn for the step, the same on all ranks.

    All, where there are fewer or `num` is None.
    """
    order = torch.randperm(len(scene.train_indices), generator=generator_of(seed, step))
    return [scene.train_indices[i] for i in order[:num].tolist()]


ShownOf = Callable[[TrainView, Tensor, Tensor], Tensor]


def as_drawn(view: TrainView, rgb: Tensor, alpha: Tensor) -> Tensor:
    """Return the picture of a view as it is: of a training that learns nothing besides the Gaussians."""
    return rgb


def survey(
    population: Population,
    scene: Scene,
    views: Sequence[int],
    view_of: Callable[[int], TrainView],
    options: RenderOptions,
    error_ratio: float,
    *,
    shown: ShownOf = as_drawn,
) -> Iterator[Tensor]:
    """Yield for each of `views` the sums of this rank's Gaussians' weights over its pixels, [N, 3].

    The columns are the sums over the pixels of high error, over all pixels times their error, and over all
    pixels, all in pixels of the photograph, also where a smaller one is drawn. An error is the mean absolute
    difference of the three channels, and high above `error_ratio` times the picture's mean; outside of a mask
    there is none. `shown` makes of a picture [H, W, 3] and its alpha [H, W] what the photograph is compared
    with. The ranks draw a view each at a time; all must call this together, and take all of it before the
    population changes.
    """

    def maps_of(view: TrainView, rgb: Tensor, alpha: Tensor) -> Tensor:
        error = (shown(view, rgb, alpha) - view.target).abs().mean(dim=-1)
        counted, mean = torch.ones_like(error), error.mean()
        if view.mask is not None:
            counted = view.mask.to(error)
            error = error * counted
            mean = error.sum() / counted.sum().clamp_min(1.0)
        high = (error > error_ratio * mean).to(error)
        full = scene.views[view.index].camera
        pixels = full.width * full.height / error.numel()
        return pixels * torch.stack([high, error, counted], dim=-1)

    ranks = population.ranks
    population.optimizer.flush_lazy_rows(population.gaussians)
    for first in range(0, len(views), ranks.num_ranks):
        drawn = views[first : first + ranks.num_ranks]
        train_views = [view_of(index) for index in drawn[ranks.rank : ranks.rank + 1]]
        yield from contributions(ranks, population.gaussians, train_views, options, maps_of)


LIMIT_EVERY = 10  # steps between two looks at the shapes; a step changes them by less than a percent
SHOWN = 0.5  # pixels' worth of a picture that a Gaussian must make up to be shown by it


@dataclass(frozen=True)
class ShapeLimits:
    """What shapes may be: the settings, the scene's radius in scene units, and how pictures are drawn."""

    config: ShapeConfig
    extent: float
    options: RenderOptions
    alive: Callable[[], None] = lambda: None  # called for each photograph of a long task


def changes_shapes(config: ShapeConfig, step: int) -> bool:
    """Return whether `hold_shapes` may change anything after the step after `step` others."""
    limited = (config.max_scale > 0 or config.max_ratio > 0) and (step + 1) % LIMIT_EVERY == 0
    return limited or (config.min_views > 0 and (step + 1) % config.min_views_every == 0)


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
    middle one: so it is a disc at most, and no needle.
    """
    scales = gaussians.scales.detach()
    if config.max_scale > 0:
        scales.clamp_(max=math.log(config.max_scale * extent))
    if config.max_ratio > 0:
        middle = scales.median(dim=1, keepdim=True).values
        torch.minimum(scales, middle + math.log(config.max_ratio), out=scales)


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
    nothing = gaussians.means.new_zeros(0)  # there is no photograph to compare with
    for start in range(0, len(cameras), ranks.num_ranks):
        alive()
        own = cameras[start : start + ranks.num_ranks][ranks.rank : ranks.rank + 1]
        views = [TrainView(0, "", camera, nothing, None, (0.0, 0.0, 0.0)) for camera in own]
        for weights in contributions(ranks, gaussians, views, options, _ones):
            counts += weights[:, 0] >= SHOWN
    return counts


def _ones(view: TrainView, rgb: Tensor, alpha: Tensor) -> Tensor:
    return torch.ones_like(rgb)
