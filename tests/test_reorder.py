"""Gaussians in the order of a Morton curve: the same model and pictures, and all that belongs to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from growth_tasks import failing_at, same, state_of
from rank_pool import RankPool
from sharded_tasks import camera_of, model
from sharded_training_tasks import Plan, train
from shortage_tasks import replaced
from test_resume import CONFIG, assert_same, run
from test_sharded_strategies import COMMON, MCMC
from torch import Tensor

from splatstudio.config import McmcConfig, TrainConfig
from splatstudio.distributed.failures import OutOfMemory
from splatstudio.gaussians import Gaussians
from splatstudio.optim import SplatAdam
from splatstudio.rendering import render
from splatstudio.scene import Scene
from splatstudio.spatial_order import morton_order
from splatstudio.strategy import Population, trainable
from splatstudio.strategy.reorder import reorder
from splatstudio.trainer import Trainer

ORDERED = replace(CONFIG, order="morton")


def population_of(gaussians: Gaussians) -> Population:
    """Return a population of which all that belongs to a Gaussian tells which one it is."""
    own = trainable(gaussians.map(Tensor.clone))
    moments = own.detach().map(lambda t: t + 1.0), own.detach().map(lambda t: t + 2.0)
    return Population(own, SplatAdam(*moments, 3), {"visible": own.detach().opacities + 3.0})


def is_ordered(means: Tensor) -> bool:
    return np.array_equal(morton_order(means.detach().numpy()), np.arange(len(means)))


def test_everything_moves_with_the_rows_and_pictures_stay() -> None:
    population = population_of(model(300))
    before, camera = population.gaussians.detach(), camera_of(1)
    picture = render(before, camera).rgb
    rows = torch.from_numpy(morton_order(before.means.numpy()))
    assert not is_ordered(before.means)
    reorder(population)
    after, optimizer = population.gaussians.detach(), population.optimizer
    assert is_ordered(after.means) and population.gaussians.means.requires_grad
    for name, tensor in after.tensors().items():
        assert torch.equal(tensor, before.tensors()[name][rows]), name
        assert torch.equal(optimizer.exp_avg.tensors()[name], tensor + 1.0), name
        assert torch.equal(optimizer.exp_avg_sq.tensors()[name], tensor + 2.0), name
    assert torch.equal(population.counts["visible"], after.opacities + 3.0)
    assert torch.equal(render(after, camera).rgb, picture)


def test_neighbours_in_memory_are_neighbours_in_space() -> None:
    population = population_of(model(300))
    steps = [population.gaussians.means.detach().diff(dim=0).norm(dim=1).mean()]
    reorder(population)
    steps.append(population.gaussians.means.detach().diff(dim=0).norm(dim=1).mean())
    assert steps[1] < 0.5 * steps[0]


@pytest.mark.parametrize("nth", [1, 6, 7, 12, 18, 19])
def test_without_memory_all_stay_where_they_were(nth: int) -> None:
    population = population_of(model(100))
    before = state_of(population)
    with replaced(Tensor, "index_select", failing_at(Tensor.index_select, nth)), pytest.raises(OutOfMemory):
        reorder(population)
    assert same(before, state_of(population))
    reorder(population)
    assert is_ordered(population.gaussians.means)


def test_what_is_nowhere_is_left_to_the_loss() -> None:
    gaussians = model(50)
    gaussians.means[7] = float("nan")
    population = population_of(gaussians)
    reorder(population)
    assert torch.equal(population.gaussians.opacities.detach(), gaussians.opacities)


@pytest.mark.parametrize(
    "config",
    [ORDERED, replace(ORDERED, strategy="mcmc", mcmc=McmcConfig(start_step=5, every=5, max_gaussians=90))],
    ids=["default", "mcmc"],
)
def test_a_training_has_this_order_after_each_densification(blob_scene: Scene, config: TrainConfig) -> None:
    trainer, born = Trainer(blob_scene, config), Trainer(blob_scene, replace(config, order="born"))
    changed = 0
    while changed < 2:
        stats, other = trainer.train_step(), born.train_step()
        assert trainer.step < 100, "it grows"
        if stats.change is not None and stats.change.num_changed:
            changed += 1
            assert is_ordered(trainer.gaussians.means) and not is_ordered(born.gaussians.means)
        if changed == 1 and config.strategy == "default":  # mcmc draws noise row by row
            # Until the next choice by chance it is the same training, to the last bit.
            assert stats.loss == other.loss and stats.num_gaussians == other.num_gaussians
    trainer.close()
    born.close()


def test_a_break_changes_nothing(blob_scene: Scene, tmp_path: Path) -> None:
    straight = Trainer(blob_scene, ORDERED)
    run(straight, 25)  # behind the first densification
    saved = straight.save(tmp_path)
    losses = run(straight, 30)
    resumed = Trainer.resume(blob_scene, saved)
    assert run(resumed, 30) == losses
    assert_same(resumed.checkpoint(), straight.checkpoint())
    straight.close()
    resumed.close()


@pytest.mark.parametrize("settings", [{}, MCMC], ids=["default", "mcmc"])
def test_each_rank_orders_its_own(pool: RankPool, blob_folder: Path, settings: dict[str, Any]) -> None:
    plan = Plan(blob_folder, {**COMMON, **settings, "order": "morton"}, 11)
    parts = pool.run(2, train, plan)
    whole, first = parts[0].whole, parts[0].sizes[-1]
    assert parts[0].losses == parts[1].losses and parts[0].changes == parts[1].changes
    assert parts[0].changes[-1].num_changed > 0 and whole is not None
    assert is_ordered(whole.means[:first]) and is_ordered(whole.means[first:])
