"""How much memory a PLY takes at its peak beyond what is there before, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.formats import in_process

# Peak over the file's size: what is read is the model itself, what is written passes by in parts.
RANGES = {"write": (0.0, 0.2), "read": (0.9, 1.2)}


@pytest.mark.parametrize("action", RANGES)
def test_a_ply_takes_little_more_memory_than_its_size(tmp_path: Path, action: str) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be counted anew on Linux only")
    num, path = 200_000, tmp_path / "a.ply"
    if action == "read":
        in_process("write", path, num, 3)
    found = in_process(action, path, num, 3)
    size = path.stat().st_size
    assert size > 248 * num
    least, most = RANGES[action]
    assert least * size <= found["extra_bytes"] < most * size, found
