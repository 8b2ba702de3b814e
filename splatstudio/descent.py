"""One step of gradient descent of a model: draw, (compare,) find the gradients, improve.

On the CPU the gradients of the six tensors are never in memory: autograd ends at what was projected,
and the rest of the way back is part of the optimiser's step. Elsewhere autograd goes all the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio import ops
from splatstudio.camera import Camera
from splatstudio.gaussians import Gaussians
from splatstudio.optim import SplatAdam
from splatstudio.rendering import RenderOptions, render, stages_for
from splatstudio.stages import Projected, ProjectSettings, RasterSettings


@dataclass(frozen=True, eq=False)
class Drawing:
    """A picture of N Gaussians from which gradients can be found."""

    rgb: Tensor  # [H, W, 3] not clamped above
    radii: Tensor  # [N, 2] int32 px, 0 = not seen
    gaussians: Gaussians
    projected: Projected | None  # None: autograd goes on to the Gaussians
    probe: Tensor | None  # see `render`
    camera: Camera
    settings: ProjectSettings


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of a loss."""

    means2d: Tensor | None  # [N, 2] px; with absgrad the sum of absolute contributions; None: nobody asked
    projected: tuple[Tensor, ...]  # of a Drawing's `projected`; empty without it
    gaussians: dict[str, Tensor | None]  # of the six tensors by name; empty with `projected`


def draw(
    gaussians: Gaussians, optimizer: SplatAdam, camera: Camera, options: RenderOptions, *, observed: bool
) -> Drawing:
    """Draw the Gaussians that `optimizer` trains as `camera` sees them.

    `observed`: a strategy wants to know the gradients of the projected means.
    """
    sh_degree = gaussians.sh_degree
    if options.sh_degree is not None:
        sh_degree = min(options.sh_degree, sh_degree)
    settings = ProjectSettings(sh_degree, options.antialiased, options.near, options.far)
    if not _is_fused(gaussians.means):
        probe = torch.zeros_like(gaussians.means[:, :2], requires_grad=True) if observed else None
        rendering = render(gaussians, camera, options, probe)
        return Drawing(rendering.rgb, rendering.radii, gaussians, None, probe, camera, settings)
    projected = optimizer.project(gaussians, camera=camera, settings=settings)
    for tensor in _differentiable(projected):
        tensor.requires_grad_()
    background = gaussians.means.new_tensor(options.background)
    raster_settings = RasterSettings(camera.width, camera.height, background)
    probe = None
    if observed and options.absgrad:
        probe = torch.zeros_like(projected.means2d, requires_grad=True)
        raster = ops.rasterize_absgrad(projected, raster_settings, probe)
    else:
        raster = ops.rasterize(projected, raster_settings)
    return Drawing(raster.rgb, projected.radii, gaussians, projected, probe, camera, settings)


def backward(drawing: Drawing, loss: Tensor) -> Gradients:
    """Return the gradients of `loss`, a scalar made of `drawing.rgb`."""
    probes = [] if drawing.probe is None else [drawing.probe]
    if drawing.projected is not None:
        inputs = _differentiable(drawing.projected)
        values = torch.autograd.grad(loss, [*inputs, *probes])
        return Gradients(values[-1] if probes else values[0], values[: len(inputs)], {})
    tensors = drawing.gaussians.tensors()
    values = torch.autograd.grad(loss, [*tensors.values(), *probes], allow_unused=True)
    v_means2d = None
    if drawing.probe is not None:
        v_means2d = torch.zeros_like(drawing.probe) if values[-1] is None else values[-1]
    return Gradients(v_means2d, (), dict(zip(tensors, values, strict=False)))


def improve(
    drawing: Drawing,
    gradients: Gradients,
    optimizer: SplatAdam,
    rates: dict[str, float],
    *,
    visible_only: bool = False,
) -> None:
    """Let `optimizer` make a step on the Gaussians of `drawing`, in place, at `rates` by tensor name.

    `visible_only`: Gaussians out of sight stay as they are, moments included; else they make the step that
    Adam makes without a gradient.
    """
    if drawing.projected is None:
        visible = (drawing.radii > 0).all(dim=1) if visible_only else None
        optimizer.step(drawing.gaussians, gradients.gaussians, rates, visible)
        return
    optimizer.step_projected(
        drawing.gaussians,
        drawing.projected,
        gradients.projected,
        camera=drawing.camera,
        settings=drawing.settings,
        rates=rates,
        visible_only=visible_only,
    )


def _is_fused(tensor: Tensor) -> bool:
    return stages_for(tensor) is ops and tensor.device.type == "cpu"


def _differentiable(projected: Projected) -> list[Tensor]:
    p = projected
    return [p.means2d, p.conics, p.depths, p.opacities, p.colors]
