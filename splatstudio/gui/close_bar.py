"""The way out of the page of a training elsewhere that cannot be reached, or is over."""

from __future__ import annotations

from collections.abc import Callable

from splatstudio.gui.panel import Page, Panel


class CloseBar(Panel):
    """A button that closes the studio where there is nothing left to steer."""

    def __init__(self, page: Page, close: Callable[[], object]):
        """Call `close` when it is pressed."""
        super().__init__(page)
        hint = "Ends the program that shows this page; what was saved stays."
        button = self.button("Close this page", lambda _: close(), visible=False, hint=hint)
        self.keep(button, visible=lambda: self.controller.status.state in ("disconnected", "failed", "ended"))
