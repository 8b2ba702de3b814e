"""Colour corrections of a photograph: an affine map, or a bilateral grid of such maps.

Both are kept as what they differ from no correction by, so that zeros correct nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from splatstudio.devices.transfer import to_device

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def corrected_affinely(rgb: Tensor, difference: Tensor) -> Tensor:
    """Return the colours `rgb` [H, W, 3] under the affine map that differs by `difference` [3, 4] from none.

    Differentiable in both.
    """
    matrix = difference[:, :3] + torch.eye(3, dtype=rgb.dtype, device=rgb.device)
    return torch.addmm(difference[:, 3], rgb.reshape(-1, 3), matrix.T).reshape(rgb.shape)


def corrected_by_grid(rgb: Tensor, grid: Tensor) -> Tensor:
    """Return the colours `rgb` [H, W, 3] under a bilateral grid of affine maps (Wang et al. 2024).

    `grid` [12, D, G, G]: what the 3 x 4 maps differ by from none, by brightness (dark to bright), row and
    column; in between they are interpolated linearly. Differentiable in both.
    """
    height, width = rgb.shape[:2]
    y = torch.linspace(-1.0, 1.0, height, dtype=rgb.dtype, device=rgb.device)
    x = torch.linspace(-1.0, 1.0, width, dtype=rgb.dtype, device=rgb.device)
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    luma = to_device(torch.tensor(LUMA, dtype=rgb.dtype, device="cpu"), rgb.device)
    brightness = (rgb @ luma).clamp(0.0, 1.0) * 2.0 - 1.0
    places = torch.stack([columns, rows, brightness], dim=-1)[None, None]
    maps = F.grid_sample(grid[None], places, mode="bilinear", padding_mode="border", align_corners=True)
    maps = maps[0, :, 0].reshape(3, 4, height, width)
    change = (maps[:, :3] * rgb.permute(2, 0, 1)[None]).sum(dim=1) + maps[:, 3]
    return rgb + change.permute(1, 2, 0)


def roughness(grid: Tensor) -> Tensor:
    """Return the mean square difference of neighbours in `grid` [12, D, G, G], summed over its axes."""
    return sum(((grid.diff(dim=axis) ** 2).mean() for axis in (1, 2, 3)), grid.new_zeros(()))
