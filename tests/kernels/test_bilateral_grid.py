"""Colors under a bilateral grid of affine maps: the native kernels against plain torch, and by definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splatstudio.kernels import ops, ops_training, reference_training

pytestmark = pytest.mark.skipif(not ops.is_available(), reason="the native kernels are not built")

# Height, width and the grid's depth, rows and columns.
SIZES = [
    (33, 41, 2, 4, 4),
    (20, 7, 1, 1, 1),
    (9, 30, 3, 5, 2),
    (1, 1, 2, 3, 3),
    (5, 4, 12, 3, 5),
    (40, 3, 1, 2, 7),
]


def example(
    size: tuple[int, ...], scale: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:  # colors from below 0 to above 1
    height, width, depth, rows, columns = size
    generator = torch.Generator().manual_seed(sum(size))
    rgb = 1.4 * torch.rand(height, width, 3, generator=generator) - 0.2
    grid = scale * torch.randn(12, depth, rows, columns, generator=generator)
    return rgb, grid, torch.randn(height, width, 3, generator=generator)


def gradients(stages, rgb: Tensor, grid: Tensor, v_colors: Tensor) -> tuple[Tensor, ...]:
    leaves = rgb.detach().requires_grad_(), grid.detach().requires_grad_()
    colors = stages.bilateral_grid(*leaves)
    return colors.detach(), *torch.autograd.grad(colors, leaves, v_colors)


@pytest.mark.parametrize("size", SIZES)
def test_colors_and_gradients_are_those_of_plain_torch(size: tuple[int, ...]) -> None:
    values = example(size)
    found = gradients(ops_training, *values)
    wanted = gradients(reference_training, *(value.double() for value in values))
    for own, other in zip(found, wanted, strict=True):
        assert own.shape == other.shape
        torch.testing.assert_close(own.double(), other, rtol=2e-5, atol=2e-5)


def test_a_map_is_mixed_from_its_neighbors_by_place_and_brightness() -> None:
    grid = torch.zeros(12, 2, 1, 3)
    grid[3, 0] = torch.tensor([0.0, 1.0, 3.0])  # red gains that where it is dark
    grid[3, 1] = grid[3, 0] + 10.0
    rgb = torch.full((1, 5, 3), 0.3)  # whose brightness is 0.3
    red = ops_training.bilateral_grid(rgb, grid)[0, :, 0]
    torch.testing.assert_close(red, 0.3 + torch.tensor([0.0, 0.5, 1.0, 2.0, 3.0]) + 3.0)


def test_a_grid_of_zeros_changes_nothing_and_the_ends_of_brightness_have_no_slope() -> None:
    rgb = torch.tensor([[[0.0, 0.0, 0.0], [-0.1, 0.0, 0.0], [2.0, 1.0, 1.0], [0.2, 0.5, 0.9]]])
    assert torch.equal(ops_training.bilateral_grid(rgb, torch.zeros(12, 2, 3, 3)), rgb)
    grid = torch.zeros(12, 2, 1, 1)
    grid[3, 1] = 1.0  # red gains the brightness
    _, v_rgb, _ = gradients(ops_training, rgb, grid, torch.tensor([1.0, 0.0, 0.0]).expand(1, 4, 3))
    luma = torch.tensor(reference_training.LUMA)
    plain = torch.tensor([1.0, 0.0, 0.0])
    assert torch.equal(v_rgb[0, :3], plain.expand(3, 3))
    torch.testing.assert_close(v_rgb[0, 3], plain + luma)


def test_any_number_of_threads_and_any_layout_give_the_same_bits() -> None:
    rgb, grid, v_colors = example((130, 70, 2, 4, 4))
    with ops.limited_threads(1):
        one = gradients(ops_training, rgb, grid, v_colors)
    with ops.limited_threads(3):
        three = gradients(ops_training, rgb, grid, v_colors)
        turned = gradients(
            ops_training,
            rgb.permute(2, 0, 1).contiguous().permute(1, 2, 0),
            grid.transpose(2, 3).contiguous().transpose(2, 3),
            v_colors.transpose(0, 1).contiguous().transpose(0, 1),
        )
    for first, second, third in zip(one, three, turned, strict=True):
        assert torch.equal(first, second) and torch.equal(first, third)


def test_what_is_no_number_stays_with_its_pixel() -> None:
    rgb, grid, _ = example((6, 8, 2, 3, 3))
    broken = rgb.clone()
    broken[2, 3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    found, wanted = (ops_training.bilateral_grid(colors, grid) for colors in (broken, rgb))
    assert not bool(found[2, 3].isfinite().any())
    found[2, 3] = wanted[2, 3]
    assert torch.equal(found, wanted)


def test_what_is_no_picture_or_no_grid_is_refused() -> None:
    rgb, grid, _ = example((6, 8, 2, 3, 3))
    for bad in (rgb[..., :2], rgb[:0], rgb.double(), rgb[0]):
        with pytest.raises(RuntimeError, match="rgb"):
            ops_training.bilateral_grid(bad, grid)
    for bad in (grid[:11], grid[0], grid.double(), grid[:, :, :0]):
        with pytest.raises(RuntimeError, match="grid"):
            ops_training.bilateral_grid(rgb, bad)
