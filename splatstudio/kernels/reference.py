"""The renderer's stages in plain torch: any device, float32 or float64, gradients by autograd.

This is the definition that the native kernels (`ops.py`) are tested against: written to be read, slow.
Formulae: Kerbl et al. 2023 (splatting), Yu et al. 2024 (opacity compensation), Wang et al. 2004 (SSIM).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.spherical_harmonics import shade
from splatstudio.kernels.stages import (
    ALPHA_THRESHOLD,
    EPS2D,
    MIN_COMPENSATION,
    TRANSMITTANCE_STOP,
    Projected,
    ProjectSettings,
    Raster,
    RasterSettings,
)

LONGEST_TIE = 32  # Gaussians of one depth that are put in an order of their own

MAX_EXTENT = 3.33  # standard deviations; exp(-3.33^2 / 2) is just below 1/255
LARGEST_RADIUS = 1e9  # px, fits an int32
TILE_SIZE = 32  # px; bounds the memory of a pixels x Gaussians table, has no influence on the image
SSIM_WINDOW = 11  # px
SSIM_SIGMA = 1.5  # px
SSIM_C1, SSIM_C2 = 0.01**2, 0.03**2


@torch.no_grad()
def in_order_of_depth(projected: Projected) -> Tensor:
    """Return the visible rows, [M] int64, the nearest first; those of one depth by their y, then x in px.

    So that a picture does not follow from how the rows lie. Only where more than LONGEST_TIE rows are of one
    depth, as those of a wall that is seen squarely, they stay as they lie.
    """
    visible = (projected.radii > 0).all(dim=-1).nonzero()[:, 0]
    order = visible[torch.argsort(projected.depths[visible], stable=True)]
    _, tie, sizes = torch.unique_consecutive(projected.depths[order], return_inverse=True, return_counts=True)
    places = projected.means2d[order].masked_fill((sizes[tie] > LONGEST_TIE)[:, None], 0.0)
    by = torch.arange(len(order), device=order.device)
    for key in (places[:, 0], places[:, 1], tie):  # the last one counts most
        by = by[torch.argsort(key[by], stable=True)]
    return order[by]


def pinhole(points: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Return the pixels [N, 2] of camera-space `points` [N, 3] and the Jacobians [N, 2, 3] there."""
    x, y, z = points.unbind(-1)
    fx, fy, cx, cy = _intrinsics(camera)
    # Far outside the image the linearisation explodes: it is taken at most 15 % outside.
    margin_x, margin_y = 0.15 * camera.width / fx, 0.15 * camera.height / fy
    u = (x / z).clamp(-(cx / fx + margin_x), (camera.width - cx) / fx + margin_x)
    v = (y / z).clamp(-(cy / fy + margin_y), (camera.height - cy) / fy + margin_y)
    zero = torch.zeros_like(z)
    jacobians = _matrices([fx / z, zero, -fx * u / z], [zero, fy / z, -fy * v / z])
    return torch.stack([fx * x / z + cx, fy * y / z + cy], dim=-1), jacobians


def ortho(points: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Project as `pinhole` does, in parallel: distances do not count, and `camera.K` is px for each unit."""
    x, y, z = points.unbind(-1)
    fx, fy, cx, cy = _intrinsics(camera)
    zero, one = torch.zeros_like(z), torch.ones_like(z)
    jacobians = _matrices([fx * one, zero, zero], [zero, fy * one, zero])
    return torch.stack([fx * x + cx, fy * y + cy], dim=-1), jacobians


def fisheye(points: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Project as `pinhole` does, equidistantly: the distance from the center is the angle from the axis."""
    x, y, z = points.unbind(-1)
    fx, fy, cx, cy = _intrinsics(camera)
    eps = 1e-7
    # sqrt has no gradient at 0, that is for a point on the axis.
    radius = (x * x + y * y).clamp_min(1e-30).sqrt() + eps
    scale = torch.atan2(radius, z + eps) / radius
    x2, y2 = x * x + eps, y * y
    s = x2 + y2
    q = 1 / (s + z * z)
    a = z * q / s
    b = torch.atan2(radius, z) / (radius * s)
    jacobians = _matrices(
        [fx * (x2 * a + y2 * b), fx * x * y * (a - b), -fx * x * q],
        [fy * x * y * (a - b), fy * (y2 * a + x2 * b), -fy * y * q],
    )
    return torch.stack([fx * x * scale + cx, fy * y * scale + cy], dim=-1), jacobians


def _intrinsics(camera: Camera) -> tuple[float, float, float, float]:
    K = camera.K
    return float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])


def _matrices(first_row: list[Tensor], second_row: list[Tensor]) -> Tensor:
    return torch.stack([torch.stack(first_row, dim=-1), torch.stack(second_row, dim=-1)], dim=-2)


PROJECTIONS: Mapping[str, Callable[[Tensor, Camera], tuple[Tensor, Tensor]]] = {
    "pinhole": pinhole,
    "ortho": ortho,
    "fisheye": fisheye,
}


def project(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh0: Tensor,
    shN: Tensor,
    *,
    camera: Camera,
    settings: ProjectSettings,
) -> Projected:
    """Project N Gaussians onto one camera's image plane and shade them.

    `means` [N, 3] world, `quats` [N, 4] wxyz of any length but 0, `scales` [N, 3] standard deviations,
    `opacities` [N] in 0..1, `sh0` [N, 1, 3], `shN` [N, K-1, 3] with K >= (settings.sh_degree + 1)^2.
    A Gaussian with a value that is not finite is culled and gets no gradient.
    """
    assert (settings.sh_degree + 1) ** 2 <= 1 + shN.shape[1], "the active SH degree is not stored"
    # Which Gaussians are seen is found first and without a graph, so that a row that is culled (behind the
    # camera, not a number) cannot put its infinities into the gradients.
    with torch.no_grad():
        _, _, _, _, all_radii = _project_rows(means, quats, scales, opacities, camera, settings)
    sh = torch.cat([sh0, shN[:, : (settings.sh_degree + 1) ** 2 - 1]], dim=1)
    visible = ((all_radii > 0).all(dim=-1) & sh.isfinite().flatten(1).all(dim=-1)).nonzero()[:, 0]
    means2d, conics, depths, effective, radii = _project_rows(
        means[visible], quats[visible], scales[visible], opacities[visible], camera, settings
    )
    position = torch.as_tensor(camera.position, dtype=means.dtype, device=means.device)
    colors = shade(means[visible] - position, sh[visible])

    def scattered(rows: Tensor) -> Tensor:
        return rows.new_zeros((means.shape[0], *rows.shape[1:])).index_copy(0, visible, rows)

    return Projected(*map(scattered, (means2d, conics, depths, effective, colors, radii)))


def _project_rows(
    means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, camera: Camera, settings: ProjectSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return means2d, conics, depths, effective opacities and radii (0 = culled) of every row."""
    viewmat = torch.as_tensor(camera.viewmat, dtype=means.dtype, device=means.device)
    rotation = viewmat[:3, :3]
    points = means @ rotation.T + viewmat[:3, 3]
    means2d, jacobians = PROJECTIONS[camera.model](points, camera)
    axes = jacobians @ rotation @ (rotation_matrices(quats) * scales[:, None, :])  # [N, 2, 3]
    covariances = axes @ axes.transpose(1, 2)
    xx, xy, yy = covariances[:, 0, 0], covariances[:, 0, 1], covariances[:, 1, 1]
    det_sharp = xx * yy - xy * xy
    xx, yy = xx + EPS2D, yy + EPS2D
    det = xx * yy - xy * xy
    conics = torch.stack([yy / det, -xy / det, xx / det], dim=-1)
    depths = points[:, 2]
    if settings.antialiased:
        opacities = opacities * (det_sharp / det).clamp_min(MIN_COMPENSATION**2).sqrt()

    with torch.no_grad():
        extent = (2.0 * (opacities / ALPHA_THRESHOLD).log()).sqrt().clamp_max(MAX_EXTENT)
        radii = (extent[:, None] * torch.stack([xx, yy], dim=-1).sqrt()).ceil()
        size = torch.tensor([camera.width, camera.height], dtype=means.dtype, device=means.device)
        overlaps = ((means2d + radii > 0) & (means2d - radii < size)).all(dim=-1)
        # Every condition is one that NaN fails.
        seen = (depths > settings.near) & (depths < settings.far) & (opacities >= ALPHA_THRESHOLD) & overlaps
        seen &= (det > 0) & conics.isfinite().all(dim=-1) & means2d.isfinite().all(dim=-1)
        seen &= opacities.isfinite()
        radii = torch.where(seen[:, None], radii.clamp(0, LARGEST_RADIUS), 0).to(torch.int32)
    return means2d, conics, depths, opacities, radii


def rotation_matrices(quats: Tensor) -> Tensor:
    """Return the rotation matrices [N, 3, 3] of the quaternions [N, 4] (wxyz, any length but 0)."""
    w, x, y, z = (quats / quats.norm(dim=-1, keepdim=True)).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def rasterize(projected: Projected, settings: RasterSettings, probe: Tensor | None = None) -> Raster:
    """Composite projected Gaussians front to back.

    `probe` [N, 2], zeros that require a gradient: after the backward pass `probe.grad` is the gradient with
    respect to means2d, px, summed over the pixels.
    """
    means2d = projected.means2d if probe is None else projected.means2d + probe
    return _rasterize_tiles(projected, settings, means2d, None)


def rasterize_absgrad(projected: Projected, settings: RasterSettings, probe: Tensor) -> Raster:
    """Composite as `rasterize` does, but let `probe.grad` be the sum of the pixels' absolute contributions.

    The two components are taken absolutely one by one (Ye et al. 2024, AbsGS). Other gradients stay.
    """
    return _rasterize_tiles(projected, settings, projected.means2d, probe)


def _rasterize_tiles(
    projected: Projected, settings: RasterSettings, means2d: Tensor, absgrad_probe: Tensor | None
) -> Raster:
    order = in_order_of_depth(projected)
    centers, radii = means2d.detach()[order], projected.radii[order]
    low, high = centers - radii, centers + radii
    strips = []
    for top in range(0, settings.height, TILE_SIZE):
        strip = []
        bottom = min(top + TILE_SIZE, settings.height)
        for left in range(0, settings.width, TILE_SIZE):
            right = min(left + TILE_SIZE, settings.width)
            # The radii enclose all that is not below the alpha threshold, so this leaves nothing out.
            inside = (high[:, 0] >= left) & (low[:, 0] <= right) & (high[:, 1] >= top) & (low[:, 1] <= bottom)
            rows = order[inside]
            tile = checkpoint(
                _composite_tile,
                _pixel_centers(left, right, top, bottom, centers),
                means2d[rows],
                None if absgrad_probe is None else absgrad_probe[rows],
                projected.conics[rows],
                projected.opacities[rows],
                torch.cat([projected.colors[rows], projected.depths[rows, None]], dim=1),
                settings,
                # Recomputing a tile in the backward pass keeps one table in memory instead of all.
                use_reentrant=False,
                preserve_rng_state=False,
            )
            strip.append(tile.reshape(bottom - top, right - left, 5))
        strips.append(torch.cat(strip, dim=1))
    rgb, depth_sum, alpha = torch.cat(strips, dim=0).split([3, 1, 1], dim=-1)
    return Raster(rgb=rgb, alpha=alpha[..., 0], depth_sum=depth_sum[..., 0])


def _pixel_centers(left: int, right: int, top: int, bottom: int, like: Tensor) -> Tensor:
    """Return the centers [P, 2] of the pixels of a tile, row by row."""
    x = torch.arange(left, right, dtype=like.dtype, device=like.device) + 0.5
    y = torch.arange(top, bottom, dtype=like.dtype, device=like.device) + 0.5
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([columns.reshape(-1), rows.reshape(-1)], dim=-1)


def _composite_tile(
    pixels: Tensor,
    means2d: Tensor,
    absgrad_probe: Tensor | None,
    conics: Tensor,
    opacities: Tensor,
    features: Tensor,
    settings: RasterSettings,
) -> Tensor:
    """Return (r, g, b, depth_sum, alpha) [P, 5] of pixels [P, 2] over M Gaussians by ascending depth.

    `features` [M, 4] are colors and depths.
    """
    if absgrad_probe is None:
        offsets = means2d[None, :, :] - pixels[:, None, :]  # [P, M, 2]
    else:
        spread: Tensor = _SpreadOverPixels.apply(means2d, absgrad_probe, len(pixels))  # type: ignore[assignment]
        offsets = spread - pixels[:, None, :]
    dx, dy = offsets.unbind(-1)
    a, b, c = conics.unbind(-1)
    sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
    alpha = (opacities * torch.exp(-sigma)).clamp_max(settings.max_alpha)
    alpha = torch.where((sigma >= 0) & (alpha >= ALPHA_THRESHOLD), alpha, 0.0)
    with torch.no_grad():
        # Transmittance never grows, so all that comes after the first Gaussian to cross the limit is out too.
        unfinished = (1.0 - alpha).cumprod(dim=1) > TRANSMITTANCE_STOP
    alpha = torch.where(unfinished, alpha, 0.0)
    transmittance = torch.cat([alpha.new_ones(len(pixels), 1), (1.0 - alpha).cumprod(dim=1)], dim=1)
    weights = alpha * transmittance[:, :-1]
    left_over = transmittance[:, -1:]
    composited = weights @ features
    rgb = composited[:, :3] + left_over * settings.background.to(composited)
    return torch.cat([rgb, composited[:, 3:], 1.0 - left_over], dim=1)


class _SpreadOverPixels(torch.autograd.Function):
    """Repeat means2d for P pixels; the gradient's sum goes to means2d, its absolute sum to the probe."""

    @staticmethod
    def forward(ctx, means2d: Tensor, probe: Tensor, num_pixels: int) -> Tensor:
        return means2d[None].expand(num_pixels, -1, -1)

    @staticmethod
    def backward(ctx, v_spread: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        return v_spread.sum(dim=0), v_spread.abs().sum(dim=0), None


def ssim(image: Tensor, target: Tensor, *, padding: Literal["same", "valid"]) -> Tensor:
    """Return the mean structural similarity of two images [H, W, C] of range 0..1, a scalar.

    The window is an 11 x 11 Gaussian of sigma 1.5 (Wang et al. 2004); "same" pads with zeros, "valid" leaves
    out the 5-pixel border. The gradient goes to `image` only.
    Raises ValueError when "valid" leaves nothing of the image.
    """
    return ssim_map(image, target, padding=padding).mean()


def ssim_map(image: Tensor, target: Tensor, *, padding: Literal["same", "valid"]) -> Tensor:
    """Return the structural similarity of every pixel, [H, W, C], or [H-10, W-10, C] when "valid"."""
    mean_x, mean_y, var_x, var_y, covariance = _moments(image, target, padding)
    return ((2 * mean_x * mean_y + SSIM_C1) * (2 * covariance + SSIM_C2)) / (
        (mean_x * mean_x + mean_y * mean_y + SSIM_C1) * (var_x + var_y + SSIM_C2)
    )


def ssim_factors(image: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two factors of the "valid" `ssim_map`: of brightness, and of contrast and structure."""
    mean_x, mean_y, var_x, var_y, covariance = _moments(image, target, "valid")
    brightness = (2 * mean_x * mean_y + SSIM_C1) / (mean_x * mean_x + mean_y * mean_y + SSIM_C1)
    return brightness, (2 * covariance + SSIM_C2) / (var_x + var_y + SSIM_C2)


def _moments(image: Tensor, target: Tensor, padding: Literal["same", "valid"]) -> tuple[Tensor, ...]:
    """Return the means, variances and covariance of two images [H, W, C] under the SSIM window."""
    height, width = image.shape[:2]
    if padding == "valid" and min(height, width) < SSIM_WINDOW:
        raise ValueError(
            f"an image of {width} x {height} pixels is too small for SSIM: a side needs {SSIM_WINDOW} or more"
        )
    x, y = image.permute(2, 0, 1)[:, None], target.detach().permute(2, 0, 1)[:, None]
    mean_x, mean_y = _blurred(x, padding), _blurred(y, padding)
    var_x = _blurred(x * x, padding) - mean_x * mean_x
    var_y = _blurred(y * y, padding) - mean_y * mean_y
    covariance = _blurred(x * y, padding) - mean_x * mean_y
    return tuple(each[:, 0].permute(1, 2, 0) for each in (mean_x, mean_y, var_x, var_y, covariance))


def _blurred(images: Tensor, padding: Literal["same", "valid"]) -> Tensor:
    """Return images [C, 1, H, W] under the SSIM window."""
    half = SSIM_WINDOW // 2
    offsets = torch.arange(-half, half + 1, dtype=images.dtype, device=images.device)
    window = torch.exp(-(offsets**2) / (2 * SSIM_SIGMA**2))
    window = window / window.sum()
    pad = half if padding == "same" else 0
    rows = functional.conv2d(images, window[None, None, :, None], padding=(pad, 0))
    return functional.conv2d(rows, window[None, None, None, :], padding=(0, pad))


def l1_ssim(image: Tensor, target: Tensor, *, ssim_weight: float, mask: Tensor | None = None) -> Tensor:
    """Return (1 - w) * mean|image - target| + w * (1 - valid SSIM) of images [H, W, C], a scalar.

    `mask` [H, W] bool: only its pixels count, in both means; elsewhere the image is taken to equal the
    target, so that what lies outside has no influence and gets no gradient. An empty mask gives 0.
    Raises ValueError when a side is below 11 pixels and the SSIM has a weight.
    """
    target = target.detach()
    if mask is not None:
        image = torch.where(mask[..., None], image, target)
    loss = (1.0 - ssim_weight) * _masked_mean((image - target).abs(), mask)
    if ssim_weight > 0:
        border = SSIM_WINDOW // 2
        inner = None if mask is None else mask[border:-border, border:-border]
        loss = loss + ssim_weight * _masked_mean(1.0 - ssim_map(image, target, padding="valid"), inner)
    return loss


def _masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of values [H, W, C] over the pixels of `mask` [H, W]; 0 for an empty mask."""
    if mask is None:
        return values.mean()
    return (values * mask[..., None]).sum() / (mask.sum() * values.shape[2]).clamp_min(1)


@torch.no_grad()
def adam_step(  # noqa: PLR0913 - torch's own names, the tensors apart from the numbers
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
) -> None:
    """Make one step of Adam in place, as torch.optim.Adam without weight decay does.

    All tensors have one shape; `step` counts from 1 (Kingma and Ba 2015).
    """
    exp_avg.lerp_(grad, 1.0 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    denominator = (exp_avg_sq.sqrt() / (1.0 - beta2**step) ** 0.5).add_(eps)
    param.addcdiv_(exp_avg, denominator, value=-lr / (1.0 - beta1**step))
