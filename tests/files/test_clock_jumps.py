"""A clock that is set to another time costs nothing: who measures durations uses one that is not."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from example_checkpoints import example

import splatstudio
from splatstudio.checkpoints.checkpoint import newest_known_checkpoint, save_checkpoint
from splatstudio.files.leftovers import clear_leftovers
from splatstudio.operating_system import hold

PACKAGE = Path(splatstudio.__file__).parent
# Both tell how old a file is, by what its disk says of it.
KNOW_THE_HOUR = {"leftovers.py", "checkpoint.py"}


def test_the_time_of_day_is_asked_for_the_age_of_files_alone() -> None:
    asking = {
        path.name for path in PACKAGE.rglob("*.py") if re.search(r"time\.time(_ns)?\(", path.read_text())
    }
    assert asking == KNOW_THE_HOUR


@pytest.mark.parametrize("seconds", [-1e9, -3600, 3600, 1e9])
def test_what_is_in_use_or_damaged_is_known_at_any_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    now = time.time
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    used = tmp_path / "splatstudio-used.log"
    used.touch()
    held = hold(used)
    folder = save_checkpoint(tmp_path, example())
    assert newest_known_checkpoint(tmp_path) == folder
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: int((now() + seconds) * 1e9))
    assert newest_known_checkpoint(tmp_path) == folder
    clear_leftovers()
    assert used.exists()
    (shard,) = folder.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert newest_known_checkpoint(tmp_path) is None
    os.close(held)
