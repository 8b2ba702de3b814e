"""What the photographs of a step on one GPU say, queued as a whole before the host knows any of it.

The gradients of one photograph go back through the fused optimiser, and those of the six tensors are never in
memory; of several photographs these are summed, one photograph after the other, for one step of Adam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from splatstudio.devices.transfer import ReadBack
from splatstudio.distributed import Ranks
from splatstudio.distributed.failures import OutOfMemory, unless_out_of_memory
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.ops_training import Regularization, StepGate, gradients_of_projected, has_step_gates
from splatstudio.optimization.losses import psnr_on_device
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.sharded_step import descend_together, pixels_drawn_over
from splatstudio.optimization.train_step import (
    LossNotFinite,
    Observation,
    RenderOutput,
    StepInputs,
    StepResult,
    TrainView,
    backward,
    descend,
    draw_as_planned,
    gradient_of_pose,
    improve,
    observations_of,
)

# Of a shot and its picture [H, W, 3], without gradients: what the photograph is compared with.
Shown = Callable[[TrainView, Tensor], Tensor]


@dataclass(frozen=True)
class Told:
    """What the host knows of a step in the end; costs and PSNR where they were wanted."""

    total: float  # of the losses, as the gate knows it
    losses: tuple[float, ...]
    needed: tuple[int, ...]  # instances of each picture
    costs: tuple[float, ...]
    psnr: float | None  # dB


@dataclass(frozen=True, eq=False)
class Report:
    """What the host will know of a step, and nothing that is needed to make it."""

    num: int  # of its photographs
    pictures: tuple[Tensor, ...]  # [H, W, 3]; none where the PSNR comes with the numbers: they need none
    numbers: ReadBack  # in the order of Told
    twists: ReadBack | None  # of the cameras, where they are asked for
    costly: bool  # whether costs are among the numbers

    def read(self) -> Told:
        """Return the numbers as soon as they are there."""
        num = self.num
        total, *numbers = self.numbers.read()
        losses, needed, rest = numbers[:num], numbers[num : 2 * num], numbers[2 * num :]
        costs, score = (rest[:num], rest[num:]) if self.costly else ([], rest)
        needed = tuple(int(count) for count in needed)
        return Told(total, tuple(losses), needed, tuple(costs), score[0] if score else None)

    def descent(
        self,
        told: Told,
        observations: tuple[Observation, ...] = (),
        others: tuple[Tensor | None, ...] = (),
        *,
        followed: bool,
    ) -> StepResult:
        """Return what the step did, once it is made."""
        numbers = () if self.twists is None else self.twists.read()
        twists = torch.tensor(numbers, dtype=torch.float64, device="cpu").view(-1, 6).unbind()
        return StepResult(
            told.losses,
            self.pictures,
            observations,
            others,
            costs=told.costs,
            poses=twists,
            psnr=told.psnr,
            followed=followed,
        )


@dataclass(frozen=True, eq=False)
class Findings:
    """What a step's pictures say; nothing has changed. `improve` makes the step, unless a gate is shut."""

    report: Report
    gate: StepGate | None  # None: there was no room to keep to
    observations: tuple[Observation, ...]
    others: tuple[Tensor | None, ...]  # gradients of the further tensors, summed over the shots
    improve: Callable[[StepGate | None], None]


def find(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    shots: Sequence[TrainView],
    work: StepInputs,
    shown: Shown | None = None,
) -> Findings:
    """Queue the pictures of `shots` and the way back from them; `optimizer` is that of `gaussians`.

    `shown`: for the PSNR of the first picture, where the plan asks for it, and the pictures are let go; None:
    there is no PSNR, and the pictures are returned.
    """
    if len(shots) == 1:
        return _of_one(gaussians, optimizer, shots[0], work, shown)
    return _of_several(gaussians, optimizer, shots, work, shown)


def descend_on(
    ranks: Ranks,
    gaussians: Gaussians,
    optimizer: SplatAdam,
    rounds: Sequence[Sequence[TrainView]],
    work: StepInputs,
    *,
    order: Sequence[int] = (),
    before_change: Callable[[], None] = lambda: None,
) -> StepResult:
    """Make one step down the sum of the losses of all shots, in place, in the way that suits the device.

    `rounds`, `order` and what is returned are as of `descend_together`; `before_change` is called just before
    the model changes. On one GPU the host asks but once, when all is queued but for the change. Raises
    LossNotFinite or OutOfMemory before anything has changed.
    """
    if ranks.num_ranks == 1:
        shots = [shot for one in rounds for shot in one]
        if has_step_gates(gaussians.device):
            return _descend_on_gpu(gaussians, optimizer, shots, work, before_change)
        if len(shots) == 1:
            return descend(gaussians, optimizer, shots[0], work, before_change=before_change)
    return descend_together(
        ranks, gaussians, optimizer, rounds, work, order=order, before_change=before_change
    )


def _descend_on_gpu(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    shots: Sequence[TrainView],
    work: StepInputs,
    before_change: Callable[[], None],
) -> StepResult:
    room = work.plan.room
    while True:
        found = unless_out_of_memory(lambda: find(gaussians, optimizer, shots, work))
        if found is None:
            if room is not None:
                room.forget()
            raise OutOfMemory([0])
        told = found.report.read()
        if room is None or all([room.held(count) for count in told.needed]):  # each is told
            break
        del found  # its memory is for the larger lists
    for number, loss in enumerate(told.losses):
        if not math.isfinite(loss):
            raise LossNotFinite(loss, number)
    before_change()
    found.improve(None)
    return found.report.descent(told, found.observations, found.others, followed=False)


def _of_one(
    gaussians: Gaussians, optimizer: SplatAdam, shot: TrainView, work: StepInputs, shown: Shown | None
) -> Findings:
    plan = work.plan
    drawing, loss = _drawn(gaussians, optimizer, shot, work)
    assert drawing.num_instances is not None, "drawn by kernels"
    score = _score(shot, drawing, work, shown)
    gate, numbers = _asked([drawing.num_instances], [loss], work, (), score)
    gradients = backward(drawing, loss, work.others)  # while the numbers are on their way
    twists = ReadBack(gradient_of_pose(drawing, gradients)) if plan.poses else None

    def change(gate: StepGate | None) -> None:
        improve(
            drawing,
            gradients,
            optimizer,
            plan.rates,
            visible_only=plan.visible_only,
            regularization=plan.regularization,
            gate=gate,
        )

    pictures = (drawing.rgb.detach(),) if shown is None else ()
    report = Report(1, pictures, numbers, twists, costly=False)
    seen = observations_of(shot, drawing, gradients, plan)
    return Findings(report, gate, seen, gradients.others, change)


def _of_several(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    shots: Sequence[TrainView],
    work: StepInputs,
    shown: Shown | None,
) -> Findings:
    plan, num = work.plan, len(shots)
    sums = _Sums(dict.fromkeys(gaussians.tensors()), [None] * len(work.others))
    for shot in shots:  # of each only what is needed later stays in memory
        drawing, loss = _drawn(gaussians, optimizer, shot, work)
        if not sums.losses:
            sums.score = _score(shot, drawing, work, shown)
        sums.take(shot, drawing, loss, work)
        if shown is None:
            sums.pictures.append(drawing.rgb.detach())
    gate, numbers = _asked(sums.counts, sums.losses, work, sums.costs, sums.score)
    weights = plan.regularization
    weights = Regularization(weights.opacity * num, weights.scale * num)
    visible = sums.seen if plan.visible_only else None

    def change(gate: StepGate | None) -> None:
        optimizer.step(gaussians, sums.gradients, plan.rates, visible, weights, batch_size=num, gate=gate)

    twists = ReadBack(*sums.twists) if sums.twists else None
    report = Report(num, tuple(sums.pictures), numbers, twists, costly=True)
    return Findings(report, gate, tuple(sums.observations), tuple(sums.others), change)


@dataclass(eq=False)
class _Sums:
    """What the pictures of a step have said until now."""

    gradients: dict[str, Tensor | None]  # of the six tensors
    others: list[Tensor | None]
    pictures: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)  # of instances
    costs: list[Tensor] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    twists: list[Tensor] = field(default_factory=list)
    score: tuple[Tensor, ...] = ()
    seen: Tensor | None = None  # [N] bool, in any of the pictures

    def take(self, shot: TrainView, drawing: RenderOutput, loss: Tensor, work: StepInputs) -> None:
        """Go back from a picture, and add what that says."""
        assert drawing.projected is not None and drawing.num_instances is not None, "drawn by kernels"
        gradients = backward(drawing, loss, work.others)
        values = gradients_of_projected(
            drawing.gaussians,
            drawing.projected,
            gradients.projected,
            camera=drawing.camera,
            settings=drawing.settings,
        )
        if work.plan.poses:
            self.twists.append(gradient_of_pose(drawing, gradients))
        for name, value in values.items():  # which nobody else has: the first become the sums
            total = self.gradients[name]
            self.gradients[name] = value if total is None or value is None else total.add_(value)
        self.others = [_plus(one, other) for one, other in zip(self.others, gradients.others, strict=True)]
        self.losses.append(loss.detach())
        self.counts.append(drawing.num_instances)
        self.costs.append(pixels_drawn_over(drawing.radii, drawing.camera))
        self.observations += observations_of(shot, drawing, gradients, work.plan)
        seen = (drawing.radii > 0).all(dim=1)
        self.seen = seen if self.seen is None else self.seen | seen


def _drawn(
    gaussians: Gaussians, optimizer: SplatAdam, shot: TrainView, work: StepInputs
) -> tuple[RenderOutput, Tensor]:
    plan, room = work.plan, None if work.plan.room is None else work.plan.room.size
    drawing = draw_as_planned(gaussians, optimizer, shot, plan, room=room)
    return drawing, work.loss_of(shot, drawing)


def _score(
    shot: TrainView, drawing: RenderOutput, work: StepInputs, shown: Shown | None
) -> tuple[Tensor, ...]:
    if shown is None or not work.plan.scored:
        return ()
    return (psnr_on_device(shown(shot, drawing.rgb.detach()), shot.target, shot.mask),)


def _asked(
    counts: Sequence[Tensor],
    losses: Sequence[Tensor],
    work: StepInputs,
    costs: Sequence[Tensor],
    score: tuple[Tensor, ...],
) -> tuple[StepGate | None, ReadBack]:
    """Return the gate of a step on all its pictures, and their numbers on the way to the host."""
    room = None if work.plan.room is None else work.plan.room.size
    most, total = counts[0], losses[0].detach()
    if len(counts) > 1:
        most, total = torch.cat(list(counts)).amax(dim=0, keepdim=True), torch.stack(list(losses)).sum()
    gate = None if room is None else StepGate(most, room, total)
    return gate, ReadBack(total, *losses, *counts, *costs, *score)


def _plus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
