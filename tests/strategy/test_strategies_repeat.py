"""Every strategy: a seed repeats bit for bit, also over a save and on more threads, and pictures improve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

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
    fast=FastConfig(every=10, grow_grad=1e-5, views=3, thin_at=(0.7,)),
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
