"""A model from a camera as a picture: its colors, or what a person wants to know about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops, reference_modes
from splatstudio.kernels.stages import ALPHA_THRESHOLD, Projected, ProjectSettings, RasterSettings, Shapes
from splatstudio.rendering.modes import ColorMapName, DrawnMode, Legend
from splatstudio.rendering.render import RenderOptions, render, stages_for, to_uint8

# 33 colors each at equal distances. Turbo: Mikhailov 2019; viridis: Smith and van der Walt 2015.
_STOPS: dict[ColorMapName, str] = {
    "turbo": (
        "30123b392a734040a24456c7466be34680f64294ff37a8fa28bceb1ccdd818ddc2"
        "1fe9af32f2984ef97d6dfe628bff4ba4fc3cb9f635cdec34dfdf37eecf3af8be39"
        "fdac34fe962bfb7e21f46617eb500edf3f08d02f05be2102a91601920b017a0403"
    ),
    "viridis": (
        "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d"
        "2f6b8e2c728e297a8e26828e23898e21918c1f988b1fa08822a78528ae8032b67a"
        "3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725"
    ),
    "gray": "000000ffffff",
}

SEEN_ALPHA = 0.02  # a pixel that is covered less has no depth and no normal
ELLIPSOID_HULL = 2.0  # standard deviations
ELLIPSOID_MIN_OPACITY = 0.05  # fainter splats would hide the others
POINT_RADIUS = 1.5  # px
SAMPLES = 20_000  # pixels that a range is estimated from
MIN_ERROR_RANGE = 16.0  # of 255, so that a good model does not look as bad as a bad one
# Not to be waited for without kernels.
KERNEL_MODES = {"median_depth", "normals", "ellipsoids", "points", "count"}
OUTSIDE = 20  # gray of 255 where there is no photo to compare with


@cache
def color_table(name: ColorMapName) -> Tensor:
    """Return the 256 colors of a map, [256, 3] uint8."""
    stops = np.frombuffer(bytes.fromhex(_STOPS[name]), np.uint8).reshape(-1, 3).astype(float)
    places = np.linspace(0.0, 1.0, 256)
    channels = [np.interp(places, np.linspace(0.0, 1.0, len(stops)), stops[:, c]) for c in range(3)]
    return torch.from_numpy(np.rint(np.stack(channels, axis=1)).astype(np.uint8))


def colored(values: Tensor, low: float, high: float, name: ColorMapName) -> Tensor:
    """Return `values` [...] as colors [..., 3] uint8: `low` and below the first, `high` and above the last.

    NaN counts as `low`.
    """
    assert high > low, "an empty range"
    places = ((values - low) * (255.0 / (high - low))).clamp(0.0, 255.0).nan_to_num(0.0)
    return color_table(name).to(values.device)[places.round().long()]


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture and what its colors mean (None: they are the model's own)."""

    pixels: Tensor  # [H, W, 3] uint8 on the device that drew it
    legend: Legend | None = None

    @property
    def image(self) -> np.ndarray:
        """Return the pixels in the machine's memory; from a GPU that is a copy."""
        return self.pixels.cpu().numpy()


def draw_mode(mode: DrawnMode, gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    """Draw Gaussians in a mode; `error_picture` compares with a photo.

    Where nothing is, the picture has the background of `options`; its near and far hide what lies beyond.
    """
    with torch.no_grad():
        if mode in KERNEL_MODES and stages_for(gaussians.means) is not ops:
            gaussians = gaussians.to("cpu")
        return _MODES[mode](gaussians, camera, options)


@torch.no_grad()
def scaled(gaussians: Gaussians, factor: float) -> Gaussians:
    """Return the Gaussians with every standard deviation times `factor`, which is above 0."""
    if factor == 1.0:
        return gaussians
    return replace(gaussians, scales=gaussians.scales + math.log(factor))


@torch.no_grad()
def error_picture(
    gaussians: Gaussians, camera: Camera, options: RenderOptions, target: Tensor, shown: Tensor
) -> Picture:
    """Draw the mean absolute difference of the channels to `target` [H, W, 3] in 0..1, as seen by `camera`.

    Where `shown` [H, W] bool is False there is nothing to compare with, and the picture is dark.
    """
    rgb = render(gaussians, camera, options).rgb.clamp(0.0, 1.0)
    error = (rgb - target).abs().mean(dim=-1) * 255.0
    _, high = _range(error[shown], 0.99)
    legend = Legend(0.0, max(high, MIN_ERROR_RANGE), "error (0-255)", "turbo")
    image = colored(error, legend.low, legend.high, legend.color_map)
    image[~shown] = OUTSIDE
    return Picture(image, legend)


@torch.no_grad()
def median_depth(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Tensor:
    """Return the depth at which half of the light is taken, [H, W] scene units; 0 where none does it."""
    if stages_for(gaussians.means) is not ops:
        gaussians = gaussians.to("cpu")  # as for `draw_mode`: not to be waited for without kernels
    projected, settings = _projected(gaussians, camera, options)
    return _modes_for(gaussians).rasterize_median(projected, settings).depth


def camera_at_photo(view: Camera, photo: Camera) -> Camera:
    """Return a camera with the lens and size of `view` that stands where `photo` was taken."""
    return replace(view, viewmat=photo.viewmat, model=photo.model)


@torch.no_grad()
def photo_in_view(rgb: Tensor, mask: Tensor | None, photo: Camera, view: Camera) -> tuple[Tensor, Tensor]:
    """Return a photo as a camera at the same place would have taken it, and where it says something.

    `rgb` [H, W, 3] and `mask` [H, W] bool belong to `photo`; the two cameras differ in lens and size alone.
    The result is [H', W', 3] and [H', W'] bool.
    """
    # Equal pixels: nothing is resampled.
    if rgb.shape[:2] == (view.height, view.width) and np.allclose(photo.K, view.K, atol=1e-6):
        return rgb, torch.ones_like(rgb[..., 0], dtype=torch.bool) if mask is None else mask
    ratio = view.K[[0, 1], [0, 1]] / photo.K[[0, 1], [0, 1]]  # pixels of the view to one of the photo
    counted = torch.ones_like(rgb[..., 0]) if mask is None else mask.float()
    planes = torch.cat([rgb, counted[..., None]], dim=-1).permute(2, 0, 1)[None]
    if ratio.min() < 1.0:
        # A pixel of the view is the mean of the pixels that it covers.
        size = [max(1, round(side * min(1.0, r))) for side, r in zip(rgb.shape[:2], ratio[::-1], strict=True)]
        planes = functional.interpolate(planes, size=size, mode="area")
    x = (torch.arange(view.width) + 0.5 - view.K[0, 2]) / ratio[0] + photo.K[0, 2]
    y = (torch.arange(view.height) + 0.5 - view.K[1, 2]) / ratio[1] + photo.K[1, 2]
    x, y = x.to(rgb) * (2.0 / photo.width) - 1.0, y.to(rgb) * (2.0 / photo.height) - 1.0
    grid = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], dim=-1)[None]
    sampled = functional.grid_sample(
        planes, grid, mode="bilinear", padding_mode="border", align_corners=False
    )[0].permute(1, 2, 0)
    inside = (x.abs() < 1.0) & (y.abs() < 1.0)[:, None]
    return sampled[..., :3], inside & (sampled[..., 3] > 0.999)


def _color(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    return Picture(to_uint8(render(gaussians, camera, options).rgb))


def _depth(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    rendering = render(gaussians, camera, options)
    return _heat(rendering.depth, rendering.alpha >= SEEN_ALPHA, options)


def _median_depth(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    depth = median_depth(gaussians, camera, options)
    return _heat(depth, depth > 0, options)


def _alpha(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    percent = render(gaussians, camera, options).alpha * 100.0
    legend = Legend(0.0, 100.0, "% covered", "gray")
    return Picture(colored(percent, legend.low, legend.high, legend.color_map), legend)


def _count(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    projected, settings = _projected(gaussians, camera, options)
    count = _modes_for(gaussians).rasterize_median(projected, settings).count.float()
    legend = Legend(0.0, max(float(count.max()), 1.0), "splats", "viridis")
    return Picture(colored(count, legend.low, legend.high, legend.color_map), legend)


def _normals(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    """Draw normals as usual: red to the right, green up, blue toward the camera."""
    projected, settings = _projected(gaussians, camera, options)
    normals = _shapes(gaussians, projected, camera).normals
    black = replace(settings, background=torch.zeros_like(settings.background))
    raster = stages_for(gaussians.means).rasterize(replace(projected, colors=normals), black)
    unit = functional.normalize(raster.rgb, dim=-1) * raster.rgb.new_tensor([0.5, -0.5, -0.5]) + 0.5
    alpha = raster.alpha[..., None]
    return Picture(to_uint8(torch.where(alpha >= SEEN_ALPHA, unit, settings.background)))


def _ellipsoids(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    projected, settings = _projected(gaussians, camera, options)
    a, b, c = projected.conics.unbind(-1)
    extent = (torch.stack([c, a], dim=-1) / (a * c - b * b)[:, None]).sqrt() * ELLIPSOID_HULL
    # Where rounding has eaten a needle's determinant, the box of the projection has to do.
    extent = torch.where(extent.isfinite(), extent.ceil(), projected.radii).clamp(0, 1e8)
    radii = extent.to(torch.int32)
    radii = torch.where(projected.opacities[:, None] >= ELLIPSOID_MIN_OPACITY, radii, 0)
    radii = torch.where(projected.radii > 0, radii, 0)
    hulls = _with_hull(projected, ELLIPSOID_HULL, radii)
    surfaces = _shapes(gaussians, projected, camera).surfaces
    return Picture(to_uint8(_modes_for(gaussians).rasterize_solid(hulls, surfaces, settings).rgb))


def _points(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> Picture:
    projected, settings = _projected(gaussians, camera, options)
    round_conic = projected.conics.new_tensor([POINT_RADIUS**-2, 0.0, POINT_RADIUS**-2])
    radii = (projected.radii > 0).to(torch.int32) * math.ceil(POINT_RADIUS)
    points = replace(projected, conics=round_conic.expand_as(projected.conics))
    flat = projected.means2d.new_zeros(len(gaussians), 4)
    solid = _modes_for(gaussians).rasterize_solid(_with_hull(points, 1.0, radii), flat, settings)
    return Picture(to_uint8(solid.rgb))


_MODES: dict[DrawnMode, Callable[[Gaussians, Camera, RenderOptions], Picture]] = {
    "color": _color,
    "depth": _depth,
    "median_depth": _median_depth,
    "normals": _normals,
    "alpha": _alpha,
    "ellipsoids": _ellipsoids,
    "points": _points,
    "count": _count,
}


def _modes_for(gaussians: Gaussians) -> ModuleType:
    return ops if stages_for(gaussians.means) is ops else reference_modes


def _projected(
    gaussians: Gaussians, camera: Camera, options: RenderOptions
) -> tuple[Projected, RasterSettings]:
    degree = gaussians.sh_degree if options.sh_degree is None else min(options.sh_degree, gaussians.sh_degree)
    project_settings = ProjectSettings(degree, options.antialiased, options.near, options.far)
    means, quats, scales, opacities, sh0, shN = gaussians.tensors().values()
    stages = stages_for(means)
    rows = (means, quats, scales.exp(), opacities.sigmoid(), sh0, shN)
    if stages is ops:
        rows = (means, quats, scales, opacities, sh0, shN)
        projected = ops.project_raw(*rows, camera=camera, settings=project_settings)
    else:
        projected = stages.project(*rows, camera=camera, settings=project_settings)
    return projected, RasterSettings(camera.width, camera.height, means.new_tensor(options.background))


def _shapes(gaussians: Gaussians, projected: Projected, camera: Camera) -> Shapes:
    rows = (gaussians.means, gaussians.quats, gaussians.scales, projected.radii)
    return _modes_for(gaussians).splat_shapes(*rows, camera=camera)


def _with_hull(projected: Projected, hull: float, radii: Tensor) -> Projected:
    """Return splats that end at `hull` standard deviations, as `rasterize_solid` is told of it."""
    opacities = torch.full_like(projected.opacities, ALPHA_THRESHOLD * math.exp(hull * hull / 2.0))
    return replace(projected, opacities=opacities, radii=radii)


def _heat(depth: Tensor, seen: Tensor, options: RenderOptions) -> Picture:
    low, high = _range(depth[seen], 0.98)
    legend = Legend(low, high, "scene units", "turbo")
    image = colored(depth, low, high, legend.color_map)
    background = to_uint8(depth.new_tensor(options.background))
    return Picture(torch.where(seen[..., None], image, background), legend)


def _range(values: Tensor, share: float) -> tuple[float, float]:
    """Return a range that leaves out the outermost (1 - share) of the values at either end; never empty."""
    values = values[:: max(1, values.numel() // SAMPLES)]
    values = values[values.isfinite()]
    if values.numel() == 0:
        return 0.0, 1.0
    ends = torch.quantile(values, values.new_tensor([1.0 - share, share]))
    low, high = ends.tolist()
    least = max(1e-6, 1e-3 * abs(high))
    return (low, high) if high - low > least else (low - least, high + least)
