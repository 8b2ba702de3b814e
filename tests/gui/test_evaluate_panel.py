"""The Evaluate tab: which model is chosen, compared and deleted, and what is written over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from blob_models import blobs
from example_checkpoints import example
from gui_parts import as_user, evaluate_panel

from splatstudio.checkpoints.catalog import CatalogEntry
from splatstudio.checkpoints.checkpoint import checkpoint_folders, save_checkpoint
from splatstudio.evaluation.evaluate import ComparedWith, evaluate, write_evaluation
from splatstudio.evaluation.lpips import NOT_FOUND
from splatstudio.files.run import Run
from splatstudio.formats import free_path
from splatstudio.formats.ply import write_ply
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.tabs.evaluate import EvaluatePanel
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.models.scoring import EvaluationTask
from splatstudio.runtime.file_tasks import FileTask, FileWorker
from splatstudio.runtime.messages import Started
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

NAMELESS = ("", " ", "/", ".", "..", "a/..")


def steps(run: Path) -> list[str]:
    return [folder.name for folder in checkpoint_folders(run)]


def entry_of(panel: EvaluatePanel, step: int) -> CatalogEntry:
    (entry,) = (entry for entry in panel._list.entries if entry.step == step)
    return entry


def test_what_was_asked_about_is_deleted_whatever_is_chosen_now(page: Any, run: Path) -> None:
    for step in (10, 20):
        save_checkpoint(run, example(step))
    panel = evaluate_panel(page)
    panel._ask(entry_of(panel, 10))
    panel._list.selected = entry_of(panel, 20)  # as a look at the disk may have it
    panel._answered("Delete")
    assert steps(run) == ["step_00000020"]


def test_what_has_changed_since_the_question_is_not_deleted(page: Any, run: Path) -> None:
    save_checkpoint(run, example(10))
    panel = evaluate_panel(page)
    panel._ask(entry_of(panel, 10))
    save_checkpoint(run, example(10, seed=1))
    for reason in ("has changed since you were asked", "nothing is deleted"):
        with pytest.raises(ValueError, match=reason):
            panel._answered("Delete")
        assert steps(run) == ["step_00000010"]


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


def test_scores_stay_in_sight_until_the_newest_model_has_its_own(
    page: Any, run: Path, blob_scene: Scene
) -> None:
    evaluation = evaluate(blobs(), blob_scene, indices=[0])
    assert "No scores yet." in evaluate_panel(page)._scores._means.content, "there is no model"
    for step in (10, 20):
        save_checkpoint(run, example(step))
    write_evaluation(run, 10, evaluation)
    panel = evaluate_panel(page)
    shown = panel._scores._means
    assert "Step 20 is not evaluated yet. These scores are of step 10." in shown.content
    assert f"{evaluation.psnr:.2f} dB" in shown.content
    write_evaluation(run, 20, evaluation)
    panel._list._pick(1, cast(Any, None))  # the older one
    assert "not evaluated" not in shown.content and f"{evaluation.psnr:.2f} dB" in shown.content
    save_checkpoint(run, example(15))
    panel._list.scan()
    panel._list._pick(1, cast(Any, None))
    assert "This model is not evaluated yet." in shown.content
    # Nor do scores stay of a model that is no longer listed, and a folder that is none is told.
    panel._list._pick(0, cast(Any, None))
    panel.refresh()
    assert f"{evaluation.psnr:.2f} dB" in shown.content
    panel._list._root.value = str(run / "nowhere")
    panel._list._look_elsewhere()
    panel.refresh()
    assert "dB" not in shown.content and panel._list._refused == str(run / "nowhere")


def test_scores_that_come_after_another_model_was_chosen_say_whose_they_are(
    page: Any, run: Path, blob_scene: Scene
) -> None:
    for step in (10, 20):
        save_checkpoint(run, example(step))
    panel = evaluate_panel(page)
    evaluated = entry_of(panel, 20)
    task = FileTask("Evaluating", (evaluated.path,), evaluation=EvaluationTask(evaluated.path))
    scored = SimpleNamespace(evaluation=evaluate(blobs(), blob_scene, indices=[0]), step=20, file=None)
    end = cast(Any, SimpleNamespace(scored=scored, output=None))
    shown = panel._scores._means
    panel._ended(task, end, then_open=False)
    assert "another model" not in shown.content
    panel._list._pick(1, cast(Any, None))
    panel._ended(task, end, then_open=False)
    assert "These scores are of step 20: another model was chosen meanwhile." in shown.content
    panel._ended(replace(task, paths=(Path("/elsewhere/other.ply"),)), end, then_open=False)
    assert "These scores are of /elsewhere/other.ply" in shown.content


def test_a_file_that_exists_is_not_written_over(
    page: Any, notices: list[Notice], sent: list[Any], tmp_path: Path
) -> None:
    there = tmp_path / "model.ply"
    there.write_text("mine")
    panel = ExportPanel(page)
    panel._path.value = str(there)
    panel._write()
    assert (
        sent[-1].path == tmp_path / "model-2.ply"
        and "model.ply stays as it is: this one is called model-2.ply" in notices[-1].text
    )
    assert evaluate_panel(page)._output(str(there)) == tmp_path / "model-2.ply"
    for name, other in [("a.compressed.ply", "a-2.compressed.ply"), ("v1.5.spz", "v1.5-2.spz"), ("b", "b-2")]:
        assert free_path(tmp_path / name) == tmp_path / name
        (tmp_path / name).touch()
        assert free_path(tmp_path / name) == tmp_path / other


def test_a_file_that_is_open_alone_is_compared_with_the_scene_that_is_named(
    page: Any, blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert named.button_of_file.label == "Evaluate cloud.ply" and named.button_of_file.visible
    assert not panel._evaluate.visible and "name the folder of its scene below" in panel._facts.content
    assert named.file == path
    with pytest.raises(ValueError, match=r"Type the folder of the scene that cloud\.ply shows"):
        panel._evaluate_file(path, named.folder)
    named._field.value = str(blob_folder)
    panel._evaluate_file(path, named.folder)
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
    assert not named.button_of_file.visible and panel._evaluate.visible


def chosen(panel: EvaluatePanel) -> tuple[str, int | None]:
    """Return the run and the step that are chosen; not while a callback of the page is changing them."""
    with panel._lock:
        return panel._list._run.value, panel._list.selected and panel._list.selected.step


def test_the_list_of_models_turns_to_the_run_of_the_page_once(page: Any, run: Any) -> None:
    other, anew = run.parent / "a run", run.parent / "started over"
    for folder in (other, anew):
        Run.create(folder, page.controller.project.path, TrainConfig())
    save_checkpoint(run, example(10))
    save_checkpoint(other, example(20))
    panel = evaluate_panel(page)
    assert chosen(panel) == (run.name, 10)
    as_user(panel._list._run, other.name)
    assert chosen(panel) == (other.name, 20), "the user's choice stays"
    page.controller.project = replace(page.controller.project, run_dir=anew)
    panel._list.scan()
    assert chosen(panel) == (other.name, 20), "there is nothing to see yet"
    save_checkpoint(anew, example(30))
    panel._list.scan()
    assert chosen(panel) == (anew.name, 30)


@pytest.mark.parametrize("text", NAMELESS)
def test_nothing_is_evaluated_or_exported_into_a_file_without_a_name(
    page: Any, run: Path, sent: list[Any], text: str
) -> None:
    save_checkpoint(run, example(10))
    panel = evaluate_panel(page)
    panel._exported.value = text
    with pytest.raises(ValueError, match="names no file"):
        panel._do_more("Export")
    assert not page.tasks.is_busy("evaluate")
    export = ExportPanel(page)
    export._path.value = text
    export._format.value = "SPZ"
    export._choose()
    with pytest.raises(ValueError, match="names no file"):
        export._write()
    assert sent == []


def test_weights_that_are_missing_are_downloaded_by_a_button(
    page: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"alex"}
    monkeypatch.setattr("splatstudio.gui.tabs.scores.lacks_weights", lambda name: name not in there)
    monkeypatch.setattr("splatstudio.gui.tabs.scores.fetch_lpips", there.add)
    panel = evaluate_panel(page)
    (button,) = (handle for handle, name, _ in panel._weights._kept if name == "label")
    panel.look()
    panel.refresh()
    assert button.visible and button.label == "Download LPIPS weights"
    panel._lpips.value = "AlexNet"
    panel.look()
    panel.refresh()
    assert not button.visible, "those are here"
    panel._lpips.value = "Both"
    panel.look()
    panel._weights._download()
    panel.refresh()
    assert there == {"alex", "vgg"} and not button.visible


def test_scores_without_lpips_name_the_button_that_downloads_its_weights(
    page: Any, run: Path, blob_scene: Scene
) -> None:
    save_checkpoint(run, example(10))
    missing = replace(evaluate(blobs(), blob_scene, indices=[0]), notes=(f"LPIPS (VGG16){NOT_FOUND}",))
    write_evaluation(run, 10, missing)
    told = evaluate_panel(page)._scores._means.content
    assert "Download LPIPS weights, under Measures and files, gets them." in told and "--fetch" not in told


def test_when_a_training_goes_on_the_newest_model_is_what_buttons_act_on(page: Any, run: Path) -> None:
    for step in (10, 20):
        save_checkpoint(run, example(step))
    panel = evaluate_panel(page)
    older = panel._list.entries[-1]
    panel._list._select(older)
    panel.refresh()
    assert panel._list.selected == older and panel._more.label == f"Step {older.step:,}"
    panel.follow(Started(older.step + 1, 100, 9, 8, 1))
    panel.refresh()
    newest = panel._list.entries[0]
    assert panel._list.selected == newest != older and panel._more.label == f"Step {newest.step:,}"


def test_the_newest_model_is_chosen_until_the_user_wants_an_older_one(page: Any, run: Path) -> None:
    def saved(step: int) -> int | None:
        save_checkpoint(run, example(step))
        panel.look()
        panel.refresh()
        return None if panel._list.selected is None else panel._list.selected.step

    save_checkpoint(run, example(10))
    panel = evaluate_panel(page)
    assert saved(20) == 20 and "20" in panel._exported.value
    panel._list._pick(1, cast(Any, None))
    assert panel._list.selected == entry_of(panel, 10)
    assert saved(30) == 10, "who has chosen an older one keeps it"
    panel._list._pick(0, cast(Any, None))
    panel._exported.value = "mine.ply"
    assert saved(40) == 40 and panel._exported.value == "mine.ply"
    panel._ask(panel._list.selected)
    assert saved(50) == 40 and panel._asked is not None, "the question whether to delete it stays"
    panel._answered("Cancel")
    assert saved(60) == 60, "the newest is followed again"
    panel._list._pick(1, cast(Any, None))
    panel._ask(panel._list.selected)
    panel._answered("Delete")
    assert saved(70) == 70, "who has deleted an older one has chosen none"


def test_the_search_for_commands_merges_what_several_ranks_have_saved(
    page: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(run, example(10), num_shards=2)
    save_checkpoint(run, example(20))
    panel = evaluate_panel(page)
    started: list[FileTask] = []
    monkeypatch.setattr(page.tasks, "start", lambda kind, task, then: started.append(task))
    command = panel._merge_command
    assert command.label == "Merge the files of all ranks" and command.disabled, "one rank has saved step 20"
    panel._list._pick(1, cast(Any, None))
    panel.refresh()
    assert not command.disabled
    for callback in command._impl.trigger_cb:
        callback(cast(Any, SimpleNamespace(client=SimpleNamespace(client_id=1))))
    assert [task.output for task in started] == [run / "exports" / f"{run.name}-10-merged.ply"]
