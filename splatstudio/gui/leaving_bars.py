"""The ways out of the page: to the start page, and of a training elsewhere that is over or out of reach."""

from __future__ import annotations

from collections.abc import Callable

from splatstudio.gui.panel import Page, Panel
from splatstudio.gui.theme import note_html


class HomeBar(Panel):
    """The way back to the start page, which asks once where that ends a training or a task."""

    def __init__(
        self, page: Page, go_home: Callable[[], None], stay: Callable[[], None], offered: Callable[[], bool]
    ):
        """Call `go_home` when it is wanted, `stay` when not any more; the button is there while `offered`."""
        super().__init__(page)
        self._go_home, self._take_back, self._asked = go_home, stay, False
        hint = "Closes what is open and shows runs, scenes and folders again. Unsaved work is saved."
        home = self.button("Start page", lambda _: self._press(), visible=False, hint=hint)
        asks = "This ends the work in progress. A training is saved and stopped; open its run to resume it."
        self.keep(home, visible=lambda: offered() and not self._asks)
        self.keep(self.gui.add_html(note_html(asks, mark="home"), visible=False), visible=lambda: self._asks)
        for label, press in (("Save and go to the start page", go_home), ("Stay here", self._stay)):
            button = self.button(label, lambda _, press=press: press(), visible=False)
            self.keep(button, visible=lambda: self._asks)

    @property
    def _asks(self) -> bool:
        return self._asked and self._is_at_work

    @property
    def _is_at_work(self) -> bool:
        trains = self.controller.unsaved or self.controller.can_order
        return trains or self.page.tasks.in_progress is not None

    def _press(self) -> None:
        self._asked = self._is_at_work
        if not self._asked:
            self._go_home()

    def _stay(self) -> None:
        self._asked = False
        self._take_back()


class CloseBar(Panel):
    """A button that closes the studio where there is nothing left to steer."""

    def __init__(self, page: Page, close: Callable[[], object]):
        """Call `close` when it is pressed."""
        super().__init__(page)
        hint = "Ends the program that shows this page; what was saved stays."
        button = self.button("Close this page", lambda _: close(), visible=False, hint=hint)
        self.keep(button, visible=lambda: self.controller.status.state in ("disconnected", "failed", "ended"))
