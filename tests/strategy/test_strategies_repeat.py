"""Every strategy: a seed repeats bit for bit, also over a save and on more threads, and pictures improve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from alike_tasks import NUM, decide, numbered
from rank_pool import RankPool

from splatstudio.evaluation.evaluate import evaluate
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.presets import PRESETS
from splatstudio.settings.strategy_config import CoarseConfig, DensifyConfig, FastConfig, McmcConfig
from splatstudio.training.trainer import Trainer

STEPS = 60
CONFIG = TrainConfig(
    steps=STEPS,
    sh_degree=1,
    sh_degree_every=10,
    densify=DensifyConfig(start_step=5, every=10, grow_grad=1e-5),
    mcmc=McmcConfig(every=10, max_gaussians=90),
    fast=FastConfig(density=2.0, thin_at=0.7),
    coarse=CoarseConfig(first=1.25, until=0.5),
)


def run(trainer: Trainer, num_steps: int, num_threads: int = 1) -> list[float]:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        return [trainer.train_step().loss for _ in range(num_steps)]
    finally:
        torch.set_num_threads(before)


def same(ours: Gaussians, theirs: Gaussians) -> bool:
    pairs = zip(ours.tensors().values(), theirs.tensors().values(), strict=True)
    return all(torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize("strategy", ["default", "absgrad", "mcmc", "fast"])
def test_a_seed_repeats_bit_for_bit_also_over_a_save(
    blob_scene: Scene, tmp_path: Path, strategy: str
) -> None:
    config = replace(CONFIG, strategy=strategy)  # type: ignore[arg-type]
    first, second = Trainer(blob_scene, config), Trainer(blob_scene, config)
    other = Trainer(blob_scene, replace(config, seed=7))
    losses = run(first, STEPS)
    assert len(first.gaussians) != 60
    assert run(second, 25, num_threads=2) == losses[:25] != run(other, 25)
    folder = second.save(tmp_path)
    resumed = Trainer.resume(blob_scene, folder)
    assert run(resumed, STEPS - 25, num_threads=3) == losses[25:]
    assert same(first.gaussians, resumed.gaussians)
    for trainer in (first, second, other, resumed):
        trainer.close()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_learns(blob_scene: Scene, name: str) -> None:
    config = PRESETS[name].apply(TrainConfig(steps=300), {"steps"})
    trainer = Trainer(blob_scene, config)
    before = evaluate(trainer.gaussians, blob_scene)
    run(trainer, 300)
    after = evaluate(trainer.gaussians, blob_scene, options=trainer.display_options)
    trainer.close()
    assert after.psnr > before.psnr and after.ssim > before.ssim + 0.1


DENSIFY: dict[str, Any] = {"densify.start_step": 5, "densify.every": 10, "densify.max_gaussians": 300}
CASES: dict[str, dict[str, Any]] = {
    "default": {**DENSIFY, "densify.grow_grad": 2e-4},
    "absgrad": {**DENSIFY, "strategy": "absgrad", "absgrad.grow_grad": 1.5e-4},
    "mcmc": {"strategy": "mcmc", "mcmc.start_step": 5, "mcmc.every": 10, "mcmc.max_gaussians": 300}
    | {"mcmc.grow_factor": 1.2, "shapes.opacity_weight": 0.01, "shapes.scale_weight": 0.01},
    "fast": {"strategy": "fast", "mcmc.start_step": 5, "mcmc.every": 10, "densify.max_gaussians": 300}
    | {"mcmc.grow_factor": 2.0, "fast.thin_at": 0.02, "fast.density": 0.12},
}
CASES["the paper's mcmc"] = {**CASES["mcmc"], "mcmc.guided": False, "mcmc.spread": 0.0}


@pytest.mark.parametrize("case", CASES)
def test_the_same_gaussians_are_born_and_go_on_any_number_of_ranks(pool: RankPool, case: str) -> None:
    changes, whole = pool.run(1, decide, CASES[case], (NUM,))[0]
    assert sum(change.cloned + change.relocated for change in changes) > 20
    assert sum(change.pruned + change.relocated for change in changes) > 10
    assert any(change.capped for change in changes) or "mcmc" in case
    for sizes in ((70, NUM - 70), (0, 90, NUM - 90)):
        for ours, rows in pool.run(len(sizes), decide, CASES[case], sizes):
            assert ours == changes
            for name, expected in whole.items():
                torch.testing.assert_close(rows[name], expected, rtol=1e-6, atol=1e-6, msg=name)


def test_places_of_a_checkpoint_stay_where_each_is_there_once(pool: RankPool) -> None:
    first = [(6, [0, 1]), (6, [2]), (6, [3, 4, 5])]
    assert pool.run(3, numbered, None) == first
    known = [[5, 0], [3], [1, 4, 2]]
    assert pool.run(3, numbered, known) == [(6, part) for part in known]
    for wrong in ([[5, 0], [3], [1, 4, 3]], [[5, 0], [3], [1, 4, 6]], [[5, 0], [-1], [1, 4, 2]]):
        assert pool.run(3, numbered, wrong) == first
    assert pool.run(1, numbered, None) == [(2, None)]
    assert pool.run(1, numbered, [[1, 0]]) == [(2, [1, 0])] and pool.run(1, numbered, [[1, 1]]) == [
        (2, [0, 1])
    ]
