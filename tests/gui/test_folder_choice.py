"""Choosing a folder with the mouse: what is listed, how far up it goes, and what the field has then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blob_models import blobs
from gui_parts import evaluate_panel

from splatstudio.formats.ply import write_ply
from splatstudio.gui.server.folder_listing import Bounds
from splatstudio.gui.state.project import open_project
from splatstudio.gui.tabs.folder_choice import FolderDialog
from splatstudio.settings.config import TrainConfig


def buttons(gui: Any) -> dict[str, Any]:
    """Return the buttons of a page by their labels."""
    handles = gui._gui_input_handle_from_uuid.values()
    return {handle.label: handle for handle in handles if hasattr(handle, "on_click")}


def press(gui: Any, label: str) -> None:
    """Press a button as a browser does."""
    handle = buttons(gui)[label]
    event = SimpleNamespace(client=SimpleNamespace(client_id=1, gui=gui), client_id=1, target=handle)
    for callback in tuple(handle._impl.update_cb):
        if (waiting := callback(event)) is not None:
            asyncio.run(waiting)


def test_the_scene_of_a_lone_file_is_chosen_without_typing(
    page: Any, blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "scans" / ".hidden").mkdir(parents=True)
    (home / "lone").mkdir()
    (home / "scans" / "blobs").symlink_to(blob_folder)
    monkeypatch.chdir(home)
    write_ply(home / "lone" / "cloud.ply", blobs())
    page.controller.project = open_project(home / "lone" / "cloud.ply", TrainConfig(), None)
    panel = evaluate_panel(page)
    named, gui = panel._scene, page.server.gui
    assert named is not None and named.folder is None
    press(gui, "Browse for the scene")
    assert {"lone", "scans"} <= buttons(gui).keys() and "Up one folder" not in buttons(gui), "no way out"
    press(gui, "scans")
    assert "lone" not in buttons(gui) and ".hidden" not in buttons(gui)
    assert "blobs" not in buttons(gui), "a link that leads out is no way out"
    press(gui, "Up one folder")
    press(gui, "scans")
    press(gui, "Choose this folder")
    assert named.folder == home / "scans" and "Choose this folder" not in buttons(gui)


def test_a_folder_of_runs_is_chosen_and_listed_and_cancel_changes_nothing(
    page: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    panel = evaluate_panel(page)
    gui, root = page.server.gui, panel._list._root
    before = root.value
    press(gui, "Browse for runs")
    press(gui, "Cancel")
    assert root.value == before
    press(gui, "Browse for runs")
    assert "blobs · run" in buttons(gui)
    press(gui, "Up one folder")
    press(gui, "other")
    press(gui, "Choose this folder")
    assert root.value == str(tmp_path / "other") and panel._list.folders == ()


def test_a_folder_that_cannot_be_read_is_told(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gui, taken = page.server.gui, []
    client: Any = SimpleNamespace(gui=gui)
    dialog = FolderDialog(client, "Browse", Bounds.around([tmp_path]), taken.append)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("splatstudio.gui.tabs.folder_choice.list_folder", refuse)
    dialog.show(tmp_path)
    told = "".join(handle.content for handle in dialog._shown if hasattr(handle, "content"))
    assert "cannot be read (Permission denied): choose another folder" in told
    press(gui, "Choose this folder")
    assert taken == [tmp_path]
