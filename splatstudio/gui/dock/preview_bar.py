"""Which model is in the view in place of the training's, and the way back."""

from __future__ import annotations

from pathlib import Path

from splatstudio.gui.panel_context import Page
from splatstudio.gui.tabs.model_rows import note_html
from splatstudio.runtime.messages import State

BEHIND: dict[State, str] = {
    "training": "The training goes on behind it",
    "paused": "The training behind it is paused",
    "finished": "The training behind it has stopped",
    "restarting": "The training behind it is being started again",
    "failed": "The training behind it has failed",
    "ended": "The training behind it has ended",
}


class BesideBar:
    """A sentence and a button, there while another model hides that of the training."""

    def __init__(self, page: Page):
        self._controller = page.controller
        self._beside = page.controller.beside
        self._shown: tuple[Path | None, State, bool] | None = None
        self._text = page.server.gui.add_html("", visible=False)
        self._back = page.server.gui.add_button(
            "Back to the training", color="gray", visible=False, hint="Shows its own model again."
        )
        self._back.on_click(lambda _: self._leave())

    def refresh(self) -> None:
        """Show what is in the view now."""
        path, status = self._beside.path, self._controller.status
        shown = (path, status.state, status.has_model)
        if shown != self._shown:
            self._shown = shown
            self._text.visible = self._back.visible = path is not None
            behind = BEHIND.get(status.state, "The training waits behind it")
            takes = "; videos and exports take the training's model." if status.has_model else "."
            self._text.content = note_html(f"In the view: {path}. {behind}{takes}")

    def _leave(self) -> None:
        self._beside.leave()
        self.refresh()
