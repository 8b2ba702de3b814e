"""Which model is in the view in place of the training's, and the way back."""

from __future__ import annotations

from pathlib import Path

from splatstudio.studio.page import Page
from splatstudio.studio.panels.model_rows import note_html


class BesideBar:
    """A sentence and a button, there while a training goes on behind another model."""

    def __init__(self, page: Page):
        self._beside = page.controller.beside
        self._shown: Path | None = None
        self._text = page.server.gui.add_html("", visible=False)
        self._back = page.server.gui.add_button(
            "Back to the training", color="gray", visible=False, hint="Shows its own model again."
        )
        self._back.on_click(lambda _: self._leave())

    def refresh(self) -> None:
        """Show what is in the view now."""
        path = self._beside.path
        if path != self._shown:
            self._shown = path
            self._text.visible = self._back.visible = path is not None
            behind = "The training goes on behind it; Render and Export take the training's model."
            self._text.content = note_html(f"In the view: {path}. {behind}")

    def _leave(self) -> None:
        self._beside.leave()
        self.refresh()
