"""Limits for the shapes of Gaussians, and a count of the photographs that show each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from splatstudio.camera import Camera
from splatstudio.config import ShapeConfig
from splatstudio.distributed import Ranks
from splatstudio.gaussians import Gaussians
from splatstudio.rendering import RenderOptions, stages_for
from splatstudio.sharded_view import project_for_all, project_settings, projected_from, share
from splatstudio.stages import RasterSettings
from splatstudio.strategy import Population, edit

LIMIT_EVERY = 10  # steps between two looks at the shapes; a step changes them by less than a percent
SHOWN = 0.5  # pixels' worth of a picture that a Gaussian must make up to be shown by it


@torch.no_grad()
def limit_shapes(gaussians: Gaussians, config: ShapeConfig, *, extent: float) -> None:
    """Make the Gaussians that are larger or longer than the settings allow as large as they do, in place.

    No standard deviation above `max_scale` times `extent`, and the longest at most `max_ratio` times the
    middle one: so it is a disc at most, and no needle.
    """
    scales = gaussians.scales.detach()
    if config.max_scale > 0:
        scales.clamp_(max=float(torch.tensor(config.max_scale * extent).log()))
    if config.max_ratio > 0:
        middle = scales.median(dim=1, keepdim=True).values
        torch.minimum(scales, middle + float(torch.tensor(config.max_ratio).log()), out=scales)


def remove_unseen(
    population: Population, cameras: Sequence[Camera], options: RenderOptions, *, min_views: int
) -> int:
    """Remove the Gaussians that fewer than `min_views` of `cameras` show; return how many of all ranks' rows.

    All ranks call this with the same cameras. What floats before a camera is seen by that one alone. Where
    nothing would be left nothing is removed.
    """
    ranks = population.ranks
    keep = views_showing(ranks, population.gaussians.detach(), cameras, options) >= min_views
    num_kept, num = ranks.sum(torch.tensor([int(keep.sum()), len(keep)], device="cpu")).tolist()
    if num_kept == 0 or num_kept == num:
        return 0
    nobody = population.gaussians.detach()[:0]
    edit(population, keep=keep, newborn=nobody, parents=torch.zeros(0, dtype=torch.int64, device=keep.device))
    return num - num_kept


def views_showing(
    ranks: Ranks, gaussians: Gaussians, cameras: Sequence[Camera], options: RenderOptions
) -> Tensor:
    """Return how many of `cameras` show each of this rank's Gaussians, [N] int64, what hides them counted in.

    One is shown where its weights in the pixels of a picture add up to `SHOWN` or more. The cameras are the
    same on all ranks, which draw one each at a time.
    """
    counts = torch.zeros(len(gaussians), dtype=torch.int64, device=gaussians.device)
    for start in range(0, len(cameras), ranks.num_ranks):
        turn = cameras[start : start + ranks.num_ranks]
        with torch.no_grad():
            shared = project_for_all(gaussians, turn, project_settings(gaussians, options))
        shared = replace(shared, rows=shared.rows.detach().requires_grad_())
        received = share(ranks, shared, [int(rank < len(turn)) for rank in range(ranks.num_ranks)])
        v_rows = torch.zeros_like(received.rows)
        if ranks.rank < len(turn):
            v_rows[:, DEPTH_COLUMN] = _weights(turn[ranks.rank], received.rows.detach(), received.radii)
        (weights,) = torch.autograd.grad(received.rows, shared.rows, v_rows)
        parts = weights[:, DEPTH_COLUMN].split([len(rows) for rows in shared.visible])
        for rows, part in zip(shared.visible, parts, strict=True):
            counts[rows] += part >= SHOWN
    return counts


DEPTH_COLUMN = 5  # of a row of the exchange


def _weights(camera: Camera, rows: Tensor, radii: Tensor) -> Tensor:
    """Return the sums of the weights over all pixels of a camera's picture, [K]."""
    projected = projected_from(rows, radii)
    projected.depths.requires_grad_()
    settings = RasterSettings(camera.width, camera.height, rows.new_zeros(3))
    raster = stages_for(rows).rasterize(projected, settings)
    # The picture of depths is the sum of weights times depths.
    (weights,) = torch.autograd.grad(raster.depth_sum.sum(), projected.depths)
    return weights
