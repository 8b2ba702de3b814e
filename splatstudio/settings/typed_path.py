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


def typed_output(text: str) -> Path:
    """Return the path of a file or folder to write that somebody typed, as `typed_path`.

    Raises ValueError as it does, and where the path has no name, as that of an emptied field.
    """
    path = typed_path(text.strip())
    if path.name in ("", ".."):
        raise ValueError(
            f"{text.strip() or 'an empty field'} names no file; type the name of the one to write"
        )
    return path
