"""Panels of the page without a browser: what they delete, write over, compare with, and when one fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import viser
from conftest import blobs
from example_checkpoints import example

from splatstudio.checkpoints.catalog import CatalogEntry
from splatstudio.checkpoints.checkpoint import checkpoint_folders, save_checkpoint
from splatstudio.evaluation.evaluate import ComparedWith, evaluate, write_evaluation
from splatstudio.files.run import Run
from splatstudio.formats.free_path import free_path
from splatstudio.formats.ply import write_ply
from splatstudio.gui.app import Studio
from splatstudio.gui.panel_context import Panel
from splatstudio.gui.state.news import News
from splatstudio.gui.state.project import Project, open_project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.tabs.evaluate import EvaluatePanel
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.models.scoring import EvaluationTask
from splatstudio.runtime.file_tasks import FileTask, TaskEnd
from splatstudio.runtime.messages import Export
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig


@pytest.fixture
def run(blob_scene: Scene, tmp_path: Path) -> Path:
    return Run.create(tmp_path / "runs" / "blobs", blob_scene.path, TrainConfig()).path


@pytest.fixture
def notices() -> list[Notice]:
    return []


@pytest.fixture
def submitted() -> list[Export]:
    return []


@pytest.fixture
def page(
    blob_scene: Scene, run: Path, notices: list[Notice], submitted: list[Export]
) -> Iterator[SimpleNamespace]:
    """What panels are built from, with a server that nobody visits and no worker."""
    server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    project = Project(blob_scene.path, blob_scene, None, run, TrainConfig())
    beside = SimpleNamespace(path=None, worker=None, leave=lambda: None)
    controller = SimpleNamespace(project=project, status=Status(), beside=beside)
    jobs = SimpleNamespace(submit=submitted.append, newest=lambda kind: None)
    viewport = SimpleNamespace(show_trim=lambda trim: None)
    parts = {"server": server, "controller": controller, "viewport": viewport, "jobs": jobs}
    yield SimpleNamespace(**parts, notify=notices.append)
    server.stop()


def evaluate_panel(page: Any) -> EvaluatePanel:
    return EvaluatePanel(page, lambda client, index: None)


def steps(run: Path) -> list[str]:
    return [folder.name for folder in checkpoint_folders(run)]


def entry_of(panel: EvaluatePanel, step: int) -> CatalogEntry:
    (entry,) = (entry for entry in panel._list.entries if entry.step == step)
    return entry


def test_what_was_asked_about_is_deleted_whatever_is_chosen_now(page: Any, run: Path) -> None:
    for step in (10, 20):
        save_checkpoint(run, example(step))
    panel = evaluate_panel(page)
    panel._question.ask(entry_of(panel, 10))
    panel._list.selected = entry_of(panel, 20)  # as a look at the disk may have it
    panel._answered("Delete it")
    assert steps(run) == ["step_00000020"]


def test_what_has_changed_since_the_question_is_not_deleted(
    page: Any, run: Path, notices: list[Notice]
) -> None:
    save_checkpoint(run, example(10))
    panel = evaluate_panel(page)
    panel._question.ask(entry_of(panel, 10))
    save_checkpoint(run, example(10, seed=1))
    panel._answered("Delete it")
    assert steps(run) == ["step_00000010"] and "has changed since you were asked" in notices[-1].text
    panel._answered("Delete it")
    assert steps(run) == ["step_00000010"] and notices[-1].title == "Not deleted", "nothing was asked"


def test_photos_are_compared_only_with_the_model_of_their_run_and_scene(
    page: Any, run: Path, blob_scene: Scene
) -> None:
    save_checkpoint(run, example(10))
    evaluation = evaluate(blobs(), blob_scene, indices=[0])
    own = ComparedWith(blob_scene.path.resolve(), 1, 8)

    def reason_with(against: ComparedWith | None, opened: Path | None = None) -> str:
        write_evaluation(run, 10, replace(evaluation, against=against))
        panel = evaluate_panel(page)
        panel._opened = opened
        panel.refresh()
        scores = panel._scores
        assert scores._rows[0].visible and scores._rows[0].disabled == bool(scores._why_not())
        assert scores._reason.visible == bool(scores._why_not())
        return scores._why_not()

    assert reason_with(own) == ""
    assert "of another scene" in reason_with(replace(own, scene=Path("/elsewhere")))
    assert "evaluate again" in reason_with(None)
    page.controller.status = Status(state="viewing")
    assert "Another model is in the view" in reason_with(own, opened=run.parent / "other")
    assert reason_with(own, opened=run) == ""


def test_a_cancelled_task_says_what_stays(page: Any, notices: list[Notice], tmp_path: Path) -> None:
    panel, task = evaluate_panel(page), FileTask("Evaluating step 10", (tmp_path,))
    assert panel._scene is None, "the page has a scene of its own"
    panel._ended(task, TaskEnd(cancelled=True))
    assert notices[-1].text == "Nothing of it was kept."
    panel._ended(task, TaskEnd(cancelled=True, output=tmp_path / "merged.ply"))
    assert notices[-1].text == f"{tmp_path / 'merged.ply'} is complete and stays."


def test_a_file_that_exists_is_not_written_over(
    page: Any, notices: list[Notice], submitted: list[Export], tmp_path: Path
) -> None:
    there = tmp_path / "model.ply"
    there.write_text("mine")
    panel = ExportPanel(page)
    panel._path.value = str(there)
    panel._write()
    assert submitted[-1].path == tmp_path / "model-2.ply" and "exists and stays" in notices[-1].text
    assert evaluate_panel(page)._output(str(there)) == tmp_path / "model-2.ply"
    for name, other in [("a.compressed.ply", "a-2.compressed.ply"), ("v1.5.spz", "v1.5-2.spz"), ("b", "b-2")]:
        assert free_path(tmp_path / name) == tmp_path / name
        (tmp_path / name).touch()
        assert free_path(tmp_path / name) == tmp_path / other


class Broken(Panel):
    def refresh(self) -> None:
        """Fail."""
        raise PermissionError(13, "Permission denied")


class Counting(Panel):
    def __init__(self) -> None:
        self.count = 0

    def refresh(self) -> None:
        """Count."""
        self.count += 1


def test_a_panel_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    studio, good = Studio.__new__(Studio), Counting()
    told: list[str] = []
    client = SimpleNamespace(add_notification=lambda title, text, **_: told.append(f"{title}: {text}"))
    clients: dict[int, Any] = {}
    studio._news = News(cast(Any, SimpleNamespace(get_clients=lambda: clients, on_client_connect=id)))
    studio._panels, studio._failures = [Broken(), good], {}
    studio._server = SimpleNamespace(get_clients=lambda: clients)  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR):
        studio._refresh()  # nobody is there to be told yet
        clients[0] = client
        studio._refresh()
        studio._refresh()
    assert good.count == 3
    (record,) = caplog.records
    assert record.exc_info is not None and "Broken" in record.getMessage()
    (sentence,) = told
    assert sentence.startswith("Broken may show old figures: PermissionError") and "go on" in sentence


def test_a_file_that_is_open_alone_is_compared_with_the_scene_that_is_named(
    page: Any, notices: list[Notice], blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lone" / "cloud.ply"
    path.parent.mkdir()
    write_ply(path, blobs())
    page.controller.project = open_project(path, TrainConfig(), None)
    panel = evaluate_panel(page)
    named = panel._scene
    assert named is not None
    started: list[FileTask] = []
    monkeypatch.setattr(panel._worker, "start", lambda task: not started.append(task))
    assert named.button.label == "Evaluate cloud.ply" and named.button.visible
    assert not panel._evaluate.visible and "name the folder of its scene below" in panel._facts.content
    panel._evaluate_file(named)
    assert not started and "Type the folder of the scene that cloud.ply shows" in notices[-1].text
    named._field.value = str(blob_folder)
    panel._evaluate_file(named)
    assert [task.evaluation for task in started] == [EvaluationTask(path, blob_folder)]
    assert started[0].title == "Evaluating cloud.ply"


def test_a_file_of_a_run_knows_its_scene_and_a_listed_one_has_a_row(page: Any, run: Path) -> None:
    path = run / "exports" / "cloud.ply"
    path.parent.mkdir()
    write_ply(path, blobs())
    page.controller.project = replace(open_project(path, TrainConfig(), None), scene=None)
    panel = evaluate_panel(page)
    named = panel._scene
    assert named is not None and named._field.value == str(Run.open(run).scene_path)
    panel._list.entries = (SimpleNamespace(files=(path,)),)  # type: ignore[assignment]
    panel._draw()
    assert not named.button.visible and panel._evaluate.visible
