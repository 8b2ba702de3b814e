"""Programs in processes of their own that need not load torch: each is forked from one that has loaded it.

`start_program("-m", "splatstudio", "train", ...)` is `subprocess.Popen([sys.executable, ...])` without the
seconds in which Python imports: the output, the exit code and the signals are the same; its session is its
own. So is the fork server that the program starts for its ranks. What happens while Python starts is not seen
this way: at least one test of each command starts it afresh.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TextIO

from program_server import TOLD_BYTES, Program, send

SERVER = Path(__file__).with_name("program_server.py")
DIED = "the server of programs has died"


class StartedProgram:
    """A process, as subprocess.Popen has it; its output is text."""

    def __init__(self, pid: int, ending: socket.socket, stdout: TextIO, stderr: TextIO | None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended; raises subprocess.TimeoutExpired."""
        if self.returncode is not None:
            return self.returncode
        self._ending.settimeout(timeout)
        try:
            told = self._ending.recv(TOLD_BYTES)
        except (TimeoutError, BlockingIOError):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
        assert told, DIED
        self._ending.close()
        self.returncode = int(told)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return the rest of the output and of the errors when it has ended; raises TimeoutExpired."""
        told = {pipe: "" for pipe in (self.stdout, self.stderr) if pipe is not None}
        deadline = time.monotonic() + (threading.TIMEOUT_MAX if timeout is None else timeout)

        def read(pipe: TextIO) -> None:
            told[pipe] = pipe.read()

        readers = [threading.Thread(target=read, args=(pipe,), daemon=True) for pipe in told]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        self.wait(None if timeout is None else max(0.0, deadline - time.monotonic()))
        for pipe in told:
            pipe.close()
        return told[self.stdout], "" if self.stderr is None else told[self.stderr]

    def send_signal(self, number: int) -> None:
        """Send a signal to it, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


def start_program(
    *arguments: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stderr: int | None = None,
    prelude: str = "",
) -> StartedProgram:
    """Start `python ARGUMENTS`, where these are -m MODULE, -c TEXT or FILE, and those of the program.

    `stderr` is subprocess.PIPE, STDOUT, DEVNULL or None for that of the tests. `prelude` is what the program
    and its fork server run before anything else.
    """
    path = tuple(entry for entry in sys.path if entry)
    environment = dict(os.environ if env is None else env)
    program = Program(tuple(map(str, arguments)), environment, str(cwd or Path.cwd()), path, prelude)
    output, output_end = os.pipe()
    errors, errors_end = os.pipe() if stderr == subprocess.PIPE else (None, None)
    ours, theirs = socket.socketpair()
    with open(os.devnull, "r+b") as nothing, theirs:
        others = {None: 2, subprocess.STDOUT: output_end, subprocess.DEVNULL: nothing.fileno()}
        told_at = others[stderr] if errors_end is None else errors_end
        send(_server(), pickle.dumps(program), [nothing.fileno(), output_end, told_at, theirs.fileno()])
    for end in (output_end, errors_end):
        if end is not None:
            os.close(end)
    told = ours.recv(TOLD_BYTES, socket.MSG_WAITALL)
    assert told, DIED
    return StartedProgram(int(told), ours, open(output), None if errors is None else open(errors))


def run_program(
    *arguments: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Return how a program ended, as subprocess.run with `capture_output` does; see start_program."""
    started = start_program(*arguments, env=env, cwd=cwd, stderr=subprocess.PIPE)
    try:
        output, errors = started.communicate(timeout)
    finally:
        started.kill()
    return subprocess.CompletedProcess(list(map(str, arguments)), started.wait(), output, errors)


def interrupt_training(training: StartedProgram, run: Path) -> tuple[str, str]:
    """Press Ctrl-C once a training has begun to write its metrics; return what it printed, and its errors."""
    try:
        metrics, end = run / "metrics.jsonl", time.monotonic() + 200
        while not (metrics.exists() and metrics.stat().st_size):
            assert training.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        training.send_signal(signal.SIGINT)
        return training.communicate(timeout=200)
    finally:
        training.kill()


@cache
def _server() -> socket.socket:
    """Start the process that has loaded what programs need; it ends with this one. Return the line to it."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with theirs:
        subprocess.Popen(
            [sys.executable, str(SERVER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours
