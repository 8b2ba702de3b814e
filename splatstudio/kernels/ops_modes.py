"""The viewer's modes on native kernels (csrc/modes.h): forward only, as in `reference_modes.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.kernels.ops import _native, camera_numbers, num_threads
from splatstudio.kernels.stages import (
    MedianRaster,
    Projected,
    ProjectSettings,
    RasterSettings,
    Shapes,
    SolidRaster,
)


@torch.no_grad()
def splat_shapes(means: Tensor, quats: Tensor, scales: Tensor, radii: Tensor, *, camera: Camera) -> Shapes:
    """Return how Gaussians lie in a view: `scales` [N, 3] logarithms, `radii` [N, 2] as projected.

    Raises RuntimeError when the kernels have not been built.
    """
    view, options = camera_numbers(camera, ProjectSettings(sh_degree=0), raw=True)
    rows = [tensor.contiguous() for tensor in (means, quats, scales, radii)]
    return Shapes(*_native().splat_shapes(*rows, view, options, num_threads()))


@torch.no_grad()
def rasterize_median(projected: Projected, settings: RasterSettings) -> MedianRaster:
    """Return the median depth and the number of splats of every pixel, by the rules of `rasterize`.

    Raises RuntimeError when the kernels have not been built.
    """
    size = (settings.width, settings.height)
    lists = _lists(projected, settings)
    return MedianRaster(*_native().raster_median(*lists, *size, settings.max_alpha, num_threads()))


@torch.no_grad()
def rasterize_solid(projected: Projected, surfaces: Tensor, settings: RasterSettings) -> SolidRaster:
    """Draw each Gaussian as a solid ellipsoid, the nearest surface of each pixel in front.

    An ellipsoid ends where opacity * exp(-sigma) is 1/255: the opacity says how large it is, not how opaque.
    `surfaces` [N, 4] of `splat_shapes`; zeros draw flat discs. Raises RuntimeError when the kernels have not
    been built.
    """
    background = settings.background.to(projected.means2d).contiguous()
    extra = (surfaces.contiguous(), background, settings.width, settings.height, num_threads())
    return SolidRaster(*_native().raster_solid(*_lists(projected, settings), *extra))


@torch.no_grad()
def to_uint8(image: Tensor) -> Tensor:
    """Return `image` [...] of range 0..1 as bytes, clamped and rounded, halves to even; NaN gives 0.

    Raises RuntimeError when the kernels have not been built.
    """
    return _native().to_uint8(image.contiguous(), num_threads())


def _lists(p: Projected, settings: RasterSettings) -> list[Tensor]:
    rows = (p.means2d, p.conics, p.depths, p.opacities, p.colors, p.radii)
    rows = [tensor.contiguous() for tensor in rows]
    return _native().bin(*rows, settings.width, settings.height, num_threads())
