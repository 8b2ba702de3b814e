"""A training with its run folder: what is due at which step, and a disk that refuses."""

from __future__ import annotations

import errno
import fcntl
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from example_checkpoints import example
from gui_parts import scores

from splatstudio.checkpoints import saver as checkpoint_saver
from splatstudio.checkpoints.catalog import entries_of
from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    checkpoint_folders,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from splatstudio.checkpoints.manifest import step_of
from splatstudio.evaluation.evaluate import write_evaluation
from splatstudio.files import run as run_files
from splatstudio.files.run import Run, RunLock, score_files
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.messages import Start, TrainJob
from splatstudio.runtime.training import Training
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ShapeConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig
from splatstudio.training import figures
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

CONFIG = TrainConfig(steps=6, sh_degree=0, save_steps=(2, 4), eval_steps=(3,))


@pytest.fixture
def session(blob_scene: Scene, tmp_path: Path) -> Iterator[Session]:
    trainer = Trainer(blob_scene, CONFIG)
    made = Session(trainer, Run.create(tmp_path / "run", blob_scene.path, CONFIG))
    yield made
    made.close()
    trainer.close()


def test_saves_and_evaluates_when_asked_and_at_the_end(session: Session) -> None:
    advances = [session.advance() for _ in range(6)]
    assert session.finished
    assert [step_of(path) for a in advances for path in a.saved] == [2, 4, 6]
    assert [step_of(path) for path in checkpoint_folders(session.run.path)] == [2, 4, 6]
    assert step_of(advances[-1].saved[-1]) == 6, "the last one is waited for"
    assert [a.stats.step for a in advances if a.evaluation] == [3, 6]
    assert session.save_if_needed() is None, "the last step was saved already"


def test_settings_that_were_changed_after_a_save_are_saved_too(session: Session) -> None:
    session.advance()
    first = session.save()
    assert session.save_if_needed() is None
    session.trainer.update_setting("optim.means_lr", 0.001)
    assert session.saved is None and session.save_if_needed() == first
    assert load_checkpoint(first).config.optim.means_lr == 0.001
    assert session.saved == first and session.save_if_needed() is None


def test_metrics_that_cannot_be_written_cost_no_checkpoint_and_no_evaluation(
    blob_scene: Scene, tmp_path: Path
) -> None:
    config = TrainConfig(steps=20, sh_degree=0, save_steps=(10,), eval_steps=(10,))
    run = Run.create(tmp_path / "run", blob_scene.path, config)
    trainer = Trainer(blob_scene, config)
    session = Session(trainer, run)
    (run.path / "metrics.jsonl").mkdir()
    try:
        advances = [session.advance() for _ in range(20)]
    finally:
        session.close()
        trainer.close()
    assert advances[9].problem is not None and "metrics.jsonl" in advances[9].problem
    assert [step_of(path) for path in checkpoint_folders(run.path)] == [10, 20]
    assert (run.path / "eval" / "step_00000010.json").exists()


def test_the_metrics_name_the_photo_that_was_measured(session: Session) -> None:
    advances = [session.advance() for _ in range(6)]
    (row,) = [row for row in session.run.metrics().rows if "loss" in row]
    assert (row["step"], row["view"]) == (6, advances[-1].stats.view)
    assert row["view"] in {view.name for view in session.trainer.scene.views}


def test_it_evaluates_at_regular_steps_too(session: Session) -> None:
    session.trainer.update_setting("eval_every", 2)
    assert [a.stats.step for a in (session.advance() for _ in range(6)) if a.evaluation] == [2, 3, 4, 6]


def test_an_evaluation_is_told_as_time_beside_the_step(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, beside = session.evaluate, 0.4
    monkeypatch.setattr(session, "evaluate", lambda: (time.sleep(beside), evaluate())[1])
    told = [session.advance().seconds_beside for _ in range(5)]
    assert told[2] >= beside > max(told[:2] + told[3:])


def test_a_full_disk_is_told_and_the_training_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run_dir: Path, checkpoint: Checkpoint) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    session.advance()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_saver, "save_checkpoint", refuse)
        advance, settled = session.advance(), session.settle()
    assert advance.saved == settled.saved == ()
    problem = advance.problem or settled.problem  # it may be over before the step is
    assert problem is not None and "Step 2" in problem and "No space left" in problem
    assert session.save_if_needed() is not None, "the failed one does not count"
    assert session.advance().stats.step == 3
    (saved,) = session.advance().saved + session.settle().saved
    assert load_checkpoint(saved).step == 4


def test_an_unreadable_test_photo_does_not_end_the_training(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ValueError("a.png cannot be decoded")

    monkeypatch.setattr(session, "evaluate", refuse)
    advances = [session.advance() for _ in range(6)]
    assert advances[2].problem is not None and "a.png cannot be decoded" in advances[2].problem
    assert advances[-1].saved


def test_training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, writing = threading.Event(), threading.Event()

    def slow(run_dir: Path, checkpoint: Checkpoint) -> Path:
        writing.set()
        assert go.wait(60)
        return save_checkpoint(run_dir, checkpoint)

    monkeypatch.setattr(checkpoint_saver, "save_checkpoint", slow)
    session.advance()
    session.advance()
    assert writing.wait(60)
    at_two = session.trainer.gaussians.map(lambda tensor: tensor.clone())
    advance = session.advance()
    assert advance.stats.step == 3 and not advance.saved
    assert not (at_two.means == session.trainer.gaussians.means).all(), "step 3 changed the model"
    threading.Timer(0.2, go.set).start()
    advance = session.advance()
    assert step_of(advance.saved[0]) == 2, "step 4 waited for it"
    saved = load_checkpoint(session.run.path / "ckpts" / "step_00000002")
    for name, tensor in saved.gaussians.tensors().items():
        assert tensor.equal(at_two.tensors()[name]), "what is written is the model of step 2"


def test_without_memory_for_a_copy_it_is_written_at_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_saver, "free_memory", lambda: 1000)
    session.advance()
    assert [step_of(path) for path in session.advance().saved] == [2]


def test_an_error_that_is_not_the_disks_ends_the_training(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run_dir: Path, checkpoint: Checkpoint) -> Path:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(checkpoint_saver, "save_checkpoint", broken)
    session.save_in_background()
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        session.settle()


def test_only_the_newest_are_kept_when_that_is_asked_for(session: Session) -> None:
    session.trainer.update_setting("keep", 2)
    for _ in range(6):
        session.advance()
    assert [step_of(path) for path in checkpoint_folders(session.run.path)] == [4, 6]


def test_a_save_that_is_complete_is_not_called_unwritten_when_an_older_one_cannot_go(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(newest: Path, keep: int) -> list[Path]:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoint_saver, "prune_checkpoints", refuse)
    session.advance()
    session.advance()
    settled = session.settle()
    problems = [settled.problem] if settled.problem else []
    assert problems and "Step 2 is saved, but an older checkpoint could not be deleted" in problems[0]
    assert "not be written" not in problems[0]


def test_figures_that_cannot_be_written_are_not_called_an_unwritten_step(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figures, "write_evaluation", refuse)
    problems = [session.advance().problem for _ in range(3)]
    assert problems[:2] == [None, None] and problems[2] is not None
    assert problems[2].startswith("The figures of step 3 could not be written: ")
    assert session.lock_problem is None


def test_figures_of_a_full_disk_are_written_when_it_has_room(
    blob_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(steps=50, sh_degree=0, save_steps=(), eval_steps=(15, 20), eval_every=0)
    trainer = Trainer(blob_scene, config)
    session = Session(trainer, Run.create(tmp_path / "run", blob_scene.path, config))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    told = [session.advance().problem for _ in range(10)]
    with monkeypatch.context() as patch:
        patch.setattr(figures, "write_evaluation", refuse)
        patch.setattr(Run, "append_metrics", refuse)
        told += [session.advance().problem for _ in range(19)]
    told += [session.advance().problem for _ in range(10)]
    session.close()
    trainer.close()
    first, last = filter(None, told)
    assert first.startswith("The figures of step 15 could not be written") and first.count("figures") == 1
    assert last == "The figures that could not be written before are written now."
    assert [row["step"] for row in session.run.metrics().rows] == [10, 15, 20, 20, 30]
    assert sorted(score_files(session.run.path)) == [15, 20]


def test_scores_that_cannot_be_written_keep_no_metrics_back(session: Session) -> None:
    (session.run.path / "eval").write_text("no folder")
    advances = [session.advance() for _ in range(3)]
    assert advances[2].evaluation is not None, "they are known all the same"
    assert advances[2].problem is not None and "figures of step 3" in advances[2].problem
    session.note_setting("ssim_weight", 0.3)  # which is written, and so no error
    advances += [session.advance() for _ in range(3)]
    rows = session.run.metrics().rows
    assert {row["step"] for row in rows if "test_psnr" in row} == {3, 6}
    assert [row["step"] for row in rows if "setting" in row] == [3]


def test_a_disk_without_locks_is_told(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    trainer = Trainer(blob_scene, CONFIG)
    session = Session(trainer, Run.create(tmp_path / "nfs", blob_scene.path, CONFIG))
    assert session.lock_problem is not None and "one program at a time" in session.lock_problem
    session.close()
    trainer.close()


def test_a_run_is_trained_by_one_session_at_a_time(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(ValueError, match="is in use by process"):
        Session(session.trainer, session.run)
    session.close()
    again = Session(session.trainer, session.run)
    assert again.notes == ()
    again.close()


@pytest.fixture
def killed(tmp_path: Path) -> Run:
    """A run with scores of steps 10, 20 and 30, of which 20 has no checkpoint."""
    run = Run.create(tmp_path / "run", tmp_path, TrainConfig())
    for step in (10, 20, 30):
        write_evaluation(run.path, step, scores(20.0 + step))
        if step != 20:
            save_checkpoint(run.path, example(step))
    return run


def session_at(run: Run, step: int) -> Session:
    return Session(cast(Any, SimpleNamespace(step=step, config=run.config)), run)


def test_they_are_put_aside_when_the_training_goes_on(killed: Run) -> None:
    session = session_at(killed, 10)
    try:
        (note,) = session.notes
        assert note.startswith("Scores of steps after 10, which no checkpoint has, are put into ")
    finally:
        session.close()
    folder = killed.path / "eval"
    assert sorted(file.name for file in folder.glob("step_*.json")) == [
        "step_00000010.json",
        "step_00000030.json",
    ], "what can still be looked at keeps its scores"
    assert {file.name for file in (folder / "lost").iterdir()} == {"step_00000020.json", "step_00000020.csv"}
    save_checkpoint(killed.path, example(20))
    assert [entry.psnr for entry in entries_of(killed.path)] == [50.0, None, 30.0], "another model's score"


def test_a_training_goes_on_where_they_cannot_be_moved(killed: Run) -> None:
    (killed.path / "eval" / "lost").write_text("in the way")
    session = session_at(killed, 10)
    session.close()
    assert session.notes[0].startswith("Scores of steps after 10, which are lost, stay in eval/: ")


CALM = TrainConfig(steps=10, sh_degree=0, test_every=0, densify=DensifyConfig(enabled=False))
THINS = replace(CALM, strategy="fast", densify=DensifyConfig(), fast=FastConfig(thin_at=0.3))


def photos_told(trainer: Trainer, steps: int) -> list[int]:
    """Return how often each step has shown that it gets on."""
    told = []
    for _ in range(steps):
        calls: list[int] = []
        trainer.parts.survey.alive = lambda calls=calls: calls.append(1)
        trainer.train_step()
        told.append(len(calls))
    return told


def test_a_survey_of_all_photos_shows_each(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, THINS)
    num = len(blob_scene.train_indices)
    assert photos_told(trainer, 6) == [0, 0, 0, num, 0, 0]
    trainer.close()


def test_looking_who_is_shown_shows_each_photo(blob_scene: Scene) -> None:
    shapes = ShapeConfig(min_views=1, min_views_every=3)
    trainer = Trainer(blob_scene, replace(CALM, shapes=shapes))
    num = len(blob_scene.train_indices)
    assert photos_told(trainer, 4) == [0, 0, num, 0]
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


@pytest.fixture
def long_session(blob_scene: Scene, tmp_path: Path) -> Iterator[Session]:
    config = replace(CONFIG, steps=40, save_steps=(2,), eval_steps=())
    trainer = Trainer(blob_scene, config)
    made = Session(trainer, Run.create(tmp_path / "run", blob_scene.path, config))
    yield made
    made.close()
    trainer.close()


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_that_is_deleted_is_made_again_and_saved_at_once(long_session: Session, whole: bool) -> None:
    session, rewritten = long_session, []
    session.rewritten = lambda: rewritten.append(session.trainer.step)
    for _ in range(12):
        session.advance()
    session.settle()
    before = (session.run.path / "run.json").read_bytes()
    session.trainer.update_setting("steps", 60)
    shutil.rmtree(session.run.path) if whole else (session.run.path / "run.json").unlink()
    advances = [session.advance() for _ in range(8)]
    told = [advance.problem for advance in advances if advance.problem]
    assert (
        len(told) == 1
        and f"The run folder {session.run.path} was deleted or moved away while it trained" in told[0]
    )
    assert advances[-1].problem == told[0] and rewritten == [20], "at the next line of the metrics"
    saved = (*advances[-1].saved, *session.settle().saved)
    assert [step_of(path) for path in saved] == [20]
    assert (session.run.path / "run.json").read_bytes() == before
    assert newest_checkpoint(session.run.path) == saved[0]
    planned = [row["value"] for row in session.run.metrics().rows if row.get("setting") == "steps"]
    assert planned == [60], "how many steps there are to be by now"
    with pytest.raises(ValueError, match="is in use by process"):
        RunLock(session.run.path)
    assert session.advance().problem is None


def test_a_run_that_is_deleted_is_made_again_by_a_save(long_session: Session) -> None:
    session = long_session
    for _ in range(3):
        session.advance()
    session.settle()
    shutil.rmtree(session.run.path)
    path = session.save_if_needed()
    assert path is not None and step_of(path) == 3
    assert Run.open(session.run.path).config.steps == 40 and newest_checkpoint(session.run.path) == path
    problem = session.advance().problem
    assert problem is not None and "was deleted or moved away while it trained" in problem


def test_a_run_that_went_on_while_its_lock_was_waited_for_is_not_trained_twice(
    long_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(long_session.run.path.with_name("other"), long_session.run.scene_path, CONFIG)
    first = RunLock(run.path)

    def save_and_leave(_: float) -> None:
        (run.path / "ckpts/step_00000030").mkdir(parents=True)
        first.release()

    monkeypatch.setattr(run_files.time, "sleep", save_and_leave)
    with pytest.raises(ValueError, match="by another process meanwhile and is at step 30: resume it again"):
        Session(long_session.trainer, run)
    assert not (run.path / "lock").exists()


def test_a_run_that_was_deleted_and_that_somebody_else_trains_is_left_alone(long_session: Session) -> None:
    session = long_session
    session.advance()
    shutil.rmtree(session.run.path)
    Run.create(session.run.path, session.run.scene_path, CONFIG)
    other = RunLock(session.run.path)
    with pytest.raises(OSError, match="is in use by process"):
        session.save()
    session.save_in_background()
    problem = session.settle().problem
    assert problem is not None and "Step 1 could not be written" in problem and "written: the run " in problem
    other.release()
    assert newest_checkpoint(session.run.path) is None
    assert session.save().exists()
