"""What this user opened in the studio last: paths, newest first, in one small file of the user's own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import can_be_path, read_input
from splatstudio.files.outputs import make_folder

MOST = 20  # paths that are kept


def state_folder() -> Path:
    """Return where a user's state is kept, by the rules of freedesktop.org; RuntimeError without a home."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = named if named.is_absolute() else Path.home() / ".local" / "state"
    return state / "splatstudio"


def recent_file() -> Path:
    """Return where the list is; RuntimeError where there is no home."""
    return state_folder() / "recent.json"


def recent_paths() -> tuple[Path, ...]:
    """Return those that are still there, newest first; none where the list is missing or damaged."""
    return tuple(path for path in _kept() if os.path.exists(path))


def remember(path: Path) -> str:
    """Put a path first on the list; return "", or a sentence where the list cannot be kept."""
    whole = Path(os.path.abspath(path))
    return _write([whole, *(other for other in recent_paths() if other != whole)][:MOST])


def rename_recent(old: Path, new: Path) -> str:
    """Let the list name a folder that was renamed, and what lies in it, as now; return as `remember` does."""
    kept = _kept()
    paths = [new / path.relative_to(old) if path.is_relative_to(old) else path for path in kept]
    return "" if paths == list(kept) else _write(paths)


def _kept() -> tuple[Path, ...]:
    try:
        kept = json.loads(read_input(recent_file()))
    except (OSError, ValueError, RuntimeError):
        return ()
    texts = [text for text in kept if isinstance(text, str)] if isinstance(kept, list) else []
    return tuple(Path(text) for text in texts if can_be_path(text))


def _write(paths: Sequence[Path]) -> str:
    try:
        file = recent_file()
        make_folder(file.parent)
        write_durably(file, json.dumps([str(each) for each in paths], indent=1).encode())
    except (OSError, RuntimeError, UnicodeError) as error:
        return f"The list of what was opened last cannot be kept: {error}"
    return ""
