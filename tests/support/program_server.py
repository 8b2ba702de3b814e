"""The process that the programs of tests are forked from; see started_programs, which starts it.

It has no other thread, so that a fork of it is whole, and it loads nothing that depends on the variables of a
program. A fork leaves the loop and becomes the program.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import types
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# What the commands load, but for splatstudio.cli.terminal: as it loads it asks how wide the terminal is.
LOADED = (
    "splatstudio.gui.app",
    "splatstudio.runtime.rank",
    "splatstudio.runtime.launched",
    "splatstudio.scene.describe",
    "scipy.spatial",
    "tyro.extras",
    "rich.progress",
    "rich.table",
)
LENGTH = struct.Struct("!I")
MOST_FILES = 8
TOLD_BYTES = 16  # of a number on the line of a program: its process, then its exit code
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Program:
    """What a process is to become: Python's arguments, variables, the folder it is in and its sys.path."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    path: tuple[str, ...]
    prelude: str


def send(line: socket.socket, message: bytes, files: list[int]) -> None:
    """Send a message with open files."""
    socket.send_fds(line, [LENGTH.pack(len(message))], files)
    line.sendall(message)


def receive(line: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next message and its files; None where nobody is left to send any."""
    head, files, _, _ = socket.recv_fds(line, LENGTH.size, MOST_FILES)
    if len(head) < LENGTH.size:
        return None
    return line.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL), files


def serve(line: socket.socket) -> Program | None:
    """Fork a process for each program, tell of its end; return the program in the fork, None at the end."""
    for module in LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what a collection does not look at stays shared with the forks
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    endings: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([line, woken], [], [])
        if woken in ready:
            woken.recv(64)
            _tell_of_ends(endings)
        if line not in ready:
            continue
        message = receive(line)
        if message is None:
            return None
        program: Program = pickle.loads(message[0])
        *files, ending = message[1]
        told = socket.socket(fileno=ending)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (line, woken, wakes, told, *endings.values()):
                end.close()
            _take(program, files)
            return program
        told.sendall(b"%*d" % (TOLD_BYTES, pid))
        endings[pid] = told
        for file in files:
            os.close(file)


def _tell_of_ends(endings: dict[int, socket.socket]) -> None:
    for pid in list(endings):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with endings.pop(pid) as told, suppress(OSError):  # nobody asks any more
                told.sendall(b"%*d" % (TOLD_BYTES, os.waitstatus_to_exitcode(status)))


def _take(program: Program, files: list[int]) -> None:
    """Make a fork the process of a program: its session, files, variables and folder."""
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environment)
    sys.path[:] = ["", *program.path]
    tempfile.tempdir = None  # which the variables name
    unbuffered = bool(program.environment.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=unbuffered)  # type: ignore[union-attr]
    if "OMP_NUM_THREADS" in program.environment:  # torch reads it as it loads
        import torch

        torch.set_num_threads(int(program.environment["OMP_NUM_THREADS"]))


def become(program: Program) -> None:
    """Run a program as this process's main one."""
    _keep_a_fork_for_the_ranks(program)
    sys.orig_argv[:] = [sys.executable, *program.arguments]
    _run_text(program.prelude, "sitecustomize")
    kind, *rest = program.arguments
    if kind == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        _run_text(rest[0], "__main__")
    else:
        sys.argv[:] = [kind, *rest]
        sys.path[0] = os.path.dirname(kind)
        runpy.run_path(kind, run_name="__main__")


def _run_text(text: str, name: str) -> None:
    module = types.ModuleType(name)
    if name == "__main__":
        sys.modules[name] = module
    exec(compile(text, "<string>", "exec"), module.__dict__)


def _keep_a_fork_for_the_ranks(program: Program) -> None:
    """Fork the process that becomes multiprocessing's fork server where the program starts one.

    It is a child of the program's, in its session, as a fresh one is. Until then it hears no signal, and it
    ends with the program.
    """
    from multiprocessing import util

    ours, theirs = socket.socketpair()
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in HELD}
    pid = os.fork()
    if pid == 0:
        ours.close()
        message = receive(theirs)
        if message is None:
            os._exit(0)
        theirs.close()
        words, numbers, mask = pickle.loads(message[0])
        _give_numbers(message[1], numbers)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.orig_argv[:] = words
        sys.argv[:] = ["-c"]
        _run_text(program.prelude, "sitecustomize")
        _run_text(words[-1], "__main__")
        sys.exit()
    theirs.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    afresh: Any = util.spawnv_passfds

    def start(path: bytes, arguments: list[bytes | str], files: list[int]) -> int:
        words = [os.fsdecode(word) for word in arguments]
        if "multiprocessing.forkserver" not in words[-1]:
            return afresh(path, arguments, files)
        util.spawnv_passfds = afresh
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with ours:
            send(ours, pickle.dumps((words, list(files), mask)), list(files))
        return pid

    util.spawnv_passfds = start


def _give_numbers(files: list[int], numbers: list[int]) -> None:
    """Let open files have those numbers, which the process that passed them knows them by."""
    above = max([*files, *numbers]) + 1
    for place, file in enumerate(files):
        os.dup2(file, above + place)
        os.close(file)
    for place, number in enumerate(numbers):
        os.dup2(above + place, number, inheritable=False)
        os.close(above + place)


def leave(code: int) -> None:
    """End this process as Python does, but for taking apart its modules one by one, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    chosen = serve(socket.socket(fileno=int(sys.argv[1])))
    if chosen is not None:
        try:
            become(chosen)
        except SystemExit as ended:
            if not (ended.code is None or isinstance(ended.code, int)):
                raise
            leave(ended.code or 0)
        leave(0)
