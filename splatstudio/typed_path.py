"""Paths as people type them, into a field or on the command line."""

from __future__ import annotations

from pathlib import Path


def typed_path(text: str | Path) -> Path:
    """Return the path that somebody typed, ~ and ~name replaced by that user's folder.

    Raises ValueError with one sentence where no such folder is known, or where no file can be called that.
    """
    if "\0" in str(text):
        raise ValueError("a path cannot hold a NUL character; type it anew")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        start = Path(text).parts[0]
        raise ValueError(
            f"the folder {start} of {text} is not known here; write the whole path, beginning with /"
        ) from error
