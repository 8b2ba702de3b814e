"""A file takes its name when it is on the disk; what is left of one that was not completed is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from splatstudio.files.durable import partial_path, remove_partial, write_durably


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


def test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    wait, rename = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        done.append(("fsync", os.fstat(descriptor).st_ino))
        wait(descriptor)

    def replace(source: Path, target: Path) -> None:
        done.append(("rename", os.stat(source).st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_durably(tmp_path / "file", b"content")
    file, folder = (tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino
    assert done == [("fsync", file), ("rename", file), ("fsync", folder)]
