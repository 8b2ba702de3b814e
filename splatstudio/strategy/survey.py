"""What each Gaussian contributes to some photos."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from splatstudio.distributed.ranks import Ranks
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
from splatstudio.strategy.population import Population

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
    received = share(ranks, shared, [len(part) for part in by_rank], num_back=sum(COLUMNS))
    v_rows = received.given
    colors = slice(sum(COLUMNS) - COLUMNS[-1], sum(COLUMNS))
    for number, view in enumerate(views):
        rows = rows_of_camera(received, number)
        seen = projected_from(received, rows)
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
    v_sent = received.start_return().wait_for_all()
    result, first = [], 0
    for visible in shared.visible:
        each = gaussians.means.new_zeros((len(gaussians), 3), requires_grad=False)
        each[visible] = v_sent[first : first + len(visible), colors]
        first += len(visible)
        result.append(each.detach())
    return result


def survey(
    population: Population,
    scene: Scene,
    views: Sequence[int],
    view_of: Callable[[int], TrainView],
    options: RenderOptions,
) -> Iterator[Tensor]:
    """Yield for each of `views` the sums of this rank's Gaussians' weights over its pixels, [N].

    They are in pixels of the photo, also where a smaller one is drawn; what a mask leaves out does not count.
    The ranks draw a view each at a time; all must call this together, and take all of it before the
    population changes.
    """

    def maps_of(view: TrainView, rgb: Tensor, alpha: Tensor) -> Tensor:
        counted = torch.ones_like(alpha) if view.mask is None else view.mask.to(alpha)
        full = scene.views[view.index].camera
        return (full.width * full.height / alpha.numel() * counted)[..., None].expand_as(rgb)

    ranks = population.ranks
    population.optimizer.flush_lazy_rows(population.gaussians)
    for first in range(0, len(views), ranks.num_ranks):
        drawn = views[first : first + ranks.num_ranks]
        train_views = [view_of(index) for index in drawn[ranks.rank : ranks.rank + 1]]
        for found in contributions(ranks, population.gaussians, train_views, options, maps_of):
            yield found[:, 0]
