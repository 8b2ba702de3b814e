"""The command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from splatstudio.cli.main import main

CommandLine = Callable[..., tuple[int, str]]
CommandStreams = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(command_streams: CommandStreams) -> CommandLine:
    """Run `splatstudio ARGUMENTS` in this process; return its exit code and everything that it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        code, output, errors = command_streams(*arguments)
        return code, output + errors

    return run


@pytest.fixture
def command_streams(capsys: pytest.CaptureFixture[str]) -> CommandStreams:
    """Run the same; return the exit code, what was printed, and what was printed as errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
            patch.setattr(sys, "argv", ["splatstudio", *map(str, arguments)])
            patch.setenv("COLUMNS", "500")
            main()
        output = capsys.readouterr()
        return int(stop.value.code or 0), output.out, output.err

    return run
