"""The models on the disk in the Evaluate tab: their list, their facts, and the question before Delete."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from splatstudio.checkpoints.catalog import (
    CatalogEntry,
    bytes_of,
    content_mark,
    delete_entry,
    entries_of,
    folders_with_models,
)
from splatstudio.gui.panel import Page, when_user
from splatstudio.gui.state.status import Notice
from splatstudio.gui.theme import ACCENT, note_html, size, table_html
from splatstudio.settings.setting import typed_path

PER_PAGE = 6
COLORS = {
    "complete": (74, 82, 94),
    "part": (160, 115, 30),
    "damaged": (170, 60, 60),
}  # what is not stands out
KEEP_IT, DELETE_IT = "Keep it", "Delete it"


def row_label(entry: CatalogEntry) -> str:
    """Return a model as a row of the list says it."""
    ranks = f" · {entry.num_ranks} ranks" if entry.num_ranks > 1 else ""
    psnr = f" · {entry.psnr:.2f} dB" if entry.psnr is not None else ""
    return f"Step {entry.step:,}{ranks} · {size(entry.num_bytes)} · {entry.state}{psnr}"


def facts_html(entry: CatalogEntry | None, file: Path | None = None) -> str:
    """Return what is known of the chosen model as HTML; everything from outside is escaped.

    `file` is the model that is open where it is one alone, of which no scene is known.
    """
    if entry is None and file is not None:
        return note_html(
            f"No runs here. To compare {file.name} with photographs, name the folder of its scene below."
        )
    if entry is None:
        return note_html("No models here yet: a checkpoint appears when it is saved.")
    sizes = [(file.name, bytes_of(file)) for file in entry.files]
    files = [f"{name}  {'not readable' if num is None else size(num)}" for name, num in sizes]
    rows = [
        ("Step", f"{entry.step:,}"),
        ("State", f"{entry.state}: {entry.reason}" if entry.reason else entry.state),
        ("Splats", "" if entry.num_gaussians is None else f"{entry.num_gaussians:,}"),
        ("Files", "\n".join(files) or "none"),
        ("Folder", str(entry.path if not entry.is_gsplat else entry.owner)),
    ]
    return table_html([row for row in rows if row[1]], mark="entry")


class ModelList:
    """A folder of runs, one of them, and its models, newest first. `lock` guards it and who acts on it."""

    def __init__(self, page: Page, lock: threading.RLock, on_select: Callable[[CatalogEntry], None]):
        """Build the fields and rows; `on_select` is called when another model is selected."""
        self._page, self._lock, self._on_select = page, lock, on_select
        self.entries: tuple[CatalogEntry, ...] = ()
        self.selected: CatalogEntry | None = None
        self.stale = True  # whether to look at the disk at the next refresh: something was written
        self._folders: tuple[Path, ...] = ()
        self._turned = 0  # pages of the list
        self._turned_to: Path | None = None  # the page's own run, once it was chosen by itself
        self._refused = ""  # the folder that was said to be none
        gui = page.server.gui
        self._root = gui.add_text(
            "Folder", str(self._first_root()), hint="Of runs, or of results of gsplat's trainer."
        )
        self._run = gui.add_dropdown("Run", list[str](["–"]))
        self._rows = [gui.add_button(f"Model {i + 1}", visible=False) for i in range(PER_PAGE)]
        self._pager = gui.add_button_group("Page", ("‹ Later", "Earlier ›"), visible=False)
        for place, row in enumerate(self._rows):
            row.on_click(lambda _, place=place: self._pick(place))
        when_user(self._root, lambda *_: self._look_elsewhere())
        when_user(self._run, lambda *_: self._look_elsewhere())
        when_user(self._pager, lambda _, button: self._turn(button))

    def refresh(self) -> None:
        """Show what is there; look at the disk where something was written."""
        if self.stale:
            self.scan()
        page = self.entries[self._turned * PER_PAGE :][:PER_PAGE]
        for number, row in enumerate(self._rows):
            row.visible = number < len(page)
            if row.visible:
                row.label = row_label(page[number])
                row.color = ACCENT if page[number] == self.selected else COLORS[page[number].state]
        self._pager.visible = len(self.entries) > PER_PAGE

    def scan(self) -> None:
        """Look at the disk, and keep what was selected where it is still there."""
        self.stale = False
        folders = self._folders_there()
        if folders != self._folders:
            self._folders = folders
            names = tuple(folder.resolve().name for folder in folders) or ("–",)
            if names != self._run.options:
                self._run.options = names
        self._turn_to_own()
        chosen = next((folder for folder in folders if folder.resolve().name == self._run.value), None)
        self.entries = () if chosen is None else entries_of(chosen)
        if self.selected is not None:
            path = self.selected.path
            self._select(next((entry for entry in self.entries if entry.path == path), None))
        if self.selected is None and self.entries:
            self._select(self.entries[0])

    def _look_elsewhere(self) -> None:
        """List what is in the folder and the run that are chosen now."""
        with self._lock:
            self._turned, self.selected = 0, None
            self.scan()

    def _first_root(self) -> Path:
        project = self._page.controller.project
        if project.run_dir is not None:
            return project.run_dir.parent
        return project.path if project.path.is_dir() else project.path.parent

    def _folders_there(self) -> tuple[Path, ...]:
        typed = self._root.value.strip() or "."
        try:
            return folders_with_models(typed_path(typed))
        except ValueError as error:
            if typed != self._refused:  # this is looked at again and again
                self._page.refuse("Nothing to list", error)
                self._refused = typed
            return ()

    def _turn_to_own(self) -> None:
        """Choose the run of this page once there is a model in it; afterwards the user chooses."""
        own = self._page.controller.project.run_dir
        if own is None or own == self._turned_to:
            return
        if own.resolve() in map(Path.resolve, self._folders) and entries_of(own):
            self._turned_to, self.selected, self._turned = own, None, 0
            self._run.value = own.resolve().name

    def _turn(self, button: str) -> None:
        with self._lock:
            pages = -(-len(self.entries) // PER_PAGE)
            step = 1 if button.startswith("Earlier") else -1
            self._turned = min(max(self._turned + step, 0), max(pages - 1, 0))

    def _pick(self, place: int) -> None:
        with self._lock:
            number = self._turned * PER_PAGE + place
            if number < len(self.entries):
                self._select(self.entries[number])

    def _select(self, entry: CatalogEntry | None) -> None:
        before, self.selected = self.selected, entry
        if entry is not None and (before is None or before.path != entry.path):
            self._on_select(entry)


class DeleteQuestion:
    """Asks about one model as it is then; what has changed since is not deleted."""

    def __init__(self, page: Page):
        gui, self._page = page.server.gui, page
        self._asked: tuple[CatalogEntry, object] | None = None  # about what, and its mark then
        self._question = gui.add_html("", visible=False)
        self.buttons = gui.add_button_group("Delete?", (KEEP_IT, DELETE_IT), visible=False)

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
        if answer != DELETE_IT:
            return
        if asked is None:
            self._page.refuse("Not deleted", "Another model was chosen: ask again.")
            return
        entry, mark = asked
        if content_mark(entry) != mark:
            changed = f"{entry.path} has changed since you were asked: look at it, and ask again."
            self._page.refuse("Not deleted", changed)
            return
        try:
            delete_entry(entry)
        except ValueError as error:
            self._page.refuse("Not deleted", error)
        else:
            self._page.notify(Notice(f"Deleted step {entry.step:,}", str(entry.path)))
