"""An evaluation by another process counts for the whole page, and a long task is told where it is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from gui_parts import Steered, scores

from splatstudio.evaluation.evaluate import write_evaluation
from splatstudio.files.run import Run
from splatstudio.gui.dock.status import header_html
from splatstudio.gui.state.controller import Controller
from splatstudio.runtime.messages import (
    Evaluated,
    Event,
)


@pytest.fixture
def controller(idle: Steered) -> Controller:
    return idle.controller


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
