"""The gradients of one view: render it, compare it with its photo, and go back.

On native kernels the gradients of the six tensors are never in memory: autograd ends at the projected
Gaussians, and the rest of the way back is part of the optimizer's step. On the reference autograd goes all
the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.transfer import to_device
from splatstudio.distributed.exchange import Fp16Packing
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.intersection_capacity import IntersectionCapacity
from splatstudio.kernels.ops_training import (
    NO_REGULARIZATION,
    Regularization,
    StepGate,
    ViewRows,
    add_gradients,
    rasterize_for,
    zero_sums,
)
from splatstudio.kernels.stages import Projected, ProjectSettings, RasterSettings
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.dropout import Dropout
from splatstudio.rendering.render import RenderOptions, render, stages_for, training_stages_for
from splatstudio.rendering.sharded_view import project_settings


@dataclass(frozen=True, eq=False)
class TrainView:
    """A photo from which a step learns."""

    index: int  # of the scene's view
    name: str
    camera: Camera
    target: Tensor  # [H, W, 3] the photo over `background`
    mask: Tensor | None  # [H, W], pixels that count
    background: tuple[float, float, float]
    alpha: Tensor | None = None  # [H, W] of a photo with alpha, where what lies behind it is learned


@dataclass(frozen=True, eq=False)
class RenderOutput:
    """A picture of N Gaussians from which gradients can be found."""

    rgb: Tensor  # [H, W, 3] not clamped above
    alpha: Tensor  # [H, W]
    depth_sum: Tensor  # [H, W] sum of w z, see `Raster`
    radii: Tensor  # [N, 2] int32 px, 0 = not seen
    gaussians: Gaussians
    # Leaves that take the gradients of the projected Gaussians; only their colors and radii have values.
    # None: autograd goes on to the Gaussians.
    projected: Projected | None
    probe: Tensor | None  # see `render`
    camera: Camera
    settings: ProjectSettings
    num_instances: Tensor | None = None  # see `Raster`
    gain: float = 1.0  # the factor that multiplied the opacities after they were taken from the Gaussians


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of a loss."""

    means2d: Tensor | None  # [N, 2] px; with absgrad the sum of absolute contributions; None: not asked for
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
    """What is decided of a step before it: how it renders, its learning rates, and what it must find."""

    options: RenderOptions  # all but the background, which each view has
    rates: dict[str, float]  # by tensor name
    observed: bool  # whether a strategy needs the gradients of the projected means
    visible_only: bool = False  # see `apply_gradients`
    regularization: Regularization = NO_REGULARIZATION
    poses: bool = False  # whether the gradients of the camera poses are needed
    # Of the training's pictures on a GPU; None: each picture takes what it needs.
    capacity: IntersectionCapacity | None = None
    scored: bool = False  # whether the PSNR is measured
    dropout: Dropout | None = None  # who is left out of the step's pictures; None: nobody


@dataclass(frozen=True, eq=False)
class RunOfViews:
    """What the views of a step give of a run of a rank's Gaussians, for the optimizer."""

    rows: slice  # of the rank's Gaussians
    views: list[ViewRows] = field(default_factory=list)  # in the order in which they are added
    # Called before the gradients of `views` are looked at: they may still be on their way from other ranks.
    arrivals: list[Callable[[], None]] = field(default_factory=list)


@dataclass(eq=False)
class SummedGradients:
    """The gradients of several views of a step, and what the views showed.

    With `runs` the optimizer sums what each view gives, and `tensors` and `seen` say nothing; observations
    are whole when all runs have arrived.
    """

    tensors: dict[str, Tensor | None]  # of the six tensors by name, summed
    others: list[Tensor | None]  # of the further tensors that were asked for
    pictures: list[Tensor] = field(default_factory=list)  # [H, W, 3]
    observations: list[Observation] = field(default_factory=list)
    twists: list[Tensor] = field(default_factory=list)  # [6] of each camera, as of `pose_gradient`
    seen: Tensor | None = None  # [N] bool, in any of the pictures
    runs: list[RunOfViews] | None = None
    num_views: int = 0
    num_all: int = 0  # Gaussians of all ranks

    @classmethod
    def nothing(cls, gaussians: Gaussians, others: Sequence[Tensor]) -> SummedGradients:
        """Return the sums before the first view."""
        return cls(dict.fromkeys(gaussians.tensors()), [None] * len(others), num_all=len(gaussians))

    def arrived(self) -> Iterator[tuple[slice, Sequence[ViewRows]]]:
        """Yield run by run its Gaussians and what the views give of them, as soon as that has come."""
        for run in self.runs or ():
            for arrive in run.arrivals:
                arrive()
            yield run.rows, run.views

    def add(self, values: dict[str, Tensor | None], radii: Tensor) -> None:
        """Add the gradients `values` of a view, which shows what has `radii`.

        Nobody else uses `values`: the first ones become the sums.
        """
        for name, value in values.items():
            total = self.tensors[name]
            self.tensors[name] = value if total is None else total if value is None else total.add_(value)
        self.add_seen(radii)

    def add_seen(self, radii: Tensor) -> None:
        """Add what is visible in a picture."""
        seen = (radii > 0).all(dim=1)
        self.seen = seen if self.seen is None else self.seen | seen

    def begun(self, gaussians: Gaussians, settings: ProjectSettings) -> dict[str, Tensor]:
        """Return the sums that a view's gradients are added to in place, zeros before the first."""
        if self.tensors["means"] is None:
            self.tensors |= zero_sums(gaussians, settings)
        return {name: total for name, total in self.tensors.items() if total is not None}

    def add_others(self, values: Sequence[Tensor | None]) -> None:
        """Add the gradients of the further tensors."""
        self.others = [plus(one, other) for one, other in zip(self.others, values, strict=True)]


def plus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, of which None stands for zero."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


LossOf = Callable[[TrainView, RenderOutput], Tensor]


@dataclass(frozen=True, eq=False)
class StepInputs:
    """What a step works with besides the model and the views.

    `loss_of` gives the loss of a view, from its RenderOutput and from `others`, further leaf tensors.
    """

    loss_of: LossOf
    plan: StepPlan
    others: tuple[Tensor, ...] = ()
    packing: Fp16Packing | None = None  # what ranks send each other in 16 bits


class LossNotFinite(FloatingPointError):
    """The loss of a view is not finite; nothing was changed."""

    def __init__(self, loss: float, number: int = 0, *, rank: int = 0):
        super().__init__(f"the loss of view {number} is {loss}")
        self.loss = loss
        self.number = number  # of the view among those of the step, on all ranks
        self.rank = rank  # that found it


def draw_as_planned(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    view: TrainView,
    plan: StepPlan,
    *,
    capacity: int | None = None,
) -> RenderOutput:
    """Render a view as the step's plan asks; the arguments are those of `draw`."""
    options = plan.options
    if options.background != view.background:
        options = replace(options, background=view.background)
    return draw(
        gaussians,
        optimizer,
        view.camera,
        options,
        observed=plan.observed,
        capacity=capacity,
        dropout=plan.dropout,
    )


def draw(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    camera: Camera,
    options: RenderOptions,
    *,
    observed: bool,
    capacity: int | None = None,
    dropout: Dropout | None = None,
) -> RenderOutput:
    """Render the Gaussians that `optimizer` trains as `camera` sees them.

    `observed`: a strategy needs the gradients of the projected means. `capacity`: see `RasterSettings.room`.
    `dropout`: who is left out.
    """
    settings = project_settings(gaussians, options)
    if stages_for(gaussians.means) is not ops:
        return _draw_by_autograd(gaussians, camera, options, settings, observed, dropout)
    # The way back ends at the projected Gaussians: opacities need no slopes then, see `gain`.
    shown = gaussians if dropout is None else dropout.drawn(gaussians.detach())
    projected = optimizer.project(shown, camera=camera, settings=settings)
    leaves = _stand_ins(projected)
    background = _background(options.background, gaussians.means.dtype, gaussians.device)
    raster_settings = RasterSettings(camera.width, camera.height, background, room=capacity)
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


@lru_cache(maxsize=1)  # that of the last picture: nearly always the next one has the same
def _background(color: tuple[float, float, float], dtype: torch.dtype, device: torch.device) -> Tensor:
    return to_device(torch.tensor(color, dtype=dtype, device="cpu"), device)


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


def backward(output: RenderOutput, loss: Tensor, others: tuple[Tensor, ...] = ()) -> Gradients:
    """Return the gradients of `loss`, a scalar made of the pictures of `output` and of `others`."""
    probes = [] if output.probe is None else [output.probe]
    if output.projected is not None:
        inputs = differentiable(output.projected)
    else:
        inputs = list(output.gaussians.tensors().values())
    values = torch.autograd.grad(loss, [*inputs, *probes, *others], ops.beginning(loss), allow_unused=True)
    v_inputs, v_others = values[: len(inputs)], values[len(inputs) + len(probes) :]
    v_means2d = None
    if output.probe is not None:
        v_probe = values[len(inputs)]
        v_means2d = torch.zeros_like(output.probe) if v_probe is None else v_probe
    if output.projected is None:
        named: dict[str, Tensor | None] = dict(zip(output.gaussians.tensors(), v_inputs, strict=True))
        return Gradients(v_means2d, (), named, v_others)
    if output.gain != 1.0:
        v_means, v_conics, v_depths, v_opacities, v_colors = v_inputs
        v_inputs = (v_means, v_conics, v_depths, v_opacities * output.gain, v_colors)
    return Gradients(v_inputs[0] if v_means2d is None else v_means2d, v_inputs, {}, v_others)


def gradients_of_tensors(output: RenderOutput, gradients: Gradients) -> dict[str, Tensor | None]:
    """Return the gradients of the six tensors by name, before the Gaussians move."""
    if output.projected is None:
        return gradients.gaussians
    sums = zero_sums(output.gaussians, output.settings)
    add_to(sums, output, gradients)
    return {name: sums.get(name) for name in output.gaussians.tensors()}


def add_to(sums: dict[str, Tensor], output: RenderOutput, gradients: Gradients) -> None:
    """Add the gradients of the six tensors of what an `output` with `projected` shows, before they move."""
    seen = output.projected
    assert seen is not None
    add_gradients(
        sums,
        output.gaussians,
        seen.radii,
        seen.colors,
        gradients.projected,
        camera=output.camera,
        settings=output.settings,
    )


def gradient_of_pose(output: RenderOutput, gradients: Gradients) -> Tensor:
    """Return the gradient [6] float64 of a twist of the camera of `output`, before its Gaussians move.

    See `reference_training.pose_gradient`; a GPU is not waited for.
    """
    return training_stages_for(output.gaussians.means).pose_gradient(
        output.gaussians,
        gradients_of_tensors(output, gradients),
        camera=output.camera,
        sh_degree=output.settings.sh_degree,
        radii=output.radii,
    )


def apply_gradients(
    output: RenderOutput,
    gradients: Gradients,
    optimizer: SplatAdam,
    rates: dict[str, float],
    *,
    visible_only: bool = False,
    regularization: Regularization = NO_REGULARIZATION,
    gate: StepGate | None = None,
) -> None:
    """Let `optimizer` make a step on the Gaussians of `output`, in place, at `rates` by tensor name.

    `regularization` is part of the loss whose gradients they follow. `visible_only`: Gaussians out of sight
    stay as they are, moments included; else they make the step that Adam makes without a gradient. `gate` may
    keep an output with `projected` from changing anything.
    """
    if output.projected is None:
        visible = (output.radii > 0).all(dim=1) if visible_only else None
        optimizer.step(output.gaussians, gradients.gaussians, rates, visible, regularization)
        return
    optimizer.step_projected(
        output.gaussians,
        output.projected,
        gradients.projected,
        camera=output.camera,
        settings=output.settings,
        rates=rates,
        visible_only=visible_only,
        regularization=regularization,
        gate=gate,
    )


def pixels_drawn_over(radii: Tensor, camera: Camera) -> Tensor:
    """Return what a picture costs, a scalar: its pixels, and those in the rectangles round its Gaussians.

    It is not in seconds, which would assign the photos otherwise in every run.
    """
    widths, heights = (2.0 * radii.double()).unbind(dim=1)
    areas = widths.clamp_max(camera.width) * heights.clamp_max(camera.height)
    return camera.width * camera.height + areas.sum()


def differentiable(projected: Projected) -> list[Tensor]:
    """Return the tensors of `projected` that have gradients, in the order in which ranks exchange them."""
    p = projected
    return [p.means2d, p.conics, p.depths, p.opacities, p.colors]


def _stand_ins(projected: Projected) -> Projected:
    """Return leaves for the gradients of `projected`, without memory except for colors and radii.

    The optimizer's step reads only these two.
    """

    p = projected
    means2d, conics, depths, opacities = _leaves(len(p.depths), p.depths.dtype, p.depths.device)
    return Projected(means2d, conics, depths, opacities, p.colors.detach().requires_grad_(), p.radii)


@lru_cache(maxsize=2)  # a step has as many as the one before, but where Gaussians come or go
def _leaves(num: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    nothing = torch.empty((), dtype=dtype, device=device)
    shapes = ((num, 2), (num, 3), (num,), (num,))
    return tuple(nothing.expand(shape).requires_grad_() for shape in shapes)
