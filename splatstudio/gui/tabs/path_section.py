"""The path as a whole in the Render tab: which one, ready-made ones, its motion, its preview, its file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import viser

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.cameras.path_file import read_camera_path
from splatstudio.cameras.ready_paths import orbit_of, spiral, through
from splatstudio.gui.dock.hotkeys import Hotkey
from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.controller import Notice
from splatstudio.gui.state.keyframes import Draft, PathEditor
from splatstudio.gui.state.path_scene import PathScene
from splatstudio.gui.state.path_store import PathStore, plain_name
from splatstudio.gui.state.preview import Previews
from splatstudio.gui.tabs.keyframe_section import set_value

EMPTY, ORBIT, SPIRAL, PHOTOS = "Empty", "Orbit", "Spiral", "Photos"
PLAY, STOP = "Play", "Stop"


class PathChoice:
    """Which of the saved paths is open, and new ones, ready-made or empty."""

    def __init__(self, page: Page, editor: PathEditor, store: PathStore):
        gui, scene = page.server.gui, page.controller.project.scene
        self._notify, self._editor, self._store = page.notify, editor, store
        self._cameras = scene.cameras if scene is not None else ()
        self._choice = gui.add_dropdown(
            "Path", (editor.draft.name,), hint="Every change is saved at once, beside the run."
        )
        new = (EMPTY, ORBIT, SPIRAL, PHOTOS) if self._cameras else (EMPTY,)
        self._new = gui.add_button_group(
            "New", new, hint="Orbit, spiral and photos follow the photographs' cameras."
        )
        self._choice.on_update(self._open)
        self._new.on_click(lambda _: self._make())

    def refresh(self) -> None:
        """Show which paths there are."""
        name = self._editor.draft.name
        options = tuple(dict.fromkeys([name, *self._store.names()]))
        if set(self._choice.options) != set(options):
            self._choice.options = options
        set_value(self._choice, name)

    def _open(self, event: viser.GuiEvent) -> None:
        name = self._choice.value
        if event.client is None or name == self._editor.draft.name:
            return
        self._store.flush()
        try:
            self._editor.load(self._store.read(name), name)
        except ValueError as error:
            self._notify(Notice("Not opened", str(error), bad=True))

    def _make(self) -> None:
        make: dict[str, tuple[str, Callable[[], CameraPath]]] = {
            EMPTY: ("path", self._empty),
            ORBIT: ("orbit", lambda: orbit_of(self._cameras)),
            SPIRAL: ("spiral", lambda: spiral(self._cameras)),
            PHOTOS: ("photos", lambda: through(self._cameras)),
        }
        name, ready = make[self._new.value]
        self._store.flush()
        try:
            self._editor.load(ready(), self._store.unused(name))
        except ValueError as error:
            self._notify(Notice("Not made", str(error), bad=True))

    def _empty(self) -> CameraPath:
        old = self._editor.path
        return CameraPath((), width=old.width, height=old.height, fps=old.fps)


class PreviewSection:
    """The path played in the browser of who presses the button."""

    def __init__(self, page: Page, editor: PathEditor, previews: Previews):
        gui = page.server.gui
        self._editor, self._previews = editor, previews
        self._play = gui.add_button_group(
            "Preview", (PLAY, STOP), hint="Moves the camera of your browser only; Stop brings it back."
        )
        self._place = gui.add_slider(
            "Position", 0.0, 100.0, 0.1, 0.0, hint="Per cent of the path: moves your browser's camera there."
        )
        self._shown: Draft | None = None
        page.hotkeys.add(Hotkey("space", "Play or stop the preview", self._toggle, "In this browser only"))
        self._play.on_click(self._press)
        self._place.on_update(self._scrub)

    def refresh(self) -> None:
        """Show what can be played."""
        draft = self._editor.draft
        if draft is not self._shown:
            self._shown = draft
            self._play.visible = self._place.visible = len(draft.path.keyframes) > 1

    def _press(self, event: viser.GuiEvent) -> None:
        path = self._editor.path
        if event.client is None:
            return
        if self._play.value == STOP:
            self._previews.stop(event.client)
        elif len(path.keyframes) > 1:
            self._previews.play(event.client, path)

    def _toggle(self, client: viser.ClientHandle) -> None:
        path = self._editor.path
        if not self._previews.stop(client) and len(path.keyframes) > 1:
            self._previews.play(client, path)

    def _scrub(self, event: viser.GuiEvent) -> None:
        path = self._editor.path
        if event.client is not None and path.keyframes:
            self._previews.show(event.client, path, path.duration * self._place.value / 100.0)


class MotionSection:
    """How the keyframes are joined, and the step back."""

    def __init__(self, page: Page, editor: PathEditor, drawn: PathScene):
        gui = page.server.gui
        self._editor = editor
        self._duration = gui.add_number(
            "Duration (s)",
            2.0,
            min=0.1,
            max=36000.0,
            step=0.1,
            hint="Of the whole path; all times are stretched.",
        )
        self._tension = gui.add_slider(
            "Tension", -1.0, 1.0, 0.05, 0.0, hint="0: round through the keyframes; 1: slows down at each."
        )
        self._loop = gui.add_checkbox("Loop", False, hint="Lead from the last keyframe back to the first.")
        shown = gui.add_checkbox("Show the path", True, hint="In the scene, to all who watch.")
        shown.on_update(lambda _: drawn.show(shown.value))
        self._undo = gui.add_button("Undo", color="gray", hint="Takes the last change of the path back.")
        self._shown: Draft | None = None
        self._duration.on_update(self._change_duration)
        self._tension.on_update(self._change_tension)
        self._loop.on_update(self._change_loop)
        self._undo.on_click(lambda _: editor.undo())

    def refresh(self) -> None:
        """Show the path as it is now."""
        draft = self._editor.draft
        if draft is self._shown:
            return
        self._shown = draft
        path = draft.path
        self._tension.visible = self._loop.visible = len(path.keyframes) > 1
        self._duration.visible = bool(path.keyframes)
        self._undo.disabled = not self._editor.can_undo
        if path.keyframes:
            set_value(self._duration, round(path.duration, 3))
        set_value(self._tension, path.tension)
        set_value(self._loop, path.loop)

    def _change_duration(self, event: viser.GuiEvent) -> None:
        if event.client is not None and self._editor.path.keyframes:
            self._editor.change_duration(float(self._duration.value))

    def _change_tension(self, event: viser.GuiEvent) -> None:
        if event.client is not None:
            self._editor.change_path(control="tension", tension=float(self._tension.value))

    def _change_loop(self, event: viser.GuiEvent) -> None:
        if event.client is not None:
            self._editor.change_path(loop=bool(self._loop.value))


class FileSection:
    """Path files from and for other programs."""

    def __init__(self, page: Page, editor: PathEditor, store: PathStore):
        gui = page.server.gui
        self._editor, self._store, self._notify = editor, store, page.notify
        self._upload = gui.add_upload_button(
            "Open a path file", color="gray", hint="A camera_path.json of the studio or of nerfstudio."
        )
        save = gui.add_button("Download the path file", color="gray")
        self._upload.on_upload(lambda _: self._take())
        save.on_click(lambda event: self._send(event.client))

    def _take(self) -> None:
        file = self._upload.value
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "uploaded.json"
            path.write_bytes(file.content)
            try:
                loaded = read_camera_path(path, self._store.transform)
            except ValueError as error:
                self._notify(Notice("Not opened", str(error).replace(str(path), file.name), bad=True))
                return
        self._store.flush()
        self._editor.load(loaded, self._store.unused(plain_name(Path(file.name).stem)))

    def _send(self, client: viser.ClientHandle | None) -> None:
        draft = self._editor.draft
        if client is None or not draft.path.keyframes:
            return
        try:
            file = self._store.write(draft.path, draft.name, with_frames=True)
            content = file.read_bytes()
        except OSError as error:
            self._notify(Notice("Not saved", f"{draft.name}: {error.strerror or error}", bad=True))
            return
        client.send_file_download(file.name, content, save_immediately=True)
