"""What the Render tab makes: a video or frames of the path, and single pictures of any size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import viser

from splatstudio.cameras.camera_path import MAX_SIZE, VideoQuality
from splatstudio.formats.free_path import free_path
from splatstudio.gui.dock.hotkeys import Hotkey
from splatstudio.gui.dock.job_bar import MAX_DOWNLOAD_BYTES, JobBar, download
from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.controller import Notice
from splatstudio.gui.state.keyframes import Draft, PathEditor
from splatstudio.gui.state.tasks import JobBoard
from splatstudio.gui.state.viewpoint import read_viewpoint
from splatstudio.gui.tabs.keyframe_section import set_value
from splatstudio.gui.theme import ACCENT
from splatstudio.models.video import check_output
from splatstudio.runtime.messages import JobDone, RenderPath, Snapshot, ViewOptions
from splatstudio.settings.typed_path import typed_output

CUSTOM, PHOTO = "Custom", "As the photographs"
SIZES = {
    "720p (1280 × 720)": (1280, 720),
    "1080p (1920 × 1080)": (1920, 1080),
    "4K (3840 × 2160)": (3840, 2160),
    "Square (1080 × 1080)": (1080, 1080),
    "Upright (1080 × 1920)": (1080, 1920),
}
FORMATS: dict[str, tuple[str, VideoQuality]] = {
    "MP4 (H.264), best": (".mp4", "full"),
    "MP4 (H.264), small": (".mp4", "small"),
    "WebM (VP9), best": (".webm", "full"),
    "WebM (VP9), small": (".webm", "small"),
    "PNG frames in a folder": ("", "full"),
}
ENDINGS = {ending for ending, _ in FORMATS.values()}
SHOWN = "As your browser shows the model: mode, background and splat scale of the View tab."
PICTURE_SIDES = {"As the window": None, "Full HD": 1920, "4K": 3840, "8K": 7680}  # px, the longer side


class OutputSection:
    """Size, rate and format of the frames, the Render button, and how far it is."""

    def __init__(self, page: Page, editor: PathEditor, board: JobBoard):
        gui, scene = page.server.gui, page.controller.project.scene
        self._page, self._editor, self._board = page, editor, board
        self._sizes = dict(SIZES)
        if scene is not None:
            camera = scene.cameras[0]
            self._sizes[PHOTO] = (camera.width // 2 * 2, camera.height // 2 * 2)
        self._size = gui.add_dropdown("Size", (*self._sizes, CUSTOM))
        self._custom = gui.add_vector2(
            "Pixels", (1280, 720), min=(2, 2), max=(MAX_SIZE, MAX_SIZE), step=2, visible=False
        )
        self._fps = gui.add_number("Frame rate", 30.0, min=1.0, max=240.0, step=1.0, hint="Frames a second.")
        self._format = gui.add_dropdown("Format", tuple(FORMATS))
        self._suggested = self._suggestion()
        self._file = gui.add_text(
            "File", self._suggested, hint="On the machine where the studio runs; folders are made as needed."
        )
        self._render = gui.add_button("Render", color=ACCENT, disabled=True)
        self._bar = JobBar(gui, board, RenderPath)
        self._shown: tuple[object, ...] = ()
        self._asked_custom = False
        self._size.on_update(self._change_size)
        self._custom.on_update(self._change_custom)
        self._fps.on_update(self._change_fps)
        self._format.on_update(lambda _: self._follow_name())
        self._render.on_click(lambda event: self._start(event.client))

    def refresh(self) -> None:
        """Show the path's format and the task as they are now."""
        self._bar.refresh()
        draft, has_model = self._editor.draft, self._page.controller.status.has_model
        shown = (draft, has_model, self._page.controller.project)
        if shown == self._shown:
            return
        self._shown = shown
        self._show_format(draft)
        num = len(draft.path.frame_times)
        self._render.label = f"Render {num:,} frames" if num else "Render"
        self._render.disabled = not (num and has_model)
        self._render.hint = SHOWN if has_model else "There is no model yet: start the training first."
        self._follow_name()

    def _show_format(self, draft: Draft) -> None:
        path = draft.path
        chosen = next(
            (name for name, size in self._sizes.items() if size == (path.width, path.height)), CUSTOM
        )
        if self._asked_custom:
            chosen = CUSTOM
        set_value(self._size, chosen)
        self._custom.visible = chosen == CUSTOM
        set_value(self._custom, (float(path.width), float(path.height)))
        set_value(self._fps, float(path.fps))

    def _suggestion(self) -> str:
        ending, _ = FORMATS[self._format.value]
        folder = self._page.controller.project.folder_of("renders")
        name, number = self._editor.draft.name, 2
        path = folder / f"{name}{ending}"
        while path.exists():
            path, number = folder / f"{name}-{number}{ending}", number + 1
        return str(path)

    def _follow_name(self) -> None:
        """Let the file's name follow the path's and the format; what the user typed only the format."""
        suggestion, typed = self._suggestion(), Path(self._file.value.strip())
        if typed.name and self._file.value != self._suggested:
            ending, _ = FORMATS[self._format.value]
            known = typed.suffix.lower() in ENDINGS
            self._file.value = str(typed.with_suffix(ending) if known else typed)
            return
        self._suggested = suggestion
        set_value(self._file, suggestion)
        self._suggested = self._file.value

    def _change_size(self, event: viser.GuiEvent) -> None:
        if event.client is None:
            return
        self._asked_custom = self._size.value == CUSTOM
        if self._asked_custom:
            self._custom.visible = True
        else:
            width, height = self._sizes[self._size.value]
            self._editor.change_path(width=width, height=height)

    def _change_custom(self, event: viser.GuiEvent) -> None:
        if event.client is not None:
            width, height = (max(2, round(side)) for side in self._custom.value)
            self._editor.change_path(control="size", width=width, height=height)

    def _change_fps(self, event: viser.GuiEvent) -> None:
        if event.client is not None:
            self._editor.change_path(control="fps", fps=float(self._fps.value))

    def _start(self, client: viser.ClientHandle | None) -> None:
        path = self._editor.path
        if client is None or not path.keyframes:
            return
        try:
            output = typed_output(self._file.value)
            check_output(output)
        except ValueError as error:
            self._page.notify(Notice("Not rendered", str(error), bad=True))
            return
        wanted, output = output, free_path(output) if output.suffix else output
        if output != wanted:
            self._page.notify(Notice(f"Writing {output.name}", f"{wanted} exists and stays as it is."))
        _, quality = FORMATS[self._format.value]
        options = options_of(self._page, client)
        self._board.submit(
            RenderPath(path, output, quality, options),
            then=lambda _: self._renew_name(),
        )
        self._bar.refresh()

    def _renew_name(self) -> None:
        # The next one shall not silently take the place of this one.
        self._shown = ()


class PictureSection:
    """One picture of what a browser sees, with as many pixels as wanted, sent to that browser."""

    def __init__(self, page: Page, board: JobBoard):
        gui = page.server.gui
        self._page, self._board = page, board
        self._side = gui.add_dropdown(
            "Picture size", tuple(PICTURE_SIDES), initial_value="4K", hint="In the shape of your window."
        )
        self._take = gui.add_button("Take a picture", color="gray", disabled=True)
        self._bar = JobBar(gui, board, Snapshot)
        self._take.on_click(lambda event: self._shoot(event.client))
        page.hotkeys.add(
            Hotkey(None, "Take a picture", self._shoot, "Of what this browser shows, to its disk")
        )

    def refresh(self) -> None:
        """Show what can be done now."""
        self._bar.refresh()
        controller = self._page.controller
        disabled = not controller.status.has_model and controller.beside.worker is None
        if self._take.disabled != disabled:
            self._take.disabled = disabled

    def _shoot(self, client: viser.ClientHandle | None) -> None:
        viewpoint = read_viewpoint(client.camera) if client is not None else None
        if client is None or viewpoint is None:
            return
        side = PICTURE_SIDES[self._side.value]
        longer = max(viewpoint.width, viewpoint.height)
        camera = viewpoint.camera(1.0)
        scale = 1.0 if side is None else side / longer
        camera = camera.resized(round(viewpoint.width * scale), round(viewpoint.height * scale))
        folder = self._page.controller.project.folder_of("renders")
        step = self._page.controller.model_state().step
        name, number = f"picture-{step}" if step else "picture", 2
        output = folder / f"{name}.png"
        while output.exists():
            output, number = folder / f"{name}-{number}.png", number + 1
        self._board.submit(
            Snapshot(camera, output, options_of(self._page, client)),
            then=lambda done: _send(client, done),
            worker=self._page.controller.beside.worker,
        )


def _send(client: viser.ClientHandle, done: JobDone) -> None:
    if done.num_bytes < MAX_DOWNLOAD_BYTES:
        download(client, done.path)


def options_of(page: Page, client: viser.ClientHandle) -> ViewOptions | None:
    """Return how a browser sees the model, without the comparison with one photograph."""
    stream = page.viewport.stream(client)
    if stream is None:
        return None
    options = stream.look.options
    return replace(options, mode="color" if options.mode == "error" else options.mode, photo=None)
