"""The gradients of the views of all ranks, of a model whose Gaussians lie on several of them.

The ranks agree before anything changes: when one runs out of memory or finds a loss that is not finite, all
of them leave the step out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.transfer import ReadBack, to_device
from splatstudio.distributed.exchange import Return
from splatstudio.distributed.failures import OutOfMemory, unless_out_of_memory
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import MOST_VIEWS, ViewRows, add_gradients, zero_sums
from splatstudio.kernels.stages import Projected, ProjectSettings, Raster, RasterSettings
from splatstudio.optimization.gradients import (
    LossNotFinite,
    Observation,
    RenderOutput,
    RunOfViews,
    StepInputs,
    StepPlan,
    SummedGradients,
    TrainView,
    differentiable,
    pixels_drawn_over,
    plus,
)
from splatstudio.rendering.dropout import Dropout
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
    run_ends,
    share,
)


@dataclass(eq=False)
class ShardedStep:
    """What the rounds of a step on several ranks have found so far, the same on all but the gradients."""

    sums: SummedGradients
    losses: list[float] = field(default_factory=list)  # of the views of all ranks, by round and rank
    costs: list[float] = field(default_factory=list)  # likewise
    returned: list[Return] = field(default_factory=list)  # of each round, perhaps still on its way


@dataclass(frozen=True, eq=False)
class _OwnViews:
    """What this rank's views of a round give, before the other ranks know of it."""

    pictures: list[Tensor]
    others: list[Tensor | None]
    # Losses, costs, and with a capacity how many instances each picture has.
    numbers: ReadBack


@dataclass(frozen=True, eq=False)
class _Found:
    """The numbers of a round on their way to the host."""

    numbers: ReadBack  # see `_OwnViews`
    twists: ReadBack | None  # of all cameras, this rank's part, where asked for


@dataclass(frozen=True)
class _Agreed:
    """What all ranks know of a round."""

    losses: list[float]
    costs: list[float]
    twists: list[Tensor]  # [6] float64 of each camera, where asked for
    num_all: int  # Gaussians of all ranks


class _TooLittleRoom(Exception):
    """A picture of some rank has more instances than it had room for; all ranks raise this alike."""


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
    summed over the ranks. Raises LossNotFinite or OutOfMemory on all ranks alike. All pictures are drawn
    again where one on any rank had too little room.
    """
    while True:
        try:
            return _all_rounds(ranks, gaussians, rounds, cameras, inputs, order)
        except _TooLittleRoom:
            pass


def _all_rounds(
    ranks: Ranks,
    gaussians: Gaussians,
    rounds: Sequence[Sequence[TrainView]],
    cameras: Sequence[Sequence[Sequence[Camera]]],
    inputs: StepInputs,
    order: Sequence[int],
) -> ShardedStep:
    step = ShardedStep(SummedGradients.nothing(gaussians, inputs.others))
    of_all = [camera for by_rank in cameras for part in by_rank for camera in part]
    if _keeps_rows(gaussians, inputs.plan, of_all):
        ends = run_ends(len(gaussians), runs_on(ranks, gaussians.device))
        starts = [0, *ends[:-1]]
        step.sums.runs = [RunOfViews(slice(*span)) for span in zip(starts, ends, strict=True)]
    try:
        for number, (views, by_rank) in enumerate(zip(rounds, cameras, strict=True), start=1):
            last = number == len(rounds)
            _add_round(step, ranks, gaussians, views, by_rank, inputs, order, last=last)
    except (OutOfMemory, LossNotFinite, _TooLittleRoom):
        for returned in step.returned:  # nobody else may get the memory of what is under way
            returned.wait_for_all()
        raise
    step.sums.num_views = len(step.losses)
    return step


def runs_on(ranks: Ranks, device: torch.device) -> int:
    """Return in how many runs of rows the gradients of a rank's Gaussians come from other ranks.

    On GPUs in two: the optimizer steps the first while the gradients of the second are on their way. A CPU's
    cores are busy with the one as with the other.
    """
    return 1 if ranks.num_ranks == 1 or device.type == "cpu" else 2


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
    *,
    last: bool,
) -> None:
    """Add what a round finds to `step`; in the `last` one the gradients of `inputs.others` are summed.

    Of two messages each rank tells what it has no memory for: before rows are sent, and while their gradients
    are on their way back. In between it sends what it has, and nobody has changed anything yet.
    """
    plan, num_cameras = inputs.plan, [len(part) for part in by_rank]
    cameras = [camera for part in by_rank for camera in part]
    settings, num_before = project_settings(gaussians, plan.options), len(step.losses)
    num_runs = 1 if step.sums.runs is None else len(step.sums.runs)
    shared = unless_out_of_memory(
        lambda: project_for_all(gaussians, cameras, settings, plan.dropout, num_runs)
    )
    num_back = sum(COLUMNS) + PROBE_COLUMNS * _with_probe(plan)
    received = share(ranks, shared, num_cameras, inputs.packing, num_back=num_back, num_runs=num_runs)
    assert shared is not None, "or `share` has raised"
    own = unless_out_of_memory(lambda: _own_views(gaussians, received, views, inputs))
    if own is not None:
        step.sums.add_others(own.others)
    if last:  # before the rows' gradients: a GPU would wait for those, too
        step.sums.others = _all_reduced(ranks, inputs.others, step.sums.others)
    step.returned.append(returned := received.start_return())
    turns = list(range(len(cameras)))
    if order:
        turns.sort(key=lambda number: order[num_before + number])

    def found(own: _OwnViews) -> _Found:
        twists = _add_cameras(step.sums, gaussians, shared, returned, cameras, plan, turns)
        return _Found(own.numbers, ReadBack(*twists) if twists else None)

    # Here a step takes the most memory: for all that the views show, or the sums of all six tensors.
    numbers = None if own is None else unless_out_of_memory(partial(found, own))
    agreed = _agreed(ranks, numbers, len(gaussians), num_cameras, num_before, plan)
    assert own is not None, "or `_agreed` has raised"
    if num_runs == 1:
        returned.wait_for_all()
    step.losses += agreed.losses
    step.costs += agreed.costs
    step.sums.twists += agreed.twists
    step.sums.num_all = agreed.num_all
    step.sums.pictures += own.pictures


def _add_cameras(
    sums: SummedGradients,
    gaussians: Gaussians,
    shared: Shared,
    returned: Return,
    cameras: Sequence[Camera],
    plan: StepPlan,
    turns: Sequence[int],
) -> list[Tensor]:
    """Add the gradients and the observations of what was `shared`; return the cameras' twists, if asked.

    `turns`: the cameras in the order in which they are added. Nothing waits for what is `returned` where the
    optimizer sums it.
    """
    observations = _observations(shared, cameras) if plan.observed else []
    sums.observations += [observations[number] for number in turns] if plan.observed else []
    if sums.runs is not None:
        places = [radii.new_full((len(radii),), -1) for radii in shared.all_radii]
        for number, run in enumerate(sums.runs):
            views = _rows_of(shared, number, returned, cameras, places)
            run.views.extend(replace(views[turn], places=places[turn][run.rows]) for turn in turns)
            run.arrivals.append(partial(_arrive, _of_run(shared, number), number, returned, observations))
        return []
    settings, twists = project_settings(gaussians, plan.options), dict[int, Tensor]()
    _arrive(shared.visible, 0, returned, observations)
    v_parts = returned.values[:, : sum(COLUMNS)].split([len(rows) for rows in shared.visible])
    # Camera by camera; where the twist of each is asked for there is a set of gradients besides their sum.
    for number in turns:
        camera, radii = cameras[number], shared.all_radii[number]
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
    return [twists[number] for number in sorted(twists)]


def _of_run(shared: Shared, number: int, of_rows: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Return for each camera what is a run's of `of_rows`, or of the indices of what it sees."""
    parts = zip(shared.visible if of_rows is None else of_rows, shared.run_sizes, strict=True)
    return [rows.split(sizes)[number] for rows, sizes in parts]


def _rows_of(
    shared: Shared, number: int, returned: Return, cameras: Sequence[Camera], places: Sequence[Tensor]
) -> list[ViewRows]:
    """Return what each camera shows of a run, for the optimizer, with room for the gradients.

    `places` [N] of each camera are those of all runs, of which this one's are put in.
    """
    visible, colors = _of_run(shared, number), _of_run(shared, number, shared.colors())
    v_parts = returned.values[returned.spans[number]].split([len(rows) for rows in visible])
    for each, rows in zip(places, visible, strict=True):
        each[rows] = torch.arange(len(rows), dtype=each.dtype, device=each.device)
    parts = zip(cameras, places, colors, v_parts, strict=True)
    return [ViewRows(camera, each, shown.contiguous(), v) for camera, each, shown, v in parts]


def _arrive(
    visible: Sequence[Tensor], number: int, returned: Return, observations: Sequence[Observation]
) -> None:
    """Wait for the gradients of a run, and put them into the observations, which takes no memory.

    `visible`: for each camera the indices of the run's rows.
    """
    returned.wait(number)
    v = returned.values[returned.spans[number]]
    v_means2d = v[:, sum(COLUMNS) :] if v.shape[1] > sum(COLUMNS) else v[:, :2]
    parts = v_means2d.split([len(rows) for rows in visible]) if observations else ()
    for observation, rows, part in zip(observations, visible, parts, strict=False):
        observation.gradients2d.index_copy_(0, rows, part)


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
    shown_colors = of_all(shared.colors()[number])
    given, shown = totals, gaussians
    if dropout is not None:  # what is drawn has other opacities
        shown = dropout.drawn(gaussians.detach())
        given = {**totals, "opacities": torch.zeros_like(gaussians.opacities)}
    add_gradients(
        given, shown, shared.all_radii[number], shown_colors, v_projected, camera=camera, settings=settings
    )
    if dropout is not None:
        totals["opacities"] += given["opacities"] * dropout.slopes(gaussians.opacities)


def _own_views(
    gaussians: Gaussians, received: Received, views: Sequence[TrainView], inputs: StepInputs
) -> _OwnViews:
    """Render this rank's views and find the gradients of the rows that it received.

    A GPU is not waited for: whether a loss is finite is known when all is queued.
    """
    plan, losses, costs, counts = inputs.plan, list[Tensor](), list[Tensor](), list[Tensor]()
    pictures, v_others = list[Tensor](), list[Tensor | None]([None] * len(inputs.others))
    places = received.places_back()
    for number, view in enumerate(views):
        rows = rows_of_camera(received, number)
        leaves = projected_from(received, rows)
        leaf_tensors = [leaf.requires_grad_() for leaf in differentiable(leaves)]
        probe = torch.zeros_like(leaves.means2d, requires_grad=True) if _with_probe(plan) else None
        raster = _rasterized(leaves, view, probe, plan)
        output = RenderOutput(
            raster.rgb,
            raster.alpha,
            raster.depth_sum,
            radii=leaves.radii,
            gaussians=gaussians,
            projected=leaves,
            probe=probe,
            camera=view.camera,
            settings=project_settings(gaussians, plan.options),
        )
        loss = inputs.loss_of(view, output)
        losses.append(loss.detach())
        pictures.append(raster.rgb.detach())
        costs.append(pixels_drawn_over(leaves.radii, view.camera))
        if plan.capacity is not None and raster.num_instances is not None:
            counts.append(raster.num_instances)
        leaf_tensors += [] if probe is None else [probe]
        values = torch.autograd.grad(loss, [*leaf_tensors, *inputs.others], allow_unused=True)
        _give(received.given, rows if places is None else places[rows], values[: len(leaf_tensors)])
        v_others = [plus(a, b) for a, b in zip(v_others, values[len(leaf_tensors) :], strict=True)]
    numbers = ReadBack(received.given.new_zeros(0), *losses, *costs, *counts)
    return _OwnViews(pictures, v_others, numbers)


def _give(given: Tensor, rows: Tensor | slice, values: Sequence[Tensor | None]) -> None:
    """Put the gradients of the columns into `rows` of what is `given` back; None stands for zeros."""
    place = 0
    for value, num in zip(values, (*COLUMNS, PROBE_COLUMNS), strict=False):
        given[rows, place : place + num] = 0.0 if value is None else value.reshape(-1, num)
        place += num


def _with_probe(plan: StepPlan) -> bool:
    """Return whether the absolute gradients of the projected means are sent back, too."""
    return plan.observed and plan.options.absgrad


def _rasterized(projected: Projected, view: TrainView, probe: Tensor | None, plan: StepPlan) -> Raster:
    stages, means2d = stages_for(projected.means2d), projected.means2d
    color = torch.tensor(view.background, dtype=means2d.dtype, device="cpu")
    settings = RasterSettings(
        view.camera.width,
        view.camera.height,
        to_device(color, means2d.device),
        room=None if plan.capacity is None else plan.capacity.size,
    )
    if probe is not None:
        return stages.rasterize_absgrad(projected, settings, probe)
    return stages.rasterize(projected, settings)


def _agreed(
    ranks: Ranks,
    found: _Found | None,
    num_own: int,
    num_cameras: Sequence[int],
    num_before: int,
    plan: StepPlan,
) -> _Agreed:
    """Return what all ranks found in a round, and the sum of all ranks' `num_own`.

    `found` is None where this rank had no memory. Raises OutOfMemory, _TooLittleRoom or LossNotFinite on all
    ranks where any has reason to, in that order.
    """
    first, num, total = sum(num_cameras[: ranks.rank]), num_cameras[ranks.rank], sum(num_cameras)
    sizes = [ranks.num_ranks, 1, 1, 2 * total, 6 * total * plan.poses]
    numbers = torch.zeros(sum(sizes), dtype=torch.float64, device="cpu")
    failed, count, cramped, of_views, twists = numbers.split(sizes)
    count[0] = num_own
    if found is None:
        failed[ranks.rank] = 1.0
        if plan.capacity is not None:
            plan.capacity.forget()
    else:  # the one place of a round, but for the counts, where the host waits for a GPU
        own = torch.tensor(found.numbers.read(), dtype=torch.float64, device="cpu")
        of_views.view(2, total)[:, first : first + num] = own[: 2 * num].view(2, num)
        cramped[0] = not _had_room(plan, own[2 * num :])
        if found.twists is not None:
            twists[:] = torch.tensor(found.twists.read(), dtype=torch.float64, device="cpu")
    failed, count, cramped, of_views, twists = ranks.all_reduce(numbers).split(sizes)
    if failed.any():
        raise OutOfMemory(failed.nonzero().squeeze(1).tolist())
    if cramped.any():
        raise _TooLittleRoom
    losses, costs = of_views.view(2, total).tolist()
    owners = [rank for rank, num in enumerate(num_cameras) for _ in range(num)]
    for number, (loss, rank) in enumerate(zip(losses, owners, strict=True)):
        if not math.isfinite(loss):
            raise LossNotFinite(loss, num_before + number, rank=rank)
    return _Agreed(losses, costs, list(twists.view(-1, 6)), int(count))


def _had_room(plan: StepPlan, num_instances: Tensor) -> bool:
    """Return whether pictures of so many instances each had room for them; the next ones have."""
    capacity = plan.capacity
    return capacity is None or all([capacity.held(int(num)) for num in num_instances])  # each is told


def _observations(shared: Shared, cameras: Sequence[Camera]) -> list[Observation]:
    """Return what each camera shows, without its gradients: these `_arrive` later."""
    return [
        Observation(shared.record.new_zeros((len(radii), 2)), radii, camera.width, camera.height)
        for radii, camera in zip(shared.all_radii, cameras, strict=True)
    ]


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
