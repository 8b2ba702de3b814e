"""What is in use at a step of a training: the size of the photographs and the degree of their colours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import CoarseConfig
from splatstudio.training.data.resolution import divisor_at, sh_degree_at
from splatstudio.training.trainer import Trainer


def test_photographs_grow_to_their_size_by_the_share_of_the_steps() -> None:
    config = TrainConfig(steps=1000, coarse=CoarseConfig(first=4.0, until=0.6))
    assert [divisor_at(step, config) for step in (0, 300, 600, 999)] == pytest.approx([4.0, 2.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("num_photos", "degree"), [(3, 0), (11, 0), (12, 1), (26, 1), (27, 2), (48, 3), (999, 3)]
)
def test_a_degree_needs_photographs_for_its_coefficients(num_photos: int, degree: int) -> None:
    config = TrainConfig(sh_degree_every=10, sh_photos=3.0)
    assert sh_degree_at(500, config, num_photos) == degree
    assert sh_degree_at(5, config, num_photos) == 0
    assert sh_degree_at(500, replace(config, sh_photos=0.0), num_photos) == 3
    # A model to start from keeps what it has learnt.
    assert sh_degree_at(500, replace(config, init="a.ply"), num_photos) == 3


def test_with_too_few_photographs_the_colour_does_not_depend_on_the_view(blob_scene: Scene) -> None:
    num = len(blob_scene.train_indices)
    for sh_photos, learnt in ((num / 4.0, True), (num / 3.9, False)):
        config = TrainConfig(steps=10, sh_degree=1, sh_degree_every=2, sh_photos=sh_photos)
        trainer = Trainer(blob_scene, config)
        degrees = [trainer.train_step().sh_degree for _ in range(4)]
        assert bool((trainer.gaussians.shN != 0).any()) == learnt
        assert degrees == ([0, 0, 1, 1] if learnt else [0] * 4)
        trainer.close()
