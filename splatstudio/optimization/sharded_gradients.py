"""The gradients of the views of all ranks, of a model whose Gaussians lie on several of them.

The ranks agree before anything changes: when one runs out of memory or finds a loss that is not finite, all
of them leave the step out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.transfer import ReadBack, to_device
from splatstudio.distributed.exchange import sent_back
from splatstudio.distributed.failures import OutOfMemory, unless_out_of_memory
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.dropout import Dropout
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import MOST_VIEWS, ViewRows, add_gradients, zero_sums
from splatstudio.kernels.stages import Projected, ProjectSettings, Raster, RasterSettings
from splatstudio.optimization.gradients import (
    LossNotFinite,
    Observation,
    RenderOutput,
    StepInputs,
    StepPlan,
    SummedGradients,
    TrainView,
    differentiable,
    pixels_drawn_over,
    plus,
)
from splatstudio.rendering.render import stages_for, training_stages_for
from splatstudio.rendering.sharded_view import (
    COLUMNS,
    PROBE_COLUMNS,
    Received,
    Shared,
    project_for_all,
    project_settings,
    projected_from,
    rows_of_camera,
    share,
)


@dataclass(eq=False)
class ShardedStep:
    """What the rounds of a step on several ranks have found so far, the same on all but the gradients."""

    sums: SummedGradients
    losses: list[float] = field(default_factory=list)  # of the views of all ranks, by round and rank
    costs: list[float] = field(default_factory=list)  # likewise


@dataclass(frozen=True, eq=False)
class _OwnViews:
    """What this rank's views of a round give, before the other ranks know of it."""

    losses: list[Tensor]  # scalars, on their device
    costs: list[Tensor]  # likewise
    pictures: list[Tensor]
    others: list[Tensor | None]


@dataclass(frozen=True)
class _Agreed:
    """What all ranks know of a round."""

    losses: list[float]
    costs: list[float]
    twists: list[Tensor]  # [6] float64 of each camera, where asked for
    num_all: int  # Gaussians of all ranks


def sharded_gradients(
    ranks: Ranks,
    gaussians: Gaussians,
    rounds: Sequence[Sequence[TrainView]],
    cameras: Sequence[Sequence[Sequence[Camera]]],
    inputs: StepInputs,
    *,
    order: Sequence[int] = (),
) -> ShardedStep:
    """Return the gradients of the sum of the losses of all ranks' views.

    `gaussians` are this rank's, and `rounds` the views that it renders, all views of a round at once: ranks
    may have different views, or none, but need equally many rounds. `cameras` are those of all ranks' views,
    by round and rank. Losses, costs and twists are those of all ranks, pictures this rank's; observations are
    of this rank's Gaussians in the pictures of all, and within a round in the `order` in which gradients are
    added: a number for each loss, () for the order of the losses. Where that order is of the photos and
    not of the ranks, the sums are those of one process to the last bit. The gradients of `inputs.others` are
    summed over the ranks. Raises LossNotFinite or OutOfMemory on all ranks alike.
    """
    step = ShardedStep(SummedGradients.nothing(gaussians, inputs.others))
    of_all = [camera for by_rank in cameras for part in by_rank for camera in part]
    if _keeps_rows(gaussians, inputs.plan, of_all):
        step.sums.rows = []
    for views, by_rank in zip(rounds, cameras, strict=True):
        _add_round(step, ranks, gaussians, views, by_rank, inputs, order)
    step.sums.num_views = len(step.losses)
    step.sums.others = _all_reduced(ranks, inputs.others, step.sums.others)
    return step


def _keeps_rows(gaussians: Gaussians, plan: StepPlan, cameras: Sequence[Camera]) -> bool:
    """Return whether what a step's views show is kept for the optimizer, which sums it a Gaussian at a time.

    Otherwise there are sums of the six tensors' gradients: the reference makes these alone, poses need those
    of each view, Gaussians that are drawn with other opacities have other slopes, and with many views the
    sums take less memory. The optimizer's kernel is made for cameras of one model.
    """
    if stages_for(gaussians.means) is not ops or plan.poses or plan.dropout is not None:
        return False
    return 0 < len(cameras) <= MOST_VIEWS and len({camera.model for camera in cameras}) == 1


def _add_round(
    step: ShardedStep,
    ranks: Ranks,
    gaussians: Gaussians,
    views: Sequence[TrainView],
    by_rank: Sequence[Sequence[Camera]],
    inputs: StepInputs,
    order: Sequence[int],
) -> None:
    """Add what a round finds to `step`.

    Of two messages each rank tells what it has no memory for: before rows are sent, and when their gradients
    are added. In between it sends what it has, and nobody has changed anything yet.
    """
    plan, num_cameras = inputs.plan, [len(part) for part in by_rank]
    cameras = [camera for part in by_rank for camera in part]
    settings, num_before = project_settings(gaussians, plan.options), len(step.losses)
    shared = unless_out_of_memory(lambda: project_for_all(gaussians, cameras, settings, plan.dropout))
    num_back = sum(COLUMNS) + PROBE_COLUMNS * _with_probe(plan)
    received = share(ranks, shared, num_cameras, inputs.packing, num_back=num_back)
    assert shared is not None, "or `share` has raised"
    own = unless_out_of_memory(lambda: _own_views(gaussians, received, views, inputs))
    v_sent = sent_back(received.back, received.route)
    turns = list(range(len(cameras)))
    if order:
        turns.sort(key=lambda number: order[num_before + number])

    def found(own: _OwnViews) -> ReadBack:
        twists = _add_cameras(step.sums, gaussians, shared, v_sent, cameras, plan, turns)
        return ReadBack(v_sent.new_zeros(0), *own.losses, *own.costs, *twists)

    # Here a step takes the most memory: for all that the views show, or the sums of all six tensors.
    numbers = None if own is None else unless_out_of_memory(partial(found, own))
    agreed = _agreed(ranks, numbers, len(gaussians), num_cameras, num_before, poses=plan.poses)
    assert own is not None, "or `_agreed` has raised"
    step.losses += agreed.losses
    step.costs += agreed.costs
    step.sums.twists += agreed.twists
    step.sums.num_all = agreed.num_all
    step.sums.pictures += own.pictures
    step.sums.add_others(own.others)


def _add_cameras(
    sums: SummedGradients,
    gaussians: Gaussians,
    shared: Shared,
    v_sent: Tensor,
    cameras: Sequence[Camera],
    plan: StepPlan,
    turns: Sequence[int],
) -> list[Tensor]:
    """Add the gradients and the observations of what was `shared`; return the cameras' twists, if asked.

    `turns`: the cameras in the order in which they are added.
    """
    settings = project_settings(gaussians, plan.options)
    twists = dict[int, Tensor]()
    v_parts = v_sent[:, : shared.rows.shape[1]].split([len(part) for part in shared.parts])
    # Camera by camera; where the twist of each is asked for there is a set of gradients besides their sum.
    for number in turns:
        camera, radii = cameras[number], shared.all_radii[number]
        if sums.rows is not None:
            sums.rows.append(_rows_of(shared, number, v_sent, camera))
            continue
        if stages_for(gaussians.means) is ops and not plan.poses:
            totals = sums.begun(gaussians, settings)
            _add_camera(totals, gaussians, shared, number, v_parts[number], camera, settings, plan.dropout)
            sums.add_seen(radii)
            continue
        named = _gradients_of(gaussians, shared, number, v_parts[number], camera, settings, plan.dropout)
        if plan.poses:
            stages = training_stages_for(gaussians.means)
            twists[number] = stages.pose_gradient(
                gaussians, named, camera=camera, sh_degree=settings.sh_degree, radii=radii
            )
        sums.add(named, radii)
    observations = _observations(shared, v_sent, cameras)
    sums.observations += [observations[number] for number in turns] if plan.observed else []
    return [twists[number] for number in sorted(twists)]


def _rows_of(shared: Shared, number: int, v_sent: Tensor, camera: Camera) -> ViewRows:
    """Return what a camera shows and the gradients of that, for the optimizer."""
    rows, sizes = shared.visible[number], [len(part) for part in shared.parts]
    places = shared.all_radii[number].new_full((len(shared.all_radii[number]),), -1)
    places[rows] = torch.arange(len(rows), dtype=places.dtype, device=places.device)
    colors = shared.rows.split(sizes)[number][:, -COLUMNS[-1] :].contiguous()
    return ViewRows(camera, places, colors, v_sent.split(sizes)[number])


def _gradients_of(
    gaussians: Gaussians,
    shared: Shared,
    number: int,
    v: Tensor,
    camera: Camera,
    settings: ProjectSettings,
    dropout: Dropout | None,
) -> dict[str, Tensor | None]:
    """Return the gradients of the six tensors by name, from `v` of what a camera was sent."""
    tensors = gaussians.tensors()
    if stages_for(gaussians.means) is ops:
        totals = zero_sums(gaussians, settings)
        _add_camera(totals, gaussians, shared, number, v, camera, settings, dropout)
        return {name: totals.get(name) for name in tensors}
    values = torch.autograd.grad(shared.parts[number], list(tensors.values()), v, allow_unused=True)
    return dict(zip(tensors, values, strict=True))


@torch.no_grad()
def _add_camera(
    totals: dict[str, Tensor],
    gaussians: Gaussians,
    shared: Shared,
    number: int,
    v: Tensor,
    camera: Camera,
    settings: ProjectSettings,
    dropout: Dropout | None,
) -> None:
    """Add to `totals` what `v` of a camera's rows gives: rows that it does not show are left alone."""
    rows, num = shared.visible[number], len(gaussians)

    def of_all(part: Tensor) -> Tensor:
        """Return values of the camera's rows as those of all Gaussians; the others' are not looked at."""
        return part.new_empty((num, part.shape[1])).index_copy_(0, rows, part)

    means2d, conics, depths, opacities, colors = (of_all(part) for part in v.split(COLUMNS, dim=1))
    v_projected = (means2d, conics, depths[:, 0], opacities[:, 0], colors)
    shown_colors = of_all(shared.parts[number][:, -COLUMNS[-1] :])
    given, shown = totals, gaussians
    if dropout is not None:  # what is drawn has other opacities
        shown = dropout.drawn(gaussians.detach())
        given = {**totals, "opacities": torch.zeros_like(gaussians.opacities)}
    add_gradients(
        given,
        shown,
        shared.all_radii[number],
        shown_colors,
        v_projected,
        camera=camera,
        settings=settings,
    )
    if dropout is not None:
        totals["opacities"] += given["opacities"] * dropout.slopes(gaussians.opacities)


def _own_views(
    gaussians: Gaussians, received: Received, views: Sequence[TrainView], inputs: StepInputs
) -> _OwnViews:
    """Render this rank's views and find the gradients of the rows that it received.

    A GPU is not waited for: whether a loss is finite is known when all is queued.
    """
    num_columns, v = received.rows.shape[1], received.back.given
    own = _OwnViews([], [], [], [None] * len(inputs.others))
    for number, view in enumerate(views):
        rows = rows_of_camera(received, number)
        leaves = projected_from(received.rows[rows], received.radii[rows])
        leaf_tensors = [leaf.requires_grad_() for leaf in differentiable(leaves)]
        probe = torch.zeros_like(leaves.means2d, requires_grad=True) if _with_probe(inputs.plan) else None
        raster = _rasterized(leaves, view, probe)
        output = RenderOutput(
            raster.rgb,
            raster.alpha,
            raster.depth_sum,
            radii=leaves.radii,
            gaussians=gaussians,
            projected=leaves,
            probe=probe,
            camera=view.camera,
            settings=project_settings(gaussians, inputs.plan.options),
        )
        loss = inputs.loss_of(view, output)
        own.losses.append(loss.detach())
        own.pictures.append(raster.rgb.detach())
        own.costs.append(pixels_drawn_over(leaves.radii, view.camera))
        probes = [] if probe is None else [probe]
        asked = [*leaf_tensors, *probes, *inputs.others]
        values = torch.autograd.grad(loss, asked, allow_unused=True)
        v_leaves = [
            torch.zeros_like(leaf) if value is None else value
            for leaf, value in zip(leaf_tensors, values, strict=False)
        ]
        v[rows, :num_columns] = torch.cat(
            [each if each.dim() == 2 else each[:, None] for each in v_leaves], dim=1
        )
        if probe is not None and values[len(leaf_tensors)] is not None:
            v[rows, num_columns:] = values[len(leaf_tensors)]
        v_others = values[len(leaf_tensors) + len(probes) :]
        own.others[:] = [plus(a, b) for a, b in zip(own.others, v_others, strict=True)]
    return own


def _with_probe(plan: StepPlan) -> bool:
    """Return whether the absolute gradients of the projected means are sent back, too."""
    return plan.observed and plan.options.absgrad


def _rasterized(projected: Projected, view: TrainView, probe: Tensor | None) -> Raster:
    stages, means2d = stages_for(projected.means2d), projected.means2d
    color = torch.tensor(view.background, dtype=means2d.dtype, device="cpu")
    settings = RasterSettings(view.camera.width, view.camera.height, to_device(color, means2d.device))
    if probe is not None:
        return stages.rasterize_absgrad(projected, settings, probe)
    return stages.rasterize(projected, settings)


def _agreed(
    ranks: Ranks,
    found: ReadBack | None,
    num_own: int,
    num_cameras: Sequence[int],
    num_before: int,
    *,
    poses: bool,
) -> _Agreed:
    """Return what all ranks found in a round, and the sum of all ranks' `num_own`.

    `found` are the losses and the costs of this rank's views, and with `poses` its part of all cameras'
    twists; None where it had no memory. Raises OutOfMemory or LossNotFinite on all ranks where any has reason
    to.
    """
    first, num, total = sum(num_cameras[: ranks.rank]), num_cameras[ranks.rank], sum(num_cameras)
    sizes = [ranks.num_ranks, 1, 2 * total, 6 * total * poses]
    numbers = torch.zeros(sum(sizes), dtype=torch.float64, device="cpu")
    failed, count, of_views, twists = numbers.split(sizes)
    count[0] = num_own
    if found is None:
        failed[ranks.rank] = 1.0
    else:  # the one place of a round, but for the counts, where the host waits for a GPU
        own = torch.tensor(found.read(), dtype=torch.float64, device="cpu")
        of_views.view(2, total)[:, first : first + num] = own[: 2 * num].view(2, num)
        twists[:] = own[2 * num :]
    failed, count, of_views, twists = ranks.all_reduce(numbers).split(sizes)
    if failed.any():
        raise OutOfMemory(failed.nonzero().squeeze(1).tolist())
    losses, costs = of_views.view(2, total).tolist()
    owners = [rank for rank, num in enumerate(num_cameras) for _ in range(num)]
    for number, (loss, rank) in enumerate(zip(losses, owners, strict=True)):
        if not math.isfinite(loss):
            raise LossNotFinite(loss, num_before + number, rank=rank)
    return _Agreed(losses, costs, list(twists.view(-1, 6)), int(count))


def _observations(shared: Shared, v_sent: Tensor, cameras: Sequence[Camera]) -> list[Observation]:
    with_probe = v_sent.shape[1] > shared.rows.shape[1]
    v_means2d = v_sent[:, shared.rows.shape[1] :] if with_probe else v_sent[:, :2]
    observations = []
    parts = v_means2d.split([len(rows) for rows in shared.visible])
    for rows, radii, v, camera in zip(shared.visible, shared.all_radii, parts, cameras, strict=True):
        gradients2d = v.new_zeros((len(radii), 2)).index_copy_(0, rows, v)
        observations.append(Observation(gradients2d, radii, camera.width, camera.height))
    return observations


def _all_reduced(
    ranks: Ranks, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the sums over all ranks of the gradients of `leaves`, in one message."""
    if ranks.num_ranks == 1 or not leaves:
        return list(gradients)
    given = [torch.zeros_like(leaf) if v is None else v for leaf, v in zip(leaves, gradients, strict=True)]
    total = ranks.all_reduce(torch.cat([v.reshape(-1) for v in given]))
    parts = total.split([v.numel() for v in given])
    return [part.view_as(v) for part, v in zip(parts, given, strict=True)]
