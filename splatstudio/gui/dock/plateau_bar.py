"""The offer to stop where the test score stands still: there until it is taken, put away or out of date."""

from __future__ import annotations

from splatstudio.gui.panel_context import Page
from splatstudio.gui.tabs.model_rows import note_html
from splatstudio.gui.theme import ACCENT
from splatstudio.runtime.messages import PlateauReached
from splatstudio.runtime.sentences import plateau_advice, plateau_words


class PlateauBar:
    """A sentence and two buttons, there while a training goes on whose test score stands still."""

    def __init__(self, page: Page):
        gui, self._controller = page.server.gui, page.controller
        self._offered: PlateauReached | None = None  # what is shown
        self._declined: PlateauReached | None = None
        self._text = gui.add_html("", visible=False)
        self._stop = gui.add_button(
            "Stop here", color=ACCENT, visible=False, hint="Saves and ends the training; Resume goes on."
        )
        self._go_on = gui.add_button(
            "Go on", color="gray", visible=False, hint="Puts this away; the training goes on anyway."
        )
        self._stop.on_click(lambda _: self._controller.stop())
        self._go_on.on_click(lambda _: self._decline())

    def refresh(self) -> None:
        """Show the offer that holds now, if there is one."""
        offer = self._controller.status.flat
        if not self._controller.can_order or offer == self._declined:
            offer = None
        if offer == self._offered:
            return
        self._offered = offer
        if offer is not None:
            self._text.content = note_html(offer_text(offer))
        for handle in (self._text, self._stop, self._go_on):
            handle.visible = offer is not None

    def _decline(self) -> None:
        self._declined = self._controller.status.flat
        self.refresh()


def offer_text(offer: PlateauReached) -> str:
    """Return what the dock says of a test score that stands still."""
    return " ".join(filter(None, (f"{plateau_words(offer)}: stop here, or go on?", plateau_advice(offer))))
