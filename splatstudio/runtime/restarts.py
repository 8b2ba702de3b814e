"""Whether a training that died is started again by itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from splatstudio.runtime.root_cause import Cause

MAX_RESTARTS = 3
WINDOW_SECONDS = 600.0


class RestartPolicy:
    """At most MAX_RESTARTS in WINDOW_SECONDS; none where the same would only happen again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._restarts: deque[float] = deque()
        self._last: tuple[str, int] | None = None

    @property
    def count(self) -> int:
        """Return the number of restarts within the last WINDOW_SECONDS."""
        while self._restarts and self._clock() - self._restarts[0] > WINDOW_SECONDS:
            self._restarts.popleft()
        return len(self._restarts)

    def refusal(self, cause: Cause) -> str | None:
        """Return None, and count a restart, where one may help; else why there is none, one sentence.

        An empty sentence: the cause says it all.
        """
        if cause.final:
            return ""
        before, self._last = self._last, (cause.kind, cause.step)
        if before == self._last:
            where = f"at step {cause.step:,}" if cause.step > 0 else "before the first step"
            return f"It happened {where} for the second time, so it was not started again by itself."
        if self.count >= MAX_RESTARTS:
            minutes = round(WINDOW_SECONDS / 60)
            return f"It had been restarted {MAX_RESTARTS} times within {minutes} minutes, which is the limit."
        self._restarts.append(self._clock())
        return None
