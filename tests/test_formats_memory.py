"""How much memory a PLY takes at its peak beyond what is there before, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.formats import in_process

MOST = 1.2  # times the file's size; reading counts the model that is made


@pytest.mark.parametrize("action", ["write", "read"])
def test_a_ply_takes_little_more_memory_than_its_size(tmp_path: Path, action: str) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be counted anew on Linux only")
    num, path = 200_000, tmp_path / "a.ply"
    if action == "read":
        in_process("write", path, num, 3)
    found = in_process(action, path, num, 3)
    size = path.stat().st_size
    assert size > 248 * num
    # What is written is put together in memory, and what is read is the model: less was not measured rightly.
    assert 0.9 * size < found["extra_bytes"] < MOST * size, found
