"""Panels of the page without a browser: what they delete, write over, compare with, and when one fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import blobs
from gui_parts import evaluate_panel
from test_checkpoint import example

from splatstudio.checkpoints.catalog import CatalogEntry
from splatstudio.checkpoints.checkpoint import checkpoint_folders, save_checkpoint
from splatstudio.evaluation.evaluate import Against, evaluate, write_evaluation
from splatstudio.files.run import Run
from splatstudio.formats.free_path import free_path
from splatstudio.formats.ply import write_ply
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.tabs.evaluate import EvaluatePanel
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.models.scoring import EvaluationTask
from splatstudio.runtime.file_tasks import FileTask, FileWorker
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig


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
    own = Against(blob_scene.path.resolve(), 1, 8)

    def reason_with(against: Against | None, opened: Path | None = None) -> str:
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


def test_a_file_that_exists_is_not_written_over(
    page: Any, notices: list[Notice], sent: list[Any], tmp_path: Path
) -> None:
    there = tmp_path / "model.ply"
    there.write_text("mine")
    panel = ExportPanel(page)
    panel._path.value = str(there)
    panel._write()
    assert sent[-1].path == tmp_path / "model-2.ply" and "exists and stays" in notices[-1].text
    assert evaluate_panel(page)._output(str(there)) == tmp_path / "model-2.ply"
    for name, other in [("a.compressed.ply", "a-2.compressed.ply"), ("v1.5.spz", "v1.5-2.spz"), ("b", "b-2")]:
        assert free_path(tmp_path / name) == tmp_path / name
        (tmp_path / name).touch()
        assert free_path(tmp_path / name) == tmp_path / other


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
    monkeypatch.setattr(FileWorker, "start", lambda _, task: not started.append(task))
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
    panel._show_choice()
    assert not named.button.visible and panel._evaluate.visible
