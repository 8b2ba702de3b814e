"""What `make arm64-check` says where it cannot run, and what it fetches; the emulation runs by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "csrc"))
    return importlib.import_module("emulated_arm64")


def machine_without(*programs: str) -> Callable[[str], str | None]:
    """Return what takes the place of shutil.which."""
    return lambda program: None if program in programs else f"/usr/bin/{program}"


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        (("qemu-aarch64-static",), "On Debian and Ubuntu: apt install qemu-user-static."),
        (
            ("aarch64-linux-gnu-g++", "qemu-aarch64-static"),
            "apt install g++-aarch64-linux-gnu qemu-user-static.",
        ),
        (("apt-get", "dpkg"), "It needs Debian or Ubuntu"),
    ],
)
def test_a_sentence_says_what_is_missing_and_that_nothing_was_run(
    emulation: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lacking: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.setattr(emulation.shutil, "which", machine_without(*lacking))
    monkeypatch.setattr(sys, "argv", ["emulated_arm64.py"])
    assert emulation.main() == 1
    said = capsys.readouterr().out
    assert said.startswith("arm64-check: nothing was run. ") and told in said and said.count("\n") == 1


def test_libraries_for_gpus_are_not_fetched_and_all_else_is_in_the_versions_of_here(
    emulation: ModuleType,
) -> None:
    needed = set(emulation.requirements("splatstudio"))
    assert {"torch", "numpy", "viser", "nvidia-ml-py"} <= needed
    assert not any(emulation.OF_GPUS.match(name) for name in needed)
    assert "+" not in emulation.pinned("torch")


def test_a_library_that_needs_a_newer_system_than_the_wheel_says_is_named(
    emulation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = sys.modules["portable"]
    library = next((ROOT / "build").glob("*linux*/_C.so"))
    monkeypatch.setattr(portable, "NEWEST", dict.fromkeys(("GLIBC", "GLIBCXX", "CXXABI", "GCC"), (99,)))
    assert portable.newer_than_policy(library) == []
    monkeypatch.setattr(portable, "NEWEST", {**portable.NEWEST, "GLIBC": (2, 0)})
    assert any(version.startswith("GLIBC_2.") for version in portable.newer_than_policy(library))
