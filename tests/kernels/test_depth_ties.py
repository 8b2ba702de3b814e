"""Gaussians of one depth: how a model's rows lie shows in no picture."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from splatstudio.kernels import ops, reference, reference_modes
from splatstudio.kernels.reference import LONGEST_TIE
from splatstudio.kernels.stages import Projected, RasterSettings

SETTINGS = RasterSettings(40, 30, torch.tensor([0.2, 0.5, 0.9]))
TENSORS = ("means2d", "conics", "depths", "opacities", "colors")


def in_layers(sizes: list[int], num_apart: int = 0) -> Projected:
    """Return Gaussians that overlap, so many at each of the depths 1, 2, ..., and `num_apart` between."""
    generator = torch.Generator().manual_seed(4)
    num = sum(sizes) + num_apart
    depths = torch.cat([torch.full((size,), 1.0 + layer) for layer, size in enumerate(sizes)])
    apart = 1.0 + len(sizes) * torch.rand(num_apart, generator=generator)
    return Projected(
        means2d=torch.tensor([20.0, 15.0]) + 4.0 * torch.randn(num, 2, generator=generator),
        conics=torch.tensor([0.02, 0.0, 0.02]).expand(num, 3).contiguous(),
        depths=torch.cat([depths, apart]),
        opacities=0.2 + 0.6 * torch.rand(num, generator=generator),
        colors=torch.rand(num, 3, generator=generator),
        radii=torch.full((num, 2), 40, dtype=torch.int32),
    )


def taken(projected: Projected, order: Tensor) -> Projected:
    return Projected(*(getattr(projected, name)[order] for name in TENSORS), radii=projected.radii[order])


def drawn(stages: ModuleType, projected: Projected) -> list[Tensor]:
    """Return the pictures, and the gradients of the Gaussians, of a loss that is the same for all."""
    leaves = [getattr(projected, name).clone().requires_grad_() for name in TENSORS]
    raster = stages.rasterize(Projected(*leaves, radii=projected.radii), SETTINGS)
    weights = torch.rand(30, 40, 3, generator=torch.Generator().manual_seed(1))
    ((raster.rgb * weights).sum() + raster.depth_sum.sum()).backward()
    gradients = [leaf.grad for leaf in leaves]
    return [raster.rgb.detach(), raster.alpha.detach(), raster.depth_sum.detach(), *gradients]


@pytest.mark.parametrize("stages", [ops, reference], ids=["ops", "reference"])
def test_the_order_of_the_rows_changes_no_bit(stages: ModuleType) -> None:
    projected = in_layers([2, LONGEST_TIE, 3, 1, 7], num_apart=60)
    order = torch.randperm(len(projected.depths), generator=torch.Generator().manual_seed(2))
    ours, theirs = drawn(stages, taken(projected, order)), drawn(stages, projected)
    for picture, other in zip(ours[:3], theirs[:3], strict=True):
        assert torch.equal(picture, other)
    for gradient, other in zip(ours[3:], theirs[3:], strict=True):
        assert torch.equal(gradient, other[order])


def test_ties_are_broken_as_the_reference_does() -> None:
    # One layer has more than are ordered, one holds the same Gaussian twice.
    projected = in_layers([5, LONGEST_TIE + 1, 2, 9], num_apart=30)
    twice = torch.cat([torch.arange(len(projected.depths)), torch.tensor([3, 3])])
    projected = taken(projected, twice)
    for ours, theirs in zip(drawn(ops, projected), drawn(reference, projected), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=2e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("stages", [ops, reference], ids=["ops", "reference"])
def test_a_wall_seen_squarely_is_drawn_as_it_lies(stages: ModuleType) -> None:
    wall = in_layers([LONGEST_TIE + 1])
    other = taken(wall, torch.arange(LONGEST_TIE + 1).flip(0))
    assert (drawn(stages, wall)[0] - drawn(stages, other)[0]).abs().max() > 0.01


def test_the_viewers_modes_break_ties_alike() -> None:
    projected = in_layers([4, 12], num_apart=20)
    order = torch.arange(len(projected.depths)).flip(0)
    for stages in (ops, reference_modes):
        ours = stages.rasterize_median(taken(projected, order), SETTINGS)
        theirs = stages.rasterize_median(projected, SETTINGS)
        assert torch.equal(ours.count, theirs.count) and torch.equal(ours.depth, theirs.depth)
