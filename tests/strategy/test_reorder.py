"""Gaussians in the order of a Morton curve: the same model and training, and all that belongs to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from growth_tasks import failing_at, same, state_of
from rank_pool import RankPool
from resumed_trainings import CONFIG, assert_same, run
from sharded_tasks import camera_of, model
from sharded_training_tasks import Plan, train
from shortage_tasks import replaced
from strategy_settings import COMMON, MCMC
from torch import Tensor

from splatstudio.checkpoints.checkpoint import Checkpoint
from splatstudio.checkpoints.manifest import named_tensors
from splatstudio.distributed.failures import OutOfMemory
from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.gaussians.gaussians import Gaussians, morton_order
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import render
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import FastConfig, McmcConfig
from splatstudio.strategy.after_step import reorder
from splatstudio.strategy.population import Population, trainable
from splatstudio.training import memory_plan
from splatstudio.training.memory_plan import PLACE_BYTES, plan_memory
from splatstudio.training.trainer import Trainer

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
    assert torch.equal(population.counts["place"], rows)
    reorder(population)
    assert torch.equal(population.counts["place"], rows), "places move with the rows"
    assert torch.equal(render(after, camera).rgb, picture)


def test_neighbors_in_memory_are_neighbors_in_space() -> None:
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


def placed(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return all that has a row for each Gaussian, in the order of their places."""
    tensors = named_tensors(checkpoint.population)
    places = tensors.pop("counts.place", torch.arange(len(checkpoint.gaussians)))
    assert torch.equal(places.sort().values, torch.arange(len(places))), "each is there once"
    return {name: tensor[places.argsort()] for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "config",
    [
        ORDERED,
        replace(ORDERED, strategy="mcmc", mcmc=McmcConfig(start_step=5, every=5, max_gaussians=90)),
        replace(
            ORDERED,
            strategy="fast",
            steps=60,
            fast=FastConfig(density=5.0, thin_at=0.4),
            mcmc=McmcConfig(start_step=5, every=5),
        ),
    ],
    ids=lambda config: config.strategy,
)
def test_a_training_is_the_same_in_this_order_after_each_densification(
    blob_scene: Scene, config: TrainConfig
) -> None:
    trainer, born = Trainer(blob_scene, config), Trainer(blob_scene, replace(config, order="insertion"))
    changed = 0
    while changed < 3:
        stats, other = trainer.train_step(), born.train_step()
        assert trainer.step < 100, "it grows"
        # But for pictures of two at one depth, of which the first in memory lies in front.
        assert stats.loss == pytest.approx(other.loss, rel=1e-5), trainer.step
        assert stats.change == other.change
        if stats.change is not None and stats.change.num_changed:
            changed += 1
            assert is_ordered(trainer.gaussians.means) and not is_ordered(born.gaussians.means)
    ours, theirs = placed(trainer.checkpoint()), placed(born.checkpoint())
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-3, msg=name)
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


def test_what_one_process_has_ordered_goes_on_alike_on_any_number_of_ranks(
    pool: RankPool, blob_folder: Path, tmp_path: Path
) -> None:
    settings = {**COMMON, **MCMC, "order": "morton", "batch_size": 6}
    first = pool.run(1, train, Plan(blob_folder, settings, 11, save=tmp_path))[0]
    one, two = (
        pool.run(num, train, Plan(blob_folder, {"batch_size": 6 // num}, 10, resume=first.saved))[0]
        for num in (1, 2)
    )
    assert two.changes == one.changes and any(change.num_changed for change in one.changes)
    assert two.losses == pytest.approx(one.losses, rel=1e-4)


@pytest.mark.parametrize(("num_ranks", "more"), [(1, PLACE_BYTES), (2, 0)])
def test_the_planner_counts_the_places(monkeypatch: pytest.MonkeyPatch, num_ranks: int, more: int) -> None:
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: 1 << 34)
    devices = RankDevices((None,) * num_ranks)
    born, ordered = (plan_memory(config, [(48, 40)], devices) for config in (CONFIG, ORDERED))
    assert ordered.per_splat - born.per_splat == more
