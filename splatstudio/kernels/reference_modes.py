"""The viewer's modes in plain torch: the definition that the native kernels are tested against."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.kernels.reference import PROJECTIONS, in_order_of_depth, rotation_matrices
from splatstudio.kernels.stages import (
    ALPHA_THRESHOLD,
    EPS2D,
    TRANSMITTANCE_STOP,
    MedianRaster,
    Projected,
    RasterSettings,
    Shapes,
    SolidRaster,
)

AMBIENT = 0.35  # how bright a solid surface is that is seen edge-on
ROWS = 8  # image rows that are worked on together; bounds the memory, has no influence on the image


@torch.no_grad()
def splat_shapes(means: Tensor, quats: Tensor, scales: Tensor, radii: Tensor, *, camera: Camera) -> Shapes:
    """Return how Gaussians lie in a view: `scales` [N, 3] logarithms, `radii` [N, 2] as projected."""
    viewmat = torch.as_tensor(camera.viewmat, dtype=means.dtype, device=means.device)
    points = means @ viewmat[:3, :3].T + viewmat[:3, 3]
    axes = viewmat[:3, :3] @ rotation_matrices(quats)  # [N, 3, 3] a column an axis
    x, y, z = scales.unbind(-1)
    shortest = torch.where((x <= y) & (x <= z), 0, torch.where(y <= z, 1, 2))
    normals = axes.gather(2, shortest[:, None, None].expand(-1, 3, 1))[..., 0]
    directions = points if camera.model != "ortho" else points.new_tensor([0.0, 0.0, 1.0]).expand_as(points)
    away = (normals * directions).sum(dim=-1, keepdim=True) > 0
    normals = torch.where(away, -normals, normals)

    jacobians = PROJECTIONS[camera.model](points, camera)[1]
    scaled = axes * scales.exp()[:, None, :]
    sides, depths = jacobians @ scaled, scaled[:, 2]  # [N, 2, 3], [N, 3]
    covariances = sides @ sides.transpose(1, 2) + EPS2D * torch.eye(2, dtype=means.dtype, device=means.device)
    cross = (sides @ depths[:, :, None])[..., 0]
    slopes = (torch.linalg.pinv(covariances.nan_to_num(0, 0, 0)) @ cross[..., None])[..., 0]
    thickness = ((depths * depths).sum(dim=-1) - (slopes * cross).sum(dim=-1)).clamp_min(0.0).sqrt()
    pixels = torch.linalg.det(jacobians[:, :, :2]).abs().sqrt()
    surfaces = torch.stack([slopes[:, 0], slopes[:, 1], thickness, pixels], dim=-1)
    seen = (radii > 0).all(dim=-1, keepdim=True) & torch.cat([normals, surfaces], 1).isfinite().all(1, True)
    return Shapes(torch.where(seen, normals, 0.0), torch.where(seen, surfaces, 0.0))


@torch.no_grad()
def rasterize_median(projected: Projected, settings: RasterSettings) -> MedianRaster:
    """Return the median depth and the number of splats of every pixel, by the rules of `rasterize`."""
    order = in_order_of_depth(projected)
    depths, opacities = projected.depths[order], projected.opacities[order]

    def strip(sigma: Tensor, dx: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        alpha = (opacities * torch.exp(-sigma)).clamp_max(settings.max_alpha)
        alpha = torch.where((sigma >= 0) & (alpha >= ALPHA_THRESHOLD), alpha, 0.0)
        alpha = torch.where((1.0 - alpha).cumprod(dim=-1) > TRANSMITTANCE_STOP, alpha, 0.0)
        behind = (1.0 - alpha).cumprod(dim=-1) < 0.5
        first = torch.cat([behind.int(), torch.ones_like(behind[..., :1], dtype=torch.int)], -1).argmax(-1)
        depth = torch.cat([depths, depths.new_zeros(1)])[first]
        return depth, (alpha > 0).sum(dim=-1).to(torch.int32)

    return MedianRaster(*_in_strips(projected, order, settings, strip))


@torch.no_grad()
def rasterize_solid(projected: Projected, surfaces: Tensor, settings: RasterSettings) -> SolidRaster:
    """Draw each Gaussian as a solid ellipsoid, the nearest surface of each pixel in front.

    An ellipsoid ends where opacity * exp(-sigma) is 1/255: the opacity says how large it is, not how opaque.
    `surfaces` [N, 4] of `splat_shapes`; zeros draw flat discs.
    """
    order = in_order_of_depth(projected)
    depths, colors = projected.depths[order], projected.colors[order]
    ux, uy, thickness, pixels = surfaces[order].unbind(-1)
    a, b, c = projected.conics[order].unbind(-1)
    limit = (projected.opacities[order] / ALPHA_THRESHOLD).log()
    background = settings.background.to(projected.means2d)

    def strip(sigma: Tensor, dx: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        root = (2.0 * (limit - sigma)).clamp_min(1e-6).sqrt()
        depth = depths - ux * dx - uy * dy - thickness * root
        slope_x = pixels * (ux - thickness / root * (a * dx + b * dy))
        slope_y = pixels * (uy - thickness / root * (b * dx + c * dy))
        light = AMBIENT + (1.0 - AMBIENT) / (1.0 + slope_x * slope_x + slope_y * slope_y).sqrt()
        depth = torch.where(sigma <= limit, depth, torch.inf)
        nobody = torch.full_like(depth[..., :1], torch.inf)
        nearest, index = torch.cat([depth, nobody], dim=-1).min(dim=-1)
        lit = torch.cat([light, torch.ones_like(nobody)], dim=-1).gather(-1, index[..., None])
        rgb = torch.cat([colors, background[None]])[index] * lit
        return torch.where(nearest.isinf()[..., None], background, rgb), torch.where(
            nearest.isinf(), 0.0, nearest
        )

    return SolidRaster(*_in_strips(projected, order, settings, strip))


@torch.no_grad()
def to_uint8(image: Tensor) -> Tensor:
    """Return `image` [...] of range 0..1 as bytes, clamped and rounded, halves to even; NaN gives 0."""
    return (image.nan_to_num(0.0).clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)


def _in_strips(
    projected: Projected,
    order: Tensor,
    settings: RasterSettings,
    strip: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Return what `strip` makes of sigma, dx and dy, each [rows, W, V], put together over the image."""
    means2d, (a, b, c) = projected.means2d[order], projected.conics[order].unbind(-1)
    x = torch.arange(settings.width, dtype=means2d.dtype, device=means2d.device) + 0.5
    y = torch.arange(settings.height, dtype=means2d.dtype, device=means2d.device) + 0.5
    parts = []
    for rows in y.split(ROWS):
        dx = (means2d[:, 0] - x[:, None])[None].expand(len(rows), -1, -1)
        dy = (means2d[:, 1] - rows[:, None])[:, None].expand(-1, len(x), -1)
        parts.append(strip(0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy, dx, dy))
    first, second = zip(*parts, strict=True)
    return torch.cat(first), torch.cat(second)
