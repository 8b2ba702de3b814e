"""Two runs compared: the table of scores, the curves over each other, and which model is shown beside."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from example_checkpoints import example
from gui_parts import as_user, evaluate_panel

from splatstudio.checkpoints.checkpoint import newest_checkpoint, save_checkpoint
from splatstudio.evaluation.evaluate import ComparedWith, Evaluation, ImageScore, write_evaluation
from splatstudio.files.run import Run
from splatstudio.gui.panel import Page
from splatstudio.gui.state.photos import PhotoPsnr
from splatstudio.gui.state.status import Notice
from splatstudio.gui.state.stream import ViewSettings
from splatstudio.gui.tabs.compare_runs import MAX_RUNS, RunComparison, difference_in, row_of, runs_html
from splatstudio.gui.tabs.halves import halves_of
from splatstudio.gui.tabs.view import BrowserView, errors_in_view
from splatstudio.runtime.messages import Progress
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig


@pytest.fixture
def other(run: Path, blob_scene: Scene) -> Path:
    """A run beside the page's own, trained for 20 steps and evaluated."""
    made = Run.create(run.parent / "other <b>", blob_scene.path, TrainConfig()).path
    rows = [
        {"step": step, "loss": 0.1, "psnr": 20.0 + step, "num_gaussians": 1000 * step} for step in (10, 20)
    ]
    (made / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_checkpoint(made, example(20))
    score = ImageScore("a.png", 31.25, 0.9)
    write_evaluation(made, 20, Evaluation(31.25, 0.9, 4321, (score,), 0.01, flip=0.125))
    return made


def comparison_of(page: Any) -> RunComparison:
    panel = evaluate_panel(page).runs
    panel.look()
    return panel


def test_the_table_has_the_newest_scores_of_each_run(page: Any, run: Path, other: Path) -> None:
    table = comparison_of(page)._table.content
    assert (
        "other &lt;b&gt; <i>default</i></span><span>20</span><span>4,321</span><span>31.25</span>"
        "<span>0.900</span>" in table
    )
    assert "<span>0.125</span>" in table and "class=mine>blobs <i>" in table, "nothing is known of it"
    (other / "eval" / "step_00000020.json").write_text("{}")
    table = comparison_of(page)._table.content
    assert "other &lt;b&gt; <i>default</i></span><span>20</span><span>–</span>" in table, (
        "damaged scores are none"
    )


def test_runs_of_the_same_scene_come_before_newer_ones_of_others(
    page: Any, run: Path, other: Path, tmp_path: Path
) -> None:
    for number in range(MAX_RUNS + 3):
        Run.create(run.parent / f"later-{number}", tmp_path / "elsewhere", TrainConfig())
    panel = comparison_of(page)
    table = panel._table.content
    assert "class=mine>blobs" in table and "other &lt;b&gt;" in table
    assert table.count("<i>") == MAX_RUNS and "5 more runs are in this folder" in table
    assert panel._other.options[:2] == ("–", "other <b>")


def test_scores_of_this_run_are_not_shown_beside_a_model_of_another(page: Page, blob_scene: Scene) -> None:
    view = BrowserView.__new__(BrowserView)
    stands = SimpleNamespace(last=0, here=0, on_the_way=False)
    view._page, view._stream = page, cast(Any, SimpleNamespace(camera_snap=stands, photo_problem=""))
    view._stream.settings = ViewSettings()
    psnr = PhotoPsnr(blob_scene)
    psnr.note(20, ((blob_scene.views[0].name, 21.5),))
    parts = cast(Any, SimpleNamespace(scene=blob_scene, psnr=psnr))
    controller = cast(Any, page.controller)
    for own in (True, False):
        controller.shows_own_newest = own
        errors = errors_in_view(controller, psnr)
        assert ("21.5 dB" in view._standing_html(parts, errors)) is own


def test_the_curves_of_both_runs_lie_over_each_other(page: Any, run: Path, other: Path) -> None:
    for step in (5, 10):
        page.controller.history.follow(Progress(step, 30, 0.2, 10.0 + step, 500, 1.0, None))
    panel = comparison_of(page)
    panel.refresh()
    assert panel._psnr._handle is None, "none is chosen"
    as_user(panel._other, "other <b>")
    panel.refresh()
    charts: list[Any] = [panel._psnr, panel._splats]
    psnr, splats = (chart._handle for chart in charts)
    steps, mine, _, its, _ = psnr.data
    assert steps.tolist() == [5, 10, 20]
    np.testing.assert_allclose(mine, [15.0, 20.0, np.nan])
    assert np.isnan(its[0]) and its[1] == 30.0 and its[2] > 30.0
    np.testing.assert_allclose(splats.data[2], [np.nan, 10.0, 20.0])
    with (other / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 30, "num_gaussians": 31_000}) + "\n")
    panel.look()
    panel.refresh()
    assert splats.data[2][-1] == 31.0, "it trains on, and its curve grows"
    as_user(panel._other, "–")
    panel.refresh()
    assert panel._psnr._handle is None


def test_an_evaluation_by_hand_is_a_dot(page: Any, run: Path, other: Path) -> None:
    panel = comparison_of(page)
    as_user(panel._other, "other <b>")
    panel.refresh()
    psnr: Any = panel._psnr._handle
    assert dict(zip(psnr.data[0], psnr.data[4], strict=True))[20] == 31.25, "it stands in eval/ alone"
    score = ImageScore("a.png", 29.5, 0.9)
    write_evaluation(other, 10, Evaluation(29.5, 0.9, 4321, (score,), 0.01))
    panel.look()
    panel.refresh()
    assert dict(zip(psnr.data[0], psnr.data[4], strict=True))[10] == 29.5


def test_scores_on_other_photos_are_told_apart(other: Path) -> None:
    row, against = row_of(other), ComparedWith(Path("/scenes/a"), 4, 8)
    assert row.scores is not None
    known = row.scores

    def told(*compared: ComparedWith | None) -> str:
        return difference_in([replace(row, scores=replace(known, against=each)) for each in compared])

    assert told(against, against, None) == "" and "only run here" in runs_html([row], None)
    assert "(full size, 1/4)" in told(against, replace(against, downscale=1))
    assert "several scenes" in told(against, replace(against, scene=Path("/scenes/b"), downscale=1))
    assert "held out different photos" in told(against, replace(against, test_every=4))


def test_the_newest_whole_model_is_shown_beside(page: Any, run: Path, other: Path) -> None:
    compared: list[Path] = []
    page.controller.compare_with = compared.append
    save_checkpoint(other, example(30))
    damaged = other / "ckpts" / "step_00000030" / "rank00000-of-00001.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    panel = comparison_of(page)
    panel._show_both()
    assert compared == [], "none is chosen"
    as_user(panel._other, "other <b>")
    panel._show_both()
    assert compared == [other / "ckpts" / "step_00000020"]
    for file in other.glob("ckpts/*/*"):
        file.unlink()
    with pytest.raises(ValueError, match="no whole model to show"):
        panel._show_both()


def test_a_model_of_another_scene_is_shown_with_a_word_on_it(
    page: Any, run: Path, other: Path, notices: list[Notice]
) -> None:
    page.controller.compare_with = lambda path: None
    elsewhere = Run.create(run.parent / "elsewhere", run.parent / "garden", TrainConfig()).path
    save_checkpoint(elsewhere, example(20))
    panel = comparison_of(page)
    for name, told in (("other <b>", 0), ("elsewhere", 1)):
        as_user(panel._other, name)
        panel._show_both()
        assert len(notices) == told, name
    assert "shows garden." in notices[0].text and "coordinates" in notices[0].text


def test_the_halves_bear_the_names_of_their_runs(page: Any, run: Path, other: Path) -> None:
    beside = newest_checkpoint(other)
    assert beside is not None
    page.controller.shown_path = None
    page.controller.beside = SimpleNamespace(path=beside, worker=None)
    stream: Any = SimpleNamespace(settings=ViewSettings(beside_split=0.3), camera_snap=None, viewpoint=None)
    assert halves_of(page, stream, None, "") is None, "it is still being read"
    page.controller.beside = SimpleNamespace(path=beside, worker=object())
    halves = halves_of(page, stream, None, "")
    assert halves is not None and (halves.left, halves.right) == ("other <b> · step 20", "blobs")
    assert (halves.span, halves.share) == ((0.0, 1.0), 0.3)


def test_a_page_without_a_run_compares_all(page: Any, run: Path, other: Path) -> None:
    page.controller.project = replace(page.controller.project, run_dir=None)
    panel = comparison_of(page)
    panel._folders = lambda: (run, other)
    panel.look()
    assert list(panel._other.options) == ["–", "blobs", "other <b>"]


def test_a_run_of_another_folder_is_compared_when_it_is_named(
    page: Any, run: Path, other: Path, tmp_path: Path
) -> None:
    compared: list[Path] = []
    page.controller.compare_with = compared.append
    far = tmp_path / "far" / other.name
    shutil.copytree(other, far)
    panel = comparison_of(page)
    panel.compare_with(far)
    assert compared == [far.resolve() / "ckpts" / "step_00000020"] and panel._history is not None
    assert list(panel._other.options) == ["–", other.name, str(other.resolve())], "both can be chosen"
    panel.look()
    assert panel._other.value == other.name and panel._chosen() == far.resolve(), "it stays chosen"
    with pytest.raises(ValueError, match="is the run of this page"):
        panel.compare_with(run)
