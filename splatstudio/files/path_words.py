"""How a file or a folder is called in what people read."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def path_words(path: str | Path) -> str:
    """Return how a path is told: from the folder where the command was started where it lies below that.

    Any other is told as a whole, with ~ for the user's home. What lies behind a link is not looked at.
    """
    try:
        whole, started = Path(os.path.abspath(path)), Path.cwd()
    except OSError:  # the folder where the command was started is gone
        return str(path)
    home = Path(os.path.expanduser("~"))
    # Of what lies below the root of all folders the whole path is no longer, and tells more.
    if started in whole.parents and started != started.parent:
        return str(whole.relative_to(started))
    if whole.is_relative_to(home) and home.is_absolute() and home != home.parent:
        return str("~" / whole.relative_to(home))
    return str(whole)


def as_argument(path: str | Path) -> str:
    """Return a path as it can be typed behind a command, whatever is in it and however it begins."""
    text = str(path)
    return shlex.quote(f".{os.sep}{text}" if text.startswith("-") else text)
