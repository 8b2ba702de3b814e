"""The list of the models on the disk: a folder of runs, one of them, and its models by step, newest first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from splatstudio.checkpoints.catalog import CatalogEntry, entries_of, folders_with_models
from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.model_rows import PLAIN, row_color, row_label
from splatstudio.settings.typed_path import typed_path

PER_PAGE = 6
RESCAN_SECONDS = 3.0


class ModelList:
    """What is in the chosen run, and which model of it is selected. `lock` guards it and who acts on it."""

    def __init__(self, page: Page, lock: threading.RLock, on_select: Callable[[CatalogEntry], None]):
        """Build the fields and rows; `on_select` is called when another model is selected."""
        self._page, self._lock, self._on_select = page, lock, on_select
        self.entries: tuple[CatalogEntry, ...] = ()
        self.selected: CatalogEntry | None = None
        self._folders: tuple[Path, ...] = ()
        self._turned = 0  # pages of the list
        self._turned_to: Path | None = None  # the page's own run, once it was chosen by itself
        self._refused = ""  # the folder that was said to be none
        self._scan_due = 0.0
        self._shown: object = None
        gui = page.server.gui
        self._root = gui.add_text(
            "Folder", str(self._first_root()), hint="Of runs, or of results of gsplat's trainer."
        )
        self._run = gui.add_dropdown("Run", list[str](["–"]))
        self._rows = [gui.add_button(f"Model {i + 1}", color=PLAIN, visible=False) for i in range(PER_PAGE)]
        self._pager = gui.add_button_group("Page", ("‹ Later", "Earlier ›"), visible=False)
        for place, row in enumerate(self._rows):
            row.on_click(lambda _, place=place: self._pick(place))
        self._root.on_update(lambda _: self.look_elsewhere())
        self._run.on_update(lambda _: self.look_elsewhere())
        self._pager.on_click(lambda event: self._turn(event.target.value))

    def refresh(self) -> None:
        """Look at the disk now and then, or where that was asked for."""
        if time.monotonic() >= self._scan_due:
            self.scan()
        self._draw()

    def look_soon(self) -> None:
        """Look at the disk at the next refresh: something was written."""
        self._scan_due = 0.0

    def look_elsewhere(self) -> None:
        """List what is in the folder and the run that are chosen now."""
        with self._lock:
            self._turned, self.selected = 0, None
            self.scan()

    def scan(self) -> None:
        """Look at the disk, and keep what was selected where it is still there."""
        self._scan_due = time.monotonic() + RESCAN_SECONDS
        folders = self._folders_there()
        if folders != self._folders:
            self._folders = folders
            names = tuple(folder.resolve().name for folder in folders) or ("–",)
            if names != self._run.options:
                self._run.options = names
        if folders:
            self._turn_to_own()
        chosen = self._chosen_folder()
        self.entries = () if chosen is None else entries_of(chosen)
        if self.selected is not None:
            same = [entry for entry in self.entries if entry.path == self.selected.path]
            self._select(same[0] if same else None)
        if self.selected is None and self.entries:
            self._select(self.entries[0])
        self._draw()

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
                self._page.notify(Notice("Nothing to list", str(error), bad=True))
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

    def _chosen_folder(self) -> Path | None:
        return next((folder for folder in self._folders if folder.resolve().name == self._run.value), None)

    def _turn(self, button: str) -> None:
        with self._lock:
            pages = -(-len(self.entries) // PER_PAGE)
            step = 1 if button.startswith("Earlier") else -1
            self._turned = min(max(self._turned + step, 0), max(pages - 1, 0))
            self._draw()

    def _pick(self, place: int) -> None:
        with self._lock:
            number = self._turned * PER_PAGE + place
            if number < len(self.entries):
                self._select(self.entries[number])
                self._draw()

    def _select(self, entry: CatalogEntry | None) -> None:
        before, self.selected = self.selected, entry
        if entry is not None and (before is None or before.path != entry.path):
            self._on_select(entry)

    def _draw(self) -> None:
        shown = (self.entries, self.selected, self._turned)
        if shown == self._shown:
            return
        self._shown = shown
        page = self.entries[self._turned * PER_PAGE :][:PER_PAGE]
        for number, row in enumerate(self._rows):
            row.visible = number < len(page)
            if row.visible:
                row.label = row_label(page[number])
                row.color = row_color(page[number], page[number] == self.selected)
        self._pager.visible = len(self.entries) > PER_PAGE
