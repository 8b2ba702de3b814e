"""A step of gradient descent on several pictures at once, of a model that may lie on several ranks.

The ranks agree before anything changes: when one runs out of memory or finds a loss that is no number, all of
them leave the step out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splatstudio.camera import Camera
from splatstudio.descent import (
    Descent,
    DescentPlan,
    Drawing,
    LossNotFinite,
    Observation,
    Shot,
    Work,
    pose_gradient,
)
from splatstudio.distributed import Ranks
from splatstudio.distributed.exchange import Room, room_for_return, sent_back
from splatstudio.distributed.failures import OutOfMemory, together, unless_out_of_memory
from splatstudio.gaussians import Gaussians
from splatstudio.ops_training import NO_REGULARIZATION, Regularization
from splatstudio.optim import SplatAdam
from splatstudio.rendering import stages_for
from splatstudio.sharded_view import (
    Received,
    Shared,
    cameras_of_all,
    project_for_all,
    project_settings,
    projected_from,
    rows_of_camera,
    share,
)
from splatstudio.stages import Projected, Raster, RasterSettings


@dataclass(frozen=True, eq=False)
class _Round:
    """What a round of a step has found, on this rank."""

    losses: list[float]  # of the shots of all ranks
    costs: list[float]  # likewise
    pictures: list[Tensor]
    gradients: list[Tensor | None]  # of the six tensors
    others: list[Tensor | None]
    observations: list[Observation]
    poses: list[Tensor]  # of the cameras of all ranks


@dataclass(frozen=True, eq=False)
class _Findings:
    """What this rank's pictures say, before the other ranks have heard of it."""

    losses: list[float]
    costs: list[float]
    pictures: list[Tensor]
    v: Tensor  # [K, 10] the gradients of Received.rows; [K, 12] with those of the probes
    room: Room | None  # for those of Shared.rows
    gradients: list[Tensor | None]  # of the six tensors, where the loss uses them directly
    others: list[Tensor | None]


def descend_together(
    ranks: Ranks,
    gaussians: Gaussians,
    optimizer: SplatAdam,
    rounds: Sequence[Sequence[Shot]],
    work: Work,
    *,
    before_change: Callable[[], None] = lambda: None,
) -> Descent:
    """Make one step down the sum of the losses of all shots of all ranks, in place.

    `gaussians` are this rank's, and `rounds` the shots that it draws, all of a round at once: ranks may have
    different shots, or none, but need equally many rounds. The losses of the result are those of all ranks,
    by round and rank, and so are its poses; its pictures are this rank's; its observations are of this
    rank's Gaussians in the pictures of all. The gradients of `work.others` are summed over the ranks. The
    learning rates and the decay of the moments follow the number of shots (see `SplatAdam.step`).
    Raises LossNotFinite or OutOfMemory on all ranks alike, before anything has changed.
    """
    optimizer.settle(gaussians)
    total: _Round | None = None
    for shots in rounds:
        total = _round(ranks, gaussians, shots, work, total)
    assert total is not None, "a step needs a round"
    others = _summed(ranks, work.others, total.others)
    before_change()
    visible = _seen(total.observations) if work.plan.visible_only else None
    gradients = dict(zip(gaussians.tensors(), total.gradients, strict=True))
    regularization = _regularization(ranks, gaussians, work.plan.regularization, len(total.losses))
    batch_size = len(total.losses)
    optimizer.step(gaussians, gradients, work.plan.rates, visible, regularization, batch_size=batch_size)
    observations = tuple(total.observations) if work.plan.observed else ()
    return Descent(
        losses=tuple(total.losses),
        pictures=tuple(total.pictures),
        observations=observations,
        others=others,
        costs=tuple(total.costs),
        poses=tuple(total.poses),
    )


def _round(
    ranks: Ranks, gaussians: Gaussians, shots: Sequence[Shot], work: Work, before: _Round | None
) -> _Round:
    """Return what a round has found, together with those `before` it."""
    by_rank = cameras_of_all(ranks, [shot.camera for shot in shots])
    num_cameras = [len(part) for part in by_rank]
    cameras = [camera for part in by_rank for camera in part]
    settings = project_settings(gaussians, work.plan.options)
    shared = unless_out_of_memory(lambda: project_for_all(gaussians, cameras, settings))
    received = share(ranks, shared, num_cameras, work.halves)
    assert shared is not None, "or `share` has raised"
    found = unless_out_of_memory(lambda: _findings(gaussians, received, shots, work))
    losses, costs = _agreed(ranks, found, num_cameras, 0 if before is None else len(before.losses))
    assert found is not None, "or there was no agreement"
    v_sent = sent_back(found.v, received.route, found.room)

    def all_together() -> tuple[_Round, list[Tensor]]:
        gradients, twists = _of_cameras(gaussians, shared, v_sent, cameras, work.plan)
        gradients = [_plus(one, other) for one, other in zip(found.gradients, gradients, strict=True)]
        observations = _observations(shared, v_sent, cameras)
        new = _Round(losses, costs, found.pictures, gradients, found.others, observations, [])
        return (new if before is None else _together(before, new)), twists

    # The most memory of a step is taken here, and nobody has changed anything yet.
    total, twists = together(ranks, all_together)
    return replace(total, poses=total.poses + list(ranks.sum(torch.stack(twists)))) if twists else total


def _of_cameras(
    gaussians: Gaussians, shared: Shared, v_sent: Tensor, cameras: Sequence[Camera], plan: DescentPlan
) -> tuple[list[Tensor | None], list[Tensor]]:
    """Return the gradients of the six tensors from what was `shared`, and where asked of the poses."""
    tensors = gaussians.tensors()
    degree = project_settings(gaussians, plan.options).sh_degree
    gradients: list[Tensor | None] = [None] * len(tensors)
    twists = []
    v_parts = v_sent[:, : shared.rows.shape[1]].split([len(part) for part in shared.parts])
    # Camera by camera, so that one set of gradients beside their sum is the most in memory.
    for part, v_part, camera, radii in zip(shared.parts, v_parts, cameras, shared.all_radii, strict=True):
        values = torch.autograd.grad(part, list(tensors.values()), v_part, allow_unused=True)
        if plan.poses:
            named: dict[str, Tensor | None] = dict(zip(tensors, values, strict=True))
            twist = pose_gradient(gaussians, named, camera, sh_degree=degree, radii=radii)
            twists.append(twist.cpu())
        _add(gradients, values)
    return gradients, twists


def _findings(gaussians: Gaussians, received: Received, shots: Sequence[Shot], work: Work) -> _Findings:
    """Draw this rank's shots and find the gradients of what it was sent."""
    num_columns, with_probe = received.rows.shape[1], work.plan.observed and work.plan.options.absgrad
    v = received.rows.new_zeros((len(received.rows), num_columns + 2 * with_probe))
    found = _Findings(
        losses=[],
        costs=[],
        pictures=[],
        v=v,
        room=room_for_return(v, received.route),
        gradients=[None] * len(gaussians.tensors()),
        others=[None] * len(work.others),
    )
    for number, shot in enumerate(shots):
        rows = rows_of_camera(received, number)
        leaves = projected_from(received.rows[rows], received.radii[rows])
        inputs = [leaves.means2d, leaves.conics, leaves.depths, leaves.opacities, leaves.colors]
        inputs = [leaf.requires_grad_() for leaf in inputs]
        probe = torch.zeros_like(leaves.means2d, requires_grad=True) if with_probe else None
        raster = _rasterized(leaves, shot, probe)
        settings = project_settings(gaussians, work.plan.options)
        pictures = (raster.rgb, raster.alpha, raster.depth_sum)
        drawing = Drawing(*pictures, leaves.radii, gaussians, leaves, probe, shot.camera, settings)
        loss = work.loss_of(shot, drawing)
        found.losses.append(float(loss.detach()))
        found.pictures.append(raster.rgb.detach())
        found.costs.append(float(pixels_drawn_over(leaves.radii, shot.camera)))
        if not math.isfinite(found.losses[-1]):
            continue  # no rank will go on from here
        probes = [] if probe is None else [probe]
        asked = [*inputs, *probes, *gaussians.tensors().values(), *work.others]
        values = list(torch.autograd.grad(loss, asked, allow_unused=True))
        v_leaves = [
            torch.zeros_like(leaf) if v is None else v for leaf, v in zip(inputs, values, strict=False)
        ]
        found.v[rows, :num_columns] = torch.cat([v if v.dim() == 2 else v[:, None] for v in v_leaves], dim=1)
        v_others = values[len(inputs) + len(probes) :]
        if probe is not None and values[len(inputs)] is not None:
            found.v[rows, num_columns:] = values[len(inputs)]
        num = len(found.gradients)
        found.gradients[:] = [_plus(a, b) for a, b in zip(found.gradients, v_others[:num], strict=True)]
        found.others[:] = [_plus(a, b) for a, b in zip(found.others, v_others[num:], strict=True)]
    return found


def _rasterized(projected: Projected, shot: Shot, probe: Tensor | None) -> Raster:
    stages, means2d = stages_for(projected.means2d), projected.means2d
    settings = RasterSettings(shot.camera.width, shot.camera.height, means2d.new_tensor(shot.background))
    if probe is not None:
        return stages.rasterize_absgrad(projected, settings, probe)
    return stages.rasterize(projected, settings)


def pixels_drawn_over(radii: Tensor, camera: Camera) -> Tensor:
    """Return what a picture costs, a scalar: its pixels, and those in the rectangles round its Gaussians.

    Not seconds, which would deal the photographs otherwise in every run.
    """
    widths, heights = (2.0 * radii.double()).unbind(dim=1)
    areas = widths.clamp_max(camera.width) * heights.clamp_max(camera.height)
    return camera.width * camera.height + areas.sum()


def _agreed(
    ranks: Ranks, found: _Findings | None, num_cameras: Sequence[int], num_before: int
) -> tuple[list[float], list[float]]:
    """Return the losses and costs of all ranks' shots; `found` is None on a rank that had no memory.

    Raises OutOfMemory or LossNotFinite on all ranks where any has reason to.
    """
    first, num = sum(num_cameras[: ranks.rank]), num_cameras[ranks.rank]
    total = sum(num_cameras)
    numbers = torch.zeros(ranks.num_ranks + 2 * total, dtype=torch.float64, device="cpu")
    if found is None:
        numbers[ranks.rank] = 1.0
    else:
        own = torch.tensor([found.losses, found.costs], dtype=torch.float64, device="cpu")
        numbers[ranks.num_ranks :].view(2, total)[:, first : first + num] = own
    numbers = ranks.sum(numbers)
    failed = numbers[: ranks.num_ranks].nonzero().squeeze(1).tolist()
    if failed:
        raise OutOfMemory(failed)
    agreed, costs = numbers[ranks.num_ranks :].view(2, total).tolist()
    owners = [rank for rank, num in enumerate(num_cameras) for _ in range(num)]
    for number, (loss, rank) in enumerate(zip(agreed, owners, strict=True)):
        if not math.isfinite(loss):
            raise LossNotFinite(loss, num_before + number, rank=rank)
    return agreed, costs


def _regularization(
    ranks: Ranks, gaussians: Gaussians, regularization: Regularization, batch_size: int
) -> Regularization:
    """Return weights that make means over this rank's Gaussians as large as the batch's over all ranks'."""
    if regularization == NO_REGULARIZATION:
        return regularization
    num_all = int(ranks.sum(torch.tensor([len(gaussians)], device="cpu")))
    share = batch_size * len(gaussians) / max(num_all, 1)
    return Regularization(regularization.opacity * share, regularization.scale * share)


def _observations(shared: Shared, v_sent: Tensor, cameras: Sequence[Camera]) -> list[Observation]:
    with_probe = v_sent.shape[1] > shared.rows.shape[1]
    v_means2d = v_sent[:, shared.rows.shape[1] :] if with_probe else v_sent[:, :2]
    observations = []
    parts = v_means2d.split([len(rows) for rows in shared.visible])
    for rows, radii, v, camera in zip(shared.visible, shared.all_radii, parts, cameras, strict=True):
        gradients2d = v.new_zeros((len(radii), 2)).index_copy_(0, rows, v)
        observations.append(Observation(gradients2d, radii, camera.width, camera.height))
    return observations


def _seen(observations: Sequence[Observation]) -> Tensor:
    """Return who is visible in any of the pictures, [N] bool."""
    seen = (observations[0].radii > 0).all(dim=1)
    for observation in observations[1:]:
        seen |= (observation.radii > 0).all(dim=1)
    return seen


def _together(one: _Round, other: _Round) -> _Round:
    return _Round(
        one.losses + other.losses,
        one.costs + other.costs,
        one.pictures + other.pictures,
        [_plus(a, b) for a, b in zip(one.gradients, other.gradients, strict=True)],
        [_plus(a, b) for a, b in zip(one.others, other.others, strict=True)],
        one.observations + other.observations,
        one.poses + other.poses,
    )


def _add(totals: list[Tensor | None], values: Sequence[Tensor | None]) -> None:
    """Add `values`, which nobody else has, to `totals`; the first ones become them."""
    for number, value in enumerate(values):
        total = totals[number]
        if total is None or value is None:
            totals[number] = value if total is None else total
        else:
            total += value


def _plus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _summed(
    ranks: Ranks, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return the sums over all ranks of the gradients of `leaves`, in one message."""
    if ranks.num_ranks == 1 or not leaves:
        return tuple(gradients)
    given = [torch.zeros_like(leaf) if v is None else v for leaf, v in zip(leaves, gradients, strict=True)]
    together = ranks.sum(torch.cat([v.reshape(-1) for v in given]))
    parts = together.split([v.numel() for v in given])
    return tuple(part.view_as(v) for part, v in zip(parts, given, strict=True))
