"""The kernels' sets of instructions: AVX-512 gives AVX2's results bit for bit, whatever comes in."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import pytest
import torch
from op_cases import MODELS, PROJECTED, camera_of, gaussians_of, leaves_of, random_like, with_kernels
from step_models import RATES, fused_step, model
from torch import Tensor

from splatstudio.kernels import ops
from splatstudio.kernels.stages import Projected, ProjectSettings, RasterSettings
from splatstudio.optimization.optim import SplatAdam

# Odd widths: tiles and rows of 16 and of 8 that are whole, half full, or nearly empty.
SIZES = ((150, 101), (75, 50), (16, 16), (1, 1), (17, 1), (8, 33), (25, 9), (63, 47))
BAD = (math.nan, math.inf, -math.inf, 1e-38, 1e30)

pytestmark = pytest.mark.cpu_kernels


def steps_of_all_kinds() -> list[Tensor]:
    """Return pictures, gradients and models: of odd sizes, odd numbers, nothing at all, and all cameras."""
    return [
        tensor.detach().clone()
        for kind in (_pictures, _bare_splats, _losses, _optimizers, _trainings)
        for tensor in kind()
    ]


def _pictures() -> Iterator[Tensor]:
    for number, size in enumerate(SIZES):
        for model_name in MODELS:
            tensors = gaussians_of(700, seed=number, sh_degree=number % 4)
            for k, tensor in enumerate(tensors):
                if tensor[0].numel() > 0:
                    tensor.view(700, -1)[len(BAD) * k : len(BAD) * (k + 1), -1] = torch.tensor(BAD)
            leaves = leaves_of(tensors)
            settings = ProjectSettings(antialiased=number % 2 == 0, sh_degree=number % 4)
            camera = camera_of(model_name, *size)
            projected = ops.project(*leaves, camera=camera, settings=settings)
            yield from _gone_back(
                projected, size, absgrad=number % 3 == 0, max_alpha=(0.999, 0.9)[number % 2]
            )
            yield from (leaf.grad for leaf in leaves if leaf.grad is not None)


def _gone_back(
    projected: Projected, size: tuple[int, int], *, absgrad: bool, max_alpha: float
) -> Iterator[Tensor]:
    settings = RasterSettings(*size, torch.tensor([0.2, 0.5, 0.9]), max_alpha)
    for output in ("rgb", "alpha", "depth_sum"):
        probe = torch.zeros(len(projected.depths), 2, requires_grad=True)
        raster = (ops.rasterize_absgrad if absgrad else ops.rasterize)(projected, settings, probe)
        value = getattr(raster, output)
        (value * random_like(value, 5)).sum().backward(retain_graph=True)
        assert probe.grad is not None
        yield from (value, probe.grad)


def _bare_splats() -> Iterator[Tensor]:
    """Splats that no projection gives: of no size and of any, transparent and opaque, and none."""
    size = (77, 49)
    for num, widest in ((0, 1.0), (400, 3.0), (4000, 1.5), (300, 40.0)):
        generator = torch.Generator().manual_seed(num)
        spread = functools.partial(torch.rand, generator=generator)
        radii = 0.2 + widest * spread(num, 2)
        a, c = radii.square().reciprocal().unbind(1)
        b = (2.0 * spread(num) - 1.0) * (a * c).sqrt()
        leaves = [
            100.0 * spread(num, 2) - 10.0,
            torch.stack([a, b, c], dim=1),
            1.0 + spread(num),
            (1.2 * spread(num)).clamp_max(1.0),
            2.0 * spread(num, 3) - 0.5,
        ]
        leaves = leaves_of(leaves)
        boxes = (4.0 * radii.amax(1, keepdim=True)).ceil().int().expand(num, 2).contiguous()
        projected = Projected(**dict(zip(PROJECTED, leaves, strict=True)), radii=boxes)
        for absgrad in (False, True):
            yield from _gone_back(projected, size, absgrad=absgrad, max_alpha=0.999)
        yield from (leaf.grad for leaf in leaves if leaf.grad is not None)


def _losses() -> Iterator[Tensor]:
    for number, (width, height) in enumerate(((11, 11), (12, 40), (75, 50), (333, 21), (150, 101))):
        generator = torch.Generator().manual_seed(number)
        image = torch.rand(height, width, 3, generator=generator).requires_grad_()
        target = torch.rand(height, width, 3, generator=generator)
        masks = (
            None,
            torch.rand(height, width, generator=generator) > 0.3,
            torch.zeros(height, width).bool(),
        )
        for mask in masks:
            for weight in (0.0, 0.2, 1.0):
                loss = ops.l1_ssim(image, target, ssim_weight=weight, mask=mask)
                yield loss
                yield torch.autograd.grad(loss, image)[0]
        yield ops.ssim(image, target, padding="same")


def _optimizers() -> Iterator[Tensor]:
    for num in (1, 7, 8, 15, 16, 17, 45, 1000):
        generator = torch.Generator().manual_seed(num)
        tensors = [torch.randn(num, generator=generator) for _ in range(3)]
        moments = tensors[2].square()
        for step, scale in enumerate((1.0, 0.0, 1e-30, 1e30, math.nan)):
            grad = scale * torch.randn(num, generator=generator)
            settings = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "step": step + 1}
            ops.adam_step(tensors[0], grad, tensors[1], moments, **settings)
            yield from (tensors[0].clone(), tensors[1].clone(), moments.clone())


def _trainings() -> Iterator[Tensor]:
    """Steps in which others are out of sight each time, so that rows of shN are made up for."""
    for visible_only in (False, True):
        for num in (1, 203, 333):
            gaussians = model(num)
            optimizer = SplatAdam.zeros(gaussians)
            for step in range(14):
                drawing, _ = fused_step(gaussians, optimizer, step, RATES, visible_only=visible_only)
                yield drawing.rgb
            yield from gaussians.tensors().values()


CALLS = ("test_lanes.steps_of_all_kinds()", "test_ops.train_once(2)", "test_modes.draw(2)")


@pytest.fixture(scope="module")
def wide_and_narrow(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Tensor]]]:
    """What the calls give with AVX-512 and with AVX2, each in one process."""
    folder = tmp_path_factory.mktemp("lanes")
    return [with_kernels(name, CALLS, folder / name) for name in ("avx512", "avx2")]


@pytest.mark.skipif(ops.native_version() != "avx512", reason="no processor with AVX-512 that keeps its clock")
@pytest.mark.parametrize("call", CALLS)
def test_avx512_gives_the_bits_of_avx2(wide_and_narrow: list[dict[str, list[Tensor]]], call: str) -> None:
    wide, narrow = (made[call] for made in wide_and_narrow)
    assert len(wide) == len(narrow) > 5
    for number, (ours, theirs) in enumerate(zip(wide, narrow, strict=True)):
        same = torch.equal(ours, theirs)
        if not same and ours.is_floating_point():
            # Not NaN's own bits: which of two NaN a sum hands on is the compiler's choice.
            same = torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(
                ours.nan_to_num(), theirs.nan_to_num()
            )
        assert same, number
