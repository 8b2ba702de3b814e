"""What processes use, by locks; and what those left in the folder for temporary files that were killed.

Whoever uses a file or folder holds a lock on it, which goes with the process, however it ends. Numbers
of processes would not do: containers that share the folder count their own.
"""

from __future__ import annotations

import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from splatstudio.operating_system import is_held, may_remove

_NAMES = re.compile(r"splatstudio-(ranks-)?\w+(\.log)?")
_NEW_SECONDS = 10.0  # who made it may not hold it yet


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


def clear_unused(folder: Path, prefix: str) -> None:
    """Remove this user's folders in `folder` that begin with `prefix` and that nobody holds any more."""
    for path in folder.glob(f"{prefix}*"):
        with suppress(OSError):  # another process clears up, too, or it may not be removed
            status = path.lstat()
            old = time.time() - status.st_mtime >= _NEW_SECONDS
            if stat.S_ISDIR(status.st_mode) and may_remove(status) and old and not is_held(path):
                shutil.rmtree(path)


def _is_leftover(path: Path) -> bool:
    status = path.lstat()
    is_log, is_folder = path.suffix == ".log", path.name.startswith("splatstudio-ranks-")
    known = (is_log and stat.S_ISREG(status.st_mode)) or (is_folder and stat.S_ISDIR(status.st_mode))
    removable = may_remove(status) and known and _NAMES.fullmatch(path.name)
    if not removable or time.time() - status.st_mtime < _NEW_SECONDS:
        return False
    return not is_held(path)
