"""The search with damaged files finds a crash, a hang, a waste of memory and a foreign error."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fuzz import run
from fuzz.readers import targets

from splatstudio.files.outputs import UnsafeOutput


def test_whole_files_and_damaged_ones_are_tried_of_every_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LAST", tmp_path / "last")
    (tmp_path / "last").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    defects: dict[str, str] = {}
    names = []
    for target in targets(tmp_path / "work"):
        names.append(target.name)
        whole = run.check_reader(target.read, target.whole)
        assert not isinstance(whole, Exception) or target.name.endswith(".glb"), (target.name, whole)
        assert run.try_round(target, 1, defects, cases=2) > 0
    assert defects == {} and len(names) == len(set(names)) > 40


def waste(data: bytes) -> object:
    return bytearray(b"x") * (200 << 20)


def foreign(data: bytes) -> object:
    return {}["missing"]


def verbose(data: bytes) -> object:
    raise ValueError("two\nlines")


def torn(data: bytes) -> object:
    return data.decode()


@pytest.mark.parametrize(
    ("read", "error"),
    [(waste, "210 MB"), (foreign, "missing"), (verbose, "is no error for a user"), (torn, "UnicodeDecode")],
)
def test_what_a_reader_shall_not_do_is_found(read: run.Read, error: str) -> None:
    with pytest.raises((AssertionError, KeyError), match=error):
        run.check_reader(read, b"\xff")


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HANG_SECONDS", 0.05)
    with pytest.raises(run.TookTooLong):
        run.check_reader(lambda data: time.sleep(60), b"")


def test_errors_of_the_product_are_none() -> None:
    def refused(data: bytes) -> object:
        raise UnsafeOutput(1, "it is a link", "file")

    assert isinstance(run.check_reader(refused, b""), UnsafeOutput)
