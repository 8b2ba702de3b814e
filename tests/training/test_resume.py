"""N steps, saved and resumed, and M more are N + M steps without a break, in every bit of a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from resumed_trainings import CONFIG, assert_same, run

from splatstudio.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from splatstudio.checkpoints.saver import CheckpointSaver
from splatstudio.files.run import Run
from splatstudio.scene.scene import Scene
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer


@pytest.mark.parametrize(
    "num_steps", [8, 25, 36]
)  # before the first densification, after it, after the reset
@pytest.mark.parametrize("how", ["one file", "three shards", "in the background"])
def test_a_break_changes_nothing(blob_scene: Scene, tmp_path: Path, num_steps: int, how: str) -> None:
    straight = Trainer(blob_scene, CONFIG)
    run(straight, num_steps)
    if how == "in the background":
        saver = CheckpointSaver(tmp_path)
        saver.start(straight.checkpoint())
        losses = run(straight, 30)  # trains while it is written
        result = saver.take(wait=True)
        assert result is not None and result.path is not None
        saver.close()
        folder = result.path
    else:
        shards = 3 if how == "three shards" else 1
        folder = save_checkpoint(tmp_path, straight.checkpoint(), num_shards=shards)
        losses = run(straight, 30)
    resumed = Trainer.resume(blob_scene, folder)
    assert resumed.step == num_steps
    assert run(resumed, 30) == losses
    assert_same(resumed.checkpoint(), straight.checkpoint())
    assert len(resumed.gaussians) > 60, "a densification took place"
    straight.close()
    resumed.close()


def test_a_finished_run_goes_on_past_its_end_when_more_steps_are_asked_for(
    blob_scene: Scene, tmp_path: Path
) -> None:
    config = replace(CONFIG, steps=20, save_steps=(), eval_steps=())
    first = Session(Trainer(blob_scene, config), Run.create(tmp_path / "run", blob_scene.path, config))
    while not first.finished:
        last = first.advance()
    first.close()
    first.trainer.close()
    trainer = Trainer.resume(blob_scene, last.saved[-1], steps=45)
    second = Session(trainer, Run.open(tmp_path / "run"))
    assert not second.finished and trainer.step == 20
    steps = []
    while not second.finished:
        last = second.advance()
        steps.append(last.stats.step)
    assert steps == list(range(21, 46))
    saved = load_checkpoint(last.saved[-1])
    assert (saved.step, saved.config.steps) == (45, 45)
    rows = [row["step"] for row in second.run.metrics().rows if "loss" in row]
    assert rows == sorted(set(rows)) and set(rows) >= {10, 20, 30, 40, 45}
    second.close()
    trainer.close()
