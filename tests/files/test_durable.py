"""What is left of a file that was not completed is removed, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from splatstudio.files.durable import partial_path, remove_partial


def test_what_is_left_of_one_file_is_removed_and_not_that_of_another(tmp_path: Path) -> None:
    orbit = tmp_path / "orbit"
    partial_path(orbit).mkdir()
    (partial_path(orbit) / "00000.png").touch()
    inner = tmp_path / f".{partial_path(orbit).name}.tmp-{os.getpid()}"  # of a writer of whole files
    inner.touch()
    others = [partial_path(tmp_path / "orbit.mp4"), partial_path(orbit, 1), tmp_path / "orbit"]
    for other in others:
        other.touch()
    remove_partial(orbit)
    assert sorted(tmp_path.iterdir()) == sorted(others)
