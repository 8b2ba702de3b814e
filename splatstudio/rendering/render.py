"""From Gaussians and a camera to a picture: activations, projection, compositing."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices import accelerator
from splatstudio.devices.transfer import to_device
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.sky import Sky
from splatstudio.kernels import ops, ops_training, reference, reference_modes, reference_training
from splatstudio.kernels.stages import Projected, ProjectSettings, RasterSettings
from splatstudio.settings.config import TrainConfig


@dataclass(frozen=True)
class RenderOptions:
    """What to draw; depths in scene units, `background` linear RGB, `sh_degree` None: all that is stored."""

    sh_degree: int | None = None
    antialiased: bool = False
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)
    near: float = 0.01
    far: float = 1e10
    absgrad: bool = False  # whether the probe collects absolute gradients
    sky: Sky | None = None  # behind everything, in place of `background`


def options_for_display(config: TrainConfig, sky: Sky | None = None) -> RenderOptions:
    """Return the options with which a model trained under `config` is drawn and evaluated."""
    return RenderOptions(
        sh_degree=config.sh_degree_limit,
        antialiased=config.antialiased,
        background=config.background,
        near=config.near,
        far=config.far,
        sky=sky,
    )


@dataclass(frozen=True, eq=False)
class Rendering:
    """A picture of H x W pixels of N Gaussians."""

    rgb: Tensor  # [H, W, 3] not clamped above
    alpha: Tensor  # [H, W] 0..1
    depth: Tensor  # [H, W] expected depth of what is there, scene units; 0 where nothing is
    radii: Tensor  # [N, 2] int32 px, 0 = not seen


def stages_for(tensor: Tensor) -> ModuleType:
    """Return the module whose stages work on tensors like this one: `ops` (native) or `reference`.

    An extension that is not built is an error at the call, not a training a hundred times slower.
    """
    kind = tensor.device.type
    native = kind == "cpu" or ops.has_kernels_for(kind)
    return ops if native and tensor.dtype == torch.float32 else reference


def training_stages_for(tensor: Tensor) -> ModuleType:
    """Return the module that has the rest of a training for tensors like this one, as `stages_for` does."""
    return ops_training if stages_for(tensor) is ops else reference_training


def area_means(image: Tensor, *, width: int, height: int) -> Tensor:
    """Return `image` [H, W, C] as [height, width, C], see `reference_training.area_means`."""
    kinds = (torch.float32, torch.uint8)
    native = image.dtype in kinds and ops.has_kernel("area_means", image.device.type)
    return (ops_training if native else reference_training).area_means(image, width=width, height=height)


def fastest_device() -> torch.device:
    """Return where a model is best trained: the current GPU where there are kernels for it, else the CPU."""
    kind = accelerator.kind()
    if kind is not None and ops.has_kernels_for(kind):
        return accelerator.current()
    return torch.device("cpu")


def render(
    gaussians: Gaussians,
    camera: Camera,
    options: RenderOptions = RenderOptions(),
    probe: Tensor | None = None,
) -> Rendering:
    """Draw the Gaussians as `camera` sees them; differentiable in the Gaussians' six tensors.

    `probe` [N, 2]: zeros that require a gradient; after the backward pass `probe.grad` is the gradient of the
    loss with respect to the projected means in pixels (with `options.absgrad` the sum of the pixels' absolute
    contributions). A degree above what is stored draws all that is stored.
    """
    return _render(stages_for(gaussians.means), gaussians, camera, options, probe)


def render_reference(gaussians: Gaussians, camera: Camera) -> Rendering:
    """Draw the Gaussians by the plain-torch reference: slow, on any device, to compare with."""
    return _render(reference, gaussians, camera, RenderOptions(), None)


@torch.no_grad()
def render_image(
    gaussians: Gaussians, camera: Camera, options: RenderOptions = RenderOptions()
) -> np.ndarray:
    """Draw the Gaussians as an image, [H, W, 3] uint8, clamped to 0..1 and rounded."""
    return to_uint8(render(gaussians, camera, options).rgb).cpu().numpy()


def to_uint8(image: Tensor) -> Tensor:
    """Return `image` [...] of range 0..1 as bytes on its device, clamped and rounded; NaN gives 0.

    Made before a picture leaves a GPU: a quarter of the bytes have to cross.
    """
    return (ops if stages_for(image) is ops else reference_modes).to_uint8(image)


def project(gaussians: Gaussians, camera: Camera, settings: ProjectSettings) -> Projected:
    """Return the Gaussians as `camera` sees them, not composited yet; differentiable like `render`."""
    return _project(stages_for(gaussians.means), gaussians, camera, settings)


def _project(
    stages: ModuleType, gaussians: Gaussians, camera: Camera, settings: ProjectSettings
) -> Projected:
    means, quats, scales, opacities, sh0, shN = gaussians.tensors().values()
    if stages is ops:  # the activations are part of the kernels
        return ops.project_raw(means, quats, scales, opacities, sh0, shN, camera=camera, settings=settings)
    rows = (means, quats, scales.exp(), opacities.sigmoid(), sh0, shN)
    return stages.project(*rows, camera=camera, settings=settings)


def _render(
    stages: ModuleType, gaussians: Gaussians, camera: Camera, options: RenderOptions, probe: Tensor | None
) -> Rendering:
    sh_degree = gaussians.sh_degree
    if options.sh_degree is not None:
        sh_degree = min(options.sh_degree, sh_degree)
    project_settings = ProjectSettings(sh_degree, options.antialiased, options.near, options.far)
    projected = _project(stages, gaussians, camera, project_settings)
    color = options.background if options.sky is None else (0.0, 0.0, 0.0)
    background = to_device(torch.tensor(color, dtype=gaussians.means.dtype), gaussians.device)
    settings = RasterSettings(camera.width, camera.height, background)
    if options.absgrad and probe is not None:
        raster = stages.rasterize_absgrad(projected, settings, probe)
    else:
        raster = stages.rasterize(projected, settings, probe)
    depth = raster.depth_sum / raster.alpha.clamp_min(1e-10)
    rgb = raster.rgb if options.sky is None else options.sky.over(raster.rgb, raster.alpha, camera)
    return Rendering(rgb=rgb, alpha=raster.alpha, depth=depth, radii=projected.radii)
