"""Who comes first where there are too few cores: frames, the studio and the browser before the training.

They need little and are waited for; a training takes what is left.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

ALONE = 5  # niceness of a training: other programs come first
WATCHED = 10  # and of one that somebody looks at

# With 10 in place of 5 a moving camera's pictures come in 0.8 of the time, with 19 in 0.7; but then other
# programs would leave a training on the same cores next to nothing.


class TrainingPriority:
    """The niceness of the threads that train, on top of what the user may have given the studio with `nice`.

    It only ever grows: without privileges a process cannot take it back. Where a priority belongs to the
    whole process, as on all systems but Linux, it stays as it is. Methods may be called from any thread.
    """

    def __init__(self) -> None:
        """Take this thread's niceness for that of the process; no thread has been made to yield yet."""
        self._own = _niceness(threading.get_native_id()) if sys.platform == "linux" else 0
        self._more = ALONE
        self._lock = threading.Lock()

    def yield_to_others(self) -> None:
        """Let this thread, and all that it starts from now on, give way."""
        if sys.platform == "linux":
            with self._lock:
                self._raise(threading.get_native_id())

    def yield_to_views(self) -> None:
        """Let all threads that give way do so even more, and all that they start."""
        with self._lock:
            if sys.platform != "linux" or self._more == WATCHED:
                return
            self._more = WATCHED
            # Once more for those that one of them has started meanwhile.
            while any([self._raised(int(task.name)) for task in Path("/proc/self/task").iterdir()]):
                pass

    def _raised(self, thread: int) -> bool:
        """Make a thread yield even more if it yields, and say whether that was so."""
        try:
            if not self._own < _niceness(thread) < min(19, self._own + self._more):
                return False
            self._raise(thread)
        except ProcessLookupError:
            return False  # it has ended
        return True

    def _raise(self, thread: int) -> None:
        os.setpriority(os.PRIO_PROCESS, thread, min(19, self._own + self._more))


def _niceness(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)
