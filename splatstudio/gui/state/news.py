"""What the studio has told: shown to who watches, kept for who comes back, listed in the Log tab."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import viser

from splatstudio.error_text import first_line
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.status import Notice
from splatstudio.gui.theme import ACCENT
from splatstudio.runtime.messages import Densified, Evaluated, Event, Progress, Started, StateChanged
from splatstudio.training.data.resolution import divisor_at, sh_degree_at

NUM_KEPT = 200
MAX_MISSED_SHOWN = 4  # to who comes back; the others are in the Log tab


@dataclass(frozen=True)
class NewsItem:
    """Something that was told, and when."""

    time: datetime
    notice: Notice


class News:
    """Tells every browser; what is told while none is open waits for the next. Any thread may call."""

    def __init__(self, server: viser.ViserServer, changed: Callable[[], None] = lambda: None):
        """Call `changed` after each thing that is told or noted."""
        self._server, self._changed = server, changed
        self._items: deque[NewsItem] = deque(maxlen=NUM_KEPT)
        self._missed: list[Notice] = []
        self._stays: tuple[Notice, list[viser.NotificationHandle]] | None = None  # what was told last
        self._lock = threading.Lock()
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
        self._changed()

    def note(self, notice: Notice) -> None:
        """Keep a notice for the Log tab, without showing it to anybody."""
        with self._lock:
            self._items.append(NewsItem(datetime.now(), notice))
        self._changed()

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


NOTABLE_GROWTH = 1.5  # times the number of splats that was told last, or less than one over it
COARSENESSES = (1, 2, 3, 4, 6, 8)  # by which the sides of photographs are divided, as they are told


class Milestones:
    """Follows the worker's events, and notes what is worth a line; each thing once."""

    def __init__(self, trained: Controller, note: Callable[[Notice], None]):
        self._trained = trained
        self._note = note
        self._num_train = 0
        self._told_splats = 0
        self._full = False  # whether it was told that the limit on the splats is reached
        self._degree = 0
        self._coarseness = 1

    def follow(self, event: Event) -> None:
        """Take in an event of the worker, after the status has."""
        match event:
            case Started():
                self._begin(event)
            case Densified():
                self._grow(event)
            case Progress(step=step):
                self._refine(step)
            case Evaluated(step=step, psnr=psnr, ssim=ssim) if self._trained.status.state == "training":
                self._tell(step, f"test PSNR {psnr:.2f} dB, SSIM {ssim:.4f}")
            case StateChanged(state="paused", unsaved=False):
                self._tell(self._trained.status.step, "paused")

    def _tell(self, step: int, what: str) -> None:
        self._note(Notice(f"Step {step:,}: {what}", ""))

    def _begin(self, event: Started) -> None:
        config = self._trained.project.config
        self._num_train, self._told_splats, self._full = event.num_train, event.num_gaussians, False
        self._degree = sh_degree_at(event.step, config, event.num_train)
        self._coarseness = _coarseness(divisor_at(event.step, config))
        verb = "goes on" if event.step else "begins"
        photos = f"{event.num_train:,} photos to learn from, {event.num_test:,} for the test"
        self._tell(event.step, f"training {verb} with {event.num_gaussians:,} splats; {photos}")
        if self._coarseness > 1:
            self._tell(event.step, f"photos at about 1/{self._coarseness} of their size at first")

    def _grow(self, event: Densified) -> None:
        told = self._told_splats
        if event.change.opacities_reset:
            self._tell(event.step, "opacities lowered, so that what is not needed can go")
        if not told / NOTABLE_GROWTH < event.num_gaussians < told * NOTABLE_GROWTH:
            verb = "grown" if event.num_gaussians > told else "thinned"
            self._tell(event.step, f"{verb} from {told:,} to {event.num_gaussians:,} splats")
            self._told_splats = event.num_gaussians
        if event.change.capped and not self._full:
            self._full = True
            self._tell(event.step, f"the limit on the number of splats is reached, {event.num_gaussians:,}")

    def _refine(self, step: int) -> None:
        config = self._trained.project.config
        coarseness = _coarseness(divisor_at(step, config))
        if coarseness < self._coarseness:
            size = "in full size" if coarseness == 1 else f"at about 1/{coarseness} of their size"
            self._tell(step, f"photos {size} from here on")
        self._coarseness = coarseness
        degree = sh_degree_at(step, config, self._num_train)
        if degree > self._degree:
            self._tell(step, f"colors depend more on the view from here on (SH degree {degree})")
        self._degree = degree


def _coarseness(divisor: float) -> int:
    """Return the nearest of COARSENESSES that is not below `divisor`."""
    return next((each for each in COARSENESSES if divisor <= each), COARSENESSES[-1])
