"""A training that goes on with other steps than it was begun with: what is known of its score stays known."""

from __future__ import annotations

import json
from pathlib import Path

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.files.run import Run
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.plateau import PlateauWatch
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

SHORT = TrainConfig(steps=10, sh_degree=0, eval_every=0, eval_steps=(), save_minutes=0)


def go_on(run: Run, scene: Scene, steps: int, until: int) -> None:
    checkpoint = newest_checkpoint(run.path)
    assert checkpoint is not None
    trainer = Trainer.resume(scene, checkpoint, steps=steps)
    session = Session(trainer, run)
    while trainer.step < until:
        session.advance()
    session.save()
    session.close()
    trainer.close()


def test_other_steps_are_noted_once_and_what_was_told_after_holds(blob_scene: Scene, tmp_path: Path) -> None:
    run, trainer = Run.create(tmp_path / "run", blob_scene.path, SHORT), Trainer(blob_scene, SHORT)
    session = Session(trainer, run)
    while trainer.step < 10:
        session.advance()
    session.close()
    trainer.close()
    go_on(run, blob_scene, steps=40, until=20)
    # A stretch is told, and the training goes on once more with the same steps.
    told = {"step": 20, "flat_since": 15, "flat_psnr": 25.0, "stops": False}
    run.append_metrics(told)
    go_on(run, blob_scene, steps=40, until=30)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    noted = [row for row in rows if "setting" in row]
    assert noted == [{"step": 10, "setting": "steps", "value": 40}]
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    watch = PlateauWatch(rows, 30, planned=run.config.steps, steps=40)
    offer = watch.offer(TrainConfig(steps=40))
    assert not watch.replanned and offer is not None and offer.flat.psnr == 25.0
    again = PlateauWatch(rows, 30, planned=run.config.steps, steps=50)
    assert again.replanned and again.offer(TrainConfig(steps=50)) is None, "these are others"
