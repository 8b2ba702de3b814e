"""Checkpoints that are written because time has passed: when, and which of them stay."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from splatstudio.checkpoints import saver as checkpoint_saver
from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    checkpoint_folders,
    load_checkpoint,
    newest_checkpoint,
)
from splatstudio.checkpoints.manifest import step_of
from splatstudio.checkpoints.saver import is_autosave
from splatstudio.files.run import Run
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

CONFIG = TrainConfig(steps=12, sh_degree=0, save_steps=(4,), eval_steps=())


class Clock:
    """A clock that stands still until it is set forward."""

    def __init__(self) -> None:
        self.minutes = 100.0

    def __call__(self) -> float:
        return self.minutes * 60.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def session(blob_scene: Scene, tmp_path: Path, clock: Clock) -> Iterator[Session]:
    trainer = Trainer(blob_scene, CONFIG)
    made = Session(trainer, Run.create(tmp_path / "run", blob_scene.path, CONFIG), clock=clock)
    yield made
    made.close()
    trainer.close()


def after_step(session: Session, clock: Clock, minutes: float) -> list[int]:
    """Let time pass, train a step, and return the steps whose checkpoints are on the disk then."""
    clock.minutes += minutes
    session.advance()
    session.settle()
    return [step_of(path) or 0 for path in checkpoint_folders(session.run.path)]


def test_one_is_written_when_the_time_has_passed_and_replaces_the_one_before(
    session: Session, clock: Clock
) -> None:
    assert after_step(session, clock, 10.0) == [1]
    assert after_step(session, clock, 9.75) == [1], "counted from the last one"
    assert after_step(session, clock, 0.25) == [3]
    # Step 4 is one of save_steps: it takes the place of the autosave, and the time counts from it.
    assert after_step(session, clock, 0.25) == [4]
    assert after_step(session, clock, 9.75) == [4]
    assert after_step(session, clock, 0.25) == [4, 6]
    assert after_step(session, clock, 10.0) == [4, 7], "never one of save_steps"
    session.save()
    assert after_step(session, clock, 10.0) == [4, 7, 8], "what was asked for stays"
    while not session.finished:
        steps = after_step(session, clock, 10.0)
    assert steps == [4, 7, 12], "no autosave is left of a training that has ended"


def test_the_first_come_after_one_two_four_and_eight_minutes(session: Session, clock: Clock) -> None:
    session.trainer.config = replace(session.trainer.config, save_steps=())
    assert [after_step(session, clock, minutes) for minutes in (0.75, 0.25)] == [[], [2]]
    assert [after_step(session, clock, minutes) for minutes in (0.75, 0.25)] == [[2], [4]]
    assert [after_step(session, clock, minutes) for minutes in (1.75, 0.25)] == [[4], [6]]
    assert [after_step(session, clock, minutes) for minutes in (3.75, 0.25)] == [[6], [8]]
    assert [after_step(session, clock, minutes) for minutes in (7.75, 0.25, 9.75, 0.25)][-2:] == [[10], [12]]


def test_a_rest_is_no_time_of_the_training(session: Session, clock: Clock) -> None:
    session.trainer.config = replace(session.trainer.config, save_steps=())
    assert after_step(session, clock, 0.5) == []
    session.rest()
    assert after_step(session, clock, 60.0) == [], "half a minute of training could be lost"
    assert after_step(session, clock, 0.5) == [3]
    session.rest()
    clock.minutes += 60.0
    session.rest()  # as who stops a training that pauses
    clock.minutes += 60.0
    session.save()
    assert after_step(session, clock, 60.0) == [3]
    assert after_step(session, clock, 0.75) == [3]
    assert after_step(session, clock, 0.25) == [3, 6], "counted from what was saved in the rest"


def test_the_one_before_stays_until_the_new_one_is_complete(
    session: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run_dir: Path, checkpoint: Checkpoint) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert after_step(session, clock, 10.0) == [1]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_saver, "save_checkpoint", refuse)
        assert after_step(session, clock, 10.0) == [1]
        assert after_step(session, clock, 1.0) == [1]
    assert newest_checkpoint(session.run.path) is not None
    assert after_step(session, clock, 9.0) == [4], "now it is"


def test_zero_minutes_is_never_and_the_setting_is_live(session: Session, clock: Clock) -> None:
    session.trainer.update_setting("save_minutes", 0.0)
    assert after_step(session, clock, 1e6) == []
    session.trainer.update_setting("save_minutes", 0.5)
    assert after_step(session, clock, 0.0) == [2]
    assert after_step(session, clock, 0.5) == [3]


def test_keep_does_not_count_autosaves(session: Session, clock: Clock) -> None:
    session.trainer.update_setting("keep", 2)
    after_step(session, clock, 0.0)
    session.save()
    assert after_step(session, clock, 10.0) == [1, 2]
    assert after_step(session, clock, 10.0) == [1, 3]
    assert after_step(session, clock, 0.0) == [1, 4]
    assert after_step(session, clock, 10.0) == [1, 4, 5]
    assert [is_autosave(path) for path in checkpoint_folders(session.run.path)] == [False, False, True]
    assert after_step(session, clock, 10.0) == [1, 4, 6]


def test_what_is_stopped_at_the_step_of_an_autosave_is_saved_for_good(session: Session, clock: Clock) -> None:
    assert after_step(session, clock, 10.0) == [1]
    saved = session.save_if_needed()
    assert saved is not None and step_of(saved) == 1 and not load_checkpoint(saved).autosave
    assert after_step(session, clock, 10.0) == [1, 2]
    assert after_step(session, clock, 10.0) == [1, 3]


def test_a_killed_training_goes_on_from_its_autosave_which_the_next_one_replaces(
    session: Session, clock: Clock, blob_scene: Scene
) -> None:
    for minutes in (0.0, 10.0, 1.0):
        after_step(session, clock, minutes)
    session.close()  # nothing is saved: as if it had been killed
    newest = newest_checkpoint(session.run.path)
    assert newest is not None and load_checkpoint(newest).autosave
    trainer = Trainer.resume(blob_scene, newest)
    again = Session(trainer, session.run, clock=clock)
    try:
        assert trainer.step == 2 and trainer.config == CONFIG
        assert after_step(again, clock, 10.0) == [3]
        assert again.save_if_needed() is not None
    finally:
        again.close()
        trainer.close()
    assert not load_checkpoint(session.run.path / "ckpts" / "step_00000003").autosave


def test_a_checkpoint_of_an_earlier_version_is_no_autosave(session: Session, clock: Clock) -> None:
    after_step(session, clock, 0.0)
    manifest = session.save() / "manifest.json"
    values = json.loads(manifest.read_text())
    del values["autosave"], values["sha256"]
    manifest.write_text(json.dumps(values))
    assert after_step(session, clock, 10.0) == [1, 2]
    assert after_step(session, clock, 10.0) == [1, 3]
