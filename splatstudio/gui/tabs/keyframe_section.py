"""The keyframes of the Render tab: add, choose, change, reorder, delete, move by handles."""

from __future__ import annotations

import math

import numpy as np
import viser

from splatstudio.cameras.camera_path import CameraPath, Keyframe
from splatstudio.gui.dock.hotkeys import Hotkey
from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.keyframes import Draft, PathEditor
from splatstudio.gui.state.path_scene import PathScene
from splatstudio.gui.state.viewpoint import fly_to, read_viewpoint
from splatstudio.gui.theme import ACCENT

GO, SET, EARLIER, LATER, DELETE = "Go to", "Set here", "Earlier", "Later", "Delete"
NONE = "none yet"


class KeyframeSection:
    """The list of keyframes, and what is done most often with the selected one."""

    def __init__(self, page: Page, editor: PathEditor, drawn: PathScene, distance: float):
        gui = page.server.gui
        self._editor, self._drawn, self._distance = editor, drawn, distance
        add = gui.add_button(
            "Add keyframe (K)", color=ACCENT, hint="Where your camera is now, after the chosen keyframe."
        )
        self._list: viser.GuiDropdownHandle[str] = gui.add_dropdown(
            "Keyframe", [NONE], hint="Or click on one in the scene."
        )
        self._do = gui.add_button_group("", (GO, SET, EARLIER, LATER, DELETE), visible=False)
        self._handles = gui.add_checkbox(
            "Move by handles", False, hint="Arrows and rings in the scene move and turn the chosen keyframe."
        )
        self._shown: Draft | None = None
        add.on_click(lambda event: self._add(event.client))
        self._list.on_update(self._choose)
        self._do.on_click(self._press)
        self._handles.on_update(lambda _: drawn.show_handles(self._handles.value))
        page.hotkeys.add(Hotkey("K", "Add keyframe", self._add, "Where the camera is now"))

    def refresh(self) -> None:
        """Show the path as it is now."""
        draft = self._editor.draft
        if draft is self._shown:
            return
        self._shown = draft
        index = draft.selected
        labels = keyframe_labels(draft.path)
        if self._list.options != (labels or (NONE,)):
            self._list.options = labels or (NONE,)
        keyframe = self._editor.keyframe
        for handle in (self._list, self._do, self._handles):
            handle.visible = keyframe is not None
        if index is not None:
            set_value(self._list, labels[index])

    def _add(self, client: viser.ClientHandle | None) -> None:
        keyframe = keyframe_here(client)
        if keyframe is not None:
            self._editor.add(keyframe)

    def _choose(self, event: viser.GuiEvent) -> None:
        if event.client is None:
            return
        labels = keyframe_labels(self._editor.path)
        if self._list.value in labels:
            self._editor.select(labels.index(self._list.value))

    def _press(self, event: viser.GuiEvent) -> None:
        button, editor, client = self._do.value, self._editor, event.client
        keyframe = editor.keyframe
        if keyframe is None or client is None:
            return
        if button == GO:
            go_to(client, keyframe, self._distance)
        elif button == SET:
            here = keyframe_here(client)
            if here is not None:
                editor.change_keyframe(camera_to_world=here.camera_to_world, fov_y=here.fov_y)
        elif button == DELETE:
            editor.delete()
        else:
            editor.move(-1 if button == EARLIER else 1)


class KeyframeDetails:
    """When the selected keyframe is reached, and its lens."""

    def __init__(self, gui: viser.GuiApi, editor: PathEditor):
        self._editor = editor
        self._seconds = gui.add_number(
            "Arrives after",
            2.0,
            min=0.05,
            max=3600.0,
            step=0.1,
            hint="From the keyframe before to this one.",
        )
        self._fov = gui.add_slider("Field of view", 5.0, 120.0, 0.5, 50.0, hint="Vertical, in degrees.")
        self._shown: Draft | None = None
        self._seconds.on_update(self._change_seconds)
        self._fov.on_update(self._change_fov)

    def refresh(self) -> None:
        """Show the selected keyframe as it is now."""
        draft, keyframe = self._editor.draft, self._editor.keyframe
        if draft is self._shown:
            return
        self._shown = draft
        self._seconds.visible = self._fov.visible = keyframe is not None
        if keyframe is None or draft.selected is None:
            return
        path = draft.path
        # The first keyframe of an open path has none before it.
        self._seconds.visible = draft.selected > 0 or path.loop or len(path.keyframes) == 1
        set_value(self._seconds, round(keyframe.seconds or path.default_seconds, 3))
        set_value(self._fov, round(min(max(math.degrees(keyframe.fov_y), 5.0), 120.0), 1))

    def _change_seconds(self, event: viser.GuiEvent) -> None:
        if event.client is not None:
            self._editor.change_keyframe(control="seconds", seconds=float(self._seconds.value))

    def _change_fov(self, event: viser.GuiEvent) -> None:
        if event.client is not None:
            self._editor.change_keyframe(control="fov", fov_y=math.radians(self._fov.value))


def keyframe_labels(path: CameraPath) -> tuple[str, ...]:
    """Return a line for each keyframe, all different: its number and when it is reached."""
    num = len(path.keyframes)
    arrivals = path.arrivals
    return tuple(
        f"{i + 1} of {num} · {arrivals[i]:.1f} s{' · ' + key.name if key.name else ''}"
        for i, key in enumerate(path.keyframes)
    )


def keyframe_here(client: viser.ClientHandle | None) -> Keyframe | None:
    """Return what a browser sees now as a keyframe; None where it has not said where it is."""
    viewpoint = read_viewpoint(client.camera) if client is not None else None
    if viewpoint is None:
        return None
    camera = viewpoint.camera(1.0)
    return Keyframe(camera.camera_to_world, viewpoint.fov)


def go_to(client: viser.ClientHandle, keyframe: Keyframe, distance: float) -> None:
    """Move a browser's camera to a keyframe, with its very field of view."""
    path = CameraPath((keyframe,), width=2, height=2)
    with client.atomic():
        fly_to(client, path.camera_at(0.0), distance)
        client.camera.fov = keyframe.fov_y


def set_value(handle: viser.GuiInputHandle, value: object) -> None:
    """Give a control a value; what it shows already is not sent again."""
    shown = handle.value
    same = np.allclose(shown, value) if isinstance(value, tuple) else shown == value  # type: ignore[arg-type]
    if not same:
        handle.value = value
