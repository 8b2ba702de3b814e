"""How a file is called in what people read."""

from __future__ import annotations

from pathlib import Path

import pytest

from splatstudio.files.path_words import path_words


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where the command was started, in the user's home."""
    folder = tmp_path / "home" / "projects"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.chdir(folder)
    return folder


def test_a_path_is_told_in_one_way_however_it_was_given(started: Path, tmp_path: Path) -> None:
    for given in ("runs/fox", "./runs/fox", "../projects/runs/fox", started / "runs" / "fox"):
        assert path_words(given) == "runs/fox"
    for given in ("../scenes/fox", started.parent / "scenes" / "fox"):
        assert path_words(given) == "~/scenes/fox"
    assert path_words(started) == path_words(".") == "~/projects" and path_words("..") == "~"
    assert path_words(tmp_path / "home2") == str(tmp_path / "home2"), "another folder of a like name"


def test_a_folder_that_is_gone_or_the_root_of_all_shortens_nothing(
    started: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/")
    monkeypatch.chdir("/")
    assert path_words("/data/fox") == "/data/fox"
    monkeypatch.chdir(started)
    started.rmdir()
    assert path_words("/data/fox") == "/data/fox" and path_words("fox") == "fox"
