"""What the studio's buttons ask of the workers, where a worker only notes what it is told."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from gui_parts import Steered

from splatstudio.gui.state.controller import Controller, PreviewModel
from splatstudio.runtime.client import ONE_RANK, WorkerClient
from splatstudio.runtime.messages import ModelLoaded, Progress, Started, StateChanged, ViewJob


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what all workers are told, each with its kind of job."""
    calls: list[tuple[str, str]] = []

    def note(what: str, client: WorkerClient) -> None:
        calls.append((type(client.job).__name__, what))

    monkeypatch.setattr(WorkerClient, "start", lambda self: note("start", self))
    monkeypatch.setattr(WorkerClient, "send", lambda self, order: note(type(order).__name__, self))
    monkeypatch.setattr(WorkerClient, "close", lambda self: note("closed", self))
    monkeypatch.setattr(WorkerClient, "kill", lambda self: note("killed", self))
    return calls


@pytest.fixture
def controller(noted: list[tuple[str, str]], idle: Steered) -> Controller:
    return idle.controller


def train(controller: Controller, step: int) -> None:
    for event in (
        Started(0, 5, 60, 7, 2),
        StateChanged("training"),
        ModelLoaded(0, 60, (0.0, 0.0, 0.0), 1.0),
        Progress(step, 5, 0.0, None, 60, 10.0, None, 0.0),
    ):
        controller._worker.receive(event)


def test_a_second_open_while_the_first_is_read_takes_its_place(
    controller: Controller, tmp_path: Path
) -> None:
    controller._worker.receive(StateChanged("ready"))
    controller.view(tmp_path / "a.ply")
    assert controller.status.state == "loading"
    controller.view(tmp_path / "b.ply")
    assert controller.preview.path is None
    assert controller._worker.job == ViewJob(tmp_path / "b.ply", controller._worker.job.frame)  # type: ignore[union-attr]


def test_the_training_is_told_to_save_before_a_model_beside_it_is_waited_for(
    controller: Controller, noted: list[tuple[str, str]], tmp_path: Path
) -> None:
    train(controller, 2)
    controller.view(tmp_path / "a.ply")
    noted.clear()
    controller.close()
    assert noted[:2] == [("TrainJob", "Close"), ("ViewJob", "closed")] and noted[-1] == ("TrainJob", "closed")
    controller.view(tmp_path / "a.ply")
    noted.clear()
    controller.kill()
    assert sorted(noted) == [("TrainJob", "killed"), ("ViewJob", "killed")], "nothing is waited for"


def test_fewer_steps_than_a_failed_run_did_can_be_chosen_for_the_next(controller: Controller) -> None:
    train(controller, 4)
    with pytest.raises(ValueError, match="steps are done already"):
        controller.change_settings({"steps": 3})
    controller._worker.receive(StateChanged("ended"))
    assert controller.can_set_up and controller.status.step == 4
    controller.change_settings({"steps": 3})
    assert controller.project.config.steps == 3


def test_a_worker_that_cannot_even_be_made_is_told_and_the_one_before_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(WorkerClient, "__init__", full)
    beside = PreviewModel(lambda _: None)
    with pytest.raises(ValueError, match=r"cannot be shown: .*The training is not touched\."):
        beside.show(ViewJob(tmp_path / "a.ply"), ONE_RANK)
    assert beside.path is None
