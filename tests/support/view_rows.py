"""What several views show of a model, as the optimizer takes it and as sums of gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from step_models import camera_at
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.ops import CAMERA_MODELS, project_raw
from splatstudio.kernels.ops_training import ViewRows, add_gradients, zero_sums
from splatstudio.kernels.stages import ProjectSettings
from splatstudio.rendering.sharded_view import run_ends

COLUMNS = (2, 3, 1, 1, 3)  # of means2d, conics, depths, opacities, colors
AWAY = 5  # of `camera_at`, which shows nothing


def cameras_of_step(step: int) -> list[Camera]:
    """Return four cameras, of a model that changes from step to step, of which one shows nothing."""
    cameras = [camera_at(number) for number in (4 * step, AWAY, 4 * step + 1, 4 * step + 2)]
    return [replace(camera, model=CAMERA_MODELS[step % len(CAMERA_MODELS)]) for camera in cameras]


def shown_rows(
    gaussians: Gaussians, cameras: Sequence[Camera], settings: ProjectSettings, seed: int, more: int = 0
) -> list[ViewRows]:
    """Return the rows of cameras, with gradients by chance and `more` columns that nobody reads."""
    generator, views = torch.Generator().manual_seed(seed), []
    for camera in cameras:
        seen = project_raw(*gaussians.detach().tensors().values(), camera=camera, settings=settings)
        rows = (seen.radii > 0).all(dim=1).nonzero().squeeze(1)
        places = torch.full((len(gaussians),), -1, dtype=torch.int32)
        places[rows] = torch.arange(len(rows), dtype=torch.int32)
        v = torch.randn(len(rows), sum(COLUMNS) + more, generator=generator)
        views.append(ViewRows(camera, places, seen.colors[rows], v))
    return views


def in_runs(views: Sequence[ViewRows], num_runs: int) -> Iterator[tuple[slice, list[ViewRows]]]:
    """Yield one after the other runs of the Gaussians, and what views show of those alone."""
    ends = run_ends(len(views[0].places), num_runs)
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        of_run = []
        for view in views:
            places = view.places[start:end]
            rows = places[places >= 0].long()
            within = torch.where(places >= 0, places - (int(rows[0]) if len(rows) else 0), places)
            of_run.append(replace(view, places=within, colors=view.colors[rows], v=view.v[rows]))
        yield slice(start, end), of_run


def summed(
    gaussians: Gaussians, views: Sequence[ViewRows], settings: ProjectSettings
) -> tuple[dict[str, Tensor | None], Tensor]:
    """Return the sums of the views' gradients by tensor, a view after the other, and who is in any, [N]."""
    totals, num = zero_sums(gaussians, settings), len(gaussians)
    visible = torch.zeros(num, dtype=torch.bool)
    for view in views:
        rows = (view.places >= 0).nonzero().squeeze(1)
        visible[rows] = True
        radii = torch.zeros(num, 2, dtype=torch.int32)
        radii[rows] = 1
        parts = [view.colors, *view.v[:, : sum(COLUMNS)].split(COLUMNS, dim=1)]
        full = [part.new_zeros(num, part.shape[1]).index_copy_(0, rows, part) for part in parts]
        colors, means2d, conics, depths, opacities, v_colors = full
        v = (means2d, conics, depths[:, 0], opacities[:, 0], v_colors)
        add_gradients(totals, gaussians, radii, colors, v, camera=view.camera, settings=settings)
    return {name: totals.get(name) for name in gaussians.tensors()}, visible
