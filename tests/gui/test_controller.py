"""What the buttons ask of a worker, and what is known of it, where the worker only notes what it is told."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gui_parts import Steered, scores, trained_run

from splatstudio.evaluation.evaluate import write_evaluation
from splatstudio.files.run import Run
from splatstudio.gui.dock import header_html
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.photos import PhotoPsnr
from splatstudio.gui.state.preview_model import PreviewModel
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Choice, Notice
from splatstudio.gui.state.stream import ModelState
from splatstudio.runtime.messages import (
    Evaluated,
    Event,
    ModelLoaded,
    Progress,
    Start,
    Started,
    StateChanged,
    Stop,
    TrainJob,
    ViewJob,
)
from splatstudio.runtime.sentences import saved_sentence
from splatstudio.runtime.supervisor import ONE_RANK, WorkerClient
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

pytestmark = pytest.mark.usefixtures("own_folder")
LOADED = ModelLoaded(7, 100, (0.0, 0.0, 0.0), 1.0)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what all workers are told, each with its kind of job."""
    calls: list[tuple[str, str]] = []

    def note(what: str, client: WorkerClient) -> None:
        calls.append((type(client.job).__name__, what))

    monkeypatch.setattr(WorkerClient, "start", lambda self: note("start", self))
    monkeypatch.setattr(WorkerClient, "send", lambda self, order: note(type(order).__name__, self))
    monkeypatch.setattr(WorkerClient, "close", lambda self: note("closed", self))
    monkeypatch.setattr(WorkerClient, "kill", lambda self, **_: note("killed", self))
    return calls


@pytest.fixture
def controller(noted: list[tuple[str, str]], idle: Steered) -> Controller:
    return idle.controller


def train(controller: Controller, step: int) -> None:
    for event in (
        Started(0, 5, 60, 7, 2),
        StateChanged("training"),
        ModelLoaded(0, 60, (0.0, 0.0, 0.0), 1.0),
        Progress(step, 5, 0.0, None, 60, 10.0, None),
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
    job, scene = controller._worker.job, controller.project.scene
    assert isinstance(job, ViewJob) and scene is not None
    assert (job.model_path, job.scene) == (tmp_path / "b.ply", scene.path)


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


@pytest.fixture
def restarting(idle: Steered) -> Controller:
    """Return the controller of a training that was told to start, and whose process then died."""
    controller = idle.controller
    controller.send(Start())
    controller._worker.receive(StateChanged("restarting"))
    return controller


def test_a_training_that_comes_back_can_be_told_to_stand_still_and_to_go_on(restarting: Controller) -> None:
    assert restarting.choice() == Choice("Pause") and restarting.can_order
    restarting.press_primary()
    assert restarting.choice() == Choice("Resume") and restarting._worker.will_pause
    restarting.press_primary()
    assert restarting.choice() == Choice("Pause") and restarting._worker.will_pause is False
    restarting.send(Stop())
    assert restarting._worker.will_pause


def test_the_same_holds_while_the_new_process_reads_the_scene(restarting: Controller) -> None:
    worker = restarting._worker
    worker.receive(StateChanged("loading"))
    assert restarting.choice() == Choice("Loading …", enabled=False), "the first start cannot be paused"
    assert not restarting.can_order
    assert isinstance(worker.job, TrainJob)
    worker._supervisor.job = replace(worker.job, attempt=1)
    assert restarting.choice() == Choice("Pause") and restarting.can_order


def test_what_was_not_started_has_nothing_to_pause(idle: Steered) -> None:
    controller = idle.controller
    controller._worker.receive(StateChanged("restarting"))
    assert controller.choice() == Choice("Restarting …", enabled=False) and not controller.can_order


def test_scores_of_the_own_run_are_told_to_the_page_and_no_others(
    controller: Controller, tmp_path: Path
) -> None:
    heard: list[Event] = []
    controller.listen(heard.append)
    run_dir = controller.project.run_dir
    assert run_dir is not None and controller.status.test_psnr is None
    controller.take_scores(write_evaluation(tmp_path / "another run", 50, scores(31.0)))
    (run_dir / "eval").mkdir(parents=True)
    damaged = run_dir / "eval" / "step_00000060.json"
    damaged.write_text('{"step": 60}')
    controller.take_scores(damaged)
    assert controller.status.test_psnr is None and not heard
    controller.take_scores(write_evaluation(run_dir, 20, scores(25.0)))
    assert heard == [Evaluated(20, 25.0, 0.5, 1, run_dir / "eval")], "the photos' errors come from there"
    assert "25.00 dB" in header_html("demo", controller.status, 1)
    controller.take_scores(write_evaluation(run_dir, 20, scores(26.0)))
    assert controller.status.test_psnr == 26.0, "the same step once more"
    controller.take_scores(write_evaluation(run_dir, 10, scores(22.0)))
    assert controller.status.test_psnr == 26.0, "of an older model"
    points = [curve.tolist() for curve in controller.history.test_psnr.arrays()]
    assert points == [[10.0, 20.0], [22.0, 26.0]] and len(heard) == 2, "it is a dot all the same"


def test_scores_are_there_again_when_the_run_is_opened_again(controller: Controller) -> None:
    project = controller.project
    assert project.run_dir is not None
    run = Run.create(project.run_dir, project.path, project.config)
    run.append_metrics({"step": 10, "test_psnr": 22.0})
    assert Controller(project, lambda _: None).status.test_psnr == 22.0
    write_evaluation(run.path, 5, scores(19.0))
    assert Controller(project, lambda _: None).status.test_psnr == 22.0, "the newest of both"
    write_evaluation(run.path, 15, scores(24.0))
    again = Controller(project, lambda _: None)
    assert again.status.test_psnr == 24.0
    points = [curve.tolist() for curve in again.history.test_psnr.arrays()]
    assert points == [[5.0, 10.0, 15.0], [19.0, 22.0, 24.0]], "that by hand is there, too"


def test_a_training_that_had_to_go_back_shows_nothing_of_the_steps_it_has_not_made(
    controller: Controller, tmp_path: Path
) -> None:
    def at(step: int) -> None:
        controller._worker.receive(Progress(step, 100, 0.1, 20.0, 7, 9.0, 1.0))
        controller._worker.receive(Evaluated(step, 20.0 + step, 0.5, 1, tmp_path))

    controller._worker.receive(Started(0, 100, 7, 9, 1))
    for step in (10, 20, 30):
        at(step)
    controller._worker.receive(Started(20, 100, 7, 9, 1))
    assert controller.status.test_psnr == 40.0, "what was known at the step it goes on from"
    assert controller.history.loss.arrays()[0].tolist() == [10.0, 20.0]
    controller._worker.receive(Started(0, 100, 7, 9, 1))
    assert controller.status.test_psnr is None and len(controller.history.test_psnr) == 0


def test_scores_of_steps_that_were_lost_are_not_those_of_the_run_that_is_opened(
    controller: Controller,
) -> None:
    project = controller.project
    assert project.run_dir is not None
    run = Run.create(project.run_dir, project.path, project.config)
    for step in (10, 2400, 10, 1200):  # killed at 2400, begun anew
        run.append_metrics({"step": step, "test_psnr": 0.01 * step})
    write_evaluation(run.path, 2400, scores(24.0))
    assert Controller(project, lambda _: None).status.test_psnr == 12.0
    write_evaluation(run.path, 1204, scores(13.0))  # between two lines of metrics.jsonl
    again = Controller(project, lambda _: None)
    assert again.status.test_psnr == 13.0 and again.history.test_psnr.last_step == 1204


def test_more_steps_are_offered_for_the_runs_own_model_only(idle: Steered, tmp_path: Path) -> None:
    controller = idle.controller
    assert controller.project.run_dir is not None
    own = controller.project.run_dir / "ckpts" / "step_00000007"
    for path, offered in ((own, True), (tmp_path / "other" / "ckpts" / own.name, False)):
        worker = controller._worker = controller._new_worker(ViewJob(path))
        worker.receive(LOADED)
        worker.receive(StateChanged("viewing"))
        assert controller.status.step == 7 and controller.can_train_more is offered


def test_a_worker_that_cannot_be_started_is_told_and_can_be_tried_again(
    idle: Steered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, notices = idle.controller, idle.notices
    controller._worker.receive(StateChanged("failed"))

    def no_space(self: WorkerClient) -> WorkerClient:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(WorkerClient, "start", no_space)
        controller.press_primary()
        assert controller.status.state == "failed" and "No space left" in controller.status.message
        assert notices[-1].bad and controller.choice().enabled
        controller.view(tmp_path / "some.ply")
        assert controller.status.state == "failed"
    sent: list[object] = []
    monkeypatch.setattr(WorkerClient, "start", lambda self: self)
    monkeypatch.setattr(WorkerClient, "send", lambda self, command: sent.append(type(command).__name__))
    controller.press_primary()
    assert controller.status.state == "loading" and "Start" in sent


def test_a_run_that_cannot_be_written_is_told_before_a_worker_starts(
    idle: Steered, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = idle.controller
    controller._worker.receive(StateChanged("failed"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="may not be written to: change its permissions, or copy the run"):
        controller.press_primary()
    assert controller.status.state == "failed"


@pytest.mark.usefixtures("noted")
def test_checkpoints_that_cannot_be_listed_are_neither_lost_nor_begun_over(
    blob_scene: Scene, blob_folder: Path
) -> None:
    run = Path("runs/blobs")
    trained_run(blob_scene, run)
    project = open_project(run, TrainConfig(), None)
    (run / "ckpts").rename(run / "elsewhere")
    (run / "ckpts").symlink_to("ckpts")
    with pytest.raises(ValueError, match=r"nothing was changed: the checkpoints in .* cannot be listed"):
        project.resumed_job()
    assert saved_sentence(run, 5).startswith("It is not known what was saved: the checkpoints in ")


@pytest.mark.usefixtures("noted")
def test_only_a_new_run_leaves_the_model_that_was_seen(blob_scene: Scene, blob_folder: Path) -> None:
    trained_run(blob_scene, Path("runs/blobs"))
    controller = Controller(open_project(blob_folder, TrainConfig(), None), lambda _: None)
    loaded = ModelLoaded(3, 60, (0.0, 0.0, 0.0), 1.0)

    def shown(*events: Any) -> ModelState:
        for event in events:
            controller._worker.receive(event)
        return controller.model_state()

    assert shown(loaded, StateChanged("viewing")) == ModelState(3, False)
    controller.press_primary()
    assert controller.status.state == "loading" and shown() == ModelState(None, False)
    shown(loaded, StateChanged("finished"))
    controller.begin_new_run()
    assert shown() == ModelState(None, False, anew=True)
    assert controller.replacements == ["The training was resumed", "A new run was begun with New training"]
    assert not shown(loaded).anew


def test_a_run_that_is_opened_shows_nothing_of_steps_that_no_checkpoint_has(
    blob_scene: Scene, blob_folder: Path
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    run = Run.open(Path("runs/blobs"))
    name = blob_scene.views[0].name
    for step, loss in ((1, 0.4), (3, 0.3), (40, 0.1)):  # killed after the 40th
        run.append_metrics({"step": step, "loss": loss, "psnr": 10.0 + step, "view": name})
        run.append_metrics({"step": step, "test_psnr": 20.0 + step})
        write_evaluation(run.path, step, scores(20.0 + step))
    told: list[Notice] = []
    controller = Controller(open_project(blob_folder, TrainConfig(), None), told.append)
    history = controller.history
    for curve in (history.loss, history.train_psnr, history.test_psnr):
        assert curve.last_step == 3
    assert controller.status.test_psnr == 23.0 and controller.last_step == 3 and not told
    # What is known, instead of a line.
    assert controller.status.loss == pytest.approx(0.39)
    assert "0.3900" in header_html("blobs", controller.status, 1)
    book = PhotoPsnr(blob_scene)
    book.load(run.path, controller.last_step)
    assert book.errors.psnr[0] == 13.0
    assert checkpoint.name == "step_00000003"


@pytest.mark.usefixtures("noted")
def test_a_damaged_checkpoint_is_told_on_the_page_when_a_run_is_opened_and_resumed(
    blob_scene: Scene, blob_folder: Path
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    newer = checkpoint.with_name("step_00000009")
    newer.mkdir()
    (newer / "manifest.json").write_text("{cut off")
    for path in (blob_folder, Path("runs/blobs")):
        told: list[Notice] = []
        controller = Controller(open_project(path, TrainConfig(), None), told.append)
        assert [notice.title for notice in told] == ["A checkpoint is damaged"] and told[0].bad
        assert "step_00000009" in told[0].text and "step 3 is used instead" in told[0].text
        controller.status = Controller(controller.project, lambda _: None).status
        controller._worker.receive(StateChanged("viewing"))
        controller.press_primary()
        assert len(told) == 1, "it was told"
    (newer / "manifest.json").write_text("{cut off once more, since")
    (checkpoint.with_name("step_00000011")).mkdir()
    controller._worker.receive(StateChanged("ended"))
    controller.press_primary()
    assert len(told) == 2 and "step_00000011" in told[1].text
    (checkpoint / "manifest.json").write_text("")
    told.clear()
    Controller(open_project(Path("runs/blobs"), TrainConfig(), None), told.append)
    assert len(told) == 3 and "is used instead" not in told[0].text


@pytest.mark.usefixtures("noted")
def test_the_head_mixes_no_figures_of_two_runs(blob_scene: Scene, blob_folder: Path) -> None:
    own, other = trained_run(blob_scene, Path("runs/blobs")), trained_run(blob_scene, Path("runs/<other>"), 5)
    Run.open(Path("runs/blobs")).append_metrics({"step": 3, "loss": 0.5, "test_psnr": 23.0})
    controller = Controller(open_project(Path("runs/blobs"), TrainConfig(), None), lambda _: None)

    def head(path: Path, step: int) -> str:
        controller.view(path)
        controller._worker.receive(ModelLoaded(step, 60, (0.0, 0.0, 0.0), 1.0))
        controller._worker.receive(StateChanged("viewing"))
        return header_html("blobs", controller.status, 1, None, controller.other_model)

    told = head(other, 5)
    assert controller.other_model == other and "runs/&lt;other&gt;/ckpts/step_00000005 (another run)" in told
    assert ">5</div>" in told and "0.5000" not in told and "23.00 dB" not in told and "100,000" not in told
    told = head(own, 3)
    assert controller.other_model is None and "not of this run" not in told
    assert "3 / 100,000" in told and "0.5000" in told and "23.00 dB" in told
