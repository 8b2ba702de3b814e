"""The lock of a run folder: only one process at a time trains into it.

The kernel holds the lock and lets it go when the process ends, however that happens; what stands in the
file is for people.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what network disks without locks answer
PATIENCE_SECONDS = 2.0  # for a process that is just ending, as when a training starts again after a crash


@dataclass(frozen=True)
class Holder:
    """The process that wrote a lock file."""

    pid: int
    host: str
    since: str  # ISO time

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


class RunLock:
    """Holds `lock` in a run folder until `release`, or until the process ends.

    `left_by` is the process that had it and ended without releasing it, None in the usual case. `held` is
    False on a disk that knows no locks: then nothing keeps a second process out.
    """

    def __init__(self, run_dir: Path) -> None:
        """Take the lock.

        Raises ValueError, naming the other process, when the run is being trained already, OSError when the
        folder cannot be written.
        """
        self.path = Path(run_dir) / "lock"
        descriptor, self.held = _locked(self.path)
        self.left_by = _holder(_content(descriptor)) if self.held else None
        # A lock that nobody points to any more is let go with its descriptor.
        self._finalizer = weakref.finalize(self, _let_go, self.path, descriptor, os.getpid())
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(me) + "\n").encode(), 0)

    def release(self) -> None:
        """Let the run go; the file disappears."""
        self._finalizer()


def _locked(path: Path) -> tuple[int, bool]:
    """Return a descriptor of the lock file at `path`, and whether it is locked."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking its holder may have removed the file: then it locks nothing.
            if _is_at(descriptor, path):
                return descriptor, True
        except BlockingIOError as error:
            holder = _holder(_content(descriptor)) or "another process"
            os.close(descriptor)
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise ValueError(
                f"the run {path.parent} is being trained by {holder}: stop it there, or train into another"
                " folder with --run"
            ) from error
        except BaseException as error:
            if isinstance(error, OSError) and error.errno in NO_LOCKS:
                return descriptor, False
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _let_go(path: Path, descriptor: int, pid: int) -> None:
    if os.getpid() == pid and _is_at(descriptor, path):
        path.unlink(missing_ok=True)
    os.close(descriptor)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, 4096, 0)


def _holder(content: bytes) -> Holder | None:
    try:
        values: Any = json.loads(content)
        return Holder(int(values["pid"]), str(values["host"]), str(values["since"]))
    except (ValueError, KeyError, TypeError):
        return None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
