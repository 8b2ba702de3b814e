"""Checkpoints of older versions go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rank_pool import RankPool
from sharded_training_tasks import Plan, train
from strategy_settings import COMMON, MCMC

from splatstudio.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.training.trainer import Trainer


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
    assert torch.equal(resumed.parts.population.counts["visible"].cpu(), visible)
    resumed.train_step()
    assert resumed.parts.population.counts["grad2d"].max() > 0
    resumed.close()


def test_rows_of_several_ranks_that_an_older_version_gave_no_places_get_them(
    pool: RankPool, blob_folder: Path, tmp_path: Path
) -> None:
    first = pool.run(2, train, Plan(blob_folder, {**COMMON, **MCMC}, 11, save=tmp_path))[0]
    assert first.saved is not None
    saved = load_checkpoint(first.saved)
    counts = {name: count for name, count in saved.population.counts.items() if name != "place"}
    assert counts.keys() < saved.population.counts.keys()
    saved = replace(saved, population=replace(saved.population, counts=counts))
    older = save_checkpoint(tmp_path / "older", saved, num_shards=2)
    one, two = (
        pool.run(num, train, Plan(blob_folder, {"batch_size": 6 // num}, 10, resume=older))[0]
        for num in (1, 2)
    )
    assert two.changes == one.changes and any(change.num_changed for change in one.changes)
    assert two.losses == pytest.approx(one.losses, rel=1e-4)
