"""MS-SSIM and FLIP: against a calculation of their own, and what people see more and less of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d, gaussian_filter
from torch import Tensor

from splatstudio.evaluation import evaluate as evaluation
from splatstudio.evaluation.evaluate import color_corrected, measures_for
from splatstudio.evaluation.perceptual import MIN_SIDE, flip_error, ms_ssim
from splatstudio.optimization.losses import psnr

HEIGHT, WIDTH = 187, 241  # odd at several scales


@pytest.fixture(scope="module")
def photo() -> Tensor:
    """A picture of soft patches and fine grain, [H, W, 3]."""
    noise = np.random.default_rng(0).random((HEIGHT, WIDTH, 3))
    soft = gaussian_filter(noise, (9, 9, 0))
    soft = (soft - soft.min()) / np.ptp(soft)
    return torch.tensor(0.15 + 0.6 * soft + 0.1 * noise, dtype=torch.float32)


def noisy(photo: Tensor, amount: float) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return (photo + amount * torch.randn(photo.shape, generator=generator)).clamp(0.0, 1.0)


def by_hand(image: Tensor, target: Tensor) -> float:
    """Return the MS-SSIM in float64 with scipy, straight from the paper's formula."""
    window = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    window /= window.sum()

    def mean(values: np.ndarray) -> np.ndarray:
        for axis in (0, 1):
            values = correlate1d(values, window, axis=axis)
        return values[5:-5, 5:-5]

    def halved(values: np.ndarray) -> np.ndarray:
        height, width = values.shape[0] // 2, values.shape[1] // 2
        return values[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3).mean(axis=(1, 3))

    x, y, product = image.double().numpy(), target.double().numpy(), np.ones(3)
    for scale, weight in enumerate((0.0448, 0.2856, 0.3001, 0.2363, 0.1333)):
        variances = mean(x * x) - mean(x) ** 2 + mean(y * y) - mean(y) ** 2
        values = (2 * (mean(x * y) - mean(x) * mean(y)) + 0.03**2) / (variances + 0.03**2)
        if scale == 4:
            values = values * (2 * mean(x) * mean(y) + 0.01**2) / (mean(x) ** 2 + mean(y) ** 2 + 0.01**2)
        product *= values.mean(axis=(0, 1)) ** weight
        x, y = halved(x), halved(y)
    return float(product.mean())


@pytest.mark.parametrize("amount", [0.02, 0.2])
def test_ms_ssim_is_that_of_the_paper(photo: Tensor, amount: float) -> None:
    image = noisy(photo, amount)
    assert ms_ssim(image, photo) == pytest.approx(by_hand(image, photo), abs=1e-5)


def test_what_equals_the_photo_is_perfect(photo: Tensor) -> None:
    assert ms_ssim(photo, photo) == pytest.approx(1.0, abs=1e-6)
    assert flip_error(photo, photo) == pytest.approx(0.0, abs=1e-6)


def test_flip_lies_between_equal_and_black_beside_white() -> None:
    black, white = torch.zeros(64, 64, 3), torch.ones(64, 64, 3)
    assert 0.9 < flip_error(white, black) <= 1.0
    small, large = (flip_error(black + step, black) for step in (0.02, 0.2))
    assert 0.0 < small < large < flip_error(white, black)


def test_fine_noise_is_seen_less_than_a_shift_of_color_of_the_same_error(photo: Tensor) -> None:
    grain = noisy(photo, 0.05)
    error = float(((grain - photo) ** 2).mean().sqrt())
    shifted = photo + torch.tensor([error, -error, error])
    assert psnr(shifted, photo) == pytest.approx(psnr(grain, photo), abs=0.3)
    assert flip_error(grain, photo) < flip_error(shifted, photo)


def test_a_mask_leaves_its_pixels_out(photo: Tensor) -> None:
    mask = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    mask[:, 40:200] = True
    worse = noisy(photo, 0.1)
    spoilt = torch.where(mask[..., None], worse, 1.0 - worse)
    for measure in (ms_ssim, flip_error):
        masked = measure(spoilt, photo, mask)
        assert masked == measure(worse, photo, mask) and masked is not None
        assert math.isfinite(masked) and masked != pytest.approx(measure(spoilt, photo), abs=1e-3)
        assert math.isnan(measure(worse, photo, torch.zeros_like(mask)) or 0.0)


def test_what_is_no_number_gives_none(photo: Tensor) -> None:
    broken = photo.clone()
    broken[0, 0] = torch.nan
    assert math.isnan(flip_error(broken, photo))
    assert math.isnan(ms_ssim(broken, photo) or 0.0)
    assert color_corrected(broken, photo).isnan().all()
    mask = torch.ones(HEIGHT, WIDTH, dtype=torch.bool)
    mask[0, 0] = False
    assert flip_error(broken, photo, mask) == 0.0, "what is outside of the mask does not count"
    assert color_corrected(broken, photo, mask)[1:].isfinite().all()


def test_a_picture_without_room_for_five_scales_has_no_ms_ssim(photo: Tensor) -> None:
    small, large = photo[: MIN_SIDE - 1], photo[:MIN_SIDE, :MIN_SIDE]
    assert ms_ssim(small, small) is None and ms_ssim(large, large) == pytest.approx(1.0, abs=1e-6)


def test_flip_is_told_as_missing_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "has_flip", lambda: False)
    measures = measures_for(())
    assert not measures.flip and "pip install flip-evaluator" in measures.notes[-1]
    assert measures_for((), flip=False).notes == ()
