"""The controls of the View tab in one browser."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import viser

from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.compare import Comparing
from splatstudio.gui.state.first_view import Axis
from splatstudio.gui.state.legend import legend_html
from splatstudio.gui.state.photo_cache import PhotoCache
from splatstudio.gui.state.photo_psnr import Errors, PhotoPsnr
from splatstudio.gui.state.scene_overlay import Frustums, SceneOverlay
from splatstudio.gui.state.stream import Stream
from splatstudio.gui.tabs.photo_list import PhotoList, decibels
from splatstudio.gui.theme import MUTED
from splatstudio.rendering.modes import RenderMode
from splatstudio.runtime.messages import Frame, ViewOptions
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
UP_AXES: dict[str, Axis] = {
    "-y (COLMAP)": "-y",
    "+y": "+y",
    "+z": "+z",
    "-z": "-z",
    "+x": "+x",
    "-x": "-x",
}
PAINT_SECONDS = 5.0  # between two colourings of the cameras, which the browser builds anew each time
PREVIOUS, NEXT, NEAREST = "‹ Previous", "Next ›", "Nearest"
WARNING = "#e0b040"


@dataclass(frozen=True, eq=False)
class SceneParts:
    """What all browsers share of a scene."""

    scene: Scene
    photos: PhotoCache
    frustums: Frustums
    book: PhotoPsnr


class BrowserView:
    """Mode, comparison, photographs and drawing of one browser. Methods may be called from any thread."""

    def __init__(self, page: Page, stream: Stream, parts: SceneParts | None):
        self._page = page
        self._stream = stream
        self._client = stream.client
        self._parts = parts
        self._gui = stream.client.gui
        self._lock = threading.Lock()
        self._turn_to_photo = False
        self._paint_due = 0.0
        self._frame: Frame | None = None
        self._texts: dict[str, str] = {}
        background = page.controller.project.config.background
        # What all browsers hide is read when it is taken: it may be changed just now.
        stream.change(lambda look: replace(look, options=ViewOptions(background, trim=page.viewport.trim)))
        self._stage: SceneOverlay | None = None
        self._list: PhotoList | None = None
        self._points: viser.GuiCheckboxHandle | None = None
        self._compare: viser.GuiDropdownHandle[str] | None = None
        self._add_mode()
        if parts is not None:
            self._stage = SceneOverlay(self._client, parts.scene, parts.frustums, self.visit)
            self._add_compare()
            with self._gui.add_folder("Photos"):
                self._list = PhotoList(self._gui, parts.scene, parts.photos, self.visit)
        with self._gui.add_folder("Shown"):
            self._add_switches()
        with self._gui.add_folder("Drawing"):
            self._add_drawing()
        stream.listen(self._take_frame, self._standing_changed)
        if page.controller.status.has_model:
            self.show_points(False)

    # ---- what keys and clicks do

    def visit(self, index: int) -> None:
        """Fly to where photograph `index` was taken."""
        if self._stream.standpoint is not None:
            self._turn_to_photo = True
            self._stream.standpoint.enter(index)

    def compare_at(self, index: int) -> None:
        """Fly to photograph `index` and compare it with the model there."""
        self.visit(index)
        if self._compare is not None and self._compare.value == "Off":
            self._compare.value = "Split"

    def walk(self, step: int) -> None:
        """Fly to the next photograph of the list, or with `step` -1 to the one before."""
        if self._list is not None and self._stream.standpoint is not None:
            self.visit(self._list.neighbour(self._stream.standpoint.last, step))

    def visit_nearest(self) -> None:
        """Fly to the photograph that was taken nearest to here."""
        viewpoint, standpoint = self._stream.viewpoint, self._stream.standpoint
        if standpoint is not None and viewpoint is not None:
            self.visit(standpoint.nearest(viewpoint))

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
        if self._stage is not None:
            self._cameras.value = not self._cameras.value

    def show_points(self, visible: bool) -> None:
        """Put the points away, or bring them back: a model takes their place, or is gone."""
        with self._while_open():
            if self._points is not None and self._points.value != visible:
                self._points.value = visible

    def sort_photos(self) -> None:
        """Sort the list of photographs by what is known of their errors now."""
        if self._list is not None:
            self._list.sort_again()

    # ---- what is new

    def refresh(self, *, has_sky: bool) -> None:
        """Show what has changed; called a few times a second. `has_sky`: of the model in the view."""
        with self._lock, self._while_open():
            self._write("legend", self._legend, self._legend_text())
            self._sky.visible = has_sky
            if self._parts is None or self._list is None or self._stage is None:
                return
            errors = self._parts.book.errors
            standpoint = self._stream.standpoint
            here = standpoint.here if standpoint is not None else None
            turn, self._turn_to_photo = self._turn_to_photo and here is not None, False
            self._list.show(here, turn=turn)
            self._stage.leave_out(here)
            self._show_cameras()
            self._list.refresh(errors)
            self._write("standing", self._standing, self._standing_text())
            if time.monotonic() >= self._paint_due:
                self._paint_due = time.monotonic() + PAINT_SECONDS
                self._stage.paint(self._camera_colors(errors))

    @contextmanager
    def _while_open(self) -> Iterator[None]:
        """Leave off where the browser has left: viser takes its controls away before it tells of that."""
        try:
            yield
        except RuntimeError:
            if self._client.client_id in self._page.server.get_clients():
                raise

    def _paint_soon(self) -> None:
        self._paint_due = 0.0

    def _camera_colors(self, errors: Errors) -> np.ndarray:
        if self._color_by.value == "Error" and errors.known.any():
            return errors.colors()
        return self._parts.frustums.split_colors if self._parts is not None else errors.colors()

    def _write(self, name: str, handle: viser.GuiHtmlHandle, text: str) -> None:
        """Send a text if it has changed."""
        if self._texts.get(name) != text:
            self._texts[name] = text
            handle.content = text

    def _take_frame(self, frame: Frame) -> None:
        self._frame = frame

    def _standing_changed(self) -> None:
        """Say at once that a photograph's camera was left."""
        if self._parts is not None:
            with self._while_open():
                self._write("standing", self._standing, self._standing_text())

    def _legend_text(self) -> str:
        frame = self._frame
        if frame is None or not self._stream.look.splats:
            return ""
        return legend_html(frame.legend, frame.notice)

    def _standing_text(self) -> str:
        """Say in which photograph's camera this browser stands, or that it does not."""
        standpoint, parts = self._stream.standpoint, self._parts
        assert standpoint is not None and parts is not None
        last = standpoint.last
        if last is None:
            text = f'<span style="color:{MUTED}">Free camera</span>'
        elif standpoint.here is not None or standpoint.on_the_way:
            test = " · test photo" if last in parts.scene.test_indices else ""
            figure = f" · {decibels(parts.book.errors, last)}" if parts.book.errors.known[last] else ""
            text = f"At <b>{html.escape(parts.scene.views[last].name)}</b>{test}{figure}"
            problem = self._stream.photo_problem
            if self._stream.look.wants_photo and not self._page.controller.status.has_model:
                problem = "There is no model yet to compare the photo with."
            if problem:
                text += f'<br><span style="color:{WARNING}">{html.escape(problem)}</span>'
        elif self._stream.look.wants_photo:
            text = (
                f'<span style="color:{WARNING}">Moved away from {html.escape(parts.scene.views[last].name)}:'
                " the photo can be compared only from its own camera. N, B or Nearest go back to one.</span>"
            )
        else:
            text = f'<span style="color:{MUTED}">Free camera</span>'
        return f'<div data-splatstudio="standing" style="margin:0 0.8em 0.5em; font-size:13px">{text}</div>'

    # ---- building

    def _add_mode(self) -> None:
        names = tuple(name for name in MODES if name != "Error" or self._parts is not None)
        self._mode = self._gui.add_dropdown("Mode", names, hint="What the picture shows. Key M.")
        self._legend = self._gui.add_html("")

        @self._mode.on_update
        async def _(_: viser.GuiEvent) -> None:
            self._set(mode=MODES[self._mode.value])
            self._go_to_a_photo()

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

        async def changed(_: viser.GuiEvent) -> None:
            for name, slider in sliders.items():
                slider.visible = name == compare.value
            chosen: dict[str, Any] = {
                "kind": COMPARISONS[compare.value],
                "split": sliders["Split"].value,
                "blend": sliders["Blend"].value,
                "gain": sliders["Difference"].value,
            }
            self._stream.change(lambda look: replace(look, comparison=replace(look.comparison, **chosen)))
            self._go_to_a_photo()

        for control in (compare, *sliders.values()):
            control.on_update(changed)

        @walk.on_click
        async def _(_: viser.GuiEvent) -> None:
            if walk.value == NEAREST:
                self.visit_nearest()
            else:
                self.walk(1 if walk.value == NEXT else -1)

    def _show_cameras(self) -> None:
        """Show the cameras where they are wanted, and cover no comparison with them."""
        assert self._stage is not None and self._stream.standpoint is not None
        compared = self._stream.standpoint.here is not None and self._stream.look.wants_photo
        self._stage.show_cameras(self._cameras.value and not compared)

    def _go_to_a_photo(self) -> None:
        """Stand in a photograph's camera if what is wanted can be seen only from there."""
        standpoint = self._stream.standpoint
        if standpoint is None or standpoint.here is not None or standpoint.on_the_way:
            return
        if self._stream.look.wants_photo:
            self.visit_nearest()

    def _add_switches(self) -> None:
        gui = self._gui
        splats = gui.add_checkbox("Splats", True, hint="The model itself.")
        self._on(splats, lambda value: self._stream.change(lambda look: replace(look, splats=value)))
        stage, parts = self._stage, self._parts
        if stage is None or parts is None:
            return
        self._points = gui.add_checkbox("Points", True, hint="The sparse points that the scene came with.")
        self._on(self._points, stage.show_points)
        self._cameras = gui.add_checkbox(
            "Cameras",
            True,
            hint="Click on one to stand where its photo was taken; hidden while a photo is compared. Key C.",
        )
        self._on(self._cameras, lambda _: self._show_cameras())
        size = gui.add_slider("Camera size", 0.2, 4.0, 0.1, 1.0)
        self._on(size, stage.size_cameras)
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
        self._on(
            resolution,
            lambda value: self._stream.change(lambda look: replace(look, max_scale=RESOLUTIONS[value])),
        )
        self._sky = gui.add_checkbox(
            "Sky", True, visible=False, hint="Show the sky that the model has learnt, not the background."
        )
        self._on(self._sky, lambda value: self._set(sky=value))
        background = gui.add_rgb("Background", _to_bytes(self._stream.look.options.background))
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

        @reset.on_click
        async def _(_: viser.GuiEvent) -> None:
            self._page.first_view.show(self._client)

    def _on(self, control: Any, action: Callable[[Any], None]) -> None:
        """Call `action` with each new value of a control, in order."""

        @control.on_update
        async def _(_: viser.GuiEvent) -> None:
            action(control.value)

    def _set(self, **changes: Any) -> None:
        self._stream.change(lambda look: replace(look, options=replace(look.options, **changes)))


def _to_bytes(color: tuple[float, float, float]) -> tuple[int, int, int]:
    red, green, blue = (round(255.0 * value) for value in color)
    return (red, green, blue)
