"""The last save of a training: it may take its time, it may fail, and nothing is called saved that is not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from worker_faults import faulty, plan_fault
from worker_watcher import MANY, Launch

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Choice, Notice
from splatstudio.runtime import messages
from splatstudio.runtime.heartbeat import Limits, Phase
from splatstudio.runtime.rank import rank_main
from splatstudio.runtime.supervisor import Plan

SHORT = replace(MANY, steps=10)


def test_a_slow_disk_at_the_last_step_is_not_taken_for_a_step_that_hangs(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan_fault(run, "slow save", step=5, times=1)
    limits = Limits(stuck={Phase.TRAINING: 2.5, Phase.OBEYING: 60.0})
    worker = launch(
        messages.TrainJob(blob_folder, run, SHORT), Plan(rank_main, faulty, limits=limits)
    ).start()
    finished = worker.wait(messages.Finished)
    assert finished.completed and finished.checkpoint == newest_checkpoint(run)
    assert not worker.of(messages.Warned) and not worker.of(messages.Failed)


@pytest.mark.parametrize("order", [messages.Resume, messages.Stop, messages.Save])
def test_what_a_full_disk_did_not_take_at_the_last_step_is_saved_when_asked_again(
    launch: Launch, blob_folder: Path, tmp_path: Path, order: type[messages.Command]
) -> None:
    run, flag = tmp_path / "run", tmp_path / "disk is full"
    flag.touch()
    plan_fault(run, "full disk", step=5, times=1)
    worker = launch(messages.TrainJob(blob_folder, run, SHORT), Plan(rank_main, faulty)).start()
    worker.reach("paused")
    assert "No space left" in worker.of(messages.Warned)[-1].sentence
    worker.send(order())  # there still is no room
    worker.wait(messages.Warned, lambda event: "No space left" in event.sentence)
    assert not worker.of(messages.Finished) and newest_checkpoint(run) is None
    flag.unlink()
    worker.send(order())
    finished = worker.wait(messages.Finished)
    assert finished.completed and finished.step == 10
    assert finished.checkpoint == newest_checkpoint(run) == worker.of(messages.Saved)[-1].path
    assert worker.client.state == "finished"


def test_more_steps_are_possible_where_the_last_one_could_not_be_saved(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run, flag = tmp_path / "run", tmp_path / "disk is full"
    flag.touch()
    plan_fault(run, "full disk", step=5, times=1)
    worker = launch(messages.TrainJob(blob_folder, run, SHORT), Plan(rank_main, faulty)).start()
    worker.reach("paused")
    flag.unlink()
    worker.send(messages.UpdateSettings((("steps", 15),)))
    worker.send(messages.Resume())
    finished = worker.wait(messages.Finished)
    assert finished.step == 15 and finished.checkpoint == newest_checkpoint(run)


def test_a_checkpoint_that_was_deleted_since_is_written_again(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    worker = launch(messages.TrainJob(blob_folder, run, MANY)).start()
    worker.send(messages.Step(3))
    worker.reach("paused")
    worker.send(messages.Save())
    shutil.rmtree(worker.wait(messages.Saved).path)
    worker.send(messages.Stop())
    checkpoint = worker.wait(messages.Finished).checkpoint
    assert checkpoint is not None and checkpoint == newest_checkpoint(run)


def test_the_page_offers_to_save_again(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notices: list[Notice] = []
    controller = Controller(open_project(blob_folder, SHORT, None), notices.append)
    sent: list[messages.Command] = []
    monkeypatch.setattr(controller._worker, "send", sent.append)
    for event in (
        messages.Started(0, 10, 100, 3, 1),
        messages.Progress(10, 10, 0.1, None, 100, 1.0, None, 1.0),
    ):
        controller._worker.receive(event)
    controller._worker.receive(messages.StateChanged("paused"))
    assert controller.choice() == Choice("Save again")
    controller.press_primary()
    assert sent == [messages.Resume()]
    controller._worker.receive(messages.Progress(9, 10, 0.1, None, 100, 1.0, None, 1.0))
    assert controller.choice() == Choice("Resume")
