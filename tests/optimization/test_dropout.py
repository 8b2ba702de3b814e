"""Gaussians left out of a step: who, what that does to the picture and the gradients, and that it helps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import RankPool
from sharded_training_tasks import Plan, train
from step_models import RATES, camera_at, loss_of, model

from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops, ops_training, reference_training
from splatstudio.optimization.gradients import apply_gradients, backward, draw
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.dropout import Dropout
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import DropoutConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig, McmcConfig, StrategyName
from splatstudio.strategy.population import PERSISTENT_ID
from splatstudio.training import memory_plan
from splatstudio.training.trainer import Trainer

MANY = 10**6  # photos from which on nobody is left out: the scenes of the tests have few


def of(num: int, rate: float = 0.3, seed: int = 5) -> Dropout:
    return Dropout(rate, seed, torch.arange(1, num + 1))


def test_a_share_of_them_is_left_out_and_others_each_time() -> None:
    one, other = of(100_000).left_out(), of(100_000, seed=6).left_out()
    for out in (one, other):
        assert float(out.double().mean()) == pytest.approx(0.3, abs=0.01)
    assert float((one & other).double().mean()) == pytest.approx(0.09, abs=0.01)
    assert float((one[1:] & one[:-1]).double().mean()) == pytest.approx(0.09, abs=0.01)


def test_whoever_holds_a_gaussian_the_same_happens_to_it() -> None:
    keys = torch.randint(2**63 - 1, (5000,), generator=torch.Generator().manual_seed(1))
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(2))
    everybody = Dropout(0.5, 2**61 + 3, keys).left_out()
    assert torch.equal(Dropout(0.5, 2**61 + 3, keys[order]).left_out(), everybody[order])
    # A larger share holds the smaller one.
    assert bool((Dropout(0.6, 2**61 + 3, keys).left_out() | ~everybody).all())


def test_what_is_left_out_is_not_drawn_and_the_rest_has_more_opacity() -> None:
    gaussians, dropout = model().detach(), of(203)
    shown, out = dropout.drawn(gaussians), dropout.left_out()
    opacities = torch.sigmoid(gaussians.opacities[~out])
    assert torch.allclose(torch.sigmoid(shown.opacities[~out]), (opacities / 0.7).clamp_max(0.999), atol=1e-6)
    radii = render(shown, camera_at(1), RenderOptions()).radii
    assert bool((radii[out] == 0).all()) and bool((radii[~out] > 0).any())
    for name in ("means", "quats", "scales", "sh0", "shN"):
        assert shown.tensors()[name] is gaussians.tensors()[name]


def test_the_kernel_draws_what_the_reference_does() -> None:
    generator = torch.Generator().manual_seed(9)
    logits = 4.0 * torch.randn(30_000, generator=generator)
    logits[:4] = torch.tensor([math.inf, -math.inf, 200.0, -200.0])
    keys = torch.randint(-(2**63), 2**63 - 1, (30_000,), generator=generator)
    for rate in (0.0, 0.3, 0.999):
        chance = {"seed": 2**62 - 7, "rate": rate}
        ours = ops_training.drop_out(logits, keys, **chance)
        expected = reference_training.drop_out(logits.double(), keys, **chance)
        out = reference_training.left_out(keys, **chance)
        assert float(out.double().mean()) == pytest.approx(rate, abs=0.01)
        assert torch.equal(ours == -20.0, out) and torch.equal(expected == -20.0, out)
        torch.testing.assert_close(ours.sigmoid().double(), expected.sigmoid(), rtol=1e-5, atol=2e-9)
        with ops.limited_threads(3):
            assert torch.equal(ops_training.drop_out(logits, keys, **chance), ours)
        assert torch.equal(ops_training.drop_out(logits[777:], keys[777:], **chance), ours[777:])
    # What is no number is not drawn.
    nothing = torch.full((3,), math.nan)
    assert bool((ops_training.drop_out(nothing, keys[:3], seed=1, rate=0.0).sigmoid() < 1e-7).all())
    assert ops_training.drop_out(nothing[:0], keys[:0], seed=1, rate=0.5).shape == (0,)
    with pytest.raises(RuntimeError, match="a share is from 0 to below 1, not 1"):
        ops_training.drop_out(nothing, keys[:3], seed=1, rate=1.0)
    with pytest.raises(RuntimeError, match="keys must have size 3"):
        ops_training.drop_out(nothing, keys, seed=1, rate=0.5)


@pytest.mark.parametrize("antialiased", [False, True])
def test_the_gradients_of_kernels_are_those_of_autograd(antialiased: bool) -> None:
    gaussians, options = model(), RenderOptions(antialiased=antialiased)
    # None so opaque that it comes to the limit: there the true gradient is none.
    gaussians = replace(gaussians, opacities=gaussians.opacities.detach().clamp_max(0.5).requires_grad_())
    dropout, camera = of(203), camera_at(1)
    optimizer = SplatAdam.zeros(gaussians)
    before = {name: tensor.detach().clone() for name, tensor in gaussians.tensors().items()}
    out = dropout.left_out()
    raised = (torch.sigmoid(gaussians.opacities) * dropout.gain).logit()
    seen = replace(gaussians, opacities=torch.where(out, torch.full_like(raised, -20.0), raised))
    expected = torch.autograd.grad(loss_of(render(seen, camera, options).rgb), gaussians.opacities)[0]
    through = dropout.drawn(gaussians)
    own = torch.autograd.grad(loss_of(render(through, camera, options).rgb), gaussians.opacities)[0]
    assert torch.allclose(own, expected, rtol=1e-4, atol=1e-6) and bool((expected != 0).any())
    drawing = draw(gaussians, optimizer, camera, options, observed=True, dropout=dropout)
    apply_gradients(drawing, backward(drawing, loss_of(drawing.rgb)), optimizer, RATES)
    # The first moment of the first step is a tenth of the gradient.
    assert torch.allclose(10.0 * optimizer.exp_avg.opacities, expected, rtol=1e-4, atol=1e-5)
    for name, tensor in gaussians.tensors().items():
        assert torch.equal(tensor[out], before[name][out]), name
        assert bool((tensor[~out] != before[name][~out]).any()), name


def test_what_is_all_but_opaque_still_has_a_gradient_and_what_is_not_there_has_none() -> None:
    gaussians = replace(model(), opacities=torch.full((203,), 5.0, requires_grad=True))
    dropout = of(203)
    rgb = render(dropout.drawn(gaussians), camera_at(1), RenderOptions()).rgb
    (v,) = torch.autograd.grad(loss_of(rgb), gaussians.opacities)
    out = dropout.left_out()
    assert bool((v[~out] != 0).any()) and not bool((v[out] != 0).any())
    faint = replace(model(), opacities=torch.full((203,), -200.0, requires_grad=True))
    rgb = render(dropout.drawn(faint), camera_at(1), RenderOptions()).rgb
    (v,) = torch.autograd.grad(loss_of(rgb), faint.opacities)
    assert bool((v == 0).all())


def test_the_share_grows_with_the_steps_and_falls_with_the_photos() -> None:
    config = DropoutConfig(rate=0.6, photos=30, grown_at=100)
    assert [config.rate_at(step, 15) for step in (0, 50, 99, 300)] == pytest.approx([0.0, 0.15, 0.297, 0.3])
    assert config.rate_at(99, 3) > config.rate_at(99, 15) > config.rate_at(99, 29) > 0
    assert config.rate_at(99, 30) == config.rate_at(99, 300) == 0.0
    assert DropoutConfig().rate_at(99, 1) == 0.0


def settings(rate: float, **more: Any) -> TrainConfig:
    dense = DensifyConfig(start_step=5, every=10, grow_grad=1e-5, max_gaussians=90)
    mcmc = McmcConfig(start_step=5, every=10, max_gaussians=90)
    chosen: dict[str, Any] = {"steps": 60, "sh_degree": 1, "sh_degree_every": 20, **more}
    dropout = DropoutConfig(rate=rate, photos=MANY, grown_at=60)
    return TrainConfig(densify=dense, mcmc=mcmc, fast=FastConfig(density=2.0), dropout=dropout, **chosen)


def trained(trainer: Trainer, steps: int) -> tuple[Gaussians, list[float]]:
    losses = [trainer.train_step().loss for _ in range(steps)]
    result = trainer.gaussians.map(lambda tensor: tensor.clone())
    return result, losses


@pytest.mark.parametrize("strategy", ["default", "mcmc", "fast"])
def test_a_training_goes_on_bit_for_bit(strategy: StrategyName, blob_scene: Scene, tmp_path: Path) -> None:
    config = settings(0.6, strategy=strategy)
    whole = Trainer(blob_scene, config)
    expected, losses = trained(whole, 40)
    keys = whole.parts.population.counts[PERSISTENT_ID]
    assert len(keys.unique()) == len(keys) > 60, "each has a chance of its own"
    whole.close()
    first = Trainer(blob_scene, config)
    trained(first, 25)
    saved = first.save(tmp_path)
    first.close()
    again = Trainer.resume(blob_scene, saved)
    ours, rest = trained(again, 15)
    again.close()
    assert rest == losses[25:]
    for name, tensor in ours.tensors().items():
        assert torch.equal(tensor, expected.tensors()[name]), name


def test_where_there_are_photos_enough_nothing_changes(blob_scene: Scene) -> None:
    num = len(blob_scene.train_indices)
    runs = []
    for rate, photos in ((0.0, MANY), (0.6, num), (0.6, num + 1)):
        config = replace(settings(rate, strategy="mcmc"), dropout=DropoutConfig(rate, 60, photos))
        trainer = Trainer(blob_scene, config)
        runs.append(trained(trainer, 12)[1])
        trainer.close()
    assert runs[0] == runs[1] and runs[0] != runs[2]


@pytest.mark.parametrize("strategy", ["mcmc", "fast"])
def test_several_ranks_leave_out_the_same(pool: RankPool, blob_folder: Path, strategy: str) -> None:
    chosen = {"strategy": strategy, "dropout.rate": 0.9, "dropout.photos": MANY, "sh_degree": 1}
    chosen |= {"dropout.grown_at": 200}
    chosen |= {"densify.start_step": 4, "mcmc.start_step": 4, "mcmc.max_gaussians": 90, "fast.density": 2.0}
    chosen |= {"mcmc.every": 5, "densify.grow_grad": 1e-5, "fast.thin_at": 1.0}
    one = pool.run(1, train, Plan(blob_folder, {**chosen, "batch_size": 2}, 16))[0]
    two = pool.run(2, train, Plan(blob_folder, chosen, 16))
    assert two[0].losses == two[1].losses == one.losses
    assert two[0].changes == one.changes and one.changes
    other = pool.run(2, train, Plan(blob_folder, {**chosen, "dropout.rate": 0.0}, 16))
    assert other[0].losses[4:] != pytest.approx(one.losses[4:], rel=1e-3)


def test_the_plan_of_the_memory_counts_it_where_photos_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: 8 << 30)
    gpu, size = RankDevices((0,)), (640, 480)

    def needed(num_photos: int, rate: float, strategy: StrategyName = "mcmc") -> float:
        config = TrainConfig(strategy=strategy, dropout=DropoutConfig(rate=rate, photos=40))
        return memory_plan.plan_memory(config, [size] * num_photos, gpu).per_splat

    assert needed(50, 0.1) == needed(50, 0.0) == needed(12, 0.0) < needed(12, 0.1)
    assert needed(50, 0.1, "default") > needed(50, 0.0, "default"), "keys, which mcmc has anyway"
