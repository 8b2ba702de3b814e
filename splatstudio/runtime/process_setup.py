"""What a rank's process does first: where it prints, to whom it gives way, when it ends at the latest."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from splatstudio.files.outputs import make_folder, open_output
from splatstudio.operating_system import LINUX, set_thread_niceness, thread_niceness

ALONE = 5  # niceness of a training: other programs come first
WATCHED = 10  # and of one that somebody looks at

# With 10 in place of 5 a moving camera's pictures come in 0.8 of the time, with 19 in 0.7; but then other
# programs would leave a training on the same cores next to nothing.


def log_of(run_dir: Path) -> Path:
    """Return the file that all ranks of a run print into, once its folder is there."""
    return run_dir / "logs" / "worker.log"


def redirect_output(log_path: Path) -> None:
    """Send everything that this process prints, native code included, to the log file."""
    make_folder(log_path.parent)
    descriptor = open_output(log_path, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


class TrainingPriority:
    """The niceness of the threads that train, on top of what the user may have given the studio with `nice`.

    Frames, the studio and the browser come first: they need little and are waited for. It only ever grows:
    without privileges a process cannot take it back. Where a priority belongs to the whole process, as on all
    systems but Linux, it stays as it is. Methods may be called from any thread.
    """

    def __init__(self) -> None:
        """Take this thread's niceness for that of the process; no thread has been made to yield yet."""
        self._own = thread_niceness(threading.get_native_id()) if LINUX else 0
        self._more = ALONE
        self._lock = threading.Lock()

    def yield_to_others(self) -> None:
        """Let this thread, and all that it starts from now on, give way."""
        if LINUX:
            with self._lock:
                self._raise(threading.get_native_id())

    def yield_to_views(self) -> None:
        """Let all threads that give way do so even more, and all that they start."""
        with self._lock:
            if not LINUX or self._more == WATCHED:
                return
            self._more = WATCHED
            # Once more for those that one of them has started meanwhile.
            while any([self._raised(int(task.name)) for task in Path("/proc/self/task").iterdir()]):
                pass

    def _raised(self, thread: int) -> bool:
        """Make a thread yield even more if it yields, and return whether that was so."""
        try:
            if not self._own < thread_niceness(thread) < min(19, self._own + self._more):
                return False
            self._raise(thread)
        except ProcessLookupError:
            return False  # it has ended
        return True

    def _raise(self, thread: int) -> None:
        set_thread_niceness(thread, min(19, self._own + self._more))
