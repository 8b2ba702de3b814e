"""The options for real captures beside each other, and beside photographs that tell less than all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splatstudio.capture_config import SkyConfig
from splatstudio.config import TrainConfig
from splatstudio.scene.scene import Scene
from splatstudio.trainer import Trainer

UNDER_A_SKY = TrainConfig(steps=20, sh_degree=1, sky=SkyConfig(enabled=True, lr=0.05))


def test_random_backgrounds_cannot_be_switched_on_beside_a_sky(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, UNDER_A_SKY)
    with pytest.raises(ValueError, match=r"switch sky\.enabled or random_background off"):
        trainer.update_setting("random_background", True)
    assert not trainer.config.random_background
    trainer.close()


def test_a_sky_wins_over_random_backgrounds_of_an_older_training(blob_scene: Scene, tmp_path: Path) -> None:
    straight = Trainer(blob_scene, UNDER_A_SKY)
    straight.train_step()
    both = replace(straight.config, random_background=True)
    plain = straight.save(tmp_path / "plain")
    straight.config = both  # as a training had it that was not refused this
    trainers = [Trainer.resume(blob_scene, plain), Trainer.resume(blob_scene, straight.save(tmp_path))]
    assert trainers[1].config == both
    for trainer in (straight, *trainers):
        for _ in range(4):
            trainer.train_step()
        trainer.close()
    for trainer in trainers:
        assert torch.equal(trainer.gaussians.means, straight.gaussians.means)
    with pytest.raises(ValueError, match="a sky cannot be learnt over random backgrounds"):
        Trainer.resume(blob_scene, plain, random_background=True)
