"""The Render tab: a camera path of keyframes, its motion, preview, file and video, and single pictures."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import viser

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import (
    MAX_SIZE,
    CameraPath,
    Keyframe,
    VideoQuality,
    orbit_of,
    spiral,
    through,
)
from splatstudio.cameras.path_file import read_camera_path
from splatstudio.files.inputs import read_input
from splatstudio.formats import free_path
from splatstudio.gui.dock import MAX_DOWNLOAD_BYTES, TaskBar, download
from splatstudio.gui.panel import FILE_HINT, Field, Page, Panel, SinglePress, output_path, when_user
from splatstudio.gui.state.scene_overlay import ROOT, Draft, PathEditor, PathScene, PathStore, plain_name
from splatstudio.gui.state.status import Notice
from splatstudio.gui.state.viewpoint import fly_to, frustum_size, positions_of, read_viewpoint
from splatstudio.gui.tabs.path_preview import PathPreviews, PreviewSection
from splatstudio.gui.theme import ACCENT
from splatstudio.models.video import check_output
from splatstudio.runtime.messages import JobDone, RenderPath, Snapshot, ViewOptions
from splatstudio.scene.photo import whole_camera
from splatstudio.scene.scene import Scene

CUSTOM, PHOTO = "Custom", "As the photos"
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
VIDEOS = {ending for ending, _ in FORMATS.values() if ending}
NAMES = {(ending, quality): name for name, (ending, quality) in FORMATS.items()}
SHOWN = "As your browser shows the model: mode, background and splat scale of the View tab."
PICTURE_SIDES = {"As the window": None, "Full HD": 1920, "4K": 3840, "8K": 7680}  # px, the longer side

EMPTY, ORBIT, SPIRAL, PHOTOS = "Empty", "Orbit", "Spiral", "Photos"
GO, SET, EARLIER, LATER, DELETE = "Go to", "Set here", "Earlier", "Later", "Delete"
NO_KEYFRAME = "none yet"
CAMERAS, CROP = "/cameras", "/crop"  # what other panels draw, and no video shows
KEYFRAME_SIZE = 1.5  # times a photo's camera


def _whole_cameras(scene: Scene) -> tuple[Camera, ...]:
    """Return the cameras of the photos in their full size, of the first, as which a path is, to the pixel."""
    first, *others = scene.resized(1).cameras
    try:
        return whole_camera(scene.views[0]), *others
    except (OSError, ValueError):  # the photo is gone since
        return first, *others


class OutputSection(Panel):
    """Size, rate and format of the frames, the Render button, and how far it is."""

    def __init__(self, page: Page, editor: PathEditor):
        super().__init__(page)
        gui, scene, self._editor = self.gui, self.controller.project.scene, editor
        self._sizes = dict(SIZES)
        if scene is not None:
            camera = _whole_cameras(scene)[0]
            self._sizes[PHOTO] = (camera.width // 2 * 2, camera.height // 2 * 2)
        self._asked_custom = False
        size = gui.add_dropdown("Size", (*self._sizes, CUSTOM))
        custom = gui.add_vector2("Pixels", (1280, 720), min=(2, 2), max=(MAX_SIZE, MAX_SIZE), step=2)
        fps = self._fps = gui.add_number(
            "Frame rate", 30.0, min=1.0, max=240.0, step=1.0, hint="Frames a second."
        )
        fps.precision = 3  # digits, as 23.976 has
        self.add(Field(size, self._named_size, self._choose_size))
        self.add(
            Field(custom, lambda: (float(editor.path.width), float(editor.path.height)), self._choose_pixels)
        )
        self.add(
            Field(fps, lambda: float(editor.path.fps), lambda value: self._change("fps", fps=float(value)))
        )
        self.keep(custom, visible=lambda: self._named_size() == CUSTOM)
        self._format = gui.add_dropdown("Format", tuple(FORMATS))
        self._suggested = self._suggestion()
        self._named_for: object = None  # what the file is named for
        self._file = gui.add_text("File", self._suggested, hint=FILE_HINT)
        self._single = SinglePress()
        self._render = self.button("Render", self._press, ACCENT, disabled=True)
        self.add(TaskBar(page, RenderPath))
        self._chosen = self._format.value
        when_user(self._format, lambda _, name: self._choose_format(name))
        when_user(self._file, lambda _, text: self._follow_ending(text))

    def refresh(self) -> None:
        """Show the path's format and the task as they are now."""
        super().refresh()
        num, has_model = len(self._editor.path.frame_times), self.controller.in_view.num_gaussians is not None
        self._render.label = f"Render {num:,} frames" if num else "Render"
        self._render.disabled = not (num and has_model)
        self._render.hint = SHOWN if has_model else "There is no model yet: start the training first."
        named_for = (self._editor.draft, has_model, self.controller.project)
        # Also where a file of this name was written: the next one must not silently take its place.
        if named_for != self._named_for or self._suggestion() != self._suggested:
            self._named_for = named_for
            self._follow_name()

    def _change(self, control: str, **values: Any) -> None:
        self._editor.change_path(control=control, **values)

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
        self._change("size", width=width, height=height)

    def _suggestion(self) -> str:
        ending, _ = FORMATS[self._format.value]
        folder = self.controller.project.folder_of("renders")
        return str(free_path(folder / f"{self._editor.draft.name}{ending}"))

    def _choose_format(self, name: str) -> None:
        self._chosen = name
        self._follow_name()
        value, (ending, _) = self._file.value.rstrip(), FORMATS[name]
        named = Path(value).name
        # A name without one was of frames; one of a folder is for whichever file comes into it.
        if named and named != ".." and not value.endswith(("/", os.sep)) and not _ending_of(value):
            self._file.value = value + ending

    def _follow_name(self) -> None:
        """Let the file's name follow the path's and the format; what the user typed only the format."""
        suggestion, typed = self._suggestion(), Path(self._file.value.strip())
        if not typed.name or self._file.value == self._suggested:
            self._suggested = self._file.value = suggestion
            return
        ending, _ = FORMATS[self._format.value]
        if typed.suffix.lower() in VIDEOS:
            while typed.suffix.lower() in VIDEOS:
                typed = typed.with_suffix("")
            self._file.value = str(typed.with_name(typed.name + ending))

    def _follow_ending(self, typed: str) -> None:
        """Let the format be that of an ending which somebody typed, else the one that was chosen."""
        _, quality = FORMATS[self._chosen]
        self._format.value = NAMES.get((Path(typed.strip()).suffix.lower() or "none", quality), self._chosen)

    def _press(self, client: viser.ClientHandle) -> None:
        if self._single.counts():  # a double click would render the same once more, by another name
            self._start(client)

    def _start(self, client: viser.ClientHandle) -> None:
        path = self._editor.path
        if not path.keyframes:
            return
        ending, quality = FORMATS[self._format.value]
        wanted = output_path(self._file.value, self._suggested)
        if ending and (self._file.value.rstrip().endswith(("/", os.sep)) or wanted.is_dir()):
            wanted /= Path(self._suggested).name
        if ending and wanted.suffix.lower() not in VIDEOS:
            wanted = wanted.with_name(wanted.name + ending)
        is_taken = _holds_something(wanted) and not wanted.suffix
        if not is_taken:
            check_output(wanted)
        output = self.page.free(wanted) if is_taken or wanted.suffix else wanted
        command = RenderPath(path, output, quality, options_of(self.page, client))
        self.page.tasks.submit(command, worker=self.controller.in_view.worker)


def _ending_of(name: str) -> str:
    """Return the ending of a video's name, also of one that is no more than that."""
    return next((ending for ending in VIDEOS if name.lower().endswith(ending)), "")


def _holds_something(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


class PictureSection(Panel):
    """One picture of what a browser sees, with as many pixels as wanted, sent to that browser."""

    def __init__(self, page: Page):
        super().__init__(page)
        self._given: set[Path] = set()  # paths of pictures, of which some are still being drawn
        self._side = self.gui.add_dropdown(
            "Picture size", tuple(PICTURE_SIDES), initial_value="4K", hint="In the shape of your window."
        )
        self._take = self.keep(
            self.button("Take a picture", self._shoot, disabled=True),
            disabled=lambda: self.controller.in_view.num_gaussians is None,
        )
        self.add(TaskBar(page, Snapshot))
        page.hotkeys.add(None, "Take a picture", self._shoot, "What this browser shows, to its disk")

    def _shoot(self, client: viser.ClientHandle) -> None:
        viewpoint, controller = read_viewpoint(client.camera), self.controller
        if viewpoint is None:
            return
        side = PICTURE_SIDES[self._side.value]
        scale = 1.0 if side is None else side / max(viewpoint.width, viewpoint.height)
        size = round(viewpoint.width * scale), round(viewpoint.height * scale)
        step = controller.model_state().step
        name = f"picture-{step}" if step else "picture"
        output = self._free(controller.project.folder_of("renders") / f"{name}.png")
        self.page.tasks.submit(
            Snapshot(viewpoint.camera(1.0).resized(*size), output, options_of(self.page, client)),
            then=lambda done: _send(client, done),
            worker=controller.in_view.worker,
        )

    def _free(self, wanted: Path) -> Path:
        """Return a path that no file has, and no picture that is still being drawn."""
        output, number = free_path(wanted), 2
        while output in self._given:
            output, number = free_path(wanted.with_stem(f"{wanted.stem}-{number}")), number + 1
        self._given.add(output)
        return output


def _send(client: viser.ClientHandle, done: JobDone) -> None:
    if done.num_bytes < MAX_DOWNLOAD_BYTES:
        download(client, done.path)


def options_of(page: Page, client: viser.ClientHandle) -> ViewOptions | None:
    """Return how a browser sees the model, without the comparison with one photo."""
    stream = page.viewport.stream(client)
    if stream is None:
        return None
    options = stream.settings.options
    return replace(options, mode="color" if options.mode == "error" else options.mode, photo=None)


class RenderPanel(Panel):
    """Keyframes, path, preview and output. The path is one for all browsers, and saved with the run."""

    def __init__(self, page: Page):
        super().__init__(page)
        gui, scene = self.gui, self.controller.project.scene
        self._store = PathStore(self.controller.project, lambda problem: page.refuse("Not saved", problem))
        self._editor = editor = PathEditor(self._last_path())
        size, distance = 0.2, 3.0
        if scene is not None:
            positions = positions_of(scene)
            size = KEYFRAME_SIZE * frustum_size(positions, scene.extent)
            # The cameras' common point of attention is the origin of the scene's frame.
            distance = float(np.median(np.linalg.norm(positions, axis=1))) or scene.extent
        self._drawn = PathScene(page.server, editor, size)
        # Nodes of their own, so that all that lies below can be hidden at once.
        for name in (CAMERAS, CROP):
            page.server.scene.add_frame(name, show_axes=False)
        self._previews = PathPreviews(page.server, distance, (ROOT, CAMERAS, CROP))
        self.add(PathChoice(page, editor, self._store))
        self.add(KeyframeSection(page, editor, self._drawn, distance))
        self.add(PreviewSection(page, editor, self._previews))
        with gui.add_folder("Video"):
            self.add(OutputSection(page, editor))
        with gui.add_folder("Motion and lens", expand_by_default=False):
            self.add(MotionSection(page, editor, self._drawn))
        with gui.add_folder("Picture", expand_by_default=False):
            self.add(PictureSection(page))
        with gui.add_folder("Path file", expand_by_default=False):
            FileSection(page, editor, self._store)
        editor.listen(self._changed)

    def refresh(self) -> None:
        """Show what has changed, in the tab and in the scene."""
        if self._store.follow(self.controller.project):
            # The path stays with the run or model before. One that lies here is not written over.
            last = self._last_path()
            self._editor.begin_anew(last if last.path.keyframes else None)
        super().refresh()
        self._drawn.redraw()

    def close(self) -> None:
        """Save the path and end the previews."""
        self._previews.close()
        self._store.close()

    def _changed(self, draft: Draft) -> None:
        self._store.save_soon(draft.path, draft.name)
        self.page.changed(self)

    def _last_path(self) -> Draft:
        """Return the path that was changed last; a damaged one is passed over and named."""
        for name in self._store.names():
            try:
                path = self._store.read(name)
            except ValueError as error:
                self.page.refuse("A camera path is left aside", error)
                continue
            return Draft(path, 0 if path.keyframes else None, name)
        return Draft(name=self._store.unused("path"))


class PathChoice(Panel):
    """Which of the saved paths is open, and new ones, ready-made or empty."""

    def __init__(self, page: Page, editor: PathEditor, store: PathStore):
        super().__init__(page)
        scene, self._editor, self._store = self.controller.project.scene, editor, store
        cameras = _whole_cameras(scene) if scene is not None else ()
        self._choice = self.gui.add_dropdown(
            "Path", (editor.draft.name,), hint="Every change is saved at once, beside the run."
        )
        self.add(Field(self._choice, lambda: editor.draft.name, self._read))
        ready: dict[str, Callable[[], CameraPath]] = {
            ORBIT: lambda: orbit_of(cameras),
            SPIRAL: lambda: spiral(cameras),
            PHOTOS: lambda: through(cameras),
        }
        self._ready = {EMPTY: lambda: CameraPath(())} | (ready if cameras else {})
        new = self.gui.add_button_group(
            "New", tuple(self._ready), hint="Orbit, spiral and photos follow the photos' cameras."
        )
        when_user(new, lambda _, kind: self._make(kind))

    def refresh(self) -> None:
        """Show which paths there are."""
        options = tuple(dict.fromkeys([self._editor.draft.name, *self._store.names()]))
        if set(self._choice.options) != set(options):
            self._choice.options = options
        super().refresh()

    def _read(self, name: str) -> None:
        self._store.flush()
        self._editor.load(self._store.read(name), name)

    def _make(self, kind: str) -> None:
        self._store.flush()
        old = self._editor.path
        path = replace(self._ready[kind](), fps=old.fps)
        if (old.width, old.height) != (CameraPath.width, CameraPath.height):  # somebody has chosen a size
            path = replace(path, width=old.width, height=old.height)
        self._editor.load(path, self._store.unused("path" if kind == EMPTY else kind.lower()))
        if (path.width, path.height) != (old.width, old.height):
            size = f"Now {path.width} × {path.height}, the shape of the photos. Change it under Size."
            self.page.notify(Notice("Video size set to the photos'", size))


class KeyframeSection(Panel):
    """The list of keyframes, and what is done most often with the selected one."""

    def __init__(self, page: Page, editor: PathEditor, drawn: PathScene, distance: float):
        super().__init__(page)
        self._editor, self._distance = editor, distance
        where = "Where your camera is now, after the chosen keyframe."
        self.button("Add keyframe (K)", self._add, ACCENT, hint=where)
        self._list = self.gui.add_dropdown(
            "Keyframe", list[str]([NO_KEYFRAME]), hint="Or click on one in the scene."
        )
        self.add(Field(self._list, self._label, self._choose))
        do = self.gui.add_button_group("", (GO, SET, EARLIER, LATER, DELETE), visible=False)
        handles = self.gui.add_checkbox(
            "Move by handles", False, hint="Arrows and rings in the scene move and turn the chosen keyframe."
        )
        when_user(do, self._press)
        handles.on_update(lambda _: drawn.show_handles(handles.value))
        for handle in (self._list, do, handles):
            self.keep(handle, visible=lambda: editor.keyframe is not None)
        page.hotkeys.add("K", "Add keyframe", self._add, "Where the camera is now")

    def refresh(self) -> None:
        """Show the path as it is now."""
        labels = keyframe_labels(self._editor.path) or (NO_KEYFRAME,)
        if self._list.options != labels:
            self._list.options = labels
        super().refresh()

    def _label(self) -> str | None:
        draft = self._editor.draft
        return None if draft.selected is None else keyframe_labels(draft.path)[draft.selected]

    def _choose(self, label: str) -> None:
        labels = keyframe_labels(self._editor.path)
        if label in labels:
            self._editor.select(labels.index(label))

    def _add(self, client: viser.ClientHandle) -> None:
        keyframe = keyframe_here(client)
        if keyframe is not None:
            self._editor.add(keyframe)

    def _press(self, client: viser.ClientHandle, button: str) -> None:
        editor, keyframe, here = self._editor, self._editor.keyframe, keyframe_here(client)
        if keyframe is None:
            return
        if button == GO:
            go_to(client, keyframe, self._distance)
        elif button == DELETE:
            editor.delete()
        elif button != SET:
            editor.move(-1 if button == EARLIER else 1)
        elif here is not None:
            editor.change_keyframe(camera_to_world=here.camera_to_world, fov_y=here.fov_y)


class MotionSection(Panel):
    """When the selected keyframe is reached and its lens, how all are joined, and the step back."""

    def __init__(self, page: Page, editor: PathEditor, drawn: PathScene):
        super().__init__(page)
        gui, self._editor = self.gui, editor
        seconds = gui.add_number(
            "Time from previous",
            2.0,
            min=0.05,
            max=3600.0,
            step=0.1,
            hint="From the last keyframe to this one.",
        )
        fov = gui.add_slider("Field of view", 5.0, 120.0, 0.5, 50.0, hint="Vertical, in degrees.")
        stretches = "Of the whole path; all times are scaled."
        duration = gui.add_number("Duration (s)", 2.0, min=0.1, max=36000.0, step=0.1, hint=stretches)
        tension = gui.add_slider(
            "Tension", -1.0, 1.0, 0.05, 0.0, hint="0: smooth through the keyframes; 1: slows down at each."
        )
        loop = gui.add_checkbox("Loop", False, hint="Continue from the last keyframe back to the first.")
        shown = gui.add_checkbox("Show the path", True, hint="In the scene, for all browsers.")
        shown.on_update(lambda _: drawn.show(shown.value))
        undo = self.button("Undo", lambda _: editor.undo(), hint="Undoes the last change of the path.")
        self.keep(undo, disabled=lambda: not editor.can_undo)

        def num() -> int:
            return len(editor.path.keyframes)

        self._field(
            seconds,
            # The first keyframe of an open path has none before it.
            lambda: (
                editor.keyframe is not None and bool(editor.draft.selected or editor.path.loop or num() == 1)
            ),
            lambda: self._of(lambda key: round(key.seconds or editor.path.default_seconds, 3)),
            lambda value: editor.change_keyframe(control="seconds", seconds=float(value)),
        )
        self._field(
            fov,
            lambda: editor.keyframe is not None,
            lambda: self._of(lambda key: round(min(max(math.degrees(key.fov_y), 5.0), 120.0), 1)),
            lambda value: editor.change_keyframe(control="fov", fov_y=math.radians(value)),
        )
        self._duration = self._field(
            duration,
            lambda: num() > 0,
            lambda: round(editor.path.duration, 3) if num() else None,
            lambda value: editor.change_duration(float(value)) if num() else None,
        )
        self._field(
            tension,
            lambda: num() > 1,
            lambda: editor.path.tension,
            lambda value: editor.change_path(control="tension", tension=float(value)),
        )
        self._field(
            loop, lambda: num() > 1, lambda: editor.path.loop, lambda value: editor.change_path(loop=value)
        )

    def _field(
        self,
        handle: Any,
        visible: Callable[[], bool],
        shown: Callable[[], Any],
        take: Callable[[Any], object],
    ) -> Field:
        self.keep(handle, visible=visible)
        return self.add(Field(handle, shown, take))

    def _of(self, value: Callable[[Keyframe], float]) -> float | None:
        keyframe = self._editor.keyframe
        return None if keyframe is None else value(keyframe)


class FileSection(Panel):
    """Path files from and for other programs."""

    def __init__(self, page: Page, editor: PathEditor, store: PathStore):
        super().__init__(page)
        self._editor, self._store = editor, store
        upload = self.gui.add_upload_button(
            "Open a path file", color="gray", hint="A camera_path.json of the studio or of nerfstudio."
        )
        upload.on_upload(lambda _: self._take(upload.value))
        self.button("Download the path file", self._send)

    def _take(self, file: viser.UploadedFile) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "uploaded.json"
            path.write_bytes(file.content)
            try:
                loaded = read_camera_path(path, self._store.transform)
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), file.name)) from None
        self._store.flush()
        self._editor.load(loaded, self._store.unused(plain_name(Path(file.name).stem)))

    def _send(self, client: viser.ClientHandle) -> None:
        draft = self._editor.draft
        if draft.path.keyframes:
            file = self._store.write(draft.path, draft.name, with_frames=True)
            client.send_file_download(file.name, read_input(file), save_immediately=True)


def keyframe_labels(path: CameraPath) -> tuple[str, ...]:
    """Return a line for each keyframe, all different: its number and when it is reached."""
    num = len(path.keyframes)
    arrivals = path.arrivals
    return tuple(
        f"{i + 1} of {num} · {arrivals[i]:.1f} s{' · ' + key.name if key.name else ''}"
        for i, key in enumerate(path.keyframes)
    )


def keyframe_here(client: viser.ClientHandle) -> Keyframe | None:
    """Return what a browser sees now as a keyframe; None where it has not said where it is."""
    viewpoint = read_viewpoint(client.camera)
    return None if viewpoint is None else Keyframe(viewpoint.camera(1.0).camera_to_world, viewpoint.fov)


def go_to(client: viser.ClientHandle, keyframe: Keyframe, distance: float) -> None:
    """Move a browser's camera to a keyframe, with its very field of view."""
    path = CameraPath((keyframe,), width=2, height=2)
    with client.atomic():
        fly_to(client, path.camera_at(0.0), distance)
        client.camera.fov = keyframe.fov_y
