"""What a session says where the disk is full: all that was asked for, and nothing that is not so."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from splatstudio.checkpoints import saver as checkpoint_saver
from splatstudio.checkpoints.checkpoint import Checkpoint
from splatstudio.files.run import Run
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

CONFIG = TrainConfig(steps=20, sh_degree=0, save_steps=(), eval_steps=(), save_minutes=0.0)


@pytest.fixture
def session(blob_scene: Scene, tmp_path: Path) -> Iterator[Session]:
    trainer = Trainer(blob_scene, CONFIG)
    made = Session(trainer, Run.create(tmp_path / "run", blob_scene.path, CONFIG), clock=lambda: 0.0)
    yield made
    made.close()
    trainer.close()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_metrics(run: Run, values: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "append_metrics", no_metrics)
    monkeypatch.setattr(checkpoint_saver, "save_checkpoint", no_checkpoint)


def told(session: Session, steps: int) -> list[str]:
    """Return what `steps` steps tell of problems; each waits for the save that was begun before it."""
    sentences: list[str] = []
    for _ in range(steps):
        if session._saver._pending is not None:
            session._saver._pending.exception()
        advance = session.advance()
        sentences += [advance.problem] if advance.problem else []
    return sentences


@pytest.mark.usefixtures("full_disk")
def test_a_save_that_was_asked_for_is_answered_though_the_metrics_fail_already(session: Session) -> None:
    assert len(told(session, 10)) == 1, "the metrics of step 10"
    for step in (10, 11):
        session.save_in_background()
        (sentence,) = told(session, 1)
        assert sentence.startswith(f"Step {step} could not be written")
        assert "No space left on device" in sentence and sentence.endswith("and the training goes on.")


@pytest.mark.usefixtures("full_disk")
def test_autosaves_that_fail_again_and_again_are_told_once(session: Session) -> None:
    session.trainer.update_setting("save_minutes", 1.0)
    minutes = iter(range(1000))
    session._clock = lambda: 600.0 * next(minutes)
    sentences = told(session, 9)
    assert len(sentences) == 1 and "could not be written" in sentences[0]


def test_nothing_goes_on_after_a_last_step_that_is_not_saved(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    told(session, 19)
    monkeypatch.setattr(checkpoint_saver, "save_checkpoint", no_checkpoint)
    advance = session.advance()
    assert session.finished and advance.problem is None and not advance.saved
    assert advance.unsaved is not None and advance.unsaved.startswith("Step 20 could not be written")
    assert "goes on" not in advance.unsaved
    with pytest.raises(OSError, match="No space left"):
        session.save_if_needed()
    assert session.settle().problem is None


@pytest.mark.usefixtures("full_disk")
def test_the_last_figures_that_cannot_be_written_are_told_without_a_promise(session: Session) -> None:
    session.trainer.update_setting("steps", 9)
    (sentence,) = told(session, 9)
    assert sentence.startswith("The figures of step 9") and sentence.endswith("already written are safe.")
