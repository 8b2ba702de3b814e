"""The lock of a run: one process at a time, and a dead one holds nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from splatstudio.files import run as run_lock
from splatstudio.files.run import RunLock

HOLDER = """
import sys, time
from splatstudio.files.run import RunLock
lock = RunLock(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 0.1)


def test_a_second_one_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    assert lock.left_by is None
    written = json.loads((tmp_path / "lock").read_text())
    assert written["pid"] == os.getpid() and set(written) == {"pid", "host", "since"}
    with pytest.raises(ValueError, match=f"is in use by process {os.getpid()} on "):
        RunLock(tmp_path)
    lock.release()
    assert list(tmp_path.iterdir()) == []
    RunLock(tmp_path).release()
    lock.release()  # again does nothing


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"process {other.pid} on"):
            RunLock(tmp_path)
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    lock = RunLock(tmp_path)
    assert lock.left_by is not None and lock.left_by.pid == other.pid
    lock.release()


def test_one_that_is_just_ending_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = RunLock(tmp_path)
    monkeypatch.setattr(run_lock, "PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(run_lock.time, "sleep", lambda _: first.release())
    second = RunLock(tmp_path)
    assert (tmp_path / "lock").exists()
    second.release()


def test_a_lock_that_is_forgotten_is_let_go(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    del lock
    RunLock(tmp_path).release()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": "x"}', b"\xff\xfe"])
def test_an_unreadable_lock_that_nobody_holds_is_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    lock = RunLock(tmp_path)
    assert lock.left_by is None
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_disk_without_locks_is_trained_into_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = RunLock(tmp_path)
    assert not lock.held and lock.left_by is None
    lock.release()
    assert list(tmp_path.iterdir()) == []
