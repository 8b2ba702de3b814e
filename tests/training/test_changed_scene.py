"""A run whose scene has photos more, or fewer, than its training had: nothing that was learned is judged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blob_scenes import write_blob_scene
from gui_parts import Steered

import splatstudio as ss
from splatstudio.checkpoints.checkpoint import known_photos, newest_checkpoint
from splatstudio.cli.train import train_scene
from splatstudio.files.run import Run, RunLock
from splatstudio.gui.state.project import open_project
from splatstudio.models.scoring import EvaluationTask, evaluate_task
from splatstudio.runtime.sentences import joined_sentence
from splatstudio.scene.load import load_training_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

CONFIG = TrainConfig(steps=4, test_every=3, sh_degree=0, eval_every=0)
HELD_OUT = ["view_02.png", "view_05.png", "view_08.png", "view_11.png"]  # of eleven, without the first


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A scene of eleven photos, of which the first is away."""
    folder = write_blob_scene(tmp_path / "ring", 11)
    (folder / "images" / "view_01.png").rename(tmp_path / "view_01.png")
    return folder


@pytest.fixture
def run(scene: Path, tmp_path: Path) -> Path:
    """A run of it; all photos are there again."""
    ss.train(scene, config=CONFIG, run_dir=tmp_path / "run")
    (tmp_path / "view_01.png").rename(scene / "images" / "view_01.png")
    return tmp_path / "run"


def resumed(run: Path, scene: Path, steps: int) -> Trainer:
    """Train a run on to a step, and save it."""
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    now = load_training_scene(scene, CONFIG, known_photos(checkpoint))
    trainer = Trainer.resume(now, checkpoint, steps=steps)
    while trainer.step < steps:
        trainer.train_step()
    trainer.save(run)
    return trainer


def judged(run: Path) -> list[str]:
    """Return the names of the photos that an evaluation of a run compares with."""
    return sorted(score.name for score in evaluate_task(EvaluationTask(run)).evaluation.images)


def test_what_was_trained_on_is_not_judged_when_photos_have_come(run: Path, scene: Path) -> None:
    now = ss.load_scene(scene, test_every=3)
    assert now.views[now.test_indices[0]].name == "view_01.png", "by itself it is split otherwise"
    assert judged(run) == HELD_OUT
    assert (run / "eval" / "step_00000004.json").exists()


def test_a_run_goes_on_with_photos_that_have_come_once_and_again(run: Path, scene: Path) -> None:
    first = newest_checkpoint(run)
    assert first is not None
    now = load_training_scene(scene, CONFIG, known_photos(first))
    assert "1 more photos" in (joined_sentence(first, now) or "")
    for steps in (6, 8):  # what has joined makes no frame, also not the second time
        trainer = resumed(run, scene, steps)
        assert np.allclose(trainer.scene.transform, ss.load_model(first).transform)
        assert sorted(trainer.scene.views[i].name for i in trainer.scene.test_indices) == HELD_OUT
        assert "view_01.png" in {trainer.scene.views[i].name for i in trainer.scene.train_indices}
        assert judged(run) == HELD_OUT


def test_scores_without_a_photo_that_was_held_out_are_not_the_runs_own(run: Path, scene: Path) -> None:
    before = evaluate_task(EvaluationTask(run))
    assert before.file is not None
    for gone in ("view_05.png", "view_06.png"):
        (scene / "images" / gone).unlink()
    scored = evaluate_task(EvaluationTask(run))
    assert [image.name for image in scored.evaluation.images] == ["view_02.png", "view_08.png", "view_11.png"]
    assert scored.file is None and any("view_05.png is gone" in note for note in scored.evaluation.notes)
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    now = load_training_scene(scene, CONFIG, known_photos(checkpoint))
    assert joined_sentence(checkpoint, now) is None, "it cannot go on with them"
    with pytest.raises(ValueError, match=r"2 photos .* no longer has \(view_05\.png, view_06\.png\): put"):
        Trainer.resume(now, checkpoint, steps=9)


def test_the_page_opens_a_run_with_the_split_of_its_training(
    run: Path, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for project in (open_project(run, CONFIG, None), open_project(scene, CONFIG, run)):
        assert project.scene is not None
        names = sorted(project.scene.views[i].name for i in project.scene.test_indices)
        assert names == HELD_OUT, project.path
        assert any("1 more photos" in note for note in project.notes)


def test_a_scene_that_has_moved_is_named_once(
    run: Path, scene: Path, tmp_path: Path, steered: Callable[..., Steered]
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(scene, moved)
    with pytest.raises(ValueError, match="say with --scene where it is now"):
        evaluate_task(EvaluationTask(run))
    assert sorted(
        score.name for score in evaluate_task(EvaluationTask(run, scene=moved)).evaluation.images
    ) == (HELD_OUT)
    given: dict[str, Any] = {"resume": True, "given": {"steps"}}
    assert train_scene(moved, TrainConfig(steps=6), run, **given).exit_code == 0
    assert Run.open(run).scene_path == moved.resolve()
    assert judged(run) == HELD_OUT


def test_nobody_is_told_to_delete_a_run_that_is_being_trained(tmp_path: Path, scene: Path) -> None:
    run = Run.create(tmp_path / "begun", scene, CONFIG)
    given: dict[str, Any] = {"resume": True, "given": set()}
    lock = RunLock(run.path)
    with pytest.raises(ValueError, match="is in use by"):
        train_scene(scene, CONFIG, run.path, **given)
    lock.release()
    with pytest.raises(ValueError, match="delete it to start over there"):
        train_scene(scene, CONFIG, run.path, **given)
    assert not (run.path / "lock").exists()
