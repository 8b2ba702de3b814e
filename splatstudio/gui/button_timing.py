"""When a press on a button counts: what comes too early was meant for what was there before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REST_SECONDS = 1.0
PRESS_SECONDS = 0.4  # within which a system takes two clicks for a double click


class Rest:
    """The time for which a button that has come by itself cannot be pressed yet: REST_SECONDS."""

    def __init__(self, ended: Callable[[], object]):
        """Call `ended` when the time is over, from another thread."""
        self._ended = ended
        self._until: float | None = None  # None: the button is not there

    def is_over(self, there: bool) -> bool:
        """Return whether the button, which is `there` or not now, has been there for so long."""
        now = time.monotonic()
        if there and self._until is None:
            self._until = now + REST_SECONDS
            timer = threading.Timer(REST_SECONDS, self._ended)
            timer.daemon = True
            timer.start()
        self._until = self._until if there else None
        return self._until is not None and now >= self._until


class SinglePress:
    """Takes what is pressed again at once for the press before: a double click, or two pages in one moment.

    By then the button does the opposite: who resumes would pause.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        """Ask `clock` for the time, in seconds."""
        self._clock = clock
        self._last: float | None = None
        self._lock = threading.Lock()

    def counts(self) -> bool:
        """Return whether a press of now is one of its own."""
        with self._lock:
            now = self._clock()
            alone = self._last is None or now - self._last >= PRESS_SECONDS
            self._last = now
            return alone
