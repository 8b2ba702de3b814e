"""Scores of steps that a killed training has lost are not among those of the run that goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from example_checkpoints import example
from gui_parts import scores

from splatstudio.checkpoints.catalog import entries_of
from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.evaluation.evaluate import write_evaluation
from splatstudio.files.run import Run
from splatstudio.settings.config import TrainConfig
from splatstudio.training.session import Session


@pytest.fixture
def killed(tmp_path: Path) -> Run:
    """A run with scores of steps 10, 20 and 30, of which 20 has no checkpoint."""
    run = Run.create(tmp_path / "run", tmp_path, TrainConfig())
    for step in (10, 20, 30):
        write_evaluation(run.path, step, scores(20.0 + step))
        if step != 20:
            save_checkpoint(run.path, example(step))
    return run


def session_at(run: Run, step: int) -> Session:
    return Session(cast(Any, SimpleNamespace(step=step, config=run.config)), run)


def test_they_are_put_aside_when_the_training_goes_on(killed: Run) -> None:
    session = session_at(killed, 10)
    try:
        (note,) = session.notes
        assert note.startswith("Scores of steps after 10, which no checkpoint has, are put into ")
    finally:
        session.close()
    folder = killed.path / "eval"
    assert sorted(file.name for file in folder.glob("step_*.json")) == [
        "step_00000010.json",
        "step_00000030.json",
    ], "what can still be looked at keeps its scores"
    assert {file.name for file in (folder / "lost").iterdir()} == {"step_00000020.json", "step_00000020.csv"}
    save_checkpoint(killed.path, example(20))
    assert [entry.psnr for entry in entries_of(killed.path)] == [50.0, None, 30.0], "another model's score"


def test_a_training_goes_on_where_they_cannot_be_moved(killed: Run) -> None:
    (killed.path / "eval" / "lost").write_text("in the way")
    session = session_at(killed, 10)
    session.close()
    assert session.notes[0].startswith("Scores of steps after 10, which are lost, stay in eval/: ")
