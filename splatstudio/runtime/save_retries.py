"""When a training that is to end, but has no room for its model on the disk, is told again to save."""

from __future__ import annotations

import time

# A disk that is full at the end must not cost the model, and a batch job must not wait for ever.
RETRY_SECONDS, RETRY_MINUTES = 10.0, 10


class SaveRetries:
    """Counts the saves that found no room, and says when the next one is due; for one thread."""

    def __init__(self) -> None:
        """Begin without any that has failed."""
        self.num_failed = 0
        self._due_at: float | None = None

    def fail(self) -> bool:
        """Note that a save found no room; return whether another one shall be tried."""
        self.num_failed += 1
        if self.num_failed > RETRY_MINUTES * 60 / RETRY_SECONDS:
            self._due_at = None
            return False
        self._due_at = time.monotonic() + RETRY_SECONDS
        return True

    def take_due(self) -> bool:
        """Say whether to save again now; it is said once after each that failed."""
        due = self._due_at is not None and time.monotonic() >= self._due_at
        if due:
            self._due_at = None
        return due


def retry_sentence(*, told: bool) -> str:
    """Return what happens while the disk is full; `told`: Ctrl-C was pressed once already."""
    how = "Ctrl-C again ends" if told else "Ctrl-C tries at once, and again ends"
    return f"It is tried again every {RETRY_SECONDS:g} s for {RETRY_MINUTES} minutes ({how} without it)."
