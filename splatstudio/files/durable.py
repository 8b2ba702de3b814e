"""Files that are either complete or not there: a temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from splatstudio.operating_system import open_descriptor, put_in_place, sync_folder


def partial_path(path: Path, pid: int | None = None) -> Path:
    """Return the hidden name beside `path` under which process `pid` (this one by default) writes it.

    The ending stays: it tells what is written.
    """
    return path.with_name(f".tmp-{pid or os.getpid()}-{path.name}")


def refuse_existing(path: Path | None, overwrite: bool) -> None:
    """Raise ValueError when a command would write over `path` (None: nothing) and was not told to."""
    if path is not None and not overwrite and os.path.lexists(path):
        raise ValueError(f"{path} is there already: name another file, or replace it with --overwrite")


def refuse_unwritable(file: Path) -> None:
    """Raise ValueError for a file that could not be written, before there is work to lose."""
    if os.path.isdir(file):  # of a name that is too long, Path.is_dir raises
        raise ValueError(f"{file} cannot be written: it is a folder")
    if not os.path.isdir(file.parent):
        raise ValueError(f"{file} cannot be written: the folder {file.parent} is not there; make it first")
    if not os.access(file.parent, os.W_OK):
        raise ValueError(f"{file} cannot be written: the folder {file.parent} may not be written to")


def remove_partial(path: Path, pid: int | None = None) -> None:
    """Remove what process `pid` (this one by default) left of `path` when it was stopped half-way."""
    process = pid or os.getpid()
    if not path.parent.is_dir():
        return
    partial = partial_path(path, process).name
    # A writer of whole files puts its own temporary name around the partial one. Whole names are compared: a
    # longer one that begins alike is another task's file.
    names = (partial, f".{partial}.tmp-{process}")
    for entry in path.parent.iterdir():
        if entry.name in names:
            is_folder = entry.is_dir() and not entry.is_symlink()
            shutil.rmtree(entry) if is_folder else entry.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes | memoryview, mode: int = 0o666) -> None:
    """Write `data` to `path`, which shows the old or the new content at any time, also after a power cut.

    `mode` says who may read it, less what the umask forbids.
    """
    write_parts_durably(path, [data], mode)


def write_parts_durably(path: Path, parts: Iterable[bytes | memoryview], mode: int = 0o666) -> None:
    """Write `parts` one behind the other to `path`, as `write_durably` does; each may be reused for the next.

    An exception that `parts` raises leaves the old content.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        # What a run from elsewhere put there, as a link, is not written through.
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=lambda name, flags: open_descriptor(name, flags, mode)) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        put_in_place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json_durably(path: Path, values: dict[str, Any]) -> None:
    """Write `values` as indented JSON to `path`, old or new content at any time."""
    write_durably(path, (json.dumps(values, indent=2) + "\n").encode())


def sync_file(path: Path) -> None:
    """Wait until the content of `path` is on the disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
