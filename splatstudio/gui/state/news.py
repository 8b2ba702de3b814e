"""What the studio has told: shown to who watches, kept for who comes back, listed in the Log tab."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from datetime import datetime

import viser

from splatstudio.error_text import first_line
from splatstudio.gui.state.status import Notice
from splatstudio.gui.theme import ACCENT

NUM_KEPT = 200
MAX_MISSED_SHOWN = 4  # to who comes back; the others are in the Log tab


@dataclass(frozen=True)
class NewsItem:
    """Something that was told, and when."""

    time: datetime
    notice: Notice


class News:
    """Tells every browser; what is told while none is open waits for the next. Any thread may call."""

    def __init__(self, server: viser.ViserServer):
        self._server = server
        self._items: deque[NewsItem] = deque(maxlen=NUM_KEPT)
        self._missed: list[Notice] = []
        self._stays: tuple[Notice, list[viser.NotificationHandle]] | None = None  # what was told last
        self._lock = threading.Lock()
        self.num_told = 0
        server.on_client_connect(self._catch_up)

    @property
    def items(self) -> tuple[NewsItem, ...]:
        """Return what was told last, the newest at the end."""
        with self._lock:
            return tuple(self._items)

    def tell(self, notice: Notice) -> None:
        """Show a notice in every browser, and keep it.

        What goes wrong again and again, as a save on a full disk, is shown once: its newest time.
        """
        with self._lock:
            clients = list(self._server.get_clients().values())
            self._items.append(NewsItem(datetime.now(), notice))
            self.num_told += 1
            if not clients:
                others = [missed for missed in self._missed if missed != notice]
                self._missed = [*others, notice][-NUM_KEPT:]
            before, self._stays = self._stays, None
        if before is not None and before[0] == notice:
            for handle in before[1]:
                handle.remove()
        shown = [_show(client, notice, stays=notice.bad) for client in clients]
        with self._lock:
            self._stays = (notice, shown) if notice.bad else None

    def note(self, notice: Notice) -> None:
        """Keep a notice for the Log tab, without showing it to anybody."""
        with self._lock:
            self._items.append(NewsItem(datetime.now(), notice))
            self.num_told += 1

    def tell_failure(self, error: BaseException) -> None:
        """Tell of what a button, a field or a key did not do because of `error`."""
        if isinstance(error, (ValueError, OSError)):  # what the user did, or what his disk did
            self.tell(Notice("Not done", str(error), bad=True))
            return
        sentence = (
            f"{type(error).__name__}: {first_line(error)}. Nothing else is touched; it is a mistake of the"
        )
        self.tell(Notice("Not done", f"{sentence} studio's, and the terminal has the details.", bad=True))

    def _catch_up(self, client: viser.ClientHandle) -> None:
        """Tell the first who comes what happened while nobody watched."""
        with self._lock:
            missed, self._missed = self._missed, []
        # What went wrong is said before what went well, and the newest of each.
        chosen = sorted(missed, key=lambda notice: notice.bad)[-MAX_MISSED_SHOWN:]
        for notice in missed:
            if any(notice is other for other in chosen):
                _show(client, notice, stays=True)
        if len(missed) > len(chosen):
            more = f"{len(missed) - len(chosen):,} more messages while nobody watched"
            _show(client, Notice(more, "They are in the Log tab."), stays=True)


def _show(client: viser.ClientHandle, notice: Notice, *, stays: bool) -> viser.NotificationHandle:
    return client.add_notification(
        notice.title,
        notice.text,
        auto_close_seconds=None if stays else 8.0,
        color="red" if notice.bad else ACCENT,
    )
