"""One step of gradient descent: views, pictures, losses, gradients, agreement, and the optimizer's step.

`begin_step` goes as far as the agreement on whether the step is made, and changes nothing; `TrainStep.apply`
makes it. In a process alone the gradients of one view go back through the fused optimizer, and those of
several views of a GPU are summed view by view. Several ranks exchange what their pictures show and the
gradients of that, and the fused optimizer takes those of all pictures at once. On a GPU the host may read the
numbers of a step late, after it is applied: a gate on the device decides then whether anything changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.transfer import ReadBack
from splatstudio.distributed.failures import OutOfMemory, unless_out_of_memory
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.ops_training import NO_REGULARIZATION, Regularization, StepGate, has_step_gates
from splatstudio.optimization.gradients import (
    Gradients,
    LossNotFinite,
    Observation,
    RenderOutput,
    StepInputs,
    StepPlan,
    SummedGradients,
    TrainView,
    add_to,
    apply_gradients,
    backward,
    draw_as_planned,
    gradient_of_pose,
    pixels_drawn_over,
)
from splatstudio.optimization.losses import psnr_on_device
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.sharded_gradients import sharded_gradients
from splatstudio.rendering.sharded_view import project_settings

# Of a view and its picture [H, W, 3], without gradients: what the photo is compared with.
ShownOf = Callable[[TrainView, Tensor], Tensor]


@dataclass(frozen=True)
class StepResult:
    """What a step found, of the views of all ranks, before the Gaussians moved."""

    losses: tuple[float, ...]
    costs: tuple[float, ...] = ()  # of each view, in pixels drawn over; empty where a step has only one
    poses: tuple[Tensor, ...] = ()  # [6] of each view's camera, as of `pose_gradient`, where asked for
    psnr: float | None = None  # dB of the first picture, where the numbers are read late
    total: float = 0.0  # sum of the losses as the gate knows it
    num_instances: tuple[int, ...] = ()  # of each picture, where kernels count them


@dataclass(frozen=True, eq=False)
class StepReport:
    """The numbers of a step on their way to the host; nothing that is needed to make the step."""

    num_views: int
    num_counted: int  # pictures of which the instances are among the numbers
    # Losses, their total where there are several, instances, and costs and PSNR where wanted.
    numbers: ReadBack
    twists: ReadBack | None  # of the cameras, where they are asked for

    def read(self) -> StepResult:
        """Return the numbers as soon as they are there."""
        num, counted = self.num_views, self.num_counted
        numbers = iter(self.numbers.read())
        losses = tuple(islice(numbers, num))
        total = losses[0] if num == 1 else next(numbers)
        needed = tuple(islice(numbers, counted))
        costs = tuple(islice(numbers, num)) if num > 1 else ()
        poses: tuple[Tensor, ...] = ()
        if self.twists is not None:
            twists = torch.tensor(self.twists.read(), dtype=torch.float64, device="cpu")
            poses = twists.view(-1, 6).unbind()
        return StepResult(
            losses,
            costs,
            poses=poses,
            psnr=next(numbers, None),
            total=total,
            num_instances=tuple(map(int, needed)),
        )


@dataclass(eq=False)
class TrainStep:
    """A step whose gradients are found, or queued on a GPU; nothing has changed yet."""

    gaussians: Gaussians
    optimizer: SplatAdam
    plan: StepPlan
    # Of one view; of several views; None: applied, and their memory is free.
    gradients: tuple[RenderOutput, Gradients] | SummedGradients | None
    pictures: tuple[Tensor, ...]  # [H, W, 3] of this rank's views; none where the numbers are read late
    observations: tuple[Observation, ...]  # none where nobody asked
    others: tuple[Tensor | None, ...]  # gradients of the further tensors, summed over views and ranks
    report: StepReport | None  # where the numbers are read late
    gate: StepGate | None = None  # likewise
    result: StepResult | None = None  # where the numbers are known

    def apply(self) -> None:
        """Let the optimizer make the step, in place; the gate may keep everything from changing.

        The learning rates and the decay of the moments follow the number of views, see `SplatAdam.step`.
        """
        plan, gradients, self.gradients = self.plan, self.gradients, None
        assert gradients is not None, "a step is applied once"
        if isinstance(gradients, tuple):
            apply_gradients(
                *gradients,
                self.optimizer,
                plan.rates,
                visible_only=plan.visible_only,
                regularization=plan.regularization,
                gate=self.gate,
            )
            return
        sums, num = gradients, gradients.num_views
        # Means over this rank's Gaussians, which are a part of all, count as that part.
        share = num * len(self.gaussians) / max(sums.num_all, 1)
        regularization = _scaled(plan.regularization, share)
        if sums.runs is not None:
            self.optimizer.step_views(
                self.gaussians,
                sums.arrived(),
                plan.rates,
                settings=project_settings(self.gaussians, plan.options),
                visible_only=plan.visible_only,
                regularization=regularization,
            )
            return
        visible = sums.seen if plan.visible_only else None
        self.optimizer.step(
            self.gaussians, sums.tensors, plan.rates, visible, regularization, batch_size=num, gate=self.gate
        )


def begin_step(
    ranks: Ranks,
    gaussians: Gaussians,
    optimizer: SplatAdam,
    rounds: Sequence[Sequence[TrainView]],
    inputs: StepInputs,
    *,
    cameras: Sequence[Sequence[Sequence[Camera]]] = (),
    order: Sequence[int] = (),
    late: ShownOf | None = None,
) -> TrainStep:
    """Return the step down the sum of the losses of all views of all ranks; nothing has changed.

    `gaussians` and `optimizer` are this rank's; `rounds`, `cameras` and `order` are as of
    `sharded_gradients`. A process alone needs no `cameras`, and takes views in one order. Without `late` the
    host has read the numbers when this returns. With it, on one GPU alone, all is queued, `TrainStep.gate`
    decides on the device, and `TrainStep.report` is to be read later: `late` then gives what the first
    picture's PSNR is measured of, and pictures are let go.

    Raises LossNotFinite or OutOfMemory, on all ranks alike, where the numbers are read. A picture for which
    the capacity was too small is drawn again then.
    """
    views = [view for one in rounds for view in one]
    # Several views of one process on a CPU go the way of several ranks: both are then the same to the bit.
    alone = ranks.num_ranks == 1 and (len(views) == 1 or has_step_gates(gaussians.device))
    if not alone:
        optimizer.flush_lazy_rows(gaussians)
        of_all = cameras or [[[view.camera for view in one]] for one in rounds]
        found = sharded_gradients(ranks, gaussians, rounds, of_all, inputs, order=order)
        sums = found.sums
        return TrainStep(
            gaussians,
            optimizer,
            inputs.plan,
            gradients=sums,
            pictures=tuple(sums.pictures),
            observations=tuple(sums.observations),
            others=tuple(sums.others),
            report=None,
            result=StepResult(tuple(found.losses), tuple(found.costs), tuple(sums.twists)),
        )
    if late is not None:
        return _queued(gaussians, optimizer, views, inputs, late)
    return _read(gaussians, optimizer, views, inputs)


def _read(
    gaussians: Gaussians, optimizer: SplatAdam, views: Sequence[TrainView], inputs: StepInputs
) -> TrainStep:
    """Return the step of one process, its numbers read and found good."""
    capacity = inputs.plan.capacity
    while True:
        step = unless_out_of_memory(lambda: _with_result(_queued(gaussians, optimizer, views, inputs, None)))
        if step is None:
            if capacity is not None:
                capacity.forget()
            raise OutOfMemory([0])
        assert step.result is not None
        if capacity is None or all([capacity.held(num) for num in step.result.num_instances]):  # each is told
            break
        del step  # its memory is for the larger lists
    for number, loss in enumerate(step.result.losses):
        if not math.isfinite(loss):
            raise LossNotFinite(loss, number)
    return step


def _with_result(step: TrainStep) -> TrainStep:
    assert step.report is not None
    step.result = step.report.read()
    step.report = step.gate = None
    return step


@dataclass(eq=False)
class _Numbers:
    """What the host will know of the pictures of a step, still on their device."""

    losses: list[Tensor] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)  # of instances
    costs: list[Tensor] = field(default_factory=list)
    score: tuple[Tensor, ...] = ()


def _queued(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    views: Sequence[TrainView],
    inputs: StepInputs,
    late: ShownOf | None,
) -> TrainStep:
    """Queue the pictures of one process's `views` and the way back from them."""
    plan, numbers = inputs.plan, _Numbers()
    size = None if plan.capacity is None else plan.capacity.size
    if len(views) == 1:
        output, loss = _drawn(gaussians, optimizer, views[0], inputs, size, numbers, late)
        gate, read_back = _asked(numbers, size)
        gradients = backward(output, loss, inputs.others)  # while the numbers are on their way
        twists = [gradient_of_pose(output, gradients)] if plan.poses else []
        found, pictures = (output, gradients), [output.rgb.detach()]
        observations, others = _observed(output, gradients, plan), list(gradients.others)
    else:
        found = SummedGradients.nothing(gaussians, inputs.others)
        for view in views:  # of each only what is needed later stays in memory
            output, loss = _drawn(gaussians, optimizer, view, inputs, size, numbers, late)
            _add_view(found, output, loss, inputs, keep_picture=late is None)
            numbers.costs.append(pixels_drawn_over(output.radii, output.camera))
            del output, loss
        gate, read_back = _asked(numbers, size)
        twists, pictures, observations, others = (
            found.twists,
            found.pictures,
            found.observations,
            found.others,
        )
    return TrainStep(
        gaussians,
        optimizer,
        plan,
        gradients=found,
        pictures=tuple(pictures) if late is None else (),
        observations=tuple(observations),
        others=tuple(others),
        report=StepReport(len(views), len(numbers.counts), read_back, ReadBack(*twists) if twists else None),
        gate=gate,
    )


def _drawn(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    view: TrainView,
    inputs: StepInputs,
    size: int | None,
    numbers: _Numbers,
    late: ShownOf | None,
) -> tuple[RenderOutput, Tensor]:
    """Render a view and compare it with its photo; what the host asks for goes to `numbers`."""
    output = draw_as_planned(gaussians, optimizer, view, inputs.plan, capacity=size)
    loss = inputs.loss_of(view, output)
    if late is not None and inputs.plan.scored and not numbers.losses:
        shown = late(view, output.rgb.detach())
        numbers.score = (psnr_on_device(shown, view.target, view.mask),)
    numbers.losses.append(loss.detach())
    if output.num_instances is not None:
        numbers.counts.append(output.num_instances)
    return output, loss


def _add_view(
    sums: SummedGradients, output: RenderOutput, loss: Tensor, inputs: StepInputs, *, keep_picture: bool
) -> None:
    """Go back from a picture, and add what that gives."""
    gradients = backward(output, loss, inputs.others)
    if inputs.plan.poses:
        sums.twists.append(gradient_of_pose(output, gradients))
    if output.projected is None:
        sums.add(gradients.gaussians, output.radii)
    else:
        add_to(sums.begun(output.gaussians, output.settings), output, gradients)
        sums.add_seen(output.radii)
    sums.add_others(gradients.others)
    sums.observations += _observed(output, gradients, inputs.plan)
    sums.num_views += 1
    if keep_picture:
        sums.pictures.append(output.rgb.detach())


def _observed(output: RenderOutput, gradients: Gradients, plan: StepPlan) -> list[Observation]:
    """Return what a strategy needs to know of a picture: nothing where the plan says so."""
    if not plan.observed or gradients.means2d is None:
        return []
    camera = output.camera
    return [Observation(gradients.means2d, output.radii, camera.width, camera.height)]


def _asked(numbers: _Numbers, size: int | None) -> tuple[StepGate | None, ReadBack]:
    """Return the gate of a step on all its pictures, and their numbers on the way to the host."""
    losses, counts = numbers.losses, numbers.counts
    totals = losses if len(losses) == 1 else [torch.stack(losses).sum()]
    gate = None
    if size is not None:
        most = counts[0] if len(counts) == 1 else torch.cat(counts).amax(dim=0, keepdim=True)
        gate = StepGate(most, size, totals[0])
    of_several = totals if len(losses) > 1 else []
    return gate, ReadBack(*losses, *of_several, *counts, *numbers.costs, *numbers.score)


def _scaled(regularization: Regularization, factor: float) -> Regularization:
    if regularization == NO_REGULARIZATION:
        return regularization
    return Regularization(regularization.opacity * factor, regularization.scale * factor)
