"""What the command line prints where no terminal is, and what it loads for that."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import CommandLine
from started_programs import start_program

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.checkpoints.manifest import step_of
from splatstudio.cli import terminal
from splatstudio.cli import train as train_command
from splatstudio.cli.console import PlainConsole
from splatstudio.cli.main import main, with_home_folders
from splatstudio.cli.standard_output import going_on_unheard, nobody_reads
from splatstudio.distributed.rank_devices import choose_devices
from splatstudio.error_text import as_sentence, in_words
from splatstudio.evaluation.evaluate import Evaluation, ImageScore
from splatstudio.files.run import Run
from splatstudio.runtime.messages import Progress, TrainJob
from splatstudio.settings.config import TrainConfig

# Describes a scene, and tells whether what takes seconds to load was loaded for that.
INFO = """
import sys
from splatstudio.cli.main import main
sys.argv = ["splatstudio", "info", sys.argv[1]]
try:
    main()
finally:
    print({"torch", "viser"} & set(sys.modules), file=sys.stderr)
"""


DEMO = Path(__file__).parents[2] / "assets" / "demo"


def test_a_scene_is_described_without_torch_and_each_row_is_one_line(tmp_path: Path) -> None:
    scene = tmp_path / ("a long name" * 10)
    scene.symlink_to(DEMO)
    command = [sys.executable, "-c", INFO, str(scene)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert told.stderr == "set()\n"
    lines = told.stdout.splitlines()
    assert lines[0].split() == ["Scene", str(DEMO)] and lines[1].split() == ["Format", "COLMAP"]
    assert len(lines) == 9 and all(line == line.rstrip() for line in lines)


def test_output_that_nobody_reads_ends_without_a_word() -> None:
    command = [sys.executable, "-m", "splatstudio", "info", str(DEMO)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=250)
    assert process.returncode and errors == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux's")
@pytest.mark.parametrize("words", [("--version",), ("info", str(DEMO), "--json")])
def test_output_that_cannot_be_written_is_an_error(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "splatstudio", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=250)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ") and "No space left on device" in done.stderr, done.stderr


def test_a_training_goes_on_where_nobody_reads_any_more(blob_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", blob_folder, "--run", run, "--steps", "400", "--eval-every", "0")
    process = start_program("-m", "splatstudio", *words)
    try:
        while "splats" not in process.stdout.readline():
            pass
        process.stdout.close()  # as where tee was ended
        assert process.wait(250) == 0
    finally:
        process.kill()
    newest = newest_checkpoint(run)
    assert newest is not None and step_of(newest) == 400


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux's")
def test_what_a_full_disk_did_not_take_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as log:
        monkeypatch.setattr(sys, "stdout", log)
        with going_on_unheard():
            PlainConsole().print("step 1")
            print("step 2", flush=True)
        assert sys.stdout is log
        monkeypatch.undo()
    told = "Some output could not be written to standard output: No space left on device.\n"
    assert capfd.readouterr().err == told


def test_a_list_that_nobody_reads_ends_as_by_sigpipe(tmp_path: Path) -> None:
    for name in range(300):
        Run.create(tmp_path / "runs" / f"run{name}", tmp_path, TrainConfig())
    process = start_program("-m", "splatstudio", "info", tmp_path / "runs", stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(250) == 141 and process.stderr is not None and process.stderr.read() == ""


@pytest.mark.parametrize("columns", ["1", "5"])
def test_help_ends_also_where_there_is_hardly_a_column(
    columns: str, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, told = command("export", "--help")
    assert code == 0 and "--min-opacity" in told


def test_a_path_that_begins_at_home_is_one_also_behind_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of me")
    typed = ["train", "~/scene", "--run=~/runs/a b", "--run", "~", "--title=~x", "a~/b", "~backup.ply"]
    assert with_home_folders(typed) == [
        *("train", "/home/of me/scene", "--run=/home/of me/runs/a b", "--run", "/home/of me"),
        *("--title=~x", "a~/b", "~backup.ply"),
    ]


def test_who_reads_by_a_socket_can_have_gone_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(fileno=writer.fileno))
        assert not nobody_reads()
        reader.close()
        assert nobody_reads()
        monkeypatch.undo()


def test_a_pipe_that_breaks_elsewhere_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cli(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("splatstudio.cli.main.tyro.cli", cli)
    monkeypatch.setattr(sys, "argv", ["splatstudio", "info", str(DEMO)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and "Broken pipe" in capsys.readouterr().err


def test_a_folder_of_runs_is_told_run_by_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, steps in (("a b", 20), ("c", 30)):
        run = Run.create(tmp_path / name, DEMO, TrainConfig(steps=steps))
        run.append_metrics({"step": 10, "test_psnr": 21.0})
    Run.create(tmp_path / "new", DEMO, TrainConfig())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{cut off")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["splatstudio", "info", str(tmp_path)])
        main()
    *lines, problem = capsys.readouterr().out.splitlines()[1:]
    assert problem.startswith(f"{tmp_path / 'broken' / 'run.json'} is damaged: ")
    rows = [re.split("  +", line.strip()) for line in lines]
    assert not stop.value.code and rows == [
        [str(tmp_path / "a b"), "demo", "default", "10 of 20, none saved", "21.00 dB at step 10"],
        [str(tmp_path / "c"), "demo", "default", "10 of 30, none saved", "21.00 dB at step 10"],
        [str(tmp_path / "new"), "demo", "default", "0 of 30,000"],
    ]


@pytest.mark.parametrize(
    ("name", "content", "asked", "sentence"),
    [
        ("model.glb", b"glTF", "model.glb", "glTF is a format that is only written; name the run"),
        (
            "step-9.ckpt",
            {"step": 9, "pipeline": {}},
            "step-9.ckpt",
            "nerfstudio's, but not of its splatfacto: it has no splats",
        ),
        ("ckpt_9_rank0.pt", {"step": 9, "splats": {}}, ".", "ckpt_9_rank0.pt has no 'means'"),
        ("points.ply", b"", ".", "is not a scene"),
    ],
)
def test_what_cannot_be_read_is_told_with_what_to_do(
    name: str,
    content: object,
    asked: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["splatstudio", "info", str(tmp_path / asked)])
        main()
    assert stop.value.code == 2 and sentence in capsys.readouterr().err


def test_scores_in_a_file_have_a_line_for_each_photo(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a" * 300 + ".jpg", "[b] b.jpg"]
    scores = tuple(ImageScore(name, psnr, 0.5) for name, psnr in zip(names, (20.0, 30.0), strict=True))
    terminal.print_scores(Evaluation(25.0, 0.5, 7, scores, 0.1))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        [names[0], "20.00", "0.5000"],
        ["[b]", "b.jpg", "30.00", "0.5000"],
    ]
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the disk is full", "The disk is full."),
        ("runs/a/ckpts is damaged", "runs/a/ckpts is damaged."),
        ("model.ply is cut off.", "model.ply is cut off."),
        ("", "."),
    ],
)
def test_a_path_at_the_beginning_of_a_sentence_stays_as_it_is(text: str, sentence: str) -> None:
    assert as_sentence(text) == sentence


def test_a_file_that_the_system_refuses_is_named_without_a_number() -> None:
    told = in_words(PermissionError(13, "Permission denied", "runs/a/lock"))
    assert told == "runs/a/lock cannot be read or written: Permission denied"
    assert in_words(ValueError("so it is")) == "so it is"
    full = FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")
    assert in_words(full).endswith("or name another folder in the variable TMPDIR")


def test_a_run_folder_that_cannot_be_made_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    monkeypatch.setattr(sys, "argv", ["splatstudio", "train", str(DEMO), "--run", str(tmp_path / "a" / "b")])
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr().err
    assert stop.value.code == 2 and told.startswith(f"error: {tmp_path} may not be written to: ")
    assert "name another run folder with --run" in told


@pytest.mark.parametrize(
    ("minutes", "seconds_left", "told"),
    [(None, 900.0, False), (10.0, 700.0, False), (10.0, 800.0, True)],
)
def test_a_training_that_takes_longer_than_planned_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], minutes: float | None, seconds_left: float, told: bool
) -> None:
    job = TrainJob(DEMO, tmp_path / "run", TrainConfig(steps=1000))
    attendance = train_command._Attendance(job, 0, choose_devices(ranks=1), minutes)
    attendance._started = time.monotonic() - 100.0
    report: Any = SimpleNamespace(show=lambda progress: None)
    for step in (50, 200, 300):
        attendance._tell(
            progress(step, 2.0 * seconds_left if step == 50 else seconds_left), report, quiet=False
        )
    printed = capsys.readouterr().out
    assert printed.count("Slower than planned") == told
    assert not told or "about 13 minutes left. Ctrl-C saves" in " ".join(printed.split())


def progress(step: int, eta_seconds: float) -> Progress:
    return Progress(step, 1000, 0.1, 20.0, 5, 1.0, eta_seconds)


def test_a_run_without_a_checkpoint_is_no_dead_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "run", DEMO, TrainConfig())
    monkeypatch.setattr(sys, "argv", ["splatstudio", "train", str(run.path), "--resume"])
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr().err
    # Without --resume the folder is refused, as it is not empty: that would be no way out.
    assert stop.value.code == 2 and "delete it to start over there, or name another" in told
