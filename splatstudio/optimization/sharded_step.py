"""A step of gradient descent on several pictures at once, of a model that may lie on several ranks.

The ranks agree before anything changes: when one runs out of memory or finds a loss that is no number, all of
them leave the step out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.distributed import Ranks
from splatstudio.distributed.exchange import Room, room_for_return, sent_back
from splatstudio.distributed.failures import OutOfMemory, together, unless_out_of_memory
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.ops_training import NO_REGULARIZATION, Regularization
from splatstudio.kernels.stages import Projected, Raster, RasterSettings
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.train_step import (
    LossNotFinite,
    Observation,
    RenderOutput,
    StepInputs,
    StepPlan,
    StepResult,
    TrainView,
)
from splatstudio.rendering.render import stages_for, training_stages_for
from splatstudio.rendering.sharded_view import (
    Received,
    Shared,
    cameras_of_all,
    project_for_all,
    project_settings,
    projected_from,
    rows_of_camera,
    share,
)


@dataclass(frozen=True, eq=False)
class _Round:
    """What a round of a step has found, on this rank."""

    losses: list[float]  # of the shots of all ranks
    costs: list[float]  # likewise
    num_all: int  # Gaussians of all ranks
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
    rounds: Sequence[Sequence[TrainView]],
    work: StepInputs,
    *,
    order: Sequence[int] = (),
    before_change: Callable[[], None] = lambda: None,
) -> StepResult:
    """Make one step down the sum of the losses of all shots of all ranks, in place.

    `gaussians` are this rank's, and `rounds` the shots that it draws, all of a round at once: ranks may have
    different shots, or none, but need equally many rounds. The losses of the result are those of all ranks,
    by round and rank, and so are its poses; its pictures are this rank's; its observations are of this
    rank's Gaussians in the pictures of all, and within a round in the `order` in which gradients are added:
    a number for each of the losses, () for theirs. Where that is of the photographs and not of the ranks,
    the sums are those of one process to the last bit. The gradients of `work.others` are summed over the
    ranks. The learning rates and the decay of the moments follow the number of shots (see `SplatAdam.step`).
    Raises LossNotFinite or OutOfMemory on all ranks alike, before anything has changed.
    """
    optimizer.flush_lazy_rows(gaussians)
    total: _Round | None = None
    for shots in rounds:
        total = _round(ranks, gaussians, shots, work, order, total)
    assert total is not None, "a step needs a round"
    others = _summed(ranks, work.others, total.others)
    before_change()
    visible = _seen(total.observations) if work.plan.visible_only else None
    gradients = dict(zip(gaussians.tensors(), total.gradients, strict=True))
    batch_size = len(total.losses)
    own_part = batch_size * len(gaussians) / max(total.num_all, 1)
    regularization = _regularization(work.plan.regularization, own_part)
    optimizer.step(gaussians, gradients, work.plan.rates, visible, regularization, batch_size=batch_size)
    observations = tuple(total.observations) if work.plan.observed else ()
    return StepResult(
        losses=tuple(total.losses),
        pictures=tuple(total.pictures),
        observations=observations,
        others=others,
        costs=tuple(total.costs),
        poses=tuple(total.poses),
    )


def _round(
    ranks: Ranks,
    gaussians: Gaussians,
    shots: Sequence[TrainView],
    work: StepInputs,
    order: Sequence[int],
    before: _Round | None,
) -> _Round:
    """Return what a round has found, together with those `before` it."""
    by_rank = cameras_of_all(ranks, [shot.camera for shot in shots])
    num_cameras = [len(part) for part in by_rank]
    cameras = [camera for part in by_rank for camera in part]
    settings = project_settings(gaussians, work.plan.options)
    shared = unless_out_of_memory(lambda: project_for_all(gaussians, cameras, settings, work.plan.dropout))
    received = share(ranks, shared, num_cameras, work.halves)
    assert shared is not None, "or `share` has raised"
    found = unless_out_of_memory(lambda: _findings(gaussians, received, shots, work))
    num_before = 0 if before is None else len(before.losses)
    losses, costs, num_all = _agreed(ranks, found, len(gaussians), num_cameras, num_before)
    assert found is not None, "or there was no agreement"
    v_sent = sent_back(found.v, received.route, found.room)
    turns = list(range(len(cameras)))
    if order:
        turns.sort(key=lambda number: order[num_before + number])

    def all_together() -> tuple[_Round, list[Tensor]]:
        none: list[Tensor | None] = [None] * len(gaussians.tensors())
        gradients = none if before is None else before.gradients
        twists = _add_cameras(gradients, gaussians, shared, v_sent, cameras, work.plan, turns)
        gradients = [_plus(one, other) for one, other in zip(found.gradients, gradients, strict=True)]
        seen = _observations(shared, v_sent, cameras)
        new = _Round(
            losses,
            costs,
            num_all,
            found.pictures,
            gradients,
            found.others,
            observations=[seen[number] for number in turns],
            poses=[],
        )
        return (new if before is None else _after(before, new)), twists

    # The most memory of a step is taken here, and nobody has changed anything yet.
    total, twists = together(ranks, all_together)
    return (
        replace(total, poses=total.poses + list(ranks.all_reduce(torch.stack(twists)))) if twists else total
    )


def _add_cameras(
    gradients: list[Tensor | None],
    gaussians: Gaussians,
    shared: Shared,
    v_sent: Tensor,
    cameras: Sequence[Camera],
    plan: StepPlan,
    turns: Iterable[int],
) -> list[Tensor]:
    """Add to `gradients` of the six tensors those from what was `shared`; return those of the poses if asked.

    `turns`: the cameras in the order in which they are added.
    """
    tensors = gaussians.tensors()
    degree = project_settings(gaussians, plan.options).sh_degree
    twists = dict[int, Tensor]()
    v_parts = v_sent[:, : shared.rows.shape[1]].split([len(part) for part in shared.parts])
    # Camera by camera, so that one set of gradients beside their sum is the most in memory.
    for number in turns:
        part, v_part = shared.parts[number], v_parts[number]
        values = torch.autograd.grad(part, list(tensors.values()), v_part, allow_unused=True)
        if plan.poses:
            named: dict[str, Tensor | None] = dict(zip(tensors, values, strict=True))
            stages, camera, radii = training_stages_for(part), cameras[number], shared.all_radii[number]
            twist = stages.pose_gradient(gaussians, named, camera=camera, sh_degree=degree, radii=radii)
            twists[number] = twist.cpu()
        _add(gradients, values)
    return [twists[number] for number in sorted(twists)]


def _findings(
    gaussians: Gaussians, received: Received, shots: Sequence[TrainView], work: StepInputs
) -> _Findings:
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
        drawing = RenderOutput(
            raster.rgb,
            raster.alpha,
            raster.depth_sum,
            radii=leaves.radii,
            gaussians=gaussians,
            projected=leaves,
            probe=probe,
            camera=shot.camera,
            settings=project_settings(gaussians, work.plan.options),
        )
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


def _rasterized(projected: Projected, shot: TrainView, probe: Tensor | None) -> Raster:
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
    ranks: Ranks, found: _Findings | None, num_own: int, num_cameras: Sequence[int], num_before: int
) -> tuple[list[float], list[float], int]:
    """Return the losses and costs of all ranks' shots, and the sum of all ranks' `num_own`.

    `found` is None on a rank that had no memory. Raises OutOfMemory or LossNotFinite on all ranks where any
    has reason to.
    """
    first, num = sum(num_cameras[: ranks.rank]), num_cameras[ranks.rank]
    total = sum(num_cameras)
    numbers = torch.zeros(ranks.num_ranks + 1 + 2 * total, dtype=torch.float64, device="cpu")
    numbers[ranks.num_ranks] = num_own
    if found is None:
        numbers[ranks.rank] = 1.0
    else:
        own = torch.tensor([found.losses, found.costs], dtype=torch.float64, device="cpu")
        numbers[ranks.num_ranks + 1 :].view(2, total)[:, first : first + num] = own
    numbers = ranks.all_reduce(numbers)
    failed = numbers[: ranks.num_ranks].nonzero().squeeze(1).tolist()
    if failed:
        raise OutOfMemory(failed)
    agreed, costs = numbers[ranks.num_ranks + 1 :].view(2, total).tolist()
    owners = [rank for rank, num in enumerate(num_cameras) for _ in range(num)]
    for number, (loss, rank) in enumerate(zip(agreed, owners, strict=True)):
        if not math.isfinite(loss):
            raise LossNotFinite(loss, num_before + number, rank=rank)
    return agreed, costs, int(numbers[ranks.num_ranks])


def _regularization(regularization: Regularization, share: float) -> Regularization:
    """Return weights that make means over this rank's Gaussians, `share` of all, as large as over all."""
    if regularization == NO_REGULARIZATION:
        return regularization
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


def _after(before: _Round, new: _Round) -> _Round:
    """Return both as one; the gradients of `new` have those of `before` in them."""
    return _Round(
        before.losses + new.losses,
        before.costs + new.costs,
        new.num_all,
        before.pictures + new.pictures,
        new.gradients,
        [_plus(a, b) for a, b in zip(before.others, new.others, strict=True)],
        before.observations + new.observations,
        before.poses + new.poses,
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
    total = ranks.all_reduce(torch.cat([v.reshape(-1) for v in given]))
    parts = total.split([v.numel() for v in given])
    return tuple(part.view_as(v) for part, v in zip(parts, given, strict=True))
