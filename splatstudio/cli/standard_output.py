"""Standard output that nobody reads, or that cannot be written."""

from __future__ import annotations

import io
import os
import sys

from splatstudio.operating_system import has_no_reader

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
