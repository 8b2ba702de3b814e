"""An evaluation by another process counts for the whole page, and a long task is told where it is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_studio_faults import controller_of

from splatstudio.evaluation.evaluate import Evaluation, ImageScore, write_evaluation
from splatstudio.files.run import Run
from splatstudio.gui.dock.status import header_html, panel_label
from splatstudio.gui.state.controller import Controller, Status
from splatstudio.gui.state.tasks import JobBoard
from splatstudio.runtime.messages import (
    Evaluated,
    Event,
    Export,
    JobDone,
    JobProgress,
    ModelLoaded,
)


def scores(psnr: float) -> Evaluation:
    image = ImageScore("a.png", psnr, 0.5)
    return Evaluation(psnr, 0.5, num_gaussians=7, images=(image,), seconds_per_image=0.1)


@pytest.fixture
def controller(blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    return controller_of(blob_folder, tmp_path, monkeypatch)[0]


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
    assert heard == [Evaluated(20, 25.0, 0.5, 1, run_dir / "eval")], "the photographs' errors come from there"
    assert "25.00 dB" in header_html("demo", controller.status, 1)
    controller.take_scores(write_evaluation(run_dir, 20, scores(26.0)))
    assert controller.status.test_psnr == 26.0, "the same step once more"
    controller.take_scores(write_evaluation(run_dir, 10, scores(22.0)))
    assert controller.status.test_psnr == 26.0, "of an older model"
    assert [curve.tolist() for curve in controller.history.test_psnr.arrays()] == [[20.0], [26.0]]


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
    assert [curve.tolist() for curve in again.history.test_psnr.arrays()] == [[10.0, 15.0], [22.0, 24.0]]


def test_the_head_tells_of_a_task_until_it_has_ended(controller: Controller, tmp_path: Path) -> None:
    board = JobBoard(controller, lambda _: None)
    assert board.in_progress is None and "task" not in header_html("demo", Status(), 1, board.in_progress)
    controller._worker.receive(ModelLoaded(0, 60, (0.0, 0.0, 0.0), 1.0))
    for name in ("<b>.ply", "c.ply"):
        assert board.submit(Export(tmp_path / name)) is not None
    board.follow(JobProgress(1, 3, 12, 2.0))
    head = header_html("demo", Status(), 1, board.in_progress)
    assert "Exporting &lt;b&gt;.ply: 3 of 12, 2 s left" in head
    without = header_html("demo", Status(), 2)
    assert "2 viewers" in without and head.count("<div") == without.count("<div"), (
        "no line more: nothing moves"
    )
    assert panel_label(Status(), 0.0, board.in_progress) == "splatstudio · Starting · Exporting 25 %"
    board.follow(JobDone(1, tmp_path / "b.ply", 10))
    assert "Exporting c.ply" in header_html("demo", Status(), 1, board.in_progress), "the next one"
    board.follow(JobDone(2, tmp_path / "c.ply", 10))
    assert board.in_progress is None
