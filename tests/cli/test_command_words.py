"""What commands say to somebody new: the version, how far a run has come, where weights are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from splatstudio.cli.main import main
from splatstudio.evaluation.lpips import NOT_FOUND, load_lpips, short_notes
from splatstudio.files.run import Run
from splatstudio.settings.config import TrainConfig


def test_info_of_a_run_says_how_far_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "run", tmp_path / "scene", TrainConfig(steps=2000, downscale=4))
    run.append_metrics({"step": 1200, "test_psnr": 27.5, "test_ssim": 0.8})
    run.append_metrics({"step": 1210, "setting": "steps", "value": 3000})
    monkeypatch.setattr("sys.argv", ["splatstudio", "info", str(run.path)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().out
    assert ended.value.code == 0
    for text in (str(tmp_path / "scene"), "1,210 of 3,000", "27.50 dB at step 1,200", "none yet", "1/4"):
        assert "".join(text.split()) in "".join(told.split()), "whole, however narrow the terminal is"


def test_who_reads_only_the_beginning_gets_no_error() -> None:
    asked = [sys.executable, "-m", "splatstudio", "train", "--help"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_missing_weights_are_told_once() -> None:
    missing = [f"LPIPS ({name}){NOT_FOUND}, put them there" for name in ("AlexNet", "VGG16")]
    told = short_notes([missing[0], "a photograph is black", missing[1]])
    assert told[0] == "a photograph is black" and len(told) == 2 and "--fetch-lpips" in told[1]
    assert short_notes(["LPIPS (VGG16): vgg.pth is damaged"]) == ["LPIPS (VGG16): vgg.pth is damaged"]


def test_the_command_says_its_version() -> None:
    command = [sys.executable, "-m", "splatstudio", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0 and told.stdout.startswith("splatstudio 0.") and not told.stderr


def test_missing_weights_are_told_with_what_fetches_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("splatstudio.evaluation.lpips._found", lambda *_: None)
    load_lpips.cache_clear()
    with pytest.raises(ValueError, match=r"weights not found, put .*, or let splatstudio eval --fetch-lpips"):
        load_lpips("alex")
