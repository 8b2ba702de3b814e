"""What each Gaussian contributes to chosen pixels of pictures of a model that may lie on several ranks.

The derivative of a pixel with respect to a Gaussian's colour is the weight w with which that colour is in the
pixel. So the gradient of sum_p m(p) C(p) with respect to the colours is exactly sum_p m(p) w(p), for each
channel with a map m of its own: three sums for one pass back through the rasteriser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from splatstudio.distributed import Ranks
from splatstudio.distributed.exchange import return_buffers, sent_back
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
