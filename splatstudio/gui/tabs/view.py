"""The View tab: what each browser sees, and from where. Every browser has controls of its own."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import viser

from splatstudio.checkpoints.checkpoint import config_of_checkpoint
from splatstudio.checkpoints.shard_file import SHARD_NAME
from splatstudio.gui.panel import Hotkey, Page, Panel
from splatstudio.gui.server.viser_private import dress_page
from splatstudio.gui.state.photos import Comparing, PhotoCache, PhotoPsnr
from splatstudio.gui.state.scene_overlay import Frustums, SceneOverlay
from splatstudio.gui.state.stream import Stream
from splatstudio.gui.state.viewpoint import Axis
from splatstudio.gui.tabs.photo_list import PhotoList, decibels
from splatstudio.gui.theme import note_html
from splatstudio.rendering.color_maps import color_table
from splatstudio.rendering.modes import ColorMapName, Legend, RenderMode
from splatstudio.runtime.messages import (
    Evaluated,
    Event,
    ModelLoaded,
    PhotoErrors,
    Started,
    StateChanged,
    ViewOptions,
)
from splatstudio.scene.scene import Scene

MODES: dict[str, RenderMode] = {
    "Color": "color",
    "Depth": "depth",
    "Median depth": "median_depth",
    "Normals": "normals",
    "Opacity": "alpha",
    "Ellipsoids": "ellipsoids",
    "Points": "points",
    "Splat count": "count",
    "Error": "error",
}
COMPARISONS: dict[str, Comparing] = {
    "Off": "off",
    "Split": "split",
    "Blend": "blend",
    "Difference": "difference",
}
RESOLUTIONS = {"Full": 1.0, "High": 0.75, "Medium": 0.5, "Low": 0.25}
UP_AXES: dict[str, Axis] = {"-y (COLMAP)": "-y", "+y": "+y", "+z": "+z", "-z": "-z", "+x": "+x", "-x": "-x"}
PAINT_SECONDS = 5.0  # between two colourings of the cameras, which the browser builds anew each time
PREVIOUS, NEXT, NEAREST = "‹ Previous", "Next ›", "Nearest"
NUM_STOPS = 12  # of the gradient that shows a colour map


@dataclass(frozen=True, eq=False)
class SceneParts:
    """What all browsers share of a scene."""

    scene: Scene
    photos: PhotoCache
    frustums: Frustums
    psnr: PhotoPsnr


class ViewPanel(Panel):
    """Builds the tab's controls in each browser that comes, and tells them what is new."""

    look_seconds = 2.0  # the order of the photographs and the colours of the cameras follow after a while

    def __init__(self, page: Page):
        self._page, controller = page, page.controller
        self._sky: tuple[Path | None, bool] = (None, False)  # the model from the disk that was looked at last
        self._views: dict[int, BrowserView] = {}
        self._lock = threading.Lock()
        self._parts: SceneParts | None = None
        scene, photos = controller.project.scene, page.viewport.photos
        if scene is not None and photos is not None:
            self._parts = SceneParts(scene, photos, Frustums.of_scene(scene), PhotoPsnr(scene))
            if controller.project.run_dir is not None:
                self._parts.psnr.load(controller.project.run_dir, controller.last_step)
        # Each browser's controls go in here, beside those of the others, which it does not see.
        self._container = page.server.gui.add_folder(None)
        page.viewport.listen(self._open, self._close)
        self._add_keys()

    def refresh(self) -> None:
        """Show new errors, legends and thumbnails."""
        has_sky = self._has_sky()
        for view in self._all():
            view.refresh(has_sky=has_sky)

    def follow(self, event: Event) -> None:
        """Take in which photographs fit badly; put the points away while a model takes their place."""
        if isinstance(event, ModelLoaded):
            for view in self._all():
                view.show_points(False)
        elif event == StateChanged("ready") and self._page.controller.model_state().anew:
            for view in self._all():
                view.show_points(True)
        if self._parts is None:
            return
        psnr = self._parts.psnr
        if isinstance(event, PhotoErrors):
            psnr.note(event.step, event.psnr)
        elif isinstance(event, Evaluated) and event.path is not None:
            psnr.note_evaluation(event.path, event.step)
            for view in self._all():
                view.sort_photos()
        elif isinstance(event, Started) and event.step == 0:
            psnr.clear()

    def compare(self, client: viser.ClientHandle, index: int) -> None:
        """Bring a browser to photograph `index` and compare it with the model there."""
        self._do(lambda view: view.compare_at(index), client)

    def _has_sky(self) -> bool:
        """Return whether the model in the view has learnt a sky, which then can be shown or hidden."""
        path = self._page.controller.shown_path
        if path is None:
            return self._page.controller.project.config.sky.enabled
        if self._sky[0] != path:
            self._sky = (path, has_sky(path))
        return self._sky[1]

    def _open(self, stream: Stream) -> None:
        dress_page(stream.client)
        with self._container:
            view = BrowserView(self._page, stream, self._parts, partial(self._page.changed, self))
        with self._lock:
            self._views[stream.client.client_id] = view
        self._page.changed(None)

    def _close(self, stream: Stream) -> None:
        with self._lock:
            self._views.pop(stream.client.client_id, None)
        self._page.changed(None)

    def _all(self) -> list[BrowserView]:
        with self._lock:
            return list(self._views.values())

    def _do(self, action: Callable[[BrowserView], None], client: viser.ClientHandle) -> None:
        with self._lock:
            view = self._views.get(client.client_id)
        if view is not None:
            action(view)

    def _add_keys(self) -> None:
        order = "In the order of the list of photos"
        keys: list[tuple[str, str, Callable[[BrowserView], None], str | None]] = [
            ("M", "Next mode of the view", BrowserView.next_mode, None),
            (
                "G",
                "Compare with the photo",
                BrowserView.toggle_compare,
                "Goes to the nearest photo's camera first",
            ),
            ("C", "Show or hide the cameras", BrowserView.toggle_cameras, None),
            ("N", "Next photo", lambda view: view.walk(1), order),
            ("B", "Previous photo", lambda view: view.walk(-1), order),
        ]
        for key, label, action, description in keys if self._parts is not None else keys[:1]:
            self._page.hotkeys.add(Hotkey(key, label, partial(self._do, action), description))


class BrowserView:
    """Mode, comparison, photographs and drawing of one browser. Methods may be called from any thread."""

    def __init__(self, page: Page, stream: Stream, parts: SceneParts | None, changed: Callable[[], None]):
        """Build the controls; `changed` has this refreshed soon."""
        self._page, self._stream, self._parts, self._changed = page, stream, parts, changed
        self._client, self._gui = stream.client, stream.client.gui
        self._lock = threading.Lock()
        self._turn_to_photo = False
        self._paint_due = 0.0
        background = page.controller.project.config.background
        # What all browsers hide is read when it is taken: it may be changed just now.
        stream.change(
            lambda settings: replace(settings, options=ViewOptions(background, trim=page.viewport.trim))
        )
        self._overlay: SceneOverlay | None = None
        self._list: PhotoList | None = None
        self._points: viser.GuiCheckboxHandle | None = None
        self._compare: viser.GuiDropdownHandle[str] | None = None
        self._add_mode()
        if parts is not None:
            self._overlay = SceneOverlay(self._client, parts.scene, parts.frustums, self.visit)
            self._add_compare()
            with self._gui.add_folder("Photos"):
                self._list = PhotoList(self._gui, parts.scene, parts.photos, self.visit, changed)
        with self._gui.add_folder("Shown"):
            self._add_switches()
        with self._gui.add_folder("Drawing"):
            self._add_drawing()
        stream.listen(changed)
        if page.controller.status.has_model:
            self.show_points(False)

    # ---- what keys and clicks do

    def visit(self, index: int) -> None:
        """Fly to where photograph `index` was taken."""
        if self._stream.camera_snap is not None:
            self._turn_to_photo = True
            self._stream.camera_snap.enter(index)
            self._changed()

    def compare_at(self, index: int) -> None:
        """Fly to photograph `index` and compare it with the model there."""
        self.visit(index)
        if self._compare is not None and self._compare.value == "Off":
            self._compare.value = "Split"

    def walk(self, step: int) -> None:
        """Fly to the next photograph of the list, or with `step` -1 to the one before."""
        if self._list is not None and self._stream.camera_snap is not None:
            self.visit(self._list.neighbour(self._stream.camera_snap.last, step))

    def visit_nearest(self) -> None:
        """Fly to the photograph that was taken nearest to here."""
        viewpoint, camera_snap = self._stream.viewpoint, self._stream.camera_snap
        if camera_snap is not None and viewpoint is not None:
            self.visit(camera_snap.nearest(viewpoint))

    def next_mode(self) -> None:
        """Show the next mode of the list."""
        names = self._mode.options
        self._mode.value = names[(names.index(self._mode.value) + 1) % len(names)]

    def toggle_compare(self) -> None:
        """Compare with the photograph, or stop it."""
        if self._compare is not None:
            self._compare.value = "Split" if self._compare.value == "Off" else "Off"

    def toggle_cameras(self) -> None:
        """Show or hide the cameras."""
        if self._overlay is not None:
            self._cameras.value = not self._cameras.value

    def show_points(self, visible: bool) -> None:
        """Put the points away, or bring them back: a model takes their place, or is gone."""
        with self._while_open():
            if self._points is not None:
                self._points.value = visible

    def sort_photos(self) -> None:
        """Sort the list of photographs by what is known of their errors now."""
        if self._list is not None:
            self._list.sort_again()

    # ---- what is new

    def refresh(self, *, has_sky: bool) -> None:
        """Show what has changed. `has_sky`: of the model in the view."""
        with self._lock, self._while_open():
            frame, shows = self._stream.frame, self._stream.settings.splats
            self._legend.content = legend_html(frame.legend, frame.notice) if frame and shows else ""
            self._sky.visible = has_sky
            parts, camera_snap = self._parts, self._stream.camera_snap
            if parts is None or self._list is None or self._overlay is None or camera_snap is None:
                return
            errors, here = parts.psnr.errors, camera_snap.here
            turn, self._turn_to_photo = self._turn_to_photo and here is not None, False
            self._list.show(here, turn=turn)
            self._overlay.leave_out(here)
            self._show_cameras()
            self._list.refresh(errors)
            self._standing.content = self._standing_html(parts)
            if time.monotonic() >= self._paint_due:
                self._paint_due = time.monotonic() + PAINT_SECONDS
                by_error = self._color_by.value == "Error" and errors.known.any()
                self._overlay.paint(errors.colors() if by_error else parts.frustums.colors)

    @contextmanager
    def _while_open(self) -> Iterator[None]:
        """Stop where the browser has left: viser takes its controls away before it tells of that."""
        try:
            yield
        except RuntimeError:
            if self._client.client_id in self._page.server.get_clients():
                raise

    def _paint_soon(self) -> None:
        self._paint_due = 0.0

    def _standing_html(self, parts: SceneParts) -> str:
        """Return in which photograph's camera this browser stands, or that it does not."""
        camera_snap, settings = self._stream.camera_snap, self._stream.settings
        assert camera_snap is not None
        last = camera_snap.last
        name = "" if last is None else html.escape(parts.scene.views[last].name)
        if last is not None and (camera_snap.here is not None or camera_snap.on_the_way):
            errors, problem = parts.psnr.errors, self._stream.photo_problem
            test = " · test photo" if last in parts.scene.test_indices else ""
            figure = f" · {decibels(errors, last)}" if errors.known[last] else ""
            text = f"At <b>{name}</b>{test}{figure}"
            if settings.wants_photo and not self._page.controller.status.has_model:
                problem = "There is no model yet to compare the photo with."
            if problem:
                text += f'<br><span class="ss-warning">{html.escape(problem)}</span>'
        elif last is not None and settings.wants_photo:
            text = (
                f'<span class="ss-warning">Moved away from {name}: the photo can be compared only from its'
                " own camera. N, B or Nearest go back to one.</span>"
            )
        else:
            text = '<span class="ss-muted">Free camera</span>'
        return f'<div class="ss-standing" data-splatstudio="standing">{text}</div>'

    # ---- building

    def _add_mode(self) -> None:
        names = tuple(name for name in MODES if name != "Error" or self._parts is not None)
        self._mode = self._gui.add_dropdown("Mode", names, hint="What the picture shows. Key M.")
        self._legend = self._gui.add_html("")

        def changed(name: str) -> None:
            self._set(mode=MODES[name])
            self._go_to_a_photo()

        self._on(self._mode, changed)

    def _add_compare(self) -> None:
        gui = self._gui
        compare = gui.add_dropdown(
            "Compare", tuple(COMPARISONS), hint="The model with the photo of the camera one stands in. Key G."
        )
        self._compare = compare
        sliders = {
            "Split": gui.add_slider("Photo | model", 0.0, 1.0, 0.01, 0.5, visible=False),
            "Blend": gui.add_slider("Photo's share", 0.0, 1.0, 0.01, 0.5, visible=False),
            "Difference": gui.add_slider("Times", 1.0, 10.0, 0.5, 3.0, visible=False),
        }
        walk = gui.add_button_group("Photo", (PREVIOUS, NEXT, NEAREST), hint="Keys B and N.")
        self._standing = gui.add_html("")

        def changed(_: object) -> None:
            for name, slider in sliders.items():
                slider.visible = name == compare.value
            chosen: dict[str, Any] = {
                "kind": COMPARISONS[compare.value],
                "split": sliders["Split"].value,
                "blend": sliders["Blend"].value,
                "gain": sliders["Difference"].value,
            }
            self._stream.change(
                lambda settings: replace(settings, comparison=replace(settings.comparison, **chosen))
            )
            self._go_to_a_photo()

        for control in (compare, *sliders.values()):
            self._on(control, changed)

        steps = {PREVIOUS: lambda: self.walk(-1), NEXT: lambda: self.walk(1), NEAREST: self.visit_nearest}
        self._on(walk, lambda button: steps[button]())

    def _show_cameras(self) -> None:
        """Show the cameras where they are wanted, and cover no comparison with them."""
        assert self._overlay is not None and self._stream.camera_snap is not None
        compared = self._stream.camera_snap.here is not None and self._stream.settings.wants_photo
        self._overlay.show_cameras(self._cameras.value and not compared)

    def _go_to_a_photo(self) -> None:
        """Stand in a photograph's camera if what is wanted can be seen only from there."""
        camera_snap = self._stream.camera_snap
        if camera_snap is None or camera_snap.here is not None or camera_snap.on_the_way:
            return
        if self._stream.settings.wants_photo:
            self.visit_nearest()

    def _add_switches(self) -> None:
        gui = self._gui
        splats = gui.add_checkbox("Splats", True, hint="The model itself.")
        self._on(splats, lambda value: self._change(splats=value))
        if self._overlay is None:
            return
        self._points = gui.add_checkbox("Points", True, hint="The sparse points that the scene came with.")
        self._on(self._points, self._overlay.show_points)
        self._cameras = gui.add_checkbox(
            "Cameras",
            True,
            hint="Click on one to stand where its photo was taken; hidden while a photo is compared. Key C.",
        )
        self._on(self._cameras, lambda _: self._show_cameras())
        self._on(gui.add_slider("Camera size", 0.2, 4.0, 0.1, 1.0), self._overlay.size_cameras)
        self._color_by = gui.add_dropdown(
            "Camera color",
            ("Error", "Test or training"),
            hint="By error: red is the worst photo, blue the best, grey not measured. Test photos: orange.",
        )
        self._on(self._color_by, lambda _: self._paint_soon())

    def _add_drawing(self) -> None:
        gui, config = self._gui, self._page.controller.project.config
        resolution = gui.add_dropdown(
            "Resolution",
            tuple(RESOLUTIONS),
            initial_value="Full",
            hint="Of the window at rest. While the camera moves or a training runs it adapts by itself.",
        )
        self._on(resolution, lambda value: self._change(max_scale=RESOLUTIONS[value]))
        self._sky = gui.add_checkbox(
            "Sky", True, visible=False, hint="Show the sky that the model has learnt, not the background."
        )
        self._on(self._sky, lambda value: self._set(sky=value))
        background = gui.add_rgb("Background", _to_bytes(self._stream.settings.options.background))
        self._on(background, lambda value: self._set(background=tuple(channel / 255.0 for channel in value)))
        size = gui.add_slider(
            "Splat size", 0.05, 2.0, 0.05, 1.0, hint="Times each splat's own; the model stays as it is."
        )
        self._on(size, lambda value: self._set(splat_scale=value))
        degree = gui.add_slider(
            "SH degree", 0, 3, 1, 3, hint="Highest degree of the view-dependent color; 0: none."
        )
        self._on(degree, lambda value: self._set(sh_degree=None if value == 3 else value))
        near = gui.add_number(
            "Near", config.near, min=1e-6, max=1e6, step=0.01, hint="Nothing nearer is drawn; scene units."
        )
        self._on(near, lambda value: self._set(near=None if value == config.near else value))
        far = gui.add_number(
            "Far", 0.0, min=0.0, max=1e6, step=0.1, hint="Nothing farther is drawn; scene units. 0: no limit."
        )
        self._on(far, lambda value: self._set(far=value or None))
        if self._parts is None:
            likely = next(name for name, axis in UP_AXES.items() if axis == self._page.first_view.up)
            up = gui.add_dropdown(
                "Up",
                tuple(UP_AXES),
                initial_value=likely,
                hint="Which way of the file's coordinates is up, in your browser.",
            )
            self._on(up, lambda value: self._page.first_view.set_up(self._client, UP_AXES[value]))
        reset = gui.add_button("Reset the view", color="gray")
        self._on(reset, lambda _: self._page.first_view.show(self._client))

    def _on(self, control: Any, action: Callable[[Any], None]) -> None:
        """Call `action` with each new value of a control, or press of a button, in order."""

        async def update(_: viser.GuiEvent) -> None:
            action(control.value)
            self._changed()

        (control.on_click if hasattr(control, "on_click") else control.on_update)(update)

    def _change(self, **changes: Any) -> None:
        self._stream.change(lambda settings: replace(settings, **changes))

    def _set(self, **changes: Any) -> None:
        self._stream.change(lambda settings: replace(settings, options=replace(settings.options, **changes)))


def has_sky(path: Path) -> bool:
    """Return whether the model in a checkpoint or a file has a sky; no file of another program's has."""
    folder = path.parent if SHARD_NAME.fullmatch(path.name) else path
    if not (folder / "manifest.json").exists():
        return False
    try:
        return config_of_checkpoint(folder).sky.enabled
    except ValueError:  # damaged: who opens it says so
        return False


def legend_html(legend: Legend | None, notice: str | None) -> str:
    """Return a bar of the colours with the values of its ends, and why the picture is not as asked for."""
    bar = ""
    if legend is not None:
        bar = (
            f'<div class="ss-legend" data-splatstudio="legend"><span>{_figure(legend.low)}</span>'
            f'<div class="bar" style="background:{_gradient(legend.color_map)}"></div>'
            f"<span>{_figure(legend.high)}</span>"
            f'<span class="ss-muted">{html.escape(legend.unit)}</span></div>'
        )
    return bar + (note_html(notice, "warning") if notice else "")


def _gradient(name: ColorMapName) -> str:
    """Return a colour map as a CSS gradient from left to right."""
    table = color_table(name).numpy()
    stops = (table[round(i * 255 / (NUM_STOPS - 1))] for i in range(NUM_STOPS))
    return "linear-gradient(to right, " + ", ".join(f"rgb({r},{g},{b})" for r, g, b in stops) + ")"


def _figure(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _to_bytes(color: tuple[float, float, float]) -> tuple[int, int, int]:
    red, green, blue = (round(255.0 * value) for value in color)
    return (red, green, blue)
