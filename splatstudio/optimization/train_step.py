"""One step of gradient descent of a model: draw, compare, find the gradients, improve.

On native kernels the gradients of the six tensors are never in memory: autograd ends at what was projected,
and the rest of the way back is part of the optimiser's step. On the reference autograd goes all the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.transfer import to_device
from splatstudio.distributed.failures import OutOfMemory, unless_out_of_memory
from splatstudio.distributed.fp16_packing import Fp16Packing
from splatstudio.gaussians.dropout import Dropout
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.intersection_capacity import IntersectionCapacity
from splatstudio.kernels.ops_training import (
    NO_REGULARIZATION,
    Regularization,
    StepGate,
    gradients_of_projected,
    rasterize_for,
)
from splatstudio.kernels.stages import Projected, ProjectSettings, RasterSettings
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions, render, stages_for, training_stages_for


@dataclass(frozen=True, eq=False)
class TrainView:
    """A photograph from which a step learns."""

    index: int  # of the scene's view
    name: str
    camera: Camera
    target: Tensor  # [H, W, 3] the photograph over `background`
    mask: Tensor | None  # [H, W], pixels that count
    background: tuple[float, float, float]
    alpha: Tensor | None = None  # [H, W] of a photograph that has one, where a learnt sky comes behind


@dataclass(frozen=True, eq=False)
class RenderOutput:
    """A picture of N Gaussians from which gradients can be found."""

    rgb: Tensor  # [H, W, 3] not clamped above
    alpha: Tensor  # [H, W]
    depth_sum: Tensor  # [H, W] sum of w z, see `Raster`
    radii: Tensor  # [N, 2] int32 px, 0 = not seen
    gaussians: Gaussians
    # Leaves with the gradients of what was projected, of which but colours and radii have its values. None:
    # autograd goes on to the Gaussians.
    projected: Projected | None
    probe: Tensor | None  # see `render`
    camera: Camera
    settings: ProjectSettings
    num_instances: Tensor | None = None  # see `Raster`
    gain: float = 1.0  # by what opacities were multiplied after they were taken from the Gaussians


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of a loss."""

    means2d: Tensor | None  # [N, 2] px; with absgrad the sum of absolute contributions; None: nobody asked
    projected: tuple[Tensor, ...]  # of a RenderOutput's `projected`; empty without it
    gaussians: dict[str, Tensor | None]  # of the six tensors by name; empty with `projected`
    others: tuple[Tensor | None, ...] = ()  # of the further tensors that were asked for


@dataclass(frozen=True, eq=False)
class Observation:
    """What one picture of a step showed of each Gaussian."""

    gradients2d: Tensor  # [N, 2] d loss / d means2d, px; absolute sums where the strategy asks for them
    radii: Tensor  # [N, 2] int32 px, 0 = not visible
    width: int
    height: int


@dataclass(frozen=True)
class StepPlan:
    """How a step goes down: what is drawn, at what rates (by tensor name), and who wants to know more."""

    options: RenderOptions  # but for the background, which is each shot's own
    rates: dict[str, float]
    observed: bool  # whether a strategy wants to know the gradients of the projected means
    visible_only: bool = False  # see `improve`
    regularization: Regularization = NO_REGULARIZATION
    poses: bool = False  # whether somebody wants to know the gradients of the cameras' places
    room: IntersectionCapacity | None = (
        None  # of the training's pictures on a GPU; None: each has what it needs
    )
    scored: bool = False  # whether the PSNR is to come with the loss, where the host reads both late
    dropout: Dropout | None = None  # who is left out of the step's pictures; None: nobody


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a step did: the loss and the picture of each shot, before the Gaussians moved."""

    losses: tuple[float, ...]
    pictures: tuple[Tensor, ...]  # [H, W, 3]; empty of a step that was begun ahead
    observations: tuple[Observation, ...]  # empty where nobody asked
    others: tuple[Tensor | None, ...]  # gradients of the further tensors, summed over the shots
    costs: tuple[float, ...] = ()  # of each shot, in pixels drawn over; empty where a step has but one
    poses: tuple[Tensor, ...] = ()  # [6] of each shot's camera, as of `pose_gradient`, where asked for
    psnr: float | None = None  # dB of the picture, where it was asked for and came with the loss
    followed: bool = False  # whether the strategy has followed already, for which no change was due


LossOf = Callable[[TrainView, RenderOutput], Tensor]


@dataclass(frozen=True, eq=False)
class StepInputs:
    """What a step goes down: `loss_of` each shot, with `others` further leaf tensors that it uses."""

    loss_of: LossOf
    plan: StepPlan
    others: tuple[Tensor, ...] = ()
    halves: Fp16Packing | None = None  # what ranks send each other in 16 bits


class LossNotFinite(FloatingPointError):
    """The loss of a shot is no number; nothing was changed."""

    def __init__(self, loss: float, number: int = 0, *, rank: int = 0):
        super().__init__(f"the loss of shot {number} is {loss}")
        self.loss = loss
        self.number = number  # of the shot among those of the step, on all ranks
        self.rank = rank  # that found it


def descend(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    shot: TrainView,
    work: StepInputs,
    *,
    before_change: Callable[[], None] = lambda: None,
) -> StepResult:
    """Make one step down the loss of one shot, in place, where the host need not ask a GPU for the loss.

    The gradients of `work.others` are returned, they are not moved. `before_change` is called just before
    the model changes. Raises LossNotFinite or OutOfMemory before that.
    """
    plan = work.plan

    def find() -> tuple[RenderOutput, Gradients, float, tuple[Tensor, ...]]:
        drawing = draw_as_planned(gaussians, optimizer, shot, plan)
        loss = work.loss_of(shot, drawing)
        gradients = backward(drawing, loss, work.others)
        twists = (gradient_of_pose(drawing, gradients),) if plan.poses else ()
        return drawing, gradients, float(loss.detach()), twists

    found = unless_out_of_memory(find)
    if found is None:
        raise OutOfMemory([0])
    drawing, gradients, value, twists = found
    if not math.isfinite(value):
        raise LossNotFinite(value)
    before_change()
    improve(
        drawing,
        gradients,
        optimizer,
        plan.rates,
        visible_only=plan.visible_only,
        regularization=plan.regularization,
    )
    observations = observations_of(shot, drawing, gradients, plan)
    return StepResult((value,), (drawing.rgb.detach(),), observations, gradients.others, poses=twists)


def observations_of(
    shot: TrainView, drawing: RenderOutput, gradients: Gradients, plan: StepPlan
) -> tuple[Observation, ...]:
    """Return what a strategy wants to know of a picture: nothing where the plan says so."""
    if not plan.observed or gradients.means2d is None:
        return ()
    return (Observation(gradients.means2d, drawing.radii, shot.camera.width, shot.camera.height),)


def options_of(plan: StepPlan, shot: TrainView) -> RenderOptions:
    """Return how a shot is drawn: as the plan says, over the background that it has."""
    return replace(plan.options, background=shot.background)


def draw_as_planned(
    gaussians: Gaussians, optimizer: SplatAdam, shot: TrainView, plan: StepPlan, *, room: int | None = None
) -> RenderOutput:
    """Draw a shot as a step's plan says; the arguments are as of `draw`."""
    return draw(
        gaussians,
        optimizer,
        shot.camera,
        options_of(plan, shot),
        observed=plan.observed,
        room=room,
        dropout=plan.dropout,
    )


def draw(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    camera: Camera,
    options: RenderOptions,
    *,
    observed: bool,
    room: int | None = None,
    dropout: Dropout | None = None,
) -> RenderOutput:
    """Draw the Gaussians that `optimizer` trains as `camera` sees them.

    `observed`: a strategy wants to know the gradients of the projected means. `room`: see `RasterSettings`.
    `dropout`: who is left out.
    """
    sh_degree = gaussians.sh_degree
    if options.sh_degree is not None:
        sh_degree = min(options.sh_degree, sh_degree)
    settings = ProjectSettings(sh_degree, options.antialiased, options.near, options.far)
    if stages_for(gaussians.means) is not ops:
        return _draw_by_autograd(gaussians, camera, options, settings, observed, dropout)
    # The way back ends at what was projected: opacities then need no slopes, see `gain`.
    shown = gaussians if dropout is None else dropout.drawn(gaussians.detach())
    projected = optimizer.project(shown, camera=camera, settings=settings)
    leaves = _stand_ins(projected)
    color = torch.tensor(options.background, dtype=gaussians.means.dtype, device="cpu")
    background = to_device(color, gaussians.device)
    raster_settings = RasterSettings(camera.width, camera.height, background, room=room)
    absgrad = observed and options.absgrad
    probe = torch.zeros_like(projected.means2d, requires_grad=True) if absgrad else None
    raster = rasterize_for(leaves, projected, raster_settings, probe, absgrad=absgrad)
    return RenderOutput(
        raster.rgb,
        raster.alpha,
        raster.depth_sum,
        radii=leaves.radii,
        gaussians=gaussians,
        projected=leaves,
        probe=probe,
        camera=camera,
        settings=settings,
        num_instances=raster.num_instances,
        gain=1.0 if dropout is None else dropout.gain,
    )


def _draw_by_autograd(
    gaussians: Gaussians,
    camera: Camera,
    options: RenderOptions,
    settings: ProjectSettings,
    observed: bool,
    dropout: Dropout | None,
) -> RenderOutput:
    shown = gaussians if dropout is None else dropout.drawn(gaussians)
    probe = torch.zeros_like(gaussians.means[:, :2], requires_grad=True) if observed else None
    rendering = render(shown, camera, options, probe)
    return RenderOutput(
        rendering.rgb,
        rendering.alpha,
        depth_sum=rendering.depth * rendering.alpha.clamp_min(1e-10),
        radii=rendering.radii,
        gaussians=gaussians,
        projected=None,
        probe=probe,
        camera=camera,
        settings=settings,
    )


def backward(drawing: RenderOutput, loss: Tensor, others: tuple[Tensor, ...] = ()) -> Gradients:
    """Return the gradients of `loss`, a scalar made of `drawing`'s pictures and of `others`."""
    probes = [] if drawing.probe is None else [drawing.probe]
    if drawing.projected is not None:
        inputs = _differentiable(drawing.projected)
    else:
        inputs = list(drawing.gaussians.tensors().values())
    values = torch.autograd.grad(loss, [*inputs, *probes, *others], allow_unused=True)
    v_inputs, v_others = values[: len(inputs)], values[len(inputs) + len(probes) :]
    v_means2d = None
    if drawing.probe is not None:
        v_probe = values[len(inputs)]
        v_means2d = torch.zeros_like(drawing.probe) if v_probe is None else v_probe
    if drawing.projected is None:
        return Gradients(
            v_means2d, (), dict(zip(drawing.gaussians.tensors(), v_inputs, strict=True)), v_others
        )
    if drawing.gain != 1.0:
        v_means, v_conics, v_depths, v_opacities, v_colors = v_inputs
        v_inputs = (v_means, v_conics, v_depths, v_opacities * drawing.gain, v_colors)
    return Gradients(v_inputs[0] if v_means2d is None else v_means2d, v_inputs, {}, v_others)


def gradient_of_pose(drawing: RenderOutput, gradients: Gradients) -> Tensor:
    """Return the gradient [6] float64 of a twist of the drawing's camera, before its Gaussians move.

    See `reference_training.pose_gradient`; a GPU is not waited for.
    """
    values = gradients.gaussians
    if drawing.projected is not None:
        values = gradients_of_projected(
            drawing.gaussians,
            drawing.projected,
            gradients.projected,
            camera=drawing.camera,
            settings=drawing.settings,
        )
    return training_stages_for(drawing.gaussians.means).pose_gradient(
        drawing.gaussians,
        values,
        camera=drawing.camera,
        sh_degree=drawing.settings.sh_degree,
        radii=drawing.radii,
    )


def improve(
    drawing: RenderOutput,
    gradients: Gradients,
    optimizer: SplatAdam,
    rates: dict[str, float],
    *,
    visible_only: bool = False,
    regularization: Regularization = NO_REGULARIZATION,
    gate: StepGate | None = None,
) -> None:
    """Let `optimizer` make a step on the Gaussians of `drawing`, in place, at `rates` by tensor name.

    `regularization` is part of the loss whose gradients they follow. `visible_only`: Gaussians out of sight
    stay as they are, moments included; else they make the step that Adam makes without a picture. `gate`:
    what keeps a drawing with `projected` from changing anything, if need be.
    """
    if drawing.projected is None:
        visible = (drawing.radii > 0).all(dim=1) if visible_only else None
        optimizer.step(drawing.gaussians, gradients.gaussians, rates, visible, regularization)
        return
    optimizer.step_projected(
        drawing.gaussians,
        drawing.projected,
        gradients.projected,
        camera=drawing.camera,
        settings=drawing.settings,
        rates=rates,
        visible_only=visible_only,
        regularization=regularization,
        gate=gate,
    )


def _differentiable(projected: Projected) -> list[Tensor]:
    p = projected
    return [p.means2d, p.conics, p.depths, p.opacities, p.colors]


def _stand_ins(projected: Projected) -> Projected:
    """Return leaves for the gradients of what was projected, without memory but for colours and radii.

    The optimiser's step looks at these alone.
    """

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.new_empty(()).expand(tensor.shape).requires_grad_()

    p = projected
    colors = p.colors.detach().requires_grad_()
    return Projected(leaf(p.means2d), leaf(p.conics), leaf(p.depths), leaf(p.opacities), colors, p.radii)
