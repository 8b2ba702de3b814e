"""Steps for which one process has no memory: left out before the model changes, told as torn behind that."""

from __future__ import annotations

import pytest
import torch
from lookahead_trainings import all_of, same

from splatstudio.optimization import gradients, train_step
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import PoseConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

CONFIG = TrainConfig(steps=20, poses=PoseConfig(enabled=True, start_step=0))


def without_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("out of memory")


@pytest.mark.parametrize("part", ["draw", "backward", "gradient_of_pose"])
def test_a_step_is_left_out_wherever_its_pictures_have_no_memory(
    part: str, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = gradients if part == "draw" else train_step
    real, asked = getattr(owner, part), iter(range(100))

    def short_once(*args: object, **options: object) -> object:
        return without_memory() if next(asked) == 0 else real(*args, **options)

    trainer = Trainer(blob_scene, CONFIG)
    monkeypatch.setattr(owner, part, short_once)
    stats = trainer.train_step()
    assert stats.problem is not None and "the photographs of a step were left out" in stats.problem
    assert stats.step == 1 and trainer.parts.population.optimizer.num_steps == 1
    trainer.close()


def test_a_step_that_is_always_short_ends_the_training_and_changes_nothing(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(blob_scene, CONFIG)
    before = all_of(trainer)
    monkeypatch.setattr(train_step, "backward", without_memory)
    with pytest.raises(MemoryError, match="no memory for a step, 3 times in a row"):
        trainer.train_step()
    assert trainer.whole and same(all_of(trainer), before)
    trainer.close()


def test_a_model_whose_change_had_no_memory_counts_as_torn(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(blob_scene, CONFIG)
    monkeypatch.setattr(train_step, "apply_gradients", without_memory)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train_step()
    assert not trainer.whole
    trainer.close()
