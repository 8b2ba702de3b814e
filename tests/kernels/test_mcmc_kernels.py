"""The noise and the parting of mcmc on native kernels, against plain torch and known numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops, ops_training, reference_training

NOISE = {"amount": 0.7, "min_opacity": 0.005, "seed": 2**62 + 12345}


def faint(num: int) -> Gaussians:
    """Return Gaussians of which about half are faint enough to inject_noise."""
    random = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    color = torch.zeros(num, 1, 3)
    scales = 0.5 * normal(num, 3) - 1.0
    return Gaussians(normal(num, 3), normal(num, 4), scales, 2.0 * normal(num) - 2.5, color, color[:, :0])


def trembled(gaussians: Gaussians, **numbers: float | Tensor) -> Tensor:
    ours = replace(gaussians, means=gaussians.means.clone())
    ops_training.inject_noise(ours, **{**NOISE, **numbers})  # type: ignore[arg-type]
    return ours.means


def test_the_bits_are_those_of_the_authors() -> None:
    # From the known answers that come with Random123, of philox4x32 in 10 rounds.
    first = reference_training.random_bits(torch.zeros(1, dtype=torch.int64), 0)
    assert [f"{word:08x}" for word in first[0].tolist()] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


def test_the_noise_is_normal_and_every_seed_has_its_own() -> None:
    like = torch.zeros(0, dtype=torch.float64)
    rows = torch.arange(40_000)
    one, other = (reference_training.normal_noise(rows, seed, like) for seed in (5, 6))
    both = torch.cat([one, other], dim=1)
    assert both.mean(dim=0).abs().max() < 0.02
    torch.testing.assert_close(both.T.cov(), torch.eye(6, dtype=torch.float64), rtol=0, atol=0.03)
    assert abs(float((both.abs() < 1.0).double().mean()) - math.erf(math.sqrt(0.5))) < 0.01
    assert both.isfinite().all() and both.abs().max() > 4.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_square_roots_are_right_to_two_roundings_from_nothing_to_infinity(dtype: torch.dtype) -> None:
    precision = torch.finfo(dtype)
    edges = torch.tensor([0.0, precision.tiny, 1.0, precision.max, math.inf, math.nan], dtype=dtype)
    some = torch.rand(10_000, generator=torch.Generator().manual_seed(1), dtype=dtype)
    values = torch.cat([edges, some])
    expected = torch.from_numpy(np.sqrt(values.numpy()))  # the processor's own, which is rounded once
    roots = reference_training.square_root(values)
    torch.testing.assert_close(roots, expected, rtol=2 * precision.eps, atol=0, equal_nan=True)
    assert reference_training.square_root(values[:0]).shape == (0,)


def test_the_noise_is_that_of_the_reference() -> None:
    gaussians = faint(5000)
    expected = gaussians.map(Tensor.double)
    before = expected.means.clone()
    reference_training.inject_noise(expected, amount=0.7, min_opacity=0.005, seed=2**62 + 12345)
    ours = trembled(gaussians)
    torch.testing.assert_close(ours.double(), expected.means, rtol=1e-4, atol=1e-5)
    share = float((ours.double() != before).any(dim=1).double().mean())
    assert 0.3 < share < 0.8 and float((expected.means - before).abs().max()) > 0.1


def test_the_noise_follows_the_seed_and_the_row_alone() -> None:
    gaussians = faint(20_000)
    once = trembled(gaussians)
    with ops.limited_threads(3):
        assert torch.equal(trembled(gaussians), once)
    assert torch.equal(trembled(gaussians[torch.arange(700)]), once[:700])
    assert not torch.equal(trembled(gaussians, seed=1), once)
    assert torch.equal(trembled(gaussians, amount=0.0), gaussians.means)


def test_the_noise_of_a_row_is_that_of_its_place() -> None:
    gaussians = faint(6000)
    once = trembled(gaussians)
    shuffled = torch.randperm(6000, generator=torch.Generator().manual_seed(7))
    assert torch.equal(trembled(gaussians[shuffled], places=shuffled), once[shuffled])
    assert torch.equal(trembled(gaussians, places=torch.arange(6000)), once)
    far = gaussians[shuffled[:2000]].map(Tensor.double)
    reference_training.inject_noise(far, **NOISE, places=shuffled[:2000])  # type: ignore[arg-type]
    torch.testing.assert_close(far.means.float(), once[shuffled[:2000]], rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="places"):
        trembled(gaussians, places=torch.arange(5999))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_moves_nobody_away(bad: float) -> None:
    gaussians = faint(60)
    gaussians.opacities[:] = -6.0
    gaussians.quats[10], gaussians.scales[20], gaussians.opacities[30] = bad, bad, bad
    gaussians.quats[40] = 0.0
    ours = trembled(gaussians)
    assert ours.isfinite().all() and torch.equal(ours[[10, 40]], gaussians.means[[10, 40]])
    assert (ours != gaussians.means).any(dim=1).sum() >= 56


def test_parts_are_those_of_the_reference() -> None:
    random = torch.Generator().manual_seed(1)
    opacities = torch.rand(5000, generator=random)
    copies = torch.randint(2, 52, (5000,), generator=random)
    ours = ops_training.compute_relocation(opacities, copies)
    theirs = reference_training.compute_relocation(opacities, copies)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == torch.float64 and mine.min() > 0
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=0)
    assert len(ops_training.compute_relocation(opacities[:0], copies[:0])[1]) == 0


def test_the_operators_say_truly_what_they_change() -> None:
    assert ops.native_version()  # loaded
    native, g = torch.ops.splatstudio, faint(10)
    arguments = (g.means, g.quats, g.scales, g.opacities, 0.5, 0.005, 7, 1)
    torch.library.opcheck(native.inject_noise.default, arguments, test_utils="test_schema")
    arguments = (*arguments, torch.arange(10).flip(0))
    torch.library.opcheck(native.inject_noise.default, arguments, test_utils="test_schema")
    parting = (torch.rand(10), torch.full((10,), 3), 1)
    torch.library.opcheck(native.compute_relocation.default, parting, test_utils="test_schema")
