"""What `--json` prints: one object on standard output, while all else goes to standard error."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CommandResult:
    """What a command came to: its exit code, and the values that `--json` prints."""

    exit_code: int
    values: Mapping[str, Any]
    at_once: bool = False  # the process leaves without waiting for its threads


def failed(sentence: str, exit_code: int = 2) -> CommandResult:
    """Return the result of a command that an error ended."""
    return CommandResult(exit_code, {"error": sentence})


def print_json(values: Mapping[str, Any]) -> None:
    """Print values as one JSON object; letters beyond ASCII are escaped, so that any terminal takes them."""
    print(json.dumps(_plain(values), indent=2, allow_nan=False), flush=True)


@contextmanager
def printed_to_stderr() -> Iterator[None]:
    """Send all that is printed to standard error, also what libraries and other processes print."""
    sys.stdout.flush()
    try:
        output, errors = sys.stdout.fileno(), sys.stderr.fileno()
    except io.UnsupportedOperation:  # the output goes to a program's own object
        with redirect_stdout(sys.stderr):
            yield
        return
    kept = os.dup(output)
    os.dup2(errors, output)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, output)
        os.close(kept)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a number that is not finite is None, a path its text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
