"""Checkpoints of older versions go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from splatstudio.checkpoint import save_checkpoint
from splatstudio.config import TrainConfig, changed
from splatstudio.scene.scene import Scene
from splatstudio.trainer import Trainer


def test_counts_that_an_older_version_did_not_keep_begin_at_zero(blob_scene: Scene, tmp_path: Path) -> None:
    config = changed(replace(TrainConfig(), steps=100), "strategy", "mcmc")
    trainer = Trainer(blob_scene, config)
    for _ in range(3):
        trainer.train_step()
    saved = trainer.checkpoint()
    trainer.close()
    visible = saved.population.counts["visible"].clone()
    assert visible.max() > 0 and "grad2d" in saved.population.counts
    older = replace(saved, population=replace(saved.population, counts={"visible": visible}))
    resumed = Trainer.resume(blob_scene, save_checkpoint(tmp_path, older))
    assert torch.equal(resumed._population.counts["visible"].cpu(), visible)
    resumed.train_step()
    assert resumed._population.counts["grad2d"].max() > 0
    resumed.close()
