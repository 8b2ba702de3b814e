"""Orders to a training: which wait for what, and what each leaves behind."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from worker_faults import faulty, plan_fault
from worker_watcher import MANY, TIMEOUT, Launch, Watcher, front_camera, wait_until

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Choice, Notice
from splatstudio.runtime import messages
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.heartbeat import Limits, Phase
from splatstudio.runtime.messages import Evaluated, Finished
from splatstudio.runtime.rank import rank_main
from splatstudio.runtime.supervisor import Plan
from splatstudio.runtime.training import Training
from splatstudio.scene.scene import Scene
from splatstudio.settings.strategy_config import DensifyConfig


def paused(worker: Watcher) -> int:
    """Wait until the training stands still and return its step."""
    worker.reach("paused")
    return worker.of(messages.Progress)[-1].step


def start_paused(worker: Watcher) -> int:
    """Start a training, let it stand still before or soon after its first step, and return the step."""
    worker.send(messages.Start())
    worker.pause()
    told = worker.of(messages.Progress)
    return told[-1].step if told else 0


def test_a_pause_in_the_last_evaluation_ends_nothing_before_its_scores(
    blob_folder: Path, tmp_path: Path
) -> None:
    config = replace(MANY, steps=4, test_every=2)
    told: list[messages.Event] = []
    orders: list[messages.Command] = [messages.Pause(), messages.Resume()]

    def breathe() -> None:
        while orders and training.step == 4:
            training.execute(orders.pop(0))

    job = messages.TrainJob(blob_folder, tmp_path / "run", config)
    training = Training(job, WorkerContext(emit=told.append, breathe=breathe))
    training.execute(messages.Start())
    while training.running:
        training.advance()
    training.close()
    ends = [type(event).__name__ for event in told if isinstance(event, (Evaluated, Finished))]
    assert ends == ["Evaluated", "Finished"] and not orders


def test_step_trains_so_many_steps_and_pauses(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    first = start_paused(worker)
    worker.send(messages.Step(3))
    assert paused(worker) == first + 3
    worker.send(messages.Step())
    assert paused(worker) == first + 4
    worker.send(messages.Step(0))
    assert "at least 1" in worker.wait(messages.Warned).sentence
    worker.send(messages.Step(90_000))
    worker.wait(messages.Progress, lambda event: event.step > first + 6)
    worker.send(messages.Step(2))  # the newest counts
    assert first + 8 < paused(worker) < 90_000
    worker.send(messages.Step(2))
    worker.send(messages.Resume())  # and so does this
    worker.wait(messages.Progress, lambda event: event.step > worker.of(messages.Progress)[0].step + 20)


def test_a_cap_holds_from_the_next_densification_on(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    densify = DensifyConfig(start_step=0, every=5, grow_grad=1e-7)
    config = replace(MANY, steps=2000, densify=densify)
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", config))
    first = start_paused(worker)
    worker.send(messages.SetCap(100))
    changed = worker.wait(messages.SettingChanged)
    assert (changed.step, changed.path, changed.value) == (first, "densify.max_gaussians", 100)
    worker.send(messages.Step(30))
    paused(worker)
    assert worker.of(messages.Progress)[-1].num_gaussians == 100
    worker.send(messages.SetCap(150))
    worker.send(messages.Step(30))
    paused(worker)
    assert worker.of(messages.Progress)[-1].num_gaussians == 150
    worker.send(messages.SetCap(0))
    assert "at least 1" in worker.wait(messages.Warned).sentence
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "setting" in row]
    assert [(row["step"], row["value"]) for row in rows] == [(first, 100), (first + 30, 150)]


def test_pause_does_not_wait_for_an_evaluation(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    plan_fault(run, "slow evaluation")
    worker = launch(
        messages.TrainJob(blob_folder, run, replace(MANY, eval_steps=(5,))), Plan(rank_main, faulty)
    )
    worker.send(messages.Start())
    wait_until((tmp_path / "evaluating").exists, "the evaluation of step 5 is under way")
    worker.send(messages.Evaluate())
    worker.send(messages.Save())
    worker.send(messages.UpdateSettings((("optim.means_lr", 1e-5),)))
    worker.pause()
    assert not worker.of(messages.Evaluated), "it waited"
    assert [event.sentence for event in worker.of(messages.Warned)] == [
        "An evaluation is already in progress."
    ]
    assert worker.of(messages.SettingChanged)[0].step == 5
    (tmp_path / "go on").touch()
    assert worker.wait(messages.Evaluated).step == 5, "the evaluation goes on"
    saved = worker.of(messages.Saved) or [worker.wait(messages.Saved)]  # written beside the steps
    worker.send(messages.Step())
    assert paused(worker) == 6
    assert [event.step for event in saved] == [5]


def test_stop_breaks_an_evaluation_off(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    plan_fault(run, "slow evaluation")
    worker = launch(messages.TrainJob(blob_folder, run, MANY), Plan(rank_main, faulty))
    step = start_paused(worker) + 4
    worker.send(messages.Step(4))
    paused(worker)
    worker.send(messages.Evaluate())
    worker.send(messages.Stop())
    worker.wait(messages.EvaluationStopped)
    finished = worker.wait(messages.Finished)
    assert finished.step == step and not finished.completed and not worker.of(messages.Evaluated)
    assert not worker.of(messages.Warned), "nothing went wrong: the user asked for it"
    assert newest_checkpoint(run) == finished.checkpoint and not list((run / "eval").glob("*"))
    (tmp_path / "go on").touch()
    worker.send(messages.Evaluate())
    worker.wait(messages.Evaluated)  # nothing of the one before is in its way


def test_closing_breaks_a_scheduled_evaluation_off(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    plan_fault(run, "slow evaluation")
    worker = launch(
        messages.TrainJob(blob_folder, run, replace(MANY, eval_steps=(5,))), Plan(rank_main, faulty)
    )
    worker.send(messages.Start())
    wait_until((tmp_path / "evaluating").exists, "the evaluation of step 5 is under way")
    worker.client.close()
    list(worker.take())
    assert worker.client.state == "ended" and not worker.of(messages.Evaluated)
    assert ["step 5 made way" in event.sentence for event in worker.of(messages.EvaluationStopped)] == [True]
    assert not worker.of(messages.Warned)
    assert worker.of(messages.Finished)[-1].step == 5 and newest_checkpoint(run) is not None


def test_of_many_changes_of_a_setting_the_last_is_noted(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan_fault(run, "busy evaluation")
    worker = launch(messages.TrainJob(blob_folder, run, MANY), Plan(rank_main, faulty))
    start_paused(worker)
    worker.send(messages.Evaluate())
    wait_until((tmp_path / "evaluating").exists, "the training is busy")
    for number in range(1, 51):  # a slider that is dragged meanwhile
        worker.send(messages.UpdateSettings((("optim.means_lr", number * 1e-6),)))
    # Frames are drawn beside: by the answer all of these have come.
    worker.send(messages.SetView(1, 1, front_camera(blob_scene)))
    assert worker.client.wait_for_frame(1, 1, TIMEOUT) is not None
    (tmp_path / "go on").touch()
    worker.wait(messages.Evaluated)
    changed = worker.of(messages.SettingChanged)
    assert changed[-1].value == 50 * 1e-6 and len(changed) <= 3


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
        messages.Progress(10, 10, 0.1, None, 100, 1.0, None),
    ):
        controller._worker.receive(event)
    controller._worker.receive(messages.StateChanged("paused"))
    assert controller.choice() == Choice("Save and finish")
    controller.press_primary()
    assert sent == [messages.Resume()]
    controller._worker.receive(messages.Progress(9, 10, 0.1, None, 100, 1.0, None))
    assert controller.choice() == Choice("Resume")
