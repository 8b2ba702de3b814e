"""A folder of the machine where the studio runs, chosen with the mouse instead of typed."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import viser

from splatstudio.files.path_words import path_words
from splatstudio.gui.panel import Panel, when_user
from splatstudio.gui.server.folder_listing import MOST_SHOWN, Bounds, FolderListing, list_folder
from splatstudio.gui.theme import ACCENT, note_html

UP = "Up one folder"


def browse_button(
    panel: Panel, label: str, field: viser.GuiInputHandle[str], chosen: Callable[[], object]
) -> viser.GuiButtonHandle:
    """Add a button to a panel that lets a browser choose the folder which `field` shall name.

    What is shown are the folders below where the studio was started, and beside what is open in it.
    `chosen` is called after the field has its value.
    """

    def take(folder: Path) -> None:
        field.value = str(folder)
        chosen()

    def press(client: viser.ClientHandle) -> None:
        project = panel.controller.project
        places = (Path.cwd(), project.path.parent, (project.run_dir or project.path).parent)
        named = Path(field.value.strip() or ".")
        FolderDialog(client, label, Bounds.around(places), take).show(named)

    return panel.button(label, press)


class FolderDialog:
    """A dialog in one browser: a folder, those in it to go into, and a button that chooses it."""

    def __init__(
        self, client: viser.ClientHandle, title: str, bounds: Bounds, take: Callable[[Path], object]
    ):
        """Open it; `take` gets the folder that is chosen, and nothing when the dialog is closed."""
        self._gui, self._bounds, self._take = client.gui, bounds, take
        self._modal = client.gui.add_modal(title)
        self._shown: list[Any] = []

    def show(self, folder: Path, first: int = 0) -> None:
        """Show a folder, from its entry `first` on; the first of the bounds for one outside of them."""
        place = self._bounds.inside(folder)
        place = self._bounds.roots[0] if place is None or not place.is_dir() else place
        for handle in self._shown:
            handle.remove()
        self._shown.clear()
        with self._modal:
            self._add(self._gui.add_html(f'<div data-splatstudio="folder">{html.escape(str(place))}</div>'))
            try:
                self._list(list_folder(place, self._bounds, first))
            except OSError as error:
                why = f"{path_words(place)} cannot be read ({error.strerror}): choose another folder."
                self._add(self._gui.add_html(note_html(why, "warning")))
            self._button("Choose this folder", partial(self._choose, place), ACCENT)
            self._button("Cancel", self._modal.close)

    def _list(self, listing: FolderListing) -> None:
        above = self._bounds.above(listing.here.path)
        if above:
            self._button(UP, partial(self.show, above[-1]))
        folders = [entry for entry in listing.entries if entry.is_folder and entry.kind != "Closed"]
        for entry in folders:
            kind = "" if entry.kind == "Folder" else f" · {entry.kind.lower()}"
            self._button(f"{entry.path.name}{kind}", partial(self.show, entry.path))
        if not folders:
            self._add(self._gui.add_html(note_html("No folders in here.")))
        then = listing.first + MOST_SHOWN
        if then < listing.total:
            self._button("More folders", partial(self.show, listing.here.path, then))

    def _button(self, label: str, press: Callable[[], object], color: Any = "gray") -> None:
        handle = self._add(self._gui.add_button(label, color=color))
        when_user(handle, lambda *_: press())

    def _add(self, handle: Any) -> Any:
        self._shown.append(handle)
        return handle

    def _choose(self, folder: Path) -> None:
        self._modal.close()
        self._take(folder)
