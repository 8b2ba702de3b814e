"""Messages that wait: in order, of one key only the newest."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

MAX_WAITING = 10_000  # messages

log = logging.getLogger("splatstudio.runtime")

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue whose writer never waits; methods may be called from any thread and from signal handlers.

    A message with a `key` replaces the one of the same key that still waits (latest wins). Above `limit`
    messages the oldest are dropped: where nobody reads, memory does not grow without end.
    """

    def __init__(self, limit: int = MAX_WAITING, name: str = "messages") -> None:
        # Of an RLock, as is the default: a signal handler may put while its own thread holds it.
        self.changed = threading.Condition()
        self._waiting: OrderedDict[Hashable, T] = OrderedDict()
        self._serial = count()
        self._limit = limit
        self._name = name
        self._dropping = False
        self.closed = False

    def put(self, message: T, key: Hashable | None = None) -> None:
        """Add a message at the end."""
        with self.changed:
            if self.closed:
                return
            slot = ("serial", next(self._serial)) if key is None else ("key", key)
            self._waiting.pop(slot, None)
            self._waiting[slot] = message
            if len(self._waiting) > self._limit:
                self._waiting.popitem(last=False)
                if not self._dropping:
                    log.warning("nobody reads the %s: the oldest are dropped", self._name)
                self._dropping = True
            self.changed.notify_all()

    def take(self) -> T | None:
        """Return the next message and forget it; None when there is none."""
        with self.changed:
            return self._waiting.popitem(last=False)[1] if self._waiting else None

    def peek(self) -> T | None:
        """Return the next message and leave it where it is; None when there is none."""
        with self.changed:
            return next(iter(self._waiting.values()), None)

    def take_if(self, message: T) -> bool:
        """Forget the next message if it is still this one; return whether it was."""
        with self.changed:
            slot, first = next(iter(self._waiting.items()), (None, None))
            if slot is None or first is not message:
                return False
            del self._waiting[slot]
            return True

    def wait(self, timeout: float) -> None:
        """Wait for a message, `timeout` seconds at most."""
        with self.changed:
            self.changed.wait_for(lambda: self._waiting or self.closed, timeout)

    def messages(self) -> list[T]:
        """Return what waits, in order."""
        with self.changed:
            return list(self._waiting.values())

    def close(self) -> None:
        """Drop what waits; nothing can be put any more."""
        with self.changed:
            self.closed = True
            self._waiting.clear()
            self.changed.notify_all()


class Outbox(Mailbox[T]):
    """A mailbox that a thread of its own empties by `send`, which raises OSError when the reader has gone."""

    def __init__(self, send: Callable[[T], None], name: str, limit: int = MAX_WAITING) -> None:
        super().__init__(limit, name)
        self._send = send
        self._sending = False
        threading.Thread(target=self._send_all, name=name, daemon=True).start()

    def flush(self, timeout: float) -> bool:
        """Wait until everything is sent, at most `timeout` seconds; return whether it was."""
        with self.changed:
            return self.changed.wait_for(lambda: self.closed or not (self._waiting or self._sending), timeout)

    def _send_all(self) -> None:
        while True:
            with self.changed:
                self._sending = False
                self.changed.notify_all()
                self.changed.wait_for(lambda: self._waiting or self.closed)
                if self.closed:
                    return
                _, message = self._waiting.popitem(last=False)
                self._sending = True
            try:
                self._send(message)
            except OSError:
                # The reader is gone; who reads from it notices and reports it.
                self.close()
