"""How wrong drawn depths are at known points, on native kernels: against plain torch and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from op_cases import camera_of
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.kernels import ops, ops_training, reference_training


def points_before(camera: Camera, num: int, seed: int = 2) -> Tensor:
    """Return points [num, 3] of the world: most where `camera` looks, some beside and behind it."""
    places = np.random.default_rng(seed).uniform([-1.0, -0.6, -0.5], [1.0, 0.6, 4.0], (num, 3))
    return torch.from_numpy(camera.position + places @ camera.viewmat[:3, :3]).float()


def drawn_by(camera: Camera, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Return alpha and depth_sum [H, W]: some of it nothing, or next to nothing."""
    random = torch.Generator().manual_seed(seed)
    alpha = 0.2 + 0.8 * torch.rand(camera.height, camera.width, generator=random)
    depth_sum = alpha * (0.5 + 3.5 * torch.rand(alpha.shape, generator=random))
    alpha[:2], depth_sum[:2] = 0.0, 0.0
    alpha[2], depth_sum[2] = 0.1, 1e-30
    return alpha, depth_sum


def measured(stages, maps: tuple[Tensor, ...], points: Tensor, camera: Camera, mask: Tensor | None):
    """Return the error and the gradients of three tenths of it."""
    leaves = [each.clone().requires_grad_() for each in maps]
    error = stages.depth_error(*leaves, points, camera=camera, mask=mask, unit=2.5)
    return error.detach(), *torch.autograd.grad(0.3 * error, leaves)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [(12, 10), (75, 50)])  # with many points at a pixel, and with few
def test_it_is_that_of_the_reference(masked: bool, size: tuple[int, int]) -> None:
    camera = camera_of(width=size[0], height=size[1])
    points, maps = points_before(camera, 9000), drawn_by(camera)
    mask = torch.rand(maps[0].shape, generator=torch.Generator().manual_seed(4)) < 0.7 if masked else None
    double = tuple(each.double() for each in maps)
    expected = measured(reference_training, double, points.double(), camera, mask)
    for ours, theirs in zip(measured(ops_training, maps, points, camera, mask), expected, strict=True):
        assert bool(theirs.any())
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=1e-7)


def test_by_hand_one_point_says_its_inverse_depth() -> None:
    camera = camera_of()
    ahead = torch.from_numpy(camera.position + 2.0 * camera.viewmat[2, :3]).float()[None]
    alpha = torch.full((50, 75), 0.8, requires_grad=True)
    depth_sum = torch.full((50, 75), 0.8 * 4.0, requires_grad=True)
    error = ops_training.depth_error(alpha, depth_sum, ahead, camera=camera, unit=10.0)
    assert float(error.detach()) == pytest.approx(10.0 * (1 / 2 - 1 / 4), rel=1e-6)
    v_alpha, v_depth_sum = torch.autograd.grad(error, [alpha, depth_sum])
    row, column = divmod(int(v_alpha.abs().argmax()), 75)
    assert (row, column) == (int(camera.K[1, 2]), int(camera.K[0, 2]))
    # d (1/2 - alpha / depth_sum) by either.
    assert float(v_alpha[row, column]) == pytest.approx(-10.0 / 3.2, rel=1e-6)
    assert float(v_depth_sum[row, column]) == pytest.approx(10.0 * 0.8 / 3.2**2, rel=1e-6)
    assert int((v_alpha != 0).sum()) == int((v_depth_sum != 0).sum()) == 1


def test_points_on_both_sides_of_what_is_drawn_hold_it_where_it_is() -> None:
    camera = camera_of()
    depths = torch.tensor([2.0, 8.0, 3.0], dtype=torch.float64)  # one of them behind what is drawn
    points = torch.from_numpy(camera.position) + depths[:, None] * torch.from_numpy(camera.viewmat[2, :3])
    maps = [torch.full((50, 75), value, requires_grad=True) for value in (1.0, 4.0)]
    error = ops_training.depth_error(maps[0], maps[1], points.float(), camera=camera)
    assert float(error.detach()) == pytest.approx((1 / 2 + 1 / 3 - 1 / 8 - 1 / 4) / 3, rel=1e-5)
    (v_alpha,) = torch.autograd.grad(error, maps[:1])
    # Two draw it nearer and one draws it back.
    assert float(v_alpha.min()) == pytest.approx(-(2 - 1) / 3 / 4.0, rel=1e-6) and float(v_alpha.max()) == 0.0


def test_what_nobody_can_judge_says_nothing() -> None:
    camera = camera_of()
    points, maps = points_before(camera, 500), drawn_by(camera)
    nowhere = torch.full((3, 3), math.nan)
    nowhere[1], nowhere[2] = math.inf, torch.from_numpy(camera.position).float()
    empty, faint = torch.zeros(maps[0].shape, dtype=torch.bool), torch.full_like(maps[0], 0.5)
    for alpha, points_, mask in (
        (maps[0], points[:0], None),
        (maps[0], nowhere, None),
        (maps[0], points, empty),
        (faint, points, None),
        (torch.full_like(faint, math.nan), points, None),
    ):
        error, *gradients = measured(ops_training, (alpha, maps[1]), points_, camera, mask)
        assert float(error) == 0.0 and not any(bool(each.any()) for each in gradients)
    whole = measured(ops_training, maps, points, camera, None)
    again = measured(ops_training, maps, torch.cat([points, nowhere]), camera, None)
    assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))


def test_a_depth_that_is_no_number_is_told() -> None:
    camera = camera_of()
    alpha, depth_sum = torch.ones(50, 75), torch.full((50, 75), math.nan)
    assert math.isnan(
        float(ops_training.depth_error(alpha, depth_sum, points_before(camera, 9), camera=camera))
    )


def test_however_many_threads_the_bits_are_the_same() -> None:
    camera = camera_of()
    points, maps = points_before(camera, 60_000), drawn_by(camera)
    found = []
    for threads in (1, 2, 3, 2):
        with ops.limited_threads(threads):
            found.append(measured(ops_training, maps, points, camera, None))
    for one in found[1:]:
        assert all(torch.equal(ours, first) for ours, first in zip(one, found[0], strict=True))


def test_one_can_go_back_more_than_once() -> None:
    camera = camera_of(width=12, height=10)
    maps = [each.requires_grad_() for each in drawn_by(camera)]
    error = ops_training.depth_error(maps[0], maps[1], points_before(camera, 2000), camera=camera)
    first = torch.autograd.grad(error, maps, retain_graph=True)
    second = torch.autograd.grad(error, maps)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_what_is_given_is_checked() -> None:
    camera, native = camera_of(), ops._native()
    points, (alpha, depth_sum) = points_before(camera, 9), drawn_by(camera)
    view = [0.0] * 16
    with pytest.raises(RuntimeError, match="depth_sum must have size 50 in dimension 0"):
        native.depth_error(alpha, depth_sum[1:], None, points, view, 1.0, 1)
    with pytest.raises(RuntimeError, match="points must have size 3 in dimension 1"):
        native.depth_error(alpha, depth_sum, None, points[:, :2].contiguous(), view, 1.0, 1)
    with pytest.raises(RuntimeError, match="mask has the wrong data type"):
        native.depth_error(alpha, depth_sum, alpha, points, view, 1.0, 1)
    with pytest.raises(RuntimeError, match="a camera is 16 numbers here"):
        native.depth_error(alpha, depth_sum, None, points, view[1:], 1.0, 1)
