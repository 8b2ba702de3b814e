"""The reference's gradients against finite differences, in float64, where nothing jumps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from splatstudio.cameras.camera import Camera, CameraModel, look_at
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import reference
from splatstudio.kernels.stages import Projected, ProjectSettings, RasterSettings
from splatstudio.rendering.render import RenderOptions, render

WIDTH, HEIGHT = 9, 7
BACKGROUND = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)


def uniform(generator: torch.Generator, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)


def camera(model: CameraModel) -> Camera:
    viewmat = look_at(np.array([0.3, -3.0, 0.4]), np.zeros(3), np.array([0.0, 0.0, 1.0]))
    focal = 4.0 if model == "ortho" else 12.0
    return Camera(viewmat, np.array([[focal, 0, 4.5], [0, focal + 1, 3.5], [0, 0, 1]]), WIDTH, HEIGHT, model)


def smooth_parameters(num: int = 4) -> list[Tensor]:
    """Return means, quats, scales, opacities, sh0, shN of Gaussians far from every threshold."""
    generator = torch.Generator().manual_seed(3)
    return [
        uniform(generator, num, 3, low=-0.4, high=0.4),
        uniform(generator, num, 4, low=0.3, high=1.0),
        # Large: their alpha crosses 1/255 outside the picture.
        uniform(generator, num, 3, low=0.7, high=1.2),
        uniform(generator, num, low=0.3, high=0.7),
        uniform(generator, num, 1, 3, low=0.2, high=1.0),
        uniform(generator, num, 15, 3, low=-0.05, high=0.05),
    ]


def differentiable(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("model", ["pinhole", "ortho", "fisheye"])
@pytest.mark.parametrize("antialiased", [False, True], ids=["classic", "antialiased"])
def test_project(model: CameraModel, antialiased: bool) -> None:
    def stage(*parameters: Tensor) -> tuple[Tensor, ...]:
        projected = reference.project(
            *parameters,  # type: ignore[arg-type]
            camera=camera(model),
            settings=ProjectSettings(3, antialiased),
        )
        assert (projected.radii > 0).all()
        return (
            projected.means2d,
            projected.conics,
            projected.depths,
            projected.opacities,
            projected.colors,
        )

    assert gradcheck(stage, differentiable(smooth_parameters()))


def test_rasterize() -> None:
    generator = torch.Generator().manual_seed(5)
    num = 5
    inputs = differentiable(
        [
            uniform(generator, num, 2, low=1.0, high=6.0),
            uniform(generator, num, 3) * torch.tensor([0.05, 0.02, 0.05]) + torch.tensor([0.05, 0.0, 0.05]),
            uniform(generator, num, low=1.0, high=2.0),
            uniform(generator, num, low=0.2, high=0.6),
            uniform(generator, num, 3),
        ]
    )

    def stage(means2d, conics, depths, opacities, colors) -> tuple[Tensor, ...]:
        radii = torch.full((num, 2), 50, dtype=torch.int32)
        projected = Projected(means2d, conics, depths, opacities, colors, radii)
        raster = reference.rasterize(projected, RasterSettings(WIDTH, HEIGHT, BACKGROUND))
        assert raster.alpha.min() > 0.1
        return raster.rgb, raster.alpha, raster.depth_sum

    assert gradcheck(stage, inputs)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_ssim(padding) -> None:
    generator = torch.Generator().manual_seed(7)
    image, target = uniform(generator, 13, 12, 2).requires_grad_(), uniform(generator, 13, 12, 2)
    assert gradcheck(lambda image: reference.ssim(image, target, padding=padding), [image])


def test_l1_ssim_under_a_mask() -> None:
    generator = torch.Generator().manual_seed(7)
    image, target = uniform(generator, 13, 12, 3).requires_grad_(), uniform(generator, 13, 12, 3)
    mask = uniform(generator, 13, 12) < 0.7
    assert gradcheck(
        lambda image: reference.l1_ssim(image, target, ssim_weight=0.2, mask=mask), [image], eps=1e-7
    )


def raw_gaussians() -> Gaussians:
    means, quats, scales, opacities, sh0, shN = smooth_parameters()
    return Gaussians(means, quats, scales.log(), opacities.logit(), sh0, shN)


def test_render_from_raw_parameters() -> None:
    """The whole way, through exp and sigmoid, to colors, alpha and depth."""
    names = list(raw_gaussians().tensors())

    def picture(*tensors: Tensor) -> tuple[Tensor, ...]:
        drawn = render(Gaussians(**dict(zip(names, tensors, strict=True))), camera("pinhole"))
        return drawn.rgb, drawn.alpha, drawn.depth

    assert gradcheck(picture, differentiable(list(raw_gaussians().tensors().values())))


def test_the_probe_holds_the_gradient_of_a_shift_in_pixels() -> None:
    weights = uniform(torch.Generator().manual_seed(1), HEIGHT, WIDTH, 3)
    gaussians = raw_gaussians()

    def loss(probe: Tensor) -> Tensor:
        return (render(gaussians, camera("pinhole"), RenderOptions(), probe).rgb * weights).sum()

    assert gradcheck(loss, [torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)])


def test_absolute_gradients_are_the_sum_over_single_pixels() -> None:
    weights = uniform(torch.Generator().manual_seed(1), HEIGHT, WIDTH, 3) - 0.5
    gaussians, view = raw_gaussians(), camera("pinhole")

    def probe_gradient(weights: Tensor, absgrad: bool) -> Tensor:
        probe = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
        (render(gaussians, view, RenderOptions(absgrad=absgrad), probe).rgb * weights).sum().backward()
        assert probe.grad is not None
        return probe.grad

    expected = torch.zeros(4, 2, dtype=torch.float64)
    for row in range(HEIGHT):
        for column in range(WIDTH):
            alone = torch.zeros_like(weights)
            alone[row, column] = weights[row, column]
            expected += probe_gradient(alone, False).abs()
    absolute = probe_gradient(weights, True)
    torch.testing.assert_close(absolute, expected, rtol=1e-9, atol=1e-12)
    assert (absolute > probe_gradient(weights, False).abs() * 1.01).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["native", "reference"])
def test_culled_and_broken_gaussians_leave_the_others_gradients_alone(dtype: torch.dtype) -> None:
    def gradients(extra: bool) -> dict[str, Tensor]:
        tensors = raw_gaussians().map(lambda tensor: tensor.to(dtype)).tensors()
        if extra:
            broken = {name: tensor[:1].repeat_interleave(4, dim=0) for name, tensor in tensors.items()}
            broken["means"][0] = torch.tensor([0.3, -9.0, 0.4])  # behind the camera
            broken["means"][1, 0] = torch.nan
            broken["quats"][2] = 0.0
            broken["scales"][3, 1] = torch.inf
            tensors = {name: torch.cat([tensor, broken[name]]) for name, tensor in tensors.items()}
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
        drawn = render(Gaussians(**leaves), camera("pinhole"))
        assert drawn.rgb.isfinite().all()
        (drawn.rgb**2).sum().backward()
        return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}

    alone, among_others = gradients(False), gradients(True)
    for name, gradient in alone.items():
        torch.testing.assert_close(among_others[name][:4], gradient)
        # Through exp of an infinite scale, nothing times infinity is not a number, in that value alone.
        assert not among_others[name][4:].nan_to_num(nan=0.0).any()
