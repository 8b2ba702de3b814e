"""A name for a new file: nothing on the disk is written over unasked."""

from __future__ import annotations

import os
from pathlib import Path

from splatstudio.formats import format_of


def free_path(path: Path) -> Path:
    """Return `path`, or where something has that name the same with -2, -3 ... before its ending."""
    form, name = format_of(path), path.name
    endings = [path.suffix] if form is None else [e for e in form.endings if name.lower().endswith(e)]
    length = max(map(len, endings), default=0)
    stem, ending = name[: len(name) - length], name[len(name) - length :]
    number, free = 2, path
    while os.path.lexists(free):
        number, free = number + 1, path.with_name(f"{stem}-{number}{ending}")
    return free
