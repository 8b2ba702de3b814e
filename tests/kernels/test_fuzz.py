"""What no photo should produce but training sometimes does: no crash, no NaN, nobody else harmed."""

from __future__ import annotations

import math

import pytest
import torch
from op_cases import MODELS, camera_of, gaussians_of, leaves_of
from torch import Tensor

from splatstudio.cameras.camera import Camera, CameraModel
from splatstudio.kernels import ops, reference
from splatstudio.kernels.stages import Projected, ProjectSettings, Raster, RasterSettings

NAMES = ("means", "quats", "scales", "opacities", "sh0", "shN")
BAD = {"nan": math.nan, "inf": math.inf, "minus_inf": -math.inf}


def draw(leaves: list[Tensor], camera: Camera, antialiased: bool = False) -> tuple[Projected, Raster]:
    projected = ops.project(*leaves, camera=camera, settings=ProjectSettings(antialiased=antialiased))
    settings = RasterSettings(camera.width, camera.height, torch.tensor([0.1, 0.2, 0.3]))
    return projected, ops.rasterize(projected, settings)


def draw_and_go_back(tensors: list[Tensor], camera: Camera, antialiased: bool = False) -> Projected:
    """Draw, go back through every output, and check that all numbers are finite."""
    leaves = leaves_of(tensors)
    projected, raster = draw(leaves, camera, antialiased)
    for image in (raster.rgb, raster.alpha, raster.depth_sum):
        assert image.isfinite().all()
    assert ((raster.alpha >= 0) & (raster.alpha <= 1)).all()
    (raster.rgb.sum() + raster.alpha.mean() + 1e-3 * raster.depth_sum.mean()).backward()
    for name, leaf in zip(NAMES, leaves, strict=True):
        assert leaf.grad is not None and leaf.grad.isfinite().all(), name
    return projected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("model", MODELS)
def test_a_value_that_is_not_finite_culls_its_gaussian_alone(
    name: str, bad: float, model: CameraModel
) -> None:
    camera, tensors = camera_of(model), gaussians_of(60, seed=1)
    rows = [0, 7, 31, 59]
    tensors[NAMES.index(name)].view(60, -1)[rows, -1] = bad
    projected = draw_and_go_back(tensors, camera)
    assert (projected.radii[rows] == 0).all()
    expected = reference.project(*tensors, camera=camera, settings=ProjectSettings())
    assert (expected.radii[rows] == 0).all() and (expected.radii > 0).any()
    for field in (projected.means2d, projected.conics, projected.colors):
        assert (field[rows] == 0).all()
    others = [i for i in range(60) if i not in rows]
    alone = draw([tensor[others] for tensor in tensors], camera)[1]
    together = draw(tensors, camera)[1]
    assert torch.equal(alone.rgb, together.rgb)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("length", [0.0, 1e-38, 1e-20, 1e18, 1e30])
def test_quaternions_of_odd_length(model: CameraModel, length: float) -> None:
    tensors = gaussians_of(40, seed=2)
    tensors[1] = length * torch.nn.functional.normalize(tensors[1], dim=1)
    projected = draw_and_go_back(tensors, camera_of(model))
    if length == 0.0:
        assert (projected.radii == 0).all()
    if 1e-20 < length < 1e19:
        assert (projected.radii > 0).any()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-12, 1e-4, 1e2, 1e6, 1e15, 1e19, 3e38])
def test_sizes_from_nothing_to_everything(model: CameraModel, antialiased: bool, size: float) -> None:
    tensors = gaussians_of(40, seed=3)
    tensors[2] = torch.full_like(tensors[2], size)
    draw_and_go_back(tensors, camera_of(model), antialiased)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("aspect", [1e2, 1e4, 1e6])
def test_needles(model: CameraModel, aspect: float) -> None:
    tensors = gaussians_of(80, seed=4)
    tensors[2][:, 0] *= aspect
    tensors[2][:, 1] /= aspect
    projected = draw_and_go_back(tensors, camera_of(model))
    assert (projected.radii > 0).any()


@pytest.mark.parametrize("model", MODELS)
def test_positions_behind_on_and_far_from_the_camera(model: CameraModel) -> None:
    camera = camera_of(model)
    tensors = gaussians_of(64, seed=5)
    center = torch.tensor(camera.position, dtype=torch.float32)
    forward = torch.tensor(camera.viewmat[2, :3], dtype=torch.float32)
    tensors[0][:8] = center
    tensors[0][8:16] = center - 2.0 * forward
    tensors[0][16:24] = center + 0.01 * forward
    tensors[0][24:32] = center + 1e8 * forward
    tensors[0][32:40] = torch.tensor([1e30, -1e30, 1e30])
    projected = draw_and_go_back(tensors, camera)
    assert (projected.radii[:16] == 0).all()
    assert (projected.radii[32:40] == 0).all()


def test_nothing_to_draw_shows_the_background() -> None:
    camera = camera_of()
    for tensors in (gaussians_of(0), [*gaussians_of(5)[:3], torch.zeros(5), *gaussians_of(5)[4:]]):
        draw_and_go_back(tensors, camera)
        raster = draw(tensors, camera)[1]
        assert torch.equal(raster.rgb, torch.tensor([0.1, 0.2, 0.3]).expand_as(raster.rgb))
        assert float(raster.alpha.abs().max()) == 0.0


@pytest.mark.parametrize("seed", range(12))
def test_random_bits(seed: int) -> None:
    """Every kind of float, denormal numbers and NaN among them, in every parameter at once."""
    generator = torch.Generator().manual_seed(seed)
    tensors = gaussians_of(500, seed=seed)
    for tensor in tensors:
        bits = torch.randint(-(2**31), 2**31, tensor.shape, generator=generator, dtype=torch.int64)
        noise = bits.to(torch.int32).view(torch.float32)
        chosen = torch.rand(tensor.shape, generator=generator) < 0.1
        tensor[chosen] = noise[chosen]
    draw_and_go_back(tensors, camera_of(MODELS[seed % 3]), antialiased=seed % 2 == 0)


@pytest.mark.parametrize("seed", range(6))
def test_random_bits_in_projected_splats(seed: int) -> None:
    """The rasterizer alone must stand what no projection would give it."""
    generator = torch.Generator().manual_seed(seed)
    camera = camera_of()
    with torch.no_grad():
        projected = ops.project(*gaussians_of(300), camera=camera, settings=ProjectSettings())
    fields = [projected.means2d, projected.conics, projected.depths, projected.opacities, projected.colors]
    for field in fields:
        bits = torch.randint(-(2**31), 2**31, field.shape, generator=generator, dtype=torch.int64)
        chosen = torch.rand(field.shape, generator=generator) < 0.1
        field[chosen] = bits.to(torch.int32).view(torch.float32)[chosen]
    projected.radii[::3] = 2**30
    leaves = Projected(*leaves_of(fields), radii=projected.radii)
    raster = ops.rasterize(leaves, RasterSettings(camera.width, camera.height, torch.zeros(3)))
    assert raster.alpha.isfinite().all()
    raster.rgb.sum().backward()


def test_an_image_that_is_not_finite_does_not_crash_the_loss() -> None:
    image = torch.full((20, 30, 3), math.nan, requires_grad=True)
    loss = ops.l1_ssim(image, torch.zeros(20, 30, 3), ssim_weight=0.2)
    loss.backward()
    assert not loss.isfinite()
