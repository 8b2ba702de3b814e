"""What estimates poses, where it is not installed: the line that installs it, and a run of that line."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

EXTRA = "splatstudio[photos]"
_QUIET = ("--no-input", "--disable-pip-version-check", "--progress-bar", "off")


class ColmapMissing(ValueError):
    """The environment lacks pycolmap; `can_install` says whether `install_colmap` may help."""

    def __init__(self, can_install: bool):
        self.can_install = can_install
        super().__init__(
            f"camera poses are estimated by pycolmap, which is not installed: run {install_line()}"
        )


def has_colmap() -> bool:
    """Return whether pycolmap is installed."""
    return find_spec("pycolmap") is not None


def refuse_without_colmap() -> None:
    """Raise ColmapMissing, a ValueError with the line that installs it, where pycolmap is not there."""
    if not has_colmap():
        raise ColmapMissing(_has_pip())


def install_line() -> str:
    """Return what to type to install it into the environment that runs this."""
    python = shlex.quote(sys.executable)
    if _has_pip():
        return f'{python} -m pip install "{EXTRA}"'
    return f'uv pip install --python {python} "{EXTRA}"'  # environments of uv have no pip


def install_colmap(tell: Callable[[str], object]) -> None:
    """Run pip in the environment that runs this; `tell` gets each of its lines.

    Raises ValueError with one sentence where pip is not there or fails.
    """
    if not _has_pip():
        raise ValueError(f"there is no pip in this environment: run {install_line()}")
    last = reason = ""
    command = [sys.executable, "-m", "pip", "install", *_QUIET, EXTRA]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in filter(None, map(str.strip, pip.stdout)):
            last = line
            reason = reason or (line if line.lower().startswith("error") else "")
            tell(line)
    importlib.invalidate_caches()
    if pip.returncode != 0 or not has_colmap():
        said = (reason or last or f"exit code {pip.returncode}").removeprefix("ERROR: ")
        raise ValueError(
            f"pip could not install pycolmap ({said}); nothing else was changed: install it with"
            f" {install_line()}, and open the photos again"
        )


def _has_pip() -> bool:
    return find_spec("pip") is not None
