"""The first line of a command: there before what takes seconds to load."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from splatstudio.cli import main as cli

# Runs a command at a terminal up to its first line, and tells whether torch had been loaded by then.
UP_TO_THE_FIRST_LINE = """
import io, os, sys

class Terminal(io.StringIO):
    def isatty(self):
        return True
    def write(self, text):
        os.write(2, f"{'torch' in sys.modules}: {text}".encode())
        os._exit(0)

sys.stdout = Terminal()
sys.argv = ["splatstudio", *sys.argv[1:]]
from splatstudio.cli.main import main
main()
"""


@pytest.mark.parametrize("arguments", [("open", "nowhere"), ("--help",)])
def test_the_first_line_comes_before_torch_is_loaded(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", UP_TO_THE_FIRST_LINE, *arguments]
    told = subprocess.run(command, capture_output=True, text=True, timeout=250).stderr
    starting = f"False: splatstudio {version('splatstudio')}: starting ..."
    assert told.startswith("False: ") and (told.strip() == starting) == (arguments[0] == "open")


def test_ctrl_c_while_it_loads_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "splatstudio", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_what_is_piped_on_has_no_such_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli._say_starting()
    assert capsys.readouterr().out == ""
