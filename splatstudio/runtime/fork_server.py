"""The server from which ranks are forked: a process that has torch loaded. Nothing here loads torch."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from pathlib import Path
from types import ModuleType

from splatstudio.operating_system import LINUX, STOP_SIGNALS, WINDOWS, memory_folder, signals_blocked

LONGEST_SOCKET_NAME = 103  # bytes; Linux has 107, macOS 103
_MAIN = threading.RLock()  # held by the thread that has put the program away


def process_context() -> BaseContext:
    """Return how ranks are started: forked from a server that has torch loaded, where that can be."""
    _share_memory_elsewhere()
    if "forkserver" not in multiprocessing.get_all_start_methods() or not _has_room_for_a_socket():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # A rank takes in the program that starts it, which has a supervisor: 15 ms at every start of a rank. Its
    # first Gaussians, and most files that are written, ask for neighbors of points: 200 ms.
    context.set_forkserver_preload(
        ["splatstudio.runtime.rank", "splatstudio.runtime.supervisor", "scipy.spatial"]
    )
    return context


def _share_memory_elsewhere() -> None:
    """Let multiprocessing share memory by files for temporary use where /dev/shm cannot be written to.

    It looks at the room there alone (`multiprocessing.heap.Arena`).
    """
    if LINUX and memory_folder() is None:
        from multiprocessing import heap

        heap.Arena._dir_candidates = []  # pyright: ignore[reportAttributeAccessIssue]


def begin_fork_server() -> None:
    """Start the server, where there is one: it loads torch on another core while this process does, too."""
    if process_context().get_start_method() == "forkserver":
        from multiprocessing import forkserver

        with guarded_start():
            forkserver.ensure_running()


def _has_room_for_a_socket() -> bool:
    """Return whether a socket in the folder for temporary files can have a name, as the server's must."""
    name = Path(tempfile.gettempdir()) / "pymp-12345678" / "listener-12345678"
    return len(os.fsencode(name)) <= LONGEST_SOCKET_NAME


@contextmanager
def guarded_start() -> Iterator[None]:
    """Start processes in here: they get neither the stop signals nor the program that starts them.

    Each signal may reach every process of a group. The fork server would end by any, and every rank with it,
    unsaved. Ranks ignore Ctrl-C and a terminal that is closed themselves, and hear SIGTERM from
    `leave_when_told` on.
    """
    if not WINDOWS:
        from multiprocessing import resource_tracker

        # Started by the way, it would let SIGINT through again, just before the server.
        resource_tracker.ensure_running()
    with signals_blocked(STOP_SIGNALS), _main_left_out():
        yield


@contextmanager
def _main_left_out() -> Iterator[None]:
    """Let what is started in here not run the program again, as multiprocessing does to know its names.

    Nothing of it is sent: what a process of ours is to do stands in the package. A script that calls
    `splatstudio.show` would train anew and write its files a second time.
    """
    with _MAIN:
        main, empty = sys.modules["__main__"], ModuleType("__main__")
        empty.__spec__ = None
        sys.modules["__main__"] = empty
        try:
            yield
        finally:
            sys.modules["__main__"] = main
