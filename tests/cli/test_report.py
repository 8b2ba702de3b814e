"""The crash report: what it tells, and that it gives nobody away."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from command_line import CommandLine

from splatstudio.cli import doctor
from splatstudio.cli.doctor import Finding
from splatstudio.cli.report import newest_run, redacted
from splatstudio.files.run import Run
from splatstudio.settings.config import TrainConfig

TOKEN = "5Tybm6yLf1qa4QKWy--NuCXVJ4-G5UkH"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            'File "/srv/ada/.venv/lib/python3.11/site-packages/torch/nn/module.py", line 17, in _call',
            'File "torch/nn/module.py", line 17, in _call',
        ),
        (
            'File "/srv/ada/splatstudio/runtime/rank.py", line 40, in main',
            'File "splatstudio/runtime/rank.py", line 40, in main',
        ),
        ('File "/usr/lib/python3.12/json/decoder.py", line 3', 'File "json/decoder.py", line 3'),
        ("'/srv/ada/My Photos/a b.jpg' is damaged", "'<path>' is damaged"),
        ("/srv/ada/scan/x.ply: no header", "<path>: no header"),
        ("~/scan/x.ply cannot be read", "<path> cannot be read"),
        ("photo IMG_2041.JPG is damaged", "photo <file>.JPG is damaged"),
        (f"open at http://127.0.0.1:8080/?token={TOKEN}", "open at <address>"),
        ("dialed 192.168.7.21:29500, then [fe80::1:2:3]", "dialed <address>, then <address>"),
        (f"the token {TOKEN} is wrong", "the token <secret> is wrong"),
        ("step 30 of 100, 4.1 it/s, photos at 1/4", "step 30 of 100, 4.1 it/s, photos at 1/4"),
        ("CUDA error: an illegal memory access was encountered", None),
        ("2026-11-23 20:19:28,742 worker started (PID 7511)", None),
        ("RuntimeError: project_fwd failed on cuda:0; was given float32 [30, 3]", None),
        ("\x1b]0;title", "\\x1b]0;title"),
    ],
)
def test_a_line_keeps_what_helps_and_loses_what_names(line: str, told: str | None) -> None:
    assert redacted(line) == (line if told is None else told)


@pytest.fixture
def failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run below runs/ of a scene in a folder with a name that nobody shall read, whose log has an error."""
    home = tmp_path / "Ada Byron"
    scene, work = home / "shared" / "Secret Garden", home / "Thesis"
    scene.mkdir(parents=True)
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(socket, "gethostname", lambda: "ada-laptop")
    monkeypatch.setenv("SPLATSTUDIO_TOKEN", TOKEN)
    run = Run.create(Path("runs/Garden-2"), scene, TrainConfig())
    (run.path / "logs").mkdir()
    log = (
        f"{scene}/images/x 1.jpg of {socket.gethostname()}\nSecret Garden in Garden-2\nValueError: no good\n"
    )
    (run.path / "logs" / "worker.log").write_text("old\n" * 4000 + log)
    return run.path


def test_a_report_has_the_end_of_the_newest_log_and_no_names(
    failed_run: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Finding("CPU kernels", "avx2"), Finding("shared memory", "24 MiB free")]
    rows.append(Finding("GPUs", f"{Path.home()}/x cannot be loaded", good=False))
    monkeypatch.setattr(doctor, "findings", lambda: iter(rows))
    code, told = command("doctor", "--report")
    assert code == 0 and newest_run() == failed_run
    for private in (
        "Ada",
        "Byron",
        "Secret",
        "Garden",
        "Thesis",
        "ada-laptop",
        TOKEN,
        str(Path.home()),
        "x 1.jpg",
    ):
        assert private not in told, told
    for kept in (
        "splatstudio 0.",
        "torch 2",
        "Python 3",
        "cores",
        "viser 1.1",
        "ok CPU kernels: avx2",
        "ok shared memory",
    ):
        assert kept in told, told
    assert "!! GPUs: <" in told and told.rstrip().endswith("ValueError: no good")
    assert "SPLATSTUDIO_TOKEN is set" in told and len(told) < 12_000


def test_a_named_run_is_told_of_and_one_without_a_log_as_well(
    failed_run: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "findings", lambda: iter(()))
    other = Run.create(Path("runs/other"), failed_run, TrainConfig())
    code, told = command("doctor", "--report", "--run", other.path)
    assert code == 0 and "No such file" in told and "no good" not in told
    os.remove(failed_run / "logs" / "worker.log")
    assert newest_run() is None and "log" not in command("doctor", "--report")[1]
    code, told = command("doctor", "--run", other.path)
    assert code == 2 and "add --report" in told
