"""The list of what was opened last, whatever is in its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splatstudio.files.recent import recent_file, recent_paths


@pytest.mark.parametrize("text", ["x" * 5000, "nul\0", "half \ud800", "gone", 7, None, ["list"]])
def test_what_is_no_path_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: object) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    recent_file().parent.mkdir()
    recent_file().write_text(json.dumps([text, str(tmp_path)]))
    assert recent_paths() == (tmp_path,)
