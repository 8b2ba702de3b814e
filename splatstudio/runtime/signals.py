"""What the process of a rank does at signals: only who started it decides that it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable

# A terminal that is closed sends it to all that runs there; there is none on Windows.
_HANG_UP = getattr(signal, "SIGHUP", None)


def outlive_the_terminal(*, launched: bool) -> None:
    """Let neither Ctrl-C nor a terminal that is closed end this process: its parent tells it, or is gone.

    `launched`: torchrun or Slurm has started it; they are not parents that it would see go, but send on that
    the terminal was closed, and kill it half a minute later.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _HANG_UP is not None and not launched:
        signal.signal(_HANG_UP, signal.SIG_IGN)


def leave_when_told(leave: Callable[[], None], *, launched: bool) -> None:
    """Call `leave`, in the main thread, when whoever started this process wants it to end; see above.

    What nohup has switched off stays so.
    """
    told = [signal.SIGTERM]
    if launched and _HANG_UP is not None and signal.getsignal(_HANG_UP) != signal.SIG_IGN:
        told.append(_HANG_UP)
    for number in told:
        signal.signal(number, lambda *_: leave())


def end_within(seconds: int) -> None:
    """End this process in so many seconds even where it cannot end by itself.

    A GPU that waits for a rank that is gone keeps its own process from ending; Python's threads stand still
    by then. Where there are no alarms, whoever has started the process ends it.
    """
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
