"""Ctrl-C, SIGTERM and a terminal that is closed: the first saves and ends, and the last line is true.

A second Ctrl-C ends at once.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from started_programs import StartedProgram, run_program, start_program

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.checkpoints.manifest import step_of
from splatstudio.runtime.sentences import saved_sentence
from splatstudio.runtime.stop_signals import StopRequest

Start = Callable[..., StartedProgram]
TIMEOUT = 120.0
OPEN = ("open", "--train", "--no-browser", "--port", "0")
AT_ONCE = 60.0  # seconds, on a machine with other work; what is not waited for would take far longer

# In the background process: a save that takes long, before or after the checkpoint is complete, or an
# evaluation that does.
HELD_UP = """
    import sys

    def hold_up(when, marker):
        import time
        from pathlib import Path
        from splatstudio.checkpoints import saver as checkpoint_saver
        from splatstudio.training.session import Session

        save = checkpoint_saver.save_checkpoint

        def slow(run_dir, checkpoint):
            folder = save(run_dir, checkpoint) if when == "after" else None
            Path(marker).touch()
            time.sleep(2 if when == "slowly" else 600)
            return folder or save(run_dir, checkpoint)

        def evaluating(self):
            Path(marker).touch()
            while True:
                time.sleep(0.05)
                self.breathe()

        if when == "evaluating":
            Session.evaluate = evaluating
        else:
            checkpoint_saver.save_checkpoint = slow

    if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
        hold_up(WHEN, MARKER)
"""


@pytest.fixture
def start(tmp_path: Path, blob_folder: Path) -> Iterator[Start]:
    """Start the command line with the scene; `inside` is a program that its other processes begin with."""
    started: list[StartedProgram] = []

    def run(command: str, *arguments: str, inside: str = "", main: str = "") -> StartedProgram:
        program = ("-c", main) if main else ("-m", "splatstudio")
        settings = ("--run", str(tmp_path / "run"), "--sh-degree", "1", "--steps", "100000")
        process = start_program(
            *(*program, command, blob_folder, *arguments, *settings),
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "500", "PYTHONUNBUFFERED": "1"},
            prelude=inside,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def held_up(when: str, folder: Path) -> str:
    """Return the program that holds a save or an evaluation up; folder/held is there then."""
    program = textwrap.dedent(HELD_UP).replace("WHEN", repr(when))
    return program.replace("MARKER", repr(str(folder / "held")))


def training_process(run: Path, process: StartedProgram, after: int = 0) -> int:
    """Return the id of the process that trains `run`, once it does; not `after`."""
    log, found = run / "logs" / "worker.log", [0]

    def tells() -> bool:
        told = re.findall(r"worker started \(PID (\d+)\)", log.read_text()) if log.exists() else []
        found[0] = int(told[-1]) if told else 0
        return found[0] not in (0, after)

    wait_for(tells, process)
    return found[0]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Callable[[], bool], process: StartedProgram) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)


def steps_done(run: Path) -> int:
    """Return the newest step of which the metrics of a run tell."""
    file = run / "metrics.jsonl"
    told = re.findall(r'"step": (\d+)', file.read_text()) if file.exists() else []
    return max(map(int, told), default=0)


def read_to(process: StartedProgram, text: str) -> str:
    """Return the output up to the line with `text`."""
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], "".join(lines)
    return "".join(lines)


def end(process: StartedProgram) -> tuple[str, float]:
    """Press Ctrl-C for the last time; return the rest of the output and the seconds to the end."""
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=TIMEOUT)
    return output, time.monotonic() - started


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_second_ctrl_c_in_train_ends_at_once_and_tells_the_truth(
    start: Start, tmp_path: Path, when: str
) -> None:
    process = start("train", inside=held_up(when, tmp_path))
    worker = training_process(tmp_path / "run", process)
    # The command has heard of the first steps by then.
    wait_for(lambda: steps_done(tmp_path / "run") >= 50, process)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    read_to(process, "Ctrl-C again ends at once")
    wait_for((tmp_path / "held").exists, process)
    output, seconds = end(process)
    assert not is_there(worker), "the background process was left behind"
    assert process.returncode == 130 and seconds < AT_ONCE and "Traceback" not in output
    newest = newest_checkpoint(tmp_path / "run")
    if when == "after":
        assert newest is not None and f"Saved {newest}." in output
    else:
        assert newest is None and re.search(
            r"Nothing was saved: .* and all its steps \([\d,]+\) are lost", output
        )


def test_ctrl_c_does_not_wait_for_an_evaluation(start: Start, tmp_path: Path) -> None:
    process = start("train", "--eval-steps", "5", inside=held_up("evaluating", tmp_path))
    wait_for((tmp_path / "held").exists, process)
    output, seconds = end(process)
    assert process.returncode == 130 and seconds < AT_ONCE
    assert "evaluation of step 5 made way" in output and "step_00000005" in output


def test_a_killed_training_goes_on_by_itself_from_what_was_saved_last(start: Start, tmp_path: Path) -> None:
    process = start("train", "--save-minutes", "0.01")
    run = tmp_path / "run"
    worker = training_process(run, process)
    wait_for(lambda: newest_checkpoint(run, lambda _: None) is not None, process)
    os.kill(worker, signal.SIGKILL)
    told = read_to(process, "was killed (SIGKILL")
    goes_on = re.search(r"The training goes on by itself from the checkpoint of step ([\d,]+)\.", told)
    assert goes_on is not None and int(goes_on.group(1).replace(",", "")) > 0
    first, reached = int(goes_on.group(1).replace(",", "")), steps_done(run)  # by the one that is dead
    training_process(run, process, after=worker)
    wait_for(lambda: steps_done(run) > max(first, reached) + 20, process)
    output, _ = end(process)
    newest = newest_checkpoint(run)
    assert process.returncode == 130 and newest is not None and f"Saved {newest}." in output
    step = step_of(newest)
    assert step is not None and step > first
    assert len(list((run / "ckpts").iterdir())) <= 2, "autosaves do not pile up, nor does what a kill leaves"


def test_a_training_that_dies_while_it_saves_after_ctrl_c_ends(start: Start, tmp_path: Path) -> None:
    process = start("train", inside=held_up("before", tmp_path))
    worker = training_process(tmp_path / "run", process)
    wait_for(lambda: steps_done(tmp_path / "run") > 0, process)
    os.killpg(process.pid, signal.SIGINT)
    wait_for((tmp_path / "held").exists, process)
    os.kill(worker, signal.SIGKILL)
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130 and "Nothing was saved" in output and "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("command", ["open", "train"])
def test_a_group_that_is_told_to_end_saves(
    start: Start, tmp_path: Path, command: str, number: signal.Signals
) -> None:
    words = OPEN if command == "open" else ("train",)
    process = start(*words, inside=held_up("slowly", tmp_path))
    worker = training_process(tmp_path / "run", process)
    wait_for(lambda: steps_done(tmp_path / "run") >= 20, process)
    os.killpg(process.pid, number)  # as `timeout` and job systems do
    read_to(process, f"{number.name} came. Saving")
    os.killpg(process.pid, number)  # the same ones send it twice
    output, _ = process.communicate(timeout=TIMEOUT)
    newest = newest_checkpoint(tmp_path / "run")
    assert newest is not None and (step_of(newest) or 0) >= 20 and not is_there(worker)
    assert f"Saved {newest}." in output and "Traceback" not in output
    assert process.returncode == (0 if command == "open" else 128 + number)


def test_ctrl_c_after_sigterm_ends_at_once(start: Start, tmp_path: Path) -> None:
    process = start("train", inside=held_up("before", tmp_path))
    training_process(tmp_path / "run", process)
    wait_for(lambda: steps_done(tmp_path / "run") >= 20, process)
    process.terminate()
    read_to(process, "SIGTERM came. Saving after this step ... (Ctrl-C ends at once)")
    wait_for((tmp_path / "held").exists, process)
    output, seconds = end(process)
    assert process.returncode == 130 and seconds < AT_ONCE and "Nothing was saved" in output


@contextmanager
def trained_afresh(
    run: Path, scene: Path, *words: str, terminal: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a training by a command that `words` begin, Python and all, and wait for its first steps."""
    command = [*words, sys.executable, "-m", "splatstudio", "train", str(scene), "--run", str(run)]
    told = subprocess.PIPE if terminal is None else terminal
    with subprocess.Popen(
        [*command, "--steps", "100000", "--sh-degree", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "500"},
        stdin=terminal,
        stdout=told,
        stderr=told,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + TIMEOUT
            while steps_done(run) < 20:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield process
        finally:
            process.kill()


def can_be_first() -> bool:
    """Return whether a process may have its own numbers of processes here, as in a container."""
    asked = ["unshare", "-pf", "--mount-proc", "true"]
    return shutil.which(asked[0]) is not None and subprocess.run(asked, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_be_first(), reason="no process may be the first of a container here")
def test_the_first_process_of_a_container_saves_at_sigterm(tmp_path: Path, blob_folder: Path) -> None:
    run, words = tmp_path / "run", ("unshare", "-pf", "--mount-proc", "--kill-child")
    with trained_afresh(run, blob_folder, *words) as process:
        (first,) = psutil.Process(process.pid).children()
        first.terminate()
        output, errors = process.communicate(timeout=TIMEOUT)
    newest = newest_checkpoint(run)
    assert newest is not None and (step_of(newest) or 0) >= 20, output + errors
    assert "SIGTERM came. Saving" in output and f"Saved {newest}." in output
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.skipif(shutil.which("setsid") is None, reason="setsid is not installed")
def test_a_terminal_that_is_closed_ends_a_training_in_order(tmp_path: Path, blob_folder: Path) -> None:
    run, (screen, terminal) = tmp_path / "run", os.openpty()
    with (
        open(screen, "rb", buffering=0) as seen,
        trained_afresh(run, blob_folder, "setsid", "--ctty", terminal=terminal) as process,
    ):
        os.close(terminal)
        seen.close()  # all that is printed from now on is an error
        process.wait(TIMEOUT)
    newest = newest_checkpoint(run)
    assert newest is not None and (step_of(newest) or 0) >= 20
    assert process.returncode == 128 + signal.SIGHUP


MAIN_TOLD = """
import os, signal, sys
from splatstudio import __main__
from splatstudio.cli import main

sys.argv[1:] = ["doctor"]
main.main = lambda: os.kill(os.getpid(), NUMBER)
__main__.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_every_command_ends_by_them_from_its_start(number: signal.Signals) -> None:
    ended = run_program("-c", MAIN_TOLD.replace("NUMBER", str(int(number))))
    assert (ended.returncode, ended.stderr) == (128 + number, "")


def test_after_a_run_was_deleted_the_command_that_is_suggested_works(start: Start, tmp_path: Path) -> None:
    run, process = tmp_path / "run", start("train")
    training_process(run, process)
    wait_for(lambda: steps_done(run) >= 20, process)
    run.rename(tmp_path / "gone")  # nothing is written between the deletion of one file and of the next
    told = read_to(process, "was deleted or moved away while it trained")
    assert f"The run folder {run} was deleted" in told
    wait_for((run / "logs" / "worker.log").exists, process)
    output, _ = end(process)
    newest = newest_checkpoint(run)
    assert newest is not None and f"Saved {newest}. Go on with: splatstudio train {run} --resume" in output
    steps = str((step_of(newest) or 0) + 1)
    resumed = run_program("-m", "splatstudio", "train", run, "--resume", "--steps", steps)
    assert resumed.returncode == 0 and "Resuming at step" in resumed.stdout, resumed.stderr


def test_the_second_ctrl_c_in_open_ends_at_once_and_tells_the_truth(start: Start, tmp_path: Path) -> None:
    process = start(*OPEN)
    worker = None
    try:
        log = tmp_path / "run" / "logs" / "worker.log"
        wait_for(lambda: log.exists() and "worker started" in log.read_text(), process)
        # The studio has heard of the first steps by then.
        wait_for(lambda: steps_done(tmp_path / "run") >= 50, process)
        found = re.search(r"worker started \(PID (\d+)\)", log.read_text())
        assert found is not None
        worker = int(found.group(1))
        time.sleep(0.5)
        os.kill(worker, signal.SIGSTOP)  # a save that does not end
        os.killpg(process.pid, signal.SIGINT)
        read_to(process, "Saving ... (Ctrl-C again ends at once)")
        output, seconds = end(process)
    finally:
        process.kill()
        if worker is not None:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                worker = None
    assert worker is None, "the worker was left behind"
    assert process.returncode == 130 and seconds < AT_ONCE and "Traceback" not in output
    assert newest_checkpoint(tmp_path / "run") is None
    assert re.search(r"Nothing was saved: .* and all its steps \([\d,]+\) are lost", output)
    assert "press Start" not in output and "SIGKILL" not in output, "nobody else has ended it"


def test_ctrl_c_in_open_while_nothing_is_unsaved(start: Start) -> None:
    process = start("open", "--no-browser", "--port", "0")
    try:
        read_to(process, "http://127.0.0.1:")
        time.sleep(1.0)  # for it to come to the point where it waits
        output, seconds = end(process)
    finally:
        process.kill()
    assert process.returncode == 0 and seconds < AT_ONCE and "Closing ..." in output


def test_what_was_saved_is_read_from_the_disk(tmp_path: Path, blob_folder: Path) -> None:
    from splatstudio.files.run import Run
    from splatstudio.scene.load import load_scene
    from splatstudio.settings.config import TrainConfig
    from splatstudio.training.trainer import Trainer

    config = TrainConfig(steps=10, sh_degree=1)
    run = Run.create(tmp_path / "run", blob_folder, config)
    assert saved_sentence(run.path, 0) == "No step was done yet, so nothing had to be saved."
    run.append_metrics({"step": 3, "loss": 0.1})
    assert "all its steps (3) are lost" in saved_sentence(run.path, 0), "nothing was heard of it"
    assert "all its steps (7) are lost" in saved_sentence(run.path, 7)
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


# In the background process: there is no room for a checkpoint while FLAG is there.
FULL_DISK = """
    import sys

    def fill_disk(flag):
        import errno
        from splatstudio.checkpoints import saver as checkpoint_saver

        save = checkpoint_saver.save_checkpoint

        def save_where_there_is_room(run_dir, checkpoint):
            if flag.exists():
                raise OSError(errno.ENOSPC, "No space left on device")
            return save(run_dir, checkpoint)

        checkpoint_saver.save_checkpoint = save_where_there_is_room

    if "multiprocessing.forkserver" in " ".join(sys.orig_argv):
        from pathlib import Path
        fill_disk(Path(FLAG))
"""
MAIN = """
import signal, threading, time
from splatstudio.gui.app import Studio
from splatstudio.runtime import supervisor
supervisor.RETRY_SECONDS = 0.25

def run_and_tell(self):
    def tell():
        status = lambda: self.controller.status
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler or not status().step:
            time.sleep(0.05)
        print("It can be interrupted.", flush=True)
    threading.Thread(target=tell, daemon=True).start()
    run(self)

run, Studio.run_forever = Studio.run_forever, run_and_tell
from splatstudio.__main__ import main
main()
"""


@pytest.fixture
def stopped(request: pytest.FixtureRequest, start: Start, tmp_path: Path) -> StartedProgram:
    """A training that Ctrl-C was pressed for once, and that has told of the disk, which is full."""
    flag = tmp_path / "the disk is full"
    flag.touch()
    inside = textwrap.dedent(FULL_DISK).replace("FLAG", repr(str(flag)))
    words = OPEN if request.param == "open" else ("train",)
    process = start(*words, "--eval-steps", "--save-steps", inside=inside, main=MAIN)
    training_process(tmp_path / "run", process)
    if request.param == "open":
        read_to(process, "It can be interrupted.")
    else:
        metrics = tmp_path / "run" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
    os.killpg(process.pid, signal.SIGINT)
    told = read_to(process, "It is tried again every 0.25 s")
    assert "No space left on device" in told and "make room on the disk" in told
    assert told.endswith("(Ctrl-C again ends without it).\n")
    return process


@pytest.mark.parametrize("stopped", ["open"], indirect=True)
def test_what_a_full_disk_does_not_take_is_saved_when_there_is_room(
    stopped: StartedProgram, tmp_path: Path
) -> None:
    assert newest_checkpoint(tmp_path / "run") is None
    (tmp_path / "the disk is full").unlink()
    output, _ = stopped.communicate(timeout=TIMEOUT)
    saved = newest_checkpoint(tmp_path / "run")
    assert saved is not None and (step_of(saved) or 0) > 0
    assert f"Saved {saved}" in output and "Go on with: splatstudio" in output
    assert stopped.returncode == 0


@pytest.mark.parametrize("stopped", ["train"], indirect=True)
def test_the_second_ctrl_c_ends_though_nothing_could_be_saved(
    stopped: StartedProgram, tmp_path: Path
) -> None:
    os.killpg(stopped.pid, signal.SIGINT)
    output, _ = stopped.communicate(timeout=TIMEOUT)
    assert "Nothing was saved" in output and newest_checkpoint(tmp_path / "run") is None
    assert stopped.returncode == 130


def test_who_waits_for_a_signal_sees_it_also_where_nothing_woke_it() -> None:
    request = StopRequest()
    waiting = threading.Thread(target=request.wait, daemon=True)
    waiting.start()
    request.number = signal.SIGTERM  # as where a second signal came in the same moment
    waiting.join(TIMEOUT)
    assert not waiting.is_alive()
