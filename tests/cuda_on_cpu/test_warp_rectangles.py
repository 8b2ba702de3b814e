"""A warp of the rasterizer skips the splats that cannot reach its 8 x 4 pixels: none that can."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from splatstudio.kernels import ops
from splatstudio.kernels.stages import Projected, RasterSettings

WIDTH, HEIGHT = 48, 40
SETTINGS = RasterSettings(WIDTH, HEIGHT, torch.zeros(3))


def splat_of(
    mean: tuple[float, float], deviations: tuple[float, float], angle: float, opacity: float
) -> Projected:
    """Return one splat: an ellipse of two standard deviations (px), turned by an angle (rad)."""
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    conic = turn @ torch.diag(torch.tensor(deviations, dtype=torch.float64) ** -2) @ turn.T
    return Projected(
        means2d=torch.tensor([mean]),
        conics=torch.tensor([[conic[0, 0], conic[0, 1], conic[1, 1]]], dtype=torch.float32),
        depths=torch.ones(1),
        opacities=torch.tensor([opacity]),
        colors=torch.ones(1, 3),
        radii=torch.full((1, 2), 10_000, dtype=torch.int32),
    )


def shown(splat: Projected) -> tuple[Tensor, Tensor]:
    """Return where a splat is drawn by the warps that choose, and where by those that look at every splat."""
    return ops.rasterize(splat, SETTINGS).alpha > 0, ops.rasterize_median(splat, SETTINGS).count > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_splat_is_drawn_wherever_it_is_visible(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    covered = 0
    for _ in range(40):
        x, y, wide, thin, angle, opacity = torch.rand(6, generator=random).tolist()
        deviations = (0.5 * 400.0**wide, 0.5 * 60.0**thin)
        splat = splat_of((90 * x - 20, 80 * y - 20), deviations, math.pi * angle, 0.005 + 0.99 * opacity)
        chosen, visible = shown(splat)
        assert torch.equal(chosen, visible)
        covered += int(visible.sum())
    assert covered > 2000


@pytest.mark.parametrize("length", [3e2, 1e4, 1e6])
@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 4, math.pi / 2, 2.5])
def test_a_spoilt_needle_is_drawn_wherever_it_is_visible(angle: float, length: float) -> None:
    away = 0.6 * length
    mean = (20.3 + away * math.cos(angle), 17.8 + away * math.sin(angle))
    chosen, visible = shown(splat_of(mean, (length, 0.6), angle, 0.9))
    assert torch.equal(chosen, visible)


def test_warps_beside_a_small_splat_skip_it() -> None:
    chosen, visible = shown(splat_of((11.5, 9.5), (0.8, 0.8), 0.0, 0.5))
    rows, columns = visible.nonzero(as_tuple=True)
    assert torch.equal(chosen, visible)
    assert 8 < len(rows) < 40 and rows.max() < 14 and columns.max() < 16
