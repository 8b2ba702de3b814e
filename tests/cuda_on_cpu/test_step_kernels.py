"""Depths of known points, who is left out, photos, exposures: on emulated GPUs the CPU's numbers."""

from __future__ import annotations

import pytest
import torch
from emulated_kernels import native
from op_cases import camera_of
from torch import Tensor

CAMERA = camera_of()
VIEW = [*CAMERA.viewmat[:3].reshape(-1).tolist(), *CAMERA.K[[0, 1, 0, 1], [0, 1, 2, 2]].tolist()]


def case(num: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return alpha and depth_sum, a mask, and points of which many share a pixel."""
    random = torch.Generator().manual_seed(num)
    alpha = torch.rand(50, 75, generator=random)
    depth_sum = alpha * (1.0 + 4.0 * torch.rand(50, 75, generator=random))
    places = (torch.rand(num, 3, generator=random) - torch.tensor([0.5, 0.5, 0.1])) * torch.tensor(
        [0.5, 0.5, 5]
    )
    rotation, center = (torch.from_numpy(each).float() for each in (CAMERA.viewmat[:3, :3], CAMERA.position))
    return [alpha, depth_sum], torch.rand(50, 75, generator=random) < 0.8, center + places @ rotation


@pytest.mark.parametrize("num", [9000, 256, 1, 0])
def test_depths_and_their_gradients_are_those_of_the_cpu(num: int) -> None:
    maps, mask, points = case(num)
    v_error = torch.tensor(0.3)
    error, share, codes = native.depth_error(*maps, mask, points, VIEW, 2.5, 1)
    expected = [error, *native.depth_error_bwd(*maps, share, codes, v_error, 1)]
    there = [native.to_device(each, 2) for each in (*maps, mask, points, v_error)]
    for seed in (1, 2):  # of the order in which threads come
        native.set_order_seed(seed)
        error, share, codes = native.depth_error(*there[:4], VIEW, 2.5, 1)
        found = [error, *native.depth_error_bwd(*there[:2], share, codes, there[4], 1)]
        native.set_order_seed(-1)
        for ours, theirs in zip(found, expected, strict=True):
            assert native.device_index(ours) == 2
            torch.testing.assert_close(native.to_host(ours), theirs, rtol=1e-6, atol=0)
    assert native.current_device() == 0 and (num < 9000 or all(bool(each.any()) for each in expected))
    with pytest.raises(RuntimeError, match="depth_sum must be on cuda:2, is on the CPU"):
        native.depth_error(there[0], maps[1], *there[2:4], VIEW, 2.5, 1)


def test_who_is_left_out_is_so_on_every_device() -> None:
    random = torch.Generator().manual_seed(1)
    logits, keys = 3.0 * torch.randn(3000, generator=random), torch.arange(3000) * 7919
    expected = native.drop_out(logits, keys, 2**62 - 3, 0.3, 1)
    there = native.to_device(logits, 1), native.to_device(keys, 1)
    ours = native.to_host(native.drop_out(*there, 2**62 - 3, 0.3, 1))
    assert torch.equal(ours == -20.0, expected == -20.0)
    torch.testing.assert_close(ours.sigmoid(), expected.sigmoid(), rtol=1e-5, atol=1e-8)
    assert 0.25 < float((expected == -20.0).float().mean()) < 0.35
    with pytest.raises(RuntimeError, match="keys must be on cuda:1"):
        native.drop_out(there[0], keys, 5, 0.3, 1)


@pytest.mark.parametrize(("width", "height"), [(33, 41), (13, 40), (7, 5), (40, 50)])
def test_photos_become_floats_of_any_size_as_on_the_cpu(width: int, height: int) -> None:
    floats = torch.rand(41, 33, 3, generator=torch.Generator().manual_seed(1))
    for image in ((256 * floats).byte(), floats, floats[..., :1].contiguous()):
        found = native.area_means(native.to_device(image, 2), width, height, 1)
        assert native.device_index(found) == 2
        assert torch.equal(native.to_host(found), native.area_means(image, width, height, 1))


# Height, width and the grid's depth, rows and columns; the last one's sums are more than a block has threads.
@pytest.mark.parametrize("size", [(31, 45, 2, 4, 4), (9, 30, 3, 5, 2), (20, 7, 1, 1, 1), (3, 40, 12, 2, 7)])
def test_colors_under_a_grid_of_maps_and_their_gradients_are_those_of_the_cpu(size: tuple[int, ...]) -> None:
    height, width, *nodes = size
    random = torch.Generator().manual_seed(sum(size))
    rgb = 1.4 * torch.rand(height, width, 3, generator=random) - 0.2
    grid = 0.3 * torch.randn(12, *nodes, generator=random)
    v_colors = torch.randn(height, width, 3, generator=random)
    expected = [native.bilateral_grid(rgb, grid, 1), *native.bilateral_grid_bwd(rgb, grid, v_colors, 1)]
    there = [native.to_device(each, 2) for each in (rgb, grid, v_colors)]
    runs = []
    for seed in (1, 2):  # of the order in which threads come
        native.set_order_seed(seed)
        found = [native.bilateral_grid(*there[:2], 1), *native.bilateral_grid_bwd(*there, 1)]
        native.set_order_seed(-1)
        runs.append([native.to_host(each) for each in found])
        for ours, theirs in zip(runs[-1], expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
    with pytest.raises(RuntimeError, match="grid must be on cuda:2, is on the CPU"):
        native.bilateral_grid(there[0], grid, 1)
