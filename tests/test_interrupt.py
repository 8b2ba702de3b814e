"""Ctrl-C in a terminal: the first saves and ends, the second ends at once, and the last line is true."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from splatstudio.checkpoint import newest_checkpoint
from splatstudio.worker.reports import saved_sentence

TIMEOUT = 60.0

# A save that takes long, before or after the checkpoint is complete.
PROGRAM = """
    import sys, time
    from splatstudio import checkpoint_saver, cli
    from splatstudio.session import Session

    save = checkpoint_saver.save_checkpoint

    def slow(run_dir, checkpoint):
        if WHEN == "before":
            print("halfway", flush=True)
            time.sleep(600)
        folder = save(run_dir, checkpoint)
        if WHEN == "after":
            print("halfway", flush=True)
            time.sleep(600)
        return folder

    checkpoint_saver.save_checkpoint = slow
    if WHEN == "evaluating":
        def evaluating(self):
            print("halfway", flush=True)
            while True:
                time.sleep(0.05)
                self.breathe()
        Session.evaluate = evaluating
    cli.main()
"""


@pytest.fixture
def start(tmp_path: Path, blob_folder: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the command line; `when` says where its save is held up."""

    def run(*arguments: str, when: str = "") -> subprocess.Popen[str]:
        program = textwrap.dedent(PROGRAM).replace("WHEN", repr(when))
        environment = {**os.environ, "COLUMNS": "500", "PYTHONUNBUFFERED": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, "-c", program, *arguments, "--run", str(tmp_path / "run")]
        return subprocess.Popen(
            [*command, "--sh-degree", "1", "--steps", "100000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )

    return run


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)


def read_to(process: subprocess.Popen[str], text: str) -> str:
    """Return the output up to the line with `text`."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], "".join(lines)
    return "".join(lines)


def end(process: subprocess.Popen[str]) -> tuple[str, float]:
    """Press Ctrl-C for the last time; return the rest of the output and the seconds to the end."""
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=TIMEOUT)
    return output, time.monotonic() - started


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_second_ctrl_c_in_train_ends_at_once_and_tells_the_truth(
    start: Callable[..., subprocess.Popen[str]], blob_folder: Path, tmp_path: Path, when: str
) -> None:
    process = start("train", str(blob_folder), when=when)
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
        os.killpg(process.pid, signal.SIGINT)
        assert "Ctrl-C again ends at once" in read_to(process, "halfway")
        output, seconds = end(process)
    finally:
        process.kill()
    assert process.returncode == 130 and seconds < 10 and "Traceback" not in output
    newest = newest_checkpoint(tmp_path / "run")
    if when == "after":
        assert newest is not None and f"Saved {newest}." in output
    else:
        assert newest is None and re.search(
            r"Nothing was saved: .* and all its steps \([\d,]+\) are lost", output
        )


def test_ctrl_c_does_not_wait_for_an_evaluation(
    start: Callable[..., subprocess.Popen[str]], blob_folder: Path, tmp_path: Path
) -> None:
    process = start("train", str(blob_folder), "--eval-steps", "5", when="evaluating")
    try:
        read_to(process, "halfway")
        output, seconds = end(process)
    finally:
        process.kill()
    assert process.returncode == 130 and seconds < 20
    assert "evaluation of step 5 was broken off" in output and "step_00000005" in output


def test_the_second_ctrl_c_in_open_ends_at_once_and_tells_the_truth(
    start: Callable[..., subprocess.Popen[str]], blob_folder: Path, tmp_path: Path
) -> None:
    process = start("open", str(blob_folder), "--train", "--no-browser", "--port", "0")
    worker = None
    try:
        log = tmp_path / "run" / "logs" / "worker.log"
        wait_for(lambda: log.exists() and "trains here" in log.read_text(), process)
        wait_for((tmp_path / "run" / "metrics.jsonl").exists, process)
        found = re.search(r"process (\d+) trains here", log.read_text())
        assert found is not None
        worker = int(found.group(1))
        time.sleep(0.3)  # for the studio to hear of the steps
        os.kill(worker, signal.SIGSTOP)  # a save that does not end
        os.killpg(process.pid, signal.SIGINT)
        read_to(process, "Saving ... (Ctrl-C again ends at once)")
        time.sleep(0.3)
        output, seconds = end(process)
    finally:
        process.kill()
        if worker is not None:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                worker = None
    assert worker is None, "the worker was left behind"
    assert process.returncode == 130 and seconds < 10 and "Traceback" not in output
    assert newest_checkpoint(tmp_path / "run") is None
    assert re.search(r"Nothing was saved: .* and all its steps \([\d,]+\) are lost", output)


def test_ctrl_c_in_open_while_nothing_is_unsaved(
    start: Callable[..., subprocess.Popen[str]], blob_folder: Path
) -> None:
    process = start("open", str(blob_folder), "--no-browser", "--port", "0")
    try:
        read_to(process, "http://127.0.0.1:")
        time.sleep(1.0)  # for it to come to the point where it waits
        output, seconds = end(process)
    finally:
        process.kill()
    assert process.returncode == 0 and seconds < 20 and "Closing ..." in output


def test_what_was_saved_is_read_from_the_disk(tmp_path: Path, blob_folder: Path) -> None:
    from splatstudio.config import TrainConfig
    from splatstudio.run import Run
    from splatstudio.scene import load_scene
    from splatstudio.trainer import Trainer

    config = TrainConfig(steps=10, sh_degree=1)
    run = Run.create(tmp_path / "run", blob_folder, config)
    assert saved_sentence(run.path, 0) == "No step was done yet, so nothing had to be saved."
    trainer = Trainer(load_scene(blob_folder), config)
    paths: list[Path] = []
    for _ in range(2):
        trainer.train_step()
        paths.append(trainer.save(run.path))
    trainer.close()
    assert saved_sentence(run.path, 2) == f"Saved {paths[1]}."
    assert saved_sentence(run.path, 5).endswith(f"{paths[1]}; what was trained after it (3 steps) is lost.")
    next(paths[1].glob("*.safetensors")).write_bytes(b"damaged")
    assert f"{paths[0]}; what was trained after it (1 step)" in saved_sentence(run.path, 2)
