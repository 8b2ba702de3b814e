"""Ctrl-C where the disk is full: the model is kept until there is room, or until Ctrl-C is pressed again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_interrupt import TIMEOUT, read_to, training_process, wait_for

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.checkpoints.manifest import step_of

# In the background process: there is no room for a checkpoint while FLAG is there. It is a sitecustomize.py,
# which Python loads before anything else.
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
from splatstudio.runtime import supervisor as save_retries
save_retries.RETRY_SECONDS = 0.25

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
OPEN = ("open", "--train", "--no-browser", "--port", "0")


@pytest.fixture(params=["train", "open"])
def stopped(
    request: pytest.FixtureRequest, tmp_path: Path, blob_folder: Path
) -> Iterator[subprocess.Popen[str]]:
    """A training that Ctrl-C was pressed for once, and that has told of the disk, which is full."""
    flag = tmp_path / "the disk is full"
    flag.touch()
    (tmp_path / "python").mkdir()
    program = textwrap.dedent(FULL_DISK).replace("FLAG", repr(str(flag)))
    (tmp_path / "python" / "sitecustomize.py").write_text(program)
    folders = [str(tmp_path / "python"), *(path for path in sys.path if path)]
    words = OPEN if request.param == "open" else ("train",)
    arguments = [words[0], str(blob_folder), *words[1:], "--run", str(tmp_path / "run"), "--sh-degree", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments, "--steps", "100000", "--eval-steps", "--save-steps"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "500", "PYTHONPATH": os.pathsep.join(folders)},
        start_new_session=True,
    )
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
    yield process
    process.kill()
    process.wait()


def test_what_a_full_disk_does_not_take_is_saved_when_there_is_room(
    stopped: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert newest_checkpoint(tmp_path / "run") is None
    (tmp_path / "the disk is full").unlink()
    output, _ = stopped.communicate(timeout=TIMEOUT)
    saved = newest_checkpoint(tmp_path / "run")
    assert saved is not None and (step_of(saved) or 0) > 0
    assert f"Saved {saved}" in output and "Go on with: splatstudio" in output
    assert stopped.returncode == (0 if "open" in stopped.args else 130)  # type: ignore[operator]


def test_the_second_ctrl_c_ends_though_nothing_could_be_saved(
    stopped: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.killpg(stopped.pid, signal.SIGINT)
    output, _ = stopped.communicate(timeout=TIMEOUT)
    assert "Nothing was saved" in output and newest_checkpoint(tmp_path / "run") is None
    assert stopped.returncode == 130
