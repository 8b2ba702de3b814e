"""Folders that cannot be read or written, standard streams that are closed: what the commands say then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shlex import quote

import pytest
from gui_parts import trained_run

from splatstudio.cli.main import main
from splatstudio.scene.scene import Scene

DEMO = Path(__file__).parents[2] / "assets" / "demo"


@pytest.fixture
def blob_run(blob_scene: Scene, tmp_path: Path) -> Path:
    """A run of three steps."""
    trained_run(blob_scene, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["ckpts", "logs"])
def test_a_run_that_cannot_be_saved_or_logged_is_not_resumed(
    blob_run: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (blob_run / name).mkdir(exist_ok=True)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != name)
    monkeypatch.setattr(sys, "argv", ["splatstudio", "train", str(blob_run), "--resume", "--steps", "9"])
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr().err
    assert stop.value.code == 2 and told.startswith(f"error: {blob_run / name} may not be written to: ")
    assert "copy the run elsewhere" in told, "another folder by --run would not be this run"


def test_checkpoints_that_cannot_be_read_are_not_to_be_deleted(
    blob_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (blob_run / "ckpts").rename(blob_run / "elsewhere")
    (blob_run / "ckpts").symlink_to("ckpts")
    for words in (("train", "--resume"), ("export", "-o", "m.ply"), ("eval",)):
        monkeypatch.setattr(sys, "argv", ["splatstudio", words[0], str(blob_run), *words[1:]])
        with pytest.raises(SystemExit):
            main()
        told = capsys.readouterr().err
        assert "cannot be listed: Too many levels" in told and "delete" not in told
    monkeypatch.setattr(sys, "argv", ["splatstudio", "info", str(blob_run)])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().out
    assert "none yet" not in told.split("Checkpoints")[1] and "Too many levels" in " ".join(told.split())
    monkeypatch.setattr(sys, "argv", ["splatstudio", "info", str(blob_run), "--json"])
    with pytest.raises(SystemExit):
        main()
    values = json.loads(capsys.readouterr().out)
    assert values["checkpoints"] is None and "Too many levels" in values["problems"][0]


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_who_has_closed_the_standard_streams_is_served_all_the_same(
    closed: tuple[int, ...], blob_run: Path
) -> None:
    output = blob_run / "model.ply"
    command = [sys.executable, "-m", "splatstudio", "export", str(blob_run), "-o", str(output)]
    shell = " ".join([*map(quote, command), *(f"{number}>&-" for number in closed)])
    assert subprocess.run(shell, shell=True, timeout=250).returncode == 0
    assert output.read_bytes().startswith(b"ply\n"), "nothing was printed into it"


def test_a_shell_whose_folder_was_deleted_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    monkeypatch.setattr(sys, "argv", ["splatstudio", "info", str(DEMO)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and "the folder of this shell was deleted" in capsys.readouterr().err
