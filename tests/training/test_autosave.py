"""Saves that nobody asked for, and a disk that refuses them."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from splatstudio.checkpoints import saver as checkpoint_saver
from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    checkpoint_folders,
    load_checkpoint,
    save_checkpoint,
)
from splatstudio.checkpoints.saver import is_autosave
from splatstudio.files.run import Run
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.session import Session, Settled
from splatstudio.training.trainer import Trainer

AUTOSAVED = TrainConfig(steps=20, sh_degree=0, save_steps=(), eval_steps=(), save_minutes=0.0)


@pytest.fixture
def autosaving(blob_scene: Scene, tmp_path: Path) -> Iterator[Session]:
    trainer = Trainer(blob_scene, AUTOSAVED)
    made = Session(trainer, Run.create(tmp_path / "run", blob_scene.path, AUTOSAVED), clock=lambda: 0.0)
    yield made
    made.close()
    trainer.close()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_metrics(run: Run, *rows: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "append_metrics", no_metrics)
    monkeypatch.setattr(checkpoint_saver, "save_checkpoint", no_checkpoint)


def told(autosaving: Session, steps: int) -> list[str]:
    """Return what `steps` steps tell of problems; each waits for the save that was begun before it."""
    sentences: list[str] = []
    for _ in range(steps):
        if autosaving._saver._pending is not None:
            autosaving._saver._pending.exception()
        advance = autosaving.advance()
        sentences += [advance.problem] if advance.problem else []
    return sentences


@pytest.mark.usefixtures("full_disk")
def test_a_save_that_was_asked_for_is_answered_though_the_metrics_fail_already(autosaving: Session) -> None:
    assert len(told(autosaving, 10)) == 1, "the metrics of step 10"
    for step in (10, 11):
        autosaving.save_in_background()
        (sentence,) = told(autosaving, 1)
        assert sentence.startswith(f"Step {step} could not be written")
        assert "No space left on device" in sentence and sentence.endswith("and the training goes on.")


@pytest.mark.usefixtures("full_disk")
def test_autosaves_that_fail_again_and_again_are_told_once(autosaving: Session) -> None:
    autosaving.trainer.update_setting("save_minutes", 1.0)
    minutes = iter(range(1000))
    autosaving._clock = lambda: 600.0 * next(minutes)
    sentences = told(autosaving, 9)
    assert len(sentences) == 1 and "could not be written" in sentences[0]


def test_autosaves_that_fail_are_told_though_the_figures_fail_already(
    autosaving: Session, monkeypatch: pytest.MonkeyPatch, full_disk: None
) -> None:
    (sentence,) = told(autosaving, 10)
    assert sentence.startswith("The figures of step 10")
    autosaving.trainer.update_setting("save_minutes", 1.0)
    minutes = iter(range(1000))
    autosaving._clock = lambda: 600.0 * next(minutes)
    (sentence,) = told(autosaving, 5)
    assert re.match(r"Step 1\d could not be written: No space left on device", sentence)
    with monkeypatch.context() as room:
        room.setattr(checkpoint_saver, "save_checkpoint", save_checkpoint)
        assert told(autosaving, 2) == []
    (sentence,) = told(autosaving, 2)
    assert sentence.startswith("Step 1") and "could not be written" in sentence, "one has worked since"


def test_what_a_long_pause_might_lose_is_saved_once(
    autosaving: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    autosaving.trainer.update_setting("save_minutes", 1.0)
    now = [0.0]
    autosaving._clock = lambda: now[0]

    def stands_still(seconds: float) -> Settled:
        now[0] += seconds
        autosaving.save_in_pause()
        return autosaving.settle()

    autosaving.rest()
    assert stands_still(100.0).saved == (), "there is no step yet"
    now[0] += 1.0
    autosaving.advance()
    now[0] += 1.0
    autosaving.rest()
    assert stands_still(9.0).saved == (), "a short pause"
    (path,) = stands_still(2.0).saved
    assert path.name == "step_00000001" and load_checkpoint(path).step == 1
    assert stands_still(1000.0).saved == ()
    autosaving.advance()
    now[0] += 1.0
    autosaving.rest()
    with monkeypatch.context() as full:
        full.setattr(
            checkpoint_saver, "save_checkpoint", lambda *_: raising(OSError(errno.ENOSPC, "No space"))
        )
        assert "Step 2 could not be written: No space" in (stands_still(20.0).problem or "")
        assert stands_still(20.0) == Settled((), None), "it is not tried again at once"
        assert stands_still(100.0) == Settled((), None), "it is, and told once"
    (newest,) = checkpoint_folders(autosaving.run.path)
    assert newest == path, "what was good stays"
    (path,) = stands_still(100.0).saved
    assert path.name == "step_00000002", "there is room again"


def test_a_pause_makes_no_autosave_of_what_is_saved(autosaving: Session) -> None:
    now = [0.0]
    autosaving.trainer.update_setting("save_minutes", 1.0)
    autosaving._clock = lambda: now[0]
    autosaving.advance()
    autosaving.save_in_background()
    now[0] += 1.0
    autosaving.rest()
    now[0] += 100.0
    autosaving.save_in_pause()
    (saved,) = autosaving.settle().saved
    assert not is_autosave(saved), "else the next one would take its place"
    autosaving.close()
    again = Session(autosaving.trainer, autosaving.run, clock=lambda: now[0])
    try:
        again.rest()
        now[0] += 100.0
        again.save_in_pause()
        assert again.settle() == Settled((), None), "it goes on from one that is there"
    finally:
        again.close()


def test_a_save_that_could_only_not_tidy_up_hides_none_that_fails(
    autosaving: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = OSError(errno.EACCES, "Permission denied")
    autosaving.trainer.update_setting("save_minutes", 1.0)
    minutes = iter(range(1000))
    autosaving._clock = lambda: 600.0 * next(minutes)
    with monkeypatch.context() as untidy:
        untidy.setattr(checkpoint_saver, "remove_older_autosaves", lambda _: raising(refused))
        (sentence,) = told(autosaving, 4)
        assert "is saved, but an older checkpoint could not be deleted" in sentence
    monkeypatch.setattr(checkpoint_saver, "save_checkpoint", lambda *_: raising(refused))
    (sentence,) = told(autosaving, 4)
    assert "could not be written: Permission denied" in sentence


def raising(error: OSError) -> Path:
    raise error


def test_nothing_goes_on_after_a_last_step_that_is_not_saved(
    autosaving: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_checkpoint(run_dir: Path, checkpoint: Checkpoint) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    told(autosaving, 19)
    monkeypatch.setattr(checkpoint_saver, "save_checkpoint", no_checkpoint)
    advance = autosaving.advance()
    assert autosaving.finished and advance.problem is None and not advance.saved
    assert advance.unsaved is not None and advance.unsaved.startswith("Step 20 could not be written")
    assert "goes on" not in advance.unsaved
    with pytest.raises(OSError, match="No space left"):
        autosaving.save_if_needed()
    assert autosaving.settle().problem is None


@pytest.mark.usefixtures("full_disk")
def test_the_last_figures_that_cannot_be_written_are_told_without_a_promise(autosaving: Session) -> None:
    autosaving.trainer.update_setting("steps", 9)
    (sentence,) = told(autosaving, 9)
    assert sentence.startswith("The figures of step 9") and sentence.endswith("already written are safe.")


def test_saves_that_fail_are_told_beside_scores_that_cannot_be_written(autosaving: Session) -> None:
    autosaving.trainer.update_setting("eval_every", 5)
    (autosaving.run.path / "eval").write_text("no folder")
    assert "figures of step 5" in " ".join(told(autosaving, 9))
    autosaving.trainer.update_setting("save_minutes", 1.0)
    minutes = iter(range(1000))
    autosaving._clock = lambda: 600.0 * next(minutes)
    (autosaving.run.path / "ckpts").write_text("no folder")
    # By the next figures: those of step 10 are told once, and its save may still be under way then.
    assert "ckpts" in " ".join(told(autosaving, 12)), "nobody may take the training for saved"
