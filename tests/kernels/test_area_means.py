"""Smaller pictures of means of areas: the native kernel against plain torch, and by definition."""

from __future__ import annotations

import pytest
import torch

from splatstudio.kernels import ops, ops_training, reference_training
from splatstudio.rendering import render

pytestmark = pytest.mark.skipif(not ops.is_available(), reason="the native kernels are not built")

SIZES = [(1, 1), (7, 5), (13, 40), (31, 9), (33, 41)]  # width, height


def picture(width: int, height: int, channels: int) -> torch.Tensor:
    return torch.rand(height, width, channels, generator=torch.Generator().manual_seed(width + height))


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_kernel_does_what_plain_torch_does(width: int, height: int, channels: int) -> None:
    image = picture(33, 41, channels)
    found = ops_training.area_means(image, width=width, height=height)
    wanted = reference_training.area_means(image, width=width, height=height)
    assert found.shape == (height, width, channels) and found.is_contiguous()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_pixel_is_the_mean_of_what_it_covers() -> None:
    image = picture(10, 8, 3)
    found = ops_training.area_means(image, width=4, height=3)
    # Pixel 2 of 4 along 10 covers 5 to 7.5, pixel 1 of 3 along 8 covers 2.67 to 5.33.
    torch.testing.assert_close(found[1, 2], image[2:6, 5:8].mean(dim=(0, 1)))


@pytest.mark.parametrize(("width", "height"), [*SIZES, (33, 7), (5, 41), (40, 50)])
def test_bytes_are_rounded_once(width: int, height: int) -> None:
    image = (256 * picture(33, 41, 3)).byte()
    found = ops_training.area_means(image, width=width, height=height)
    wanted = reference_training.area_means(image.double() / 255.0, width=width, height=height)
    torch.testing.assert_close(found, wanted.float(), rtol=1.2e-7, atol=0)
    assert torch.equal(found == 1.0, wanted == 1.0)  # what is white everywhere stays white
    if (width, height) == (33, 41):
        assert torch.equal(found, image.float() / 255.0)


def test_an_area_of_any_size_has_a_mean() -> None:
    white = torch.full((3000, 3000, 1), 255, dtype=torch.uint8)  # whose sum has more than 31 bits
    assert float(ops_training.area_means(white, width=1, height=1)) == 1.0


def test_turned_and_larger_pictures_and_any_number_of_threads() -> None:
    image = picture(50, 70, 3)
    turned = image.permute(1, 0, 2)
    assert torch.equal(
        ops_training.area_means(turned, width=9, height=11),
        ops_training.area_means(turned.contiguous(), width=9, height=11),
    )
    with ops.limited_threads(3):
        threaded = ops_training.area_means(image, width=41, height=61)
    with ops.limited_threads(1):
        assert torch.equal(threaded, ops_training.area_means(image, width=41, height=61))
    larger = ops_training.area_means(image, width=60, height=90)
    torch.testing.assert_close(larger, reference_training.area_means(image, width=60, height=90))


def test_what_is_no_picture_is_refused() -> None:
    image = picture(5, 5, 3)
    for bad in (image[0], image[:0], image.double(), image.bool()):
        with pytest.raises(RuntimeError, match="image"):
            ops_training.area_means(bad, width=2, height=2)
    with pytest.raises(RuntimeError, match="0 x 2 pixels"):
        ops_training.area_means(image, width=0, height=2)


def test_other_kinds_of_numbers_take_the_way_of_torch() -> None:
    image = picture(20, 30, 3)
    found = render.area_means(image.double(), width=8, height=10)
    assert found.dtype == torch.float64
    torch.testing.assert_close(
        found.float(), render.area_means(image, width=8, height=10), rtol=1e-5, atol=1e-6
    )
