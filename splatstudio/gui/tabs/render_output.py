"""What the Render tab makes: a video or frames of the path, and single pictures of any size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import viser

from splatstudio.cameras.camera_path import MAX_SIZE, VideoQuality
from splatstudio.formats import free_path
from splatstudio.gui.dock.bars import MAX_DOWNLOAD_BYTES, TaskBar, download
from splatstudio.gui.panel import Field, Hotkey, Page, when_user
from splatstudio.gui.state.camera_paths import PathEditor
from splatstudio.gui.state.status import Notice
from splatstudio.gui.state.viewpoint import read_viewpoint
from splatstudio.gui.theme import ACCENT
from splatstudio.models.video import check_output
from splatstudio.runtime.messages import JobDone, RenderPath, Snapshot, ViewOptions
from splatstudio.settings.setting import typed_output

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

    def __init__(self, page: Page, editor: PathEditor):
        gui, scene = page.server.gui, page.controller.project.scene
        self._page, self._editor = page, editor
        self._sizes = dict(SIZES)
        if scene is not None:
            camera = scene.cameras[0]
            self._sizes[PHOTO] = (camera.width // 2 * 2, camera.height // 2 * 2)
        self._asked_custom = False
        size = gui.add_dropdown("Size", (*self._sizes, CUSTOM))
        custom = gui.add_vector2(
            "Pixels", (1280, 720), min=(2, 2), max=(MAX_SIZE, MAX_SIZE), step=2, visible=False
        )
        fps = gui.add_number("Frame rate", 30.0, min=1.0, max=240.0, step=1.0, hint="Frames a second.")
        self._size = Field(size, self._named_size, self._choose_size)
        self._custom = Field(
            custom, lambda: (float(editor.path.width), float(editor.path.height)), self._choose_pixels
        )
        self._fps = Field(
            fps,
            lambda: float(editor.path.fps),
            lambda value: editor.change_path(control="fps", fps=float(value)),
        )
        self._format = gui.add_dropdown("Format", tuple(FORMATS))
        self._suggested = self._suggestion()
        self._named_for: object = None  # what the file is named for
        self._file = gui.add_text(
            "File", self._suggested, hint="On the machine where the studio runs; folders are made as needed."
        )
        self._render = gui.add_button("Render", color=ACCENT, disabled=True)
        self._bar = TaskBar(page, RenderPath)
        self._format.on_update(lambda _: self._follow_name())
        when_user(self._render, lambda client, _: self._start(client))

    def refresh(self) -> None:
        """Show the path's format and the task as they are now."""
        self._bar.refresh()
        for field in (self._size, self._custom, self._fps):
            field.refresh()
        self._custom.handle.visible = self._named_size() == CUSTOM
        num, has_model = len(self._editor.path.frame_times), self._page.controller.status.has_model
        self._render.label = f"Render {num:,} frames" if num else "Render"
        self._render.disabled = not (num and has_model)
        self._render.hint = SHOWN if has_model else "There is no model yet: start the training first."
        named_for = (self._editor.draft, has_model, self._page.controller.project)
        # Also where a file of this name was written: the next one shall not silently take its place.
        if named_for != self._named_for or self._suggestion() != self._suggested:
            self._named_for = named_for
            self._follow_name()

    def _named_size(self) -> str:
        size = (self._editor.path.width, self._editor.path.height)
        named = next((name for name, each in self._sizes.items() if each == size), CUSTOM)
        return CUSTOM if self._asked_custom else named

    def _choose_size(self, name: str) -> None:
        self._asked_custom = name == CUSTOM
        if name != CUSTOM:
            width, height = self._sizes[name]
            self._editor.change_path(width=width, height=height)

    def _choose_pixels(self, size: tuple[float, float]) -> None:
        width, height = (max(2, round(side)) for side in size)
        self._editor.change_path(control="size", width=width, height=height)

    def _suggestion(self) -> str:
        ending, _ = FORMATS[self._format.value]
        folder = self._page.controller.project.folder_of("renders")
        return str(free_path(folder / f"{self._editor.draft.name}{ending}"))

    def _follow_name(self) -> None:
        """Let the file's name follow the path's and the format; what the user typed only the format."""
        suggestion, typed = self._suggestion(), Path(self._file.value.strip())
        if typed.name and self._file.value != self._suggested:
            ending, _ = FORMATS[self._format.value]
            known = typed.suffix.lower() in ENDINGS
            self._file.value = str(typed.with_suffix(ending) if known else typed)
        else:
            self._suggested = self._file.value = suggestion

    def _start(self, client: viser.ClientHandle) -> None:
        path = self._editor.path
        if not path.keyframes:
            return
        try:
            wanted = typed_output(self._file.value)
            check_output(wanted)
        except ValueError as error:
            self._page.refuse("Not rendered", error)
            return
        output = free_path(wanted) if wanted.suffix else wanted
        if output != wanted:
            self._page.notify(Notice(f"Writing {output.name}", f"{wanted} exists and stays as it is."))
        _, quality = FORMATS[self._format.value]
        self._page.tasks.submit(RenderPath(path, output, quality, options_of(self._page, client)))


class PictureSection:
    """One picture of what a browser sees, with as many pixels as wanted, sent to that browser."""

    def __init__(self, page: Page):
        gui = page.server.gui
        self._page = page
        self._side = gui.add_dropdown(
            "Picture size", tuple(PICTURE_SIDES), initial_value="4K", hint="In the shape of your window."
        )
        self._take = gui.add_button("Take a picture", color="gray", disabled=True)
        self._bar = TaskBar(page, Snapshot)
        when_user(self._take, lambda client, _: self._shoot(client))
        page.hotkeys.add(
            Hotkey(None, "Take a picture", self._shoot, "Of what this browser shows, to its disk")
        )

    def refresh(self) -> None:
        """Show what can be done now."""
        self._bar.refresh()
        controller = self._page.controller
        self._take.disabled = not controller.status.has_model and controller.preview.worker is None

    def _shoot(self, client: viser.ClientHandle) -> None:
        viewpoint, controller = read_viewpoint(client.camera), self._page.controller
        if viewpoint is None:
            return
        side = PICTURE_SIDES[self._side.value]
        scale = 1.0 if side is None else side / max(viewpoint.width, viewpoint.height)
        size = round(viewpoint.width * scale), round(viewpoint.height * scale)
        step = controller.model_state().step
        name = f"picture-{step}" if step else "picture"
        output = free_path(controller.project.folder_of("renders") / f"{name}.png")
        self._page.tasks.submit(
            Snapshot(viewpoint.camera(1.0).resized(*size), output, options_of(self._page, client)),
            then=lambda done: _send(client, done),
            worker=controller.preview.worker,
        )


def _send(client: viser.ClientHandle, done: JobDone) -> None:
    if done.num_bytes < MAX_DOWNLOAD_BYTES:
        download(client, done.path)


def options_of(page: Page, client: viser.ClientHandle) -> ViewOptions | None:
    """Return how a browser sees the model, without the comparison with one photograph."""
    stream = page.viewport.stream(client)
    if stream is None:
        return None
    options = stream.settings.options
    return replace(options, mode="color" if options.mode == "error" else options.mode, photo=None)
