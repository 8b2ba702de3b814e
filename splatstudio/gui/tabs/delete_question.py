"""The question before a model is deleted from the disk, and what the answer does."""

from __future__ import annotations

from splatstudio.checkpoints.catalog import CatalogEntry, content_mark, delete_entry
from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.model_rows import note_html
from splatstudio.gui.theme import size

KEEP, DELETE = "Keep it", "Delete it"


class DeleteQuestion:
    """Asks about one model as it is then; what has changed since is not deleted."""

    def __init__(self, page: Page):
        gui = page.server.gui
        self._notify = page.notify
        self._asked: tuple[CatalogEntry, object] | None = None  # about what, and its mark then
        self._question = gui.add_html("", visible=False)
        self.buttons = gui.add_button_group("Delete?", (KEEP, DELETE), visible=False)

    def ask(self, entry: CatalogEntry) -> None:
        """Ask whether a model shall be deleted."""
        what = f"step {entry.step:,} of {entry.owner.name} ({size(entry.num_bytes)})"
        self._question.content = note_html(f"Delete {what} for good?")
        self._question.visible = self.buttons.visible = True
        self._asked = (entry, content_mark(entry))

    def withdraw(self) -> None:
        """Ask no more."""
        self._question.visible = self.buttons.visible = False
        self._asked = None

    def answer(self, answer: str) -> None:
        """Do what was answered, and tell what became of it."""
        asked = self._asked
        self.withdraw()
        if answer != DELETE:
            return
        if asked is None:
            self._notify(Notice("Not deleted", "Another model was chosen: ask again.", bad=True))
            return
        entry, mark = asked
        if content_mark(entry) != mark:
            changed = f"{entry.path} has changed since you were asked: look at it, and ask again."
            self._notify(Notice("Not deleted", changed, bad=True))
            return
        try:
            delete_entry(entry)
        except ValueError as error:
            self._notify(Notice("Not deleted", str(error), bad=True))
        else:
            self._notify(Notice(f"Deleted step {entry.step:,}", str(entry.path)))
