"""A step that asks many photographs shows with each of them that it gets on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.messages import Start, TrainJob
from splatstudio.runtime.training import Training
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ShapeConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig
from splatstudio.training.trainer import Trainer

CALM = TrainConfig(steps=10, sh_degree=0, test_every=0, densify=DensifyConfig(enabled=False))
THINS = replace(CALM, strategy="fast", densify=DensifyConfig(), fast=FastConfig(thin_at=(0.3, 0.6, 0.9)))


def photographs_told(trainer: Trainer, steps: int) -> list[int]:
    """Return how often each step has shown that it gets on."""
    told = []
    for _ in range(steps):
        calls: list[int] = []
        trainer.alive = lambda calls=calls: calls.append(1)
        trainer.train_step()
        told.append(len(calls))
    return told


def test_a_survey_of_all_photographs_shows_each(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, THINS)
    num = len(blob_scene.train_indices)
    assert photographs_told(trainer, 6) == [0, 0, 0, num, 0, 0]
    trainer.close()


def test_looking_who_is_shown_shows_each_photograph(blob_scene: Scene) -> None:
    shapes = ShapeConfig(min_views=1, min_views_every=3)
    trainer = Trainer(blob_scene, replace(CALM, shapes=shapes))
    num = len(blob_scene.train_indices)
    assert photographs_told(trainer, 4) == [0, 0, num, 0]
    trainer.close()


def test_a_rank_moves_its_pulse_within_a_step(blob_folder: Path, tmp_path: Path) -> None:
    beats: list[int] = []

    training = Training(
        TrainJob(blob_folder, tmp_path / "run", THINS), WorkerContext(alive=lambda: beats.append(1))
    )
    training.execute(Start())
    for _ in range(4):
        training.advance()
    training.close()
    assert len(beats) > 5
