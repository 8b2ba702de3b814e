"""The way out of a studio that is asked for on its page: nothing is closed before all is saved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.status import Notice
from splatstudio.runtime import messages

POLL_SECONDS = 0.1  # a training may end by itself, without a word on it
DIED = Notice(
    "The page stays",
    "The background process ended while it saved, and goes on from the newest checkpoint: leave once it has.",
    bad=True,
)
NOT_SAVED = Notice(
    "The page stays",
    "The training could not be saved, and its model is kept: mend what the Log says, save again, then leave.",
    bad=True,
)


class Leaving:
    """Saves a training before its studio is closed; where that fails, both stay.

    Who leaves by Ctrl-C has nobody to ask: see `Controller.save_and_stop`.
    """

    def __init__(self, controller: Controller, tell: Callable[[Notice], object]):
        """Call `tell` where a training cannot be saved."""
        self._controller, self._tell = controller, tell
        self._tries = 0  # to leave; a later one takes the place of those before
        self._waits = False  # for a save
        self._lock = threading.Lock()
        controller.listen(self._follow)

    def begin(self, leave: Callable[[], object]) -> None:
        """Call `leave` as soon as nothing is unsaved: at once, or from another thread."""
        unsaved = self._controller.unsaved
        with self._lock:
            self._tries, self._waits = self._tries + 1, unsaved
            number = self._tries
        if not unsaved:
            leave()
            return
        self._controller.send(messages.Stop())
        threading.Thread(target=self._wait, args=(number, leave), daemon=True, name="leaving").start()

    def stay(self) -> None:
        """Leave no more; what was told to save and stop does so."""
        with self._lock:
            self._tries, self._waits = self._tries + 1, False

    def _wait(self, number: int, leave: Callable[[], object]) -> None:
        while self._controller.unsaved and self._tries == number:
            time.sleep(POLL_SECONDS)
        with self._lock:
            if self._tries == number:
                self._waits = False
                leave()

    def _follow(self, event: messages.Event) -> None:
        died = isinstance(event, messages.StateChanged) and event.state == "restarting"
        failed = isinstance(event, messages.StateChanged) and event.unsaved
        if self._waits and (died or failed):
            self.stay()
            self._tell(DIED if died else NOT_SAVED)
