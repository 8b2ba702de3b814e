"""What is said where a training is closed and the disk takes nothing."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.messages import Event, Stop, TrainJob, Warned
from splatstudio.runtime.training import Training
from splatstudio.settings.config import TrainConfig


class Rested(Event, frozen=True):
    """The time of the training stands still."""


def full_disk() -> Path:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def training(told: list[Event], tmp_path: Path) -> Training:
    made = Training(TrainJob(tmp_path, tmp_path / "run", TrainConfig()), WorkerContext(emit=told.append))
    trainer = SimpleNamespace(close=lambda: None, step=0)
    session = SimpleNamespace(save_if_needed=full_disk, close=lambda: None, trainer=trainer, finished=False)
    session.rest = lambda: told.append(Rested())
    made._session, made._trainer = cast(Any, session), cast(Any, trainer)
    made._state = "training"
    return made


def sentences(told: list[Event]) -> list[str]:
    return [event.sentence for event in told if isinstance(event, Warned)]


def test_a_closed_training_promises_no_second_try(training: Training, told: list[Event]) -> None:
    training.close()
    (sentence,) = sentences(told)
    assert "No space left" in sentence
    assert sentence.endswith("; the steps since the last checkpoint are lost.")
    assert "kept" not in sentence


def test_a_stopped_training_keeps_its_model(training: Training, told: list[Event]) -> None:
    training.execute(Stop())
    assert isinstance(told[0], Rested), "it may go on later"
    assert sentences(told)[0].endswith("The model is kept: make room on the disk, then save again.")
