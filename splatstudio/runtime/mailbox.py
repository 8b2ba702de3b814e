"""The orders that wait for the worker's main thread."""

from __future__ import annotations

import queue
from collections import deque

from splatstudio.runtime.messages import Command, UpdateSettings


class Mailbox:
    """Orders in the order they came; of changes of one setting only the newest is kept."""

    def __init__(self) -> None:
        # A SimpleQueue: `put` may be called from a signal handler, whatever this thread is doing.
        self._arriving: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._waiting: deque[Command] = deque()

    def put(self, command: Command) -> None:
        """Add an order; may be called from any thread and from signal handlers."""
        self._arriving.put(command)

    def wait(self, seconds: float) -> None:
        """Wait for an order, `seconds` at most."""
        if not self._waiting:
            try:
                self._waiting.append(self._arriving.get(timeout=seconds))
            except queue.Empty:
                return

    def peek(self) -> Command | None:
        """Return the next order and leave it where it is; None when there is none."""
        while True:
            try:
                self._waiting.append(self._arriving.get_nowait())
            except queue.Empty:
                break
        while len(self._waiting) > 1 and _replaces(self._waiting[1], self._waiting[0]):
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else None

    def holds(self, *kinds: type[Command]) -> bool:
        """Say whether an order of one of these kinds waits, behind others or not."""
        self.peek()
        return any(isinstance(command, kinds) for command in self._waiting)

    def take(self) -> Command | None:
        """Return the next order and forget it; None when there is none."""
        command = self.peek()
        if command is not None:
            self._waiting.popleft()
        return command


def _replaces(newer: Command, older: Command) -> bool:
    """Say whether nothing of `older` is left once `newer` has been obeyed."""
    if not (isinstance(newer, UpdateSettings) and isinstance(older, UpdateSettings)):
        return False
    return {path for path, _ in older.values} <= {path for path, _ in newer.values}
