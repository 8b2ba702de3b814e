"""Where `splatstudio eval` writes its scores: found out before the work, nothing written over unasked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from blob_models import blobs
from test_cli import command

from splatstudio.cli import eval as eval_command
from splatstudio.formats.ply import write_ply
from splatstudio.models.scoring import EvaluationTask
from splatstudio.scene.scene import Scene


@pytest.fixture
def asked(blob_scene: Scene, tmp_path: Path) -> tuple[object, ...]:
    """Return the command that evaluates a model of the scene, without the files."""
    write_ply(tmp_path / "a.ply", blobs())
    return ("eval", tmp_path / "a.ply", "--scene", blob_scene.path, "--lpips")


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[EvaluationTask]:
    """Return the evaluations that have been begun, which then end."""
    begun: list[EvaluationTask] = []

    def begin(task: EvaluationTask, *_: object) -> None:
        begun.append(task)
        raise AssertionError("the work began")

    monkeypatch.setattr(eval_command, "evaluate_task", begin)
    return begun


def test_a_file_that_cannot_be_written_is_told_before_the_work(
    asked: tuple[object, ...],
    evaluated: list[EvaluationTask],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "taken.csv").write_text("mine")
    for option, file, why in (
        ("--json", tmp_path / "missing" / "x.json", "the folder"),
        ("--csv", tmp_path / "taken.csv", "is there already"),
        ("--csv", tmp_path / "a.ply" / "x.csv", "the folder"),
    ):
        code, printed = command(capsys, *asked, option, file)
        assert code == 2 and why in " ".join(printed.split()) and not evaluated, printed
    assert (tmp_path / "taken.csv").read_text() == "mine"
    code, printed = command(capsys, *asked, "--json", tmp_path / "x", "--csv", tmp_path / "x")
    assert code == 2 and "cannot both" in printed and not evaluated


def test_files_are_replaced_where_that_was_asked(
    asked: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "a.json", tmp_path / "a.csv"
    for file in files:
        file.write_text("old")
        os.link(file, file.with_name(file.name + ".kept"))
    code, printed = command(capsys, *asked, "--json", files[0], "--csv", files[1], "--overwrite")
    assert code == 0, printed
    assert json.loads(files[0].read_text())["psnr"] > 20.0
    assert len(files[1].read_text().splitlines()) > 1
    # Another file took the name of the old one, which was whole until then.
    assert [file.with_name(file.name + ".kept").read_text() for file in files] == ["old", "old"]
