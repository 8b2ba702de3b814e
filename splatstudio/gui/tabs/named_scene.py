"""The scene that a page without one compares its models with: typed by the user."""

from __future__ import annotations

from pathlib import Path

import viser

from splatstudio.files.run import Run
from splatstudio.gui.panel_context import Page
from splatstudio.gui.theme import ACCENT
from splatstudio.models.model import run_folder_of
from splatstudio.settings.typed_path import typed_path


class NamedScene:
    """A field for the folder of a scene, and a button for the open file; for a page without a scene."""

    def __init__(self, page: Page):
        gui, self._controller = page.server.gui, page.controller
        self._shown: Path | None = None
        self._field = gui.add_text(
            "Scene",
            "",
            hint="The folder of the scene that the models show: its test photos are compared with.",
        )
        self.button: viser.GuiButtonHandle = gui.add_button(
            "Evaluate the open file", color=ACCENT, visible=False
        )

    @property
    def file(self) -> Path | None:
        """Return the file that is open alone, as a .ply of another program; None: something else is."""
        path = self._controller.project.path
        return path if path.is_file() else None

    @property
    def folder(self) -> Path | None:
        """Return the scene that was typed, None where none was. Raises ValueError for what cannot be one."""
        text = self._field.value.strip()
        return typed_path(text) if text else None

    def offer(self, file: Path | None, *, busy: bool) -> None:
        """Offer to evaluate the open `file`, where there is one and nothing else is under way."""
        self.button.visible = file is not None and not busy
        if file is None or file == self._shown:
            return
        self._shown = file
        self.button.label = f"Evaluate {file.name}"
        if not self._field.value:
            self._field.value = _scene_of(file)


def _scene_of(file: Path) -> str:
    """Return where the scene of a file in a run lies, "" where that is not known."""
    run_dir = run_folder_of(file)
    if run_dir is None:
        return ""
    try:
        return str(Run.open(run_dir).scene_path)
    except ValueError:
        return ""  # the user can say it
