"""The kernels of the viewer's modes against the plain-torch reference, known scenes, and odd numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from op_cases import MODELS, camera_of, gaussians_of, with_kernels
from torch import Tensor

from splatstudio.cameras.camera import Camera, CameraModel
from splatstudio.kernels import ops, reference, reference_modes
from splatstudio.kernels.stages import Projected, ProjectSettings, RasterSettings


def scene_of(
    num: int, camera: Camera, antialiased: bool = False
) -> tuple[tuple[Tensor, Tensor, Tensor], Projected]:
    """Return means, quats and log scales of random Gaussians, and their projection."""
    tensors = gaussians_of(num, seed=11)
    settings = ProjectSettings(antialiased=antialiased)
    with torch.no_grad():
        projected = reference.project(*tensors, camera=camera, settings=settings)
    return (tensors[0], tensors[1], tensors[2].log()), projected


def settings_of(camera: Camera) -> RasterSettings:
    return RasterSettings(camera.width, camera.height, torch.tensor([0.2, 0.5, 0.9]))


@pytest.mark.parametrize("model", MODELS)
def test_shapes_equal_the_reference(model: CameraModel) -> None:
    camera = camera_of(model)
    rows, projected = scene_of(301, camera)
    ours = ops.splat_shapes(*rows, projected.radii, camera=camera)
    means, quats, scales = (row.double() for row in rows)
    theirs = reference_modes.splat_shapes(means, quats, scales, projected.radii, camera=camera)
    assert (ours.normals.norm(dim=1) > 0.99).sum() == (projected.radii > 0).all(1).sum() > 100
    assert torch.allclose(ours.normals.double(), theirs.normals, atol=1e-5)
    assert torch.allclose(ours.surfaces.double(), theirs.surfaces, rtol=2e-3, atol=2e-4)


def test_more_splats_than_a_gpu_takes_at_once_are_drawn_in_one_tile() -> None:
    camera = camera_of("pinhole", 16, 16)
    rows, projected = scene_of(2000, camera)
    assert int((projected.radii > 0).all(1).sum()) > 2 * 256
    settings = settings_of(camera)
    surfaces = reference_modes.splat_shapes(*rows, projected.radii, camera=camera).surfaces
    solid, expected = (m.rasterize_solid(projected, surfaces, settings) for m in (ops, reference_modes))
    assert (solid.depth - expected.depth).abs().gt(1e-3).float().mean() < 0.02
    ours, theirs = (m.rasterize_median(projected, settings) for m in (ops, reference_modes))
    assert (ours.depth - theirs.depth).abs().gt(1e-4).float().mean() < 0.02


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("size", [(75, 50), (1, 1), (16, 33)])
def test_pictures_equal_the_reference(model: CameraModel, antialiased: bool, size: tuple[int, int]) -> None:
    camera = camera_of(model, *size)
    rows, projected = scene_of(300, camera, antialiased)
    settings = settings_of(camera)
    ours, theirs = (m.rasterize_median(projected, settings) for m in (ops, reference_modes))
    # A splat of just 1/255 may fall on either side by rounding.
    assert ((ours.count - theirs.count).abs() > 0).float().mean() < 0.01
    assert (ours.depth - theirs.depth).abs().gt(1e-4).float().mean() < 0.01
    assert size == (1, 1) or ((ours.depth > 0).any() and ours.count.max() > 3)
    surfaces = reference_modes.splat_shapes(*rows, projected.radii, camera=camera).surfaces
    solid, expected = (m.rasterize_solid(projected, surfaces, settings) for m in (ops, reference_modes))
    assert (solid.rgb - expected.rgb).abs().amax(-1).gt(2e-3).float().mean() < 0.02
    assert (solid.depth - expected.depth).abs().gt(1e-3).float().mean() < 0.02


def draw(num_threads: int) -> list[Tensor]:
    """Return everything that the kernels make of one scene."""
    camera = camera_of(width=150, height=101)
    rows, projected = scene_of(4000, camera)
    with ops.limited_threads(num_threads):
        shapes = ops.splat_shapes(*rows, projected.radii, camera=camera)
        median = ops.rasterize_median(projected, settings_of(camera))
        solid = ops.rasterize_solid(projected, shapes.surfaces, settings_of(camera))
    return [shapes.normals, shapes.surfaces, median.depth, median.count, solid.rgb, solid.depth]


@pytest.mark.cpu_kernels
def test_any_number_of_threads_gives_the_same_bits() -> None:
    expected = draw(1)
    for num_threads in (2, 3, 8):
        assert all(torch.equal(a, b) for a, b in zip(draw(num_threads), expected, strict=True))


@pytest.mark.cpu_kernels
def test_the_portable_kernels_agree_with_those_of_this_machine(tmp_path) -> None:
    (portable,) = with_kernels("portable", ["test_modes.draw(2)"], tmp_path / "portable.pt").values()
    for ours, theirs in zip(portable, draw(2), strict=True):
        assert (ours - theirs).abs().gt(1e-3 * theirs.abs() + 1e-3).float().mean() < 0.01


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_odd_numbers_leave_no_trace(model: CameraModel, bad: float) -> None:
    camera, tensors = camera_of(model), gaussians_of(64, seed=2)
    for k, tensor in enumerate(tensors):
        tensor.view(64, -1)[10 * k, -1] = bad
    projected = ops.project(*tensors, camera=camera, settings=ProjectSettings())
    rows = (tensors[0], tensors[1], tensors[2].log())
    shapes = ops.splat_shapes(*rows, projected.radii, camera=camera)
    solid = ops.rasterize_solid(projected, shapes.surfaces, settings_of(camera))
    median = ops.rasterize_median(projected, settings_of(camera))
    for value in (shapes.normals, shapes.surfaces, solid.rgb, solid.depth, median.depth):
        assert value.isfinite().all()
    assert median.count.max() > 0


def test_nothing_to_draw_gives_the_background() -> None:
    camera = camera_of()
    rows, projected = scene_of(0, camera)
    shapes = ops.splat_shapes(*rows, projected.radii, camera=camera)
    solid = ops.rasterize_solid(projected, shapes.surfaces, settings_of(camera))
    assert torch.equal(solid.rgb, torch.tensor([0.2, 0.5, 0.9]).expand_as(solid.rgb))
    median = ops.rasterize_median(projected, settings_of(camera))
    assert solid.depth.max() == 0 and median.depth.max() == 0 and median.count.max() == 0


def test_a_solid_sphere_has_its_front_where_it_should_be() -> None:
    camera = replace(camera_of("ortho"), viewmat=torch.eye(4, dtype=torch.float64).numpy())
    means, quats = torch.tensor([[0.0, 0.0, 5.0]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    sizes, colors = torch.full((1, 3), 0.4), torch.ones(1, 1, 3)
    tensors = [means, quats, sizes, torch.ones(1), colors, torch.zeros(1, 15, 3)]
    projected = ops.project(*tensors, camera=camera, settings=ProjectSettings())
    hull = replace(projected, opacities=torch.full((1,), math.exp(2.0) / 255))  # two standard deviations
    surfaces = ops.splat_shapes(means, quats, sizes.log(), hull.radii, camera=camera).surfaces
    solid = ops.rasterize_solid(hull, surfaces, settings_of(camera))
    assert abs(float(solid.depth[solid.depth > 0].min()) - (5.0 - 0.8)) < 0.01
    # The half-axes of its outline in pixels: two standard deviations.
    area = math.pi * (0.8 * camera.K[0, 0]) * (0.8 * camera.K[1, 1])
    assert abs(float((solid.depth > 0).sum()) / area - 1.0) < 0.05


def test_bytes_are_clamped_and_rounded_as_torch_does() -> None:
    halves = (torch.arange(256) + 0.5) / 255.0
    odd = torch.tensor([math.nan, math.inf, -math.inf, -1.0, -0.0, 1e-30, 0.999, 1.0, 7.0])
    image = torch.cat([halves, odd, torch.rand(70_000, generator=torch.Generator().manual_seed(1))])
    ours = ops.to_uint8(image)
    assert ours.dtype == torch.uint8 and torch.equal(ours, reference_modes.to_uint8(image))
    assert ours[256:265].tolist() == [0, 255, 0, 0, 0, 0, 255, 255, 255]
    assert ours[:3].tolist() == [0, 2, 2] and ours[265:].unique().numel() == 256
    turned = image[:300].reshape(10, 30).t()
    assert torch.equal(ops.to_uint8(turned), ours[:300].reshape(10, 30).t())
    assert ops.to_uint8(image[:0].reshape(0, 5, 3)).shape == (0, 5, 3)
