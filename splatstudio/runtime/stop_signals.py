"""The signals that ask a process to end: Ctrl-C, SIGTERM of a job system, SIGHUP of a closed terminal.

A command hears all three from its start. The kernel drops what the first process of a container does not
handle, and the container is killed some seconds later. A rank that a command started hears SIGTERM alone.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from splatstudio.operating_system import HANG_UP, STOP_SIGNALS, of_one_driver, unblock

LOOK_SECONDS = 0.1  # between two looks whether a signal has come


class StopSignal(KeyboardInterrupt):
    """Ends a command as Ctrl-C does, with the exit code that shells give for its signal."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class StopRequest:
    """Whether this command was asked to end, and by which signal; None until then."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.number: int | None = None
        self._let_go = False

    def __bool__(self) -> bool:
        """Return whether it was asked to end."""
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """Return the exit code that shells give for the signal; 130 is that of Ctrl-C."""
        return 128 + (self.number or signal.SIGINT)

    def wait(self) -> None:
        """Wait until it is asked to end."""
        # A handler may come at any time: it must not wait for a lock, as an Event's. A SimpleQueue now and
        # then wakes nobody, where two signals come in one moment.
        while not (self or self._let_go):
            time.sleep(LOOK_SECONDS)

    def let_go(self) -> None:
        """Let `wait` return although nobody has asked."""
        self._let_go = True

    def words(self, doing: str) -> str:
        """Return what to print of it, as "Saving ... (Ctrl-C again ends at once)"."""
        if self.number is None:
            return f"{doing} ..."
        if self.number == signal.SIGINT:
            return f"{doing} ... (Ctrl-C again ends at once)"
        return f"{signal.Signals(self.number).name} came. {doing} ... (Ctrl-C ends at once)"

    def note(self, number: int, frame: FrameType | None) -> None:
        """Note a signal; a Ctrl-C after any other one ends the command at once, by KeyboardInterrupt.

        Who ends a group of processes often sends SIGTERM twice: that is no wish to lose the training.
        """
        if number == HANG_UP:
            leave_closed_terminal()
        if self and number == signal.SIGINT:
            # There is no third time: what follows takes a moment at most.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise KeyboardInterrupt
        if not self:
            self.number = number


class HeldInterrupt:
    """Ctrl-C, or a notebook's Stop, held back until a step is done: of a torn one nothing could be saved.

    Used with `with`. A second one counts at once. Beside the main thread, and where somebody else hears the
    signal, nothing is held.
    """

    def __init__(self) -> None:
        """Nothing is held yet."""
        self.came = False
        self._holding = False
        self._installed = False

    def __enter__(self) -> HeldInterrupt:
        """Hear the signal."""
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it to Python again."""
        if self._installed and signal.getsignal(signal.SIGINT) == self._note:  # else somebody else's by now
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def until_done(self) -> Iterator[None]:
        """Hold it back; raises KeyboardInterrupt at the end where it came."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self.came:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came or not self._holding:
            raise KeyboardInterrupt
        self.came = True


def end_by_signals() -> None:
    """Let SIGTERM and SIGHUP end this command as Ctrl-C does; what nohup has switched off stays so."""
    for number in STOP_SIGNALS:
        if number != signal.SIGINT and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn the first signal into a request, so that what is unsaved is saved before the command ends.

    Ctrl-C counts in a shell's background job, too, which inherits that it is ignored.
    """
    request = StopRequest()
    before = {
        number: signal.signal(number, request.note)
        for number in STOP_SIGNALS
        if number != HANG_UP or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def outlive_the_terminal(*, launched: bool) -> None:
    """Let neither Ctrl-C nor a terminal that is closed end this process: its parent tells it, or is gone.

    `launched`: torchrun or Slurm has started it; they are not parents that it would see go, but send on what
    came of the terminal, and kill it half a minute later: `leave_when_told` hears it, and until then it ends.
    """
    if launched:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if HANG_UP is not None:
        signal.signal(HANG_UP, signal.SIG_IGN)


def leave_when_told(leave: Callable[[int], None], *, launched: bool) -> None:
    """Call `leave` with the signal, in the main thread, when whoever started this process wants it to end.

    What nohup has switched off stays so. See `outlive_the_terminal` for `launched`.
    """
    told: list[int] = [signal.SIGTERM, signal.SIGINT] if launched else [signal.SIGTERM]
    if launched and HANG_UP is not None and signal.getsignal(HANG_UP) != signal.SIG_IGN:
        told.append(HANG_UP)
    for number in told:
        signal.signal(number, lambda number, _: leave(number))
    hear_sigterm()


@contextmanager
def ends_at_a_signal(sentence: str) -> Iterator[None]:
    """End this process at the first signal that it hears, after a sentence; for where nothing is to be saved.

    Also where native code keeps the main thread, in which no handler runs meanwhile.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        if number := os.read(reader, 1):
            with suppress(OSError, ValueError):
                sys.stderr.write(f"{signal.Signals(number[0]).name} came. {sentence}\n")
                sys.stderr.flush()
            os._exit(128 + number[0])
        os.close(reader)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)


def hear_sigterm() -> None:
    """Let SIGTERM reach this process, also one sent before: a server that is deaf to it has made it."""
    unblock(signal.SIGTERM)


def _end(number: int, frame: FrameType | None) -> None:
    if number == HANG_UP:
        leave_closed_terminal()
    raise StopSignal(number)


def leave_closed_terminal() -> bool:
    """Print nowhere from now on where the terminal was closed; return whether that is so.

    Each write to it is an error: EIO.
    """
    left = False
    with suppress(OSError, ValueError):  # there may be no such file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for file in (sys.__stdout__, sys.__stderr__):
            # A terminal that was closed no longer says that it is one.
            if file is None or not stat.S_ISCHR(os.fstat(file.fileno()).st_mode) or os.isatty(file.fileno()):
                continue
            if not of_one_driver(file.fileno(), nowhere):  # nor /dev/full, which is no terminal
                os.dup2(nowhere, file.fileno())
                left = True
        os.close(nowhere)
    return left
