"""When who read the output has gone, having seen enough, as `head` does."""

from __future__ import annotations

import io
import os
import select
import sys

AS_SIGPIPE = 141
"""The exit code that a shell gives a command which SIGPIPE ended."""


def nobody_reads() -> bool:
    """Return whether standard output is a pipe without a reader: others that break are errors to tell.

    Or a socket, as other programs give to what they start. It is asked itself: what could not be written went
    with the error, so that a flush would succeed.
    """
    if not hasattr(select, "poll"):  # Windows tells of it by another error
        return False
    try:
        asked = select.poll()
        asked.register(sys.stdout.fileno(), 0)
    except io.UnsupportedOperation:  # the output goes to a program's own object
        return False
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in asked.poll(0))


def leave_unread() -> None:
    """End the command without a word, as nothing more can be printed, not even at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(AS_SIGPIPE)
