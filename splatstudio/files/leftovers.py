"""What processes use, by locks; and what those left in the folder for temporary files that were killed.

Whoever uses a file or folder holds a lock on it, which goes with the process, however it ends. Numbers
of processes would not do: containers that share the folder count their own.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_NAMES = re.compile(r"splatstudio-(ranks-)?\w+(\.log)?")
_NEW_SECONDS = 10.0  # who made it may not hold it yet


def hold(path: Path) -> int:
    """Mark a file or folder as in use until the descriptor that is returned is closed; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    with suppress(OSError):  # a disk without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def is_held(path: Path) -> bool:
    """Return whether a process has a file or folder in use; raises OSError where that cannot be told."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def keep(path: Path) -> None:
    """Let a file stay when nobody uses it any more: one that is not to be written to is no leftover."""
    with suppress(OSError):
        path.chmod(stat.S_IRUSR)


def clear_leftovers() -> list[Path]:
    """Remove logs and folders of ranks that this user's dead processes left, and return them."""
    removed: list[Path] = []
    for path in Path(tempfile.gettempdir()).glob("splatstudio-*"):
        with suppress(OSError):  # another process clears up, too, or it may not be removed
            if _is_leftover(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                removed.append(path)
    return removed


def _is_leftover(path: Path) -> bool:
    status = path.lstat()
    ours = status.st_uid == os.getuid() and status.st_mode & stat.S_IWUSR
    is_log, is_folder = path.suffix == ".log", path.name.startswith("splatstudio-ranks-")
    known = (is_log and stat.S_ISREG(status.st_mode)) or (is_folder and stat.S_ISDIR(status.st_mode))
    if not (ours and known and _NAMES.fullmatch(path.name)) or time.time() - status.st_mtime < _NEW_SECONDS:
        return False
    return not is_held(path)
