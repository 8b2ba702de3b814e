"""The optimizer: torch's Adam to the last digits, gsplat's learning rates, rows that follow the Gaussians."""

from __future__ import annotations

import pytest
import torch
from blob_models import blobs

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.optim import SplatAdam, learning_rates
from splatstudio.settings.config import OptimConfig
from splatstudio.strategy.population import trainable

RATES = {"means": 1e-3, "quats": 2e-3, "scales": 3e-3, "opacities": 4e-3, "sh0": 5e-3, "shN": 6e-3}


def random_like(gaussians: Gaussians, seed: int) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(t.shape, generator=generator) for name, t in gaussians.tensors().items()}


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_ten_steps_equal_torch_adam(batch_size: int) -> None:
    """Of a batch B: rates times sqrt(B), moments that decay as in B steps, epsilon over sqrt(B)."""
    growth = batch_size**0.5
    ours, theirs = trainable(blobs()), trainable(blobs().map(torch.clone))
    groups = [{"params": [t], "lr": RATES[name] * growth} for name, t in theirs.tensors().items()]
    adam = torch.optim.Adam(groups, betas=(0.9**batch_size, 0.999**batch_size), eps=1e-15 / growth)
    optimizer = SplatAdam.zeros(ours)
    for seed in range(10):
        gradients = random_like(ours, seed)
        for name, tensor in theirs.tensors().items():
            tensor.grad = gradients[name]
        adam.step()
        optimizer.step(ours, gradients, RATES, batch_size=batch_size)
    for name, tensor in theirs.tensors().items():
        torch.testing.assert_close(ours.tensors()[name], tensor, rtol=1e-5, atol=1e-6, msg=name)
        moved = (tensor - blobs().tensors()[name]).abs().mean()
        assert moved > 0.5 * RATES[name], f"{name} hardly moved"


def test_a_tensor_without_gradient_keeps_its_value_and_its_moments() -> None:
    gaussians = trainable(blobs())
    optimizer = SplatAdam.zeros(gaussians)
    optimizer.step(gaussians, {**random_like(gaussians, 0), "shN": None}, RATES)
    assert torch.equal(gaussians.shN, blobs().shN)
    assert not optimizer.exp_avg.shN.any() and optimizer.exp_avg.sh0.any()


def test_the_rate_of_the_means_falls_a_hundredfold_and_the_others_stay() -> None:
    first = learning_rates(OptimConfig(), extent=2.0, step=0, steps=1000)
    middle = learning_rates(OptimConfig(), extent=2.0, step=500, steps=1000)
    last = learning_rates(OptimConfig(), extent=2.0, step=1000, steps=1000)
    assert first["means"] == pytest.approx(3.2e-4)
    assert middle["means"] == pytest.approx(3.2e-5)
    assert last["means"] == pytest.approx(3.2e-6)
    assert learning_rates(OptimConfig(), extent=2.0, step=5000, steps=1000) == last
    assert {**first, "means": 0} == {**last, "means": 0}
    expected = {"quats": 1e-3, "scales": 5e-3, "opacities": 5e-2, "sh0": 2.5e-3, "shN": 1.25e-4}
    assert {name: rate for name, rate in first.items() if name != "means"} == expected


def test_the_other_rates_fall_as_much_as_they_are_told() -> None:
    config = OptimConfig(rest_lr_decay=0.25)
    first, middle, last = (learning_rates(config, extent=2.0, step=s, steps=1000) for s in (0, 500, 1000))
    assert first == learning_rates(OptimConfig(), extent=2.0, step=0, steps=1000)
    for name in ("quats", "scales", "opacities", "sh0", "shN"):
        assert middle[name] == pytest.approx(0.5 * first[name]), name
        assert last[name] == pytest.approx(0.25 * first[name]), name
    assert last["means"] == pytest.approx(0.01 * first["means"])


def test_a_shorter_training_hurries() -> None:
    usual = learning_rates(OptimConfig(), extent=2.0, step=0, steps=30_000)
    for steps, times in ((7500, 2.0), (300, 10.0), (30_000, 1.0), (60_000, 1.0)):
        rates = learning_rates(OptimConfig(lr_scale_short_runs=0.5), extent=2.0, step=0, steps=steps)
        assert rates == pytest.approx({name: times * rate for name, rate in usual.items()}), steps
    assert learning_rates(OptimConfig(), extent=2.0, step=0, steps=300) == usual


def test_kept_rows_keep_their_moments_and_newborn_rows_start_from_zero() -> None:
    gaussians = trainable(blobs())
    optimizer = SplatAdam.zeros(gaussians)
    optimizer.step(gaussians, random_like(gaussians, 1), RATES)
    before = optimizer.exp_avg_sq.scales.clone()
    optimizer.edit(torch.tensor([7, 3]), 2)
    assert torch.equal(optimizer.exp_avg_sq.scales[:2], before[[7, 3]])
    for moment in (optimizer.exp_avg, optimizer.exp_avg_sq):
        assert len(moment) == 4
        assert all(not tensor[2:].any() for tensor in moment.tensors().values())


def test_forget_zeroes_the_moments_of_one_tensor_alone() -> None:
    gaussians = trainable(blobs())
    optimizer = SplatAdam.zeros(gaussians)
    optimizer.step(gaussians, random_like(gaussians, 2), RATES)
    optimizer.forget("opacities")
    assert not optimizer.exp_avg.opacities.any() and not optimizer.exp_avg_sq.opacities.any()
    assert optimizer.exp_avg.means.any() and optimizer.exp_avg_sq.means.any()
