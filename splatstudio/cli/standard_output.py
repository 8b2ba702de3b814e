"""Standard output that nobody reads, or that cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, cast

from splatstudio.operating_system import has_no_reader
from splatstudio.runtime.stop_signals import leave_closed_terminal

AS_SIGPIPE = 141  # the exit code that a shell gives a command which SIGPIPE ended


def tell(answered: str) -> int:
    """Print an answer and return the exit code: that of a pipe without a reader is as a shell has it."""
    try:
        print(answered, flush=True)
        return 0
    except OSError as error:
        code = not_written(error)
        return AS_SIGPIPE if isinstance(error, BrokenPipeError) else code


def print_nowhere() -> None:
    """Let what is printed go nowhere, also what is in the buffer: it would be tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def not_written(error: OSError) -> int:
    """Say that standard output cannot be written, where somebody reads it, and return the exit code."""
    print_nowhere()
    if not isinstance(error, BrokenPipeError):
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
    return 2


class _OutputThatMayFail:
    """Standard output whose errors are no reason to end: nobody reads, or its disk is full."""

    def __init__(self) -> None:
        self._output = sys.stdout
        self.problem = ""  # of the disk

    def write(self, text: str) -> int:
        with self._going_on():
            self._output.write(text)
        return len(text)

    def flush(self) -> None:
        with self._going_on():
            self._output.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            print_nowhere()
        except OSError as error:
            if not leave_closed_terminal():
                self.problem = error.strerror


@contextlib.contextmanager
def going_on_unheard() -> Iterator[None]:
    """Let what is printed be lost where it cannot be written: hours of training do not end for it.

    That it was is told at the end, where errors go, unless nobody reads.
    """
    output = _OutputThatMayFail()
    with contextlib.redirect_stdout(cast(io.TextIOBase, output)):
        try:
            yield
        finally:
            told, output.problem = output.problem, ""
            output.flush()
            if output.problem:
                print_nowhere()  # what is left would be tried again at the interpreter's end, and fail
            if why := told or output.problem:
                with contextlib.suppress(OSError):  # it may go to the same disk
                    print(f"Some output could not be written to standard output: {why}.", file=sys.stderr)


def nobody_reads() -> bool:
    """Return whether standard output is a pipe without a reader: others that break are errors to tell.

    Or a socket, as other programs give to what they start. It is asked itself: what could not be written went
    with the error, so that a flush would succeed.
    """
    try:
        return has_no_reader(sys.stdout.fileno())
    except io.UnsupportedOperation:  # the output goes to a program's own object
        return False


def leave_unread() -> None:
    """End the command without a word, as nothing more can be printed, not even at the interpreter's end."""
    print_nowhere()
    sys.exit(AS_SIGPIPE)
