"""The first line of a command: there before what takes seconds to load."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

# Runs a command at a terminal, and tells of each line whether torch had been loaded by then.
AT_A_TERMINAL = """
import io, sys

told = sys.stderr  # which a bar of rich's takes over


class Terminal(io.StringIO):
    def isatty(self):
        return TERMINAL
    def write(self, text):
        print(f"{'torch' in sys.modules}: {text}", file=told) if text.strip() else None
        return len(text)

sys.stdout = Terminal()
sys.argv = ["splatstudio", *sys.argv[1:]]
from splatstudio.cli import main
main()
"""


def told(*arguments: str, terminal: bool = True) -> list[str]:
    source = AT_A_TERMINAL.replace("TERMINAL", str(terminal))
    run = subprocess.run(
        [sys.executable, "-c", source, *arguments], capture_output=True, text=True, timeout=250
    )
    return run.stderr.splitlines()


@pytest.mark.parametrize("command", ["open", "eval"])
def test_who_waits_is_told_before_torch_is_loaded(command: str) -> None:
    lines = told(command, "nowhere")
    assert lines[0] == f"False: splatstudio {version('splatstudio')}: starting ..."
    assert "nowhere" in " ".join(lines[1:]), "what follows is the command's own"


def test_help_and_what_is_piped_on_say_no_more_than_they_should() -> None:
    lines = told("--help")
    assert "usage" in lines[0] and not any(line.startswith("True") for line in lines)
    assert not any("starting" in line for line in told("eval", "nowhere", terminal=False))
