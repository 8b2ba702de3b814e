"""The training loss and the scores, for every backend."""

from __future__ import annotations

import math

import pytest
import torch
from backends import BACKENDS, backend_module
from torch import Tensor

from splatstudio.kernels import reference
from splatstudio.optimization import losses

each_backend = pytest.mark.parametrize("backend", BACKENDS)


def pair(height: int = 24, width: int = 31, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(height, width, 3, generator=generator)
    image = (target + 0.2 * torch.randn(height, width, 3, generator=generator)).clamp(0, 1)
    return image, target


def half_mask(height: int, width: int) -> Tensor:
    mask = torch.zeros(height, width, dtype=torch.bool)
    mask[:, : width // 2] = True
    return mask


def test_what_is_no_number_outside_the_mask_is_in_no_psnr() -> None:
    image, target = pair()
    mask = half_mask(*image.shape[:2])
    image[0, -1] = math.nan
    found = float(losses.psnr_on_device(image, target, mask))
    assert found == pytest.approx(losses.psnr(image, target, mask), abs=1e-6) and math.isfinite(found)


@each_backend
@pytest.mark.parametrize("ssim_weight", [0.0, 0.2, 1.0])
def test_what_lies_outside_the_mask_has_no_influence(backend: str, ssim_weight: float) -> None:
    l1_ssim = backend_module(backend).l1_ssim
    image, target = pair()
    mask = half_mask(*image.shape[:2])
    image.requires_grad_()
    loss = l1_ssim(image, target, ssim_weight=ssim_weight, mask=mask)
    loss.backward()
    gradient = image.grad
    assert gradient is not None and gradient[mask].any() and not gradient[~mask].any()
    changed = torch.where(mask[..., None], image.detach(), 0.77)
    assert l1_ssim(changed, target, ssim_weight=ssim_weight, mask=mask).item() == pytest.approx(loss.item())


@each_backend
@pytest.mark.parametrize("ssim_weight", [0.0, 0.2, 1.0])
def test_backends_agree_under_a_mask(backend: str, ssim_weight: float) -> None:
    image, target = pair()
    mask = torch.rand(image.shape[:2], generator=torch.Generator().manual_seed(1)) < 0.6
    results = []
    for name, dtype in ((backend, torch.float32), ("reference", torch.float64)):
        leaf = image.to(dtype, copy=True).requires_grad_()
        loss = backend_module(name).l1_ssim(leaf, target.to(dtype), ssim_weight=ssim_weight, mask=mask)
        loss.backward()
        assert leaf.grad is not None
        results.append((loss.item(), leaf.grad.double()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    largest = results[1][1].abs().max().item()
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=1e-4 * largest)


@each_backend
def test_l1_under_a_mask_is_the_mean_inside(backend: str) -> None:
    image, target = pair()
    mask = half_mask(*image.shape[:2])
    loss = backend_module(backend).l1_ssim(image, target, ssim_weight=0.0, mask=mask)
    assert loss.item() == pytest.approx((image - target).abs()[mask].mean().item(), rel=1e-5)


@each_backend
def test_a_full_mask_is_no_mask_and_an_empty_one_gives_nothing(backend: str) -> None:
    l1_ssim = backend_module(backend).l1_ssim
    image, target = pair()
    plain = l1_ssim(image, target, ssim_weight=0.2, mask=None).item()
    full = l1_ssim(image, target, ssim_weight=0.2, mask=torch.ones(image.shape[:2], dtype=torch.bool))
    assert full.item() == pytest.approx(plain, rel=1e-5)
    leaf = image.clone().requires_grad_()
    empty = l1_ssim(leaf, target, ssim_weight=0.2, mask=torch.zeros(image.shape[:2], dtype=torch.bool))
    empty.backward()
    assert empty.item() == 0.0 and leaf.grad is not None and not leaf.grad.any()


@each_backend
def test_a_side_below_the_window_is_refused(backend: str) -> None:
    with pytest.raises(ValueError, match="too small"):
        backend_module(backend).l1_ssim(*pair(10, 40), ssim_weight=0.2, mask=None)


def test_photometric_loss_of_a_tiny_image_is_l1() -> None:
    image, target = pair(10, 40)
    loss = losses.photometric(image, target, ssim_weight=0.2)
    assert loss.item() == pytest.approx((image - target).abs().mean().item())


@pytest.mark.parametrize("shape", [(70, 500, 3), (9, 13, 2)])  # several blocks and strips; below a window
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernels_zero_padding_under_a_mask(shape: tuple[int, int, int], masked: bool) -> None:
    ops = backend_module("ops")
    generator = torch.Generator().manual_seed(2)
    image, target = torch.rand(shape, generator=generator), torch.rand(shape, generator=generator)
    chosen = torch.rand(shape[:2], generator=generator) < (0.6 if masked else 2.0)
    values, gradients = [], []
    for native in (True, False):
        leaf = image.clone().requires_grad_()
        if native:
            value = ops._ImageLoss.apply(leaf, target, chosen if masked else None, 0.3, 0.7, True)
        else:
            seen = torch.where(chosen[..., None], leaf, target)
            similarity = reference.ssim_map(seen, target, padding="same")[chosen]
            value = 0.3 * (seen - target).abs()[chosen].mean() + 0.7 * (1.0 - similarity).mean()
        value.backward()
        values.append(value.item())
        gradients.append(leaf.grad)
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert (gradients[0] - gradients[1]).norm() < 1e-4 * gradients[1].norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_following_the_loss_brings_the_image_to_the_target(dtype: torch.dtype) -> None:
    image, target = (tensor.to(dtype) for tensor in pair())
    image.requires_grad_()
    optimizer = torch.optim.Adam([image], lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        losses.photometric(image, target, ssim_weight=0.2).backward()
        optimizer.step()
    assert losses.psnr(image, target) > 40.0
    assert losses.ssim(image, target) > 0.99


@each_backend
def test_adam_is_torchs(backend: str) -> None:
    adam_step = backend_module(backend).adam_step
    generator = torch.Generator().manual_seed(0)
    param = torch.randn(7, 3, generator=generator)
    theirs = torch.nn.Parameter(param.clone())
    optimizer = torch.optim.Adam([theirs], lr=0.01, betas=(0.8, 0.99), eps=1e-12)
    exp_avg, exp_avg_sq = torch.zeros_like(param), torch.zeros_like(param)
    for step in range(1, 6):
        gradient = torch.randn(7, 3, generator=generator) * 10.0 ** (step - 4)
        gradient[0] = 0.0  # a Gaussian that is not seen
        adam_step(param, gradient, exp_avg, exp_avg_sq, lr=0.01, beta1=0.8, beta2=0.99, eps=1e-12, step=step)
        theirs.grad = gradient
        optimizer.step()
    torch.testing.assert_close(param, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_psnr() -> None:
    target = torch.full((4, 5, 3), 0.5)
    assert losses.psnr(target + 0.1, target) == pytest.approx(20.0, abs=1e-4)
    assert losses.psnr(target, target) == math.inf
    # What is above 1 or below 0 cannot be shown and does not count.
    assert losses.psnr(torch.full((4, 5, 3), 7.0), torch.ones(4, 5, 3)) == math.inf
    mask = half_mask(4, 5)
    image = torch.where(mask[..., None], target + 0.01, target + 0.4)
    assert losses.psnr(image, target, mask) == pytest.approx(40.0, abs=1e-3)
    assert math.isnan(losses.psnr(image, target, torch.zeros(4, 5, dtype=torch.bool)))


def test_ssim_of_an_evaluation() -> None:
    image, target = pair()
    assert losses.ssim(target, target) == pytest.approx(1.0, abs=1e-5)
    score = losses.ssim(image, target)
    assert 0.2 < score < 0.98
    full = torch.ones(image.shape[:2], dtype=torch.bool)
    assert losses.ssim(image, target, full) == pytest.approx(score, abs=1e-5)
    assert losses.ssim(image * 5.0, target) == pytest.approx(losses.ssim((image * 5.0).clamp(0, 1), target))
    mask = half_mask(*image.shape[:2])
    mended = torch.where(mask[..., None], target, image)
    assert losses.ssim(mended, target, mask) == pytest.approx(1.0, abs=1e-5)
    assert losses.ssim(mended, target, ~mask) < 0.98
    with pytest.raises(ValueError, match="too small"):
        losses.ssim(*pair(10, 40))
