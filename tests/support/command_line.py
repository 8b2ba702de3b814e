"""The command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from splatstudio.cli.main import main

CommandLine = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Run `splatstudio ARGUMENTS` in this process; return its exit code and everything that it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
            patch.setattr(sys, "argv", ["splatstudio", *map(str, arguments)])
            patch.setenv("COLUMNS", "500")
            main()
        output = capsys.readouterr()
        return int(stop.value.code or 0), output.out + output.err

    return run
