"""The View tab: what each browser sees, from where, and the photos. Each has controls of its own."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import viser

from splatstudio.gui.panel import HandleType, Page, Panel
from splatstudio.gui.server.viser_private import dress_page, element_id
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.photos import Comparing, Comparison, Errors, PhotoCache, PhotoPsnr
from splatstudio.gui.state.project import has_sky
from splatstudio.gui.state.scene_overlay import Frustums, SceneOverlay
from splatstudio.gui.state.stream import Stream
from splatstudio.gui.tabs.drawing import Drawing
from splatstudio.gui.tabs.halves import ToldHalves
from splatstudio.gui.theme import css, legend_html
from splatstudio.rendering.modes import RenderMode
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

PER_PAGE = 9
WORST, WORST_TEST, WORST_TRAINING, BY_NAME = ORDERS = (
    "Worst first",
    "Worst test photos",
    "Worst training photos",
    "By name",
)
SORT_SECONDS = 3.0  # between two sortings while photos are measured for the first time
REST_SECONDS = 10.0  # without a sorting, after the user has done something

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
PAINT_SECONDS = 5.0  # between two colorings of the cameras, which the browser rebuilds each time
PREVIOUS, NEXT, NEAREST = "‹ Previous", "Next ›", "Nearest"


class PhotoList:
    """The list in one browser, PER_PAGE photos at a time, however many there are.

    The order comes to be as photos are measured for the first time, but not just after the user has done
    something in the list: a picture must not go away from under the mouse. Then only the user sorts again.
    """

    def __init__(
        self,
        gui: viser.GuiApi,
        scene: Scene,
        photos: PhotoCache,
        on_pick: Callable[[int], None],
        changed: Callable[[], None],
    ):
        """Call `on_pick` with a photo that is clicked, `changed` when there is something to refresh."""
        self._scene, self._photos, self._changed = scene, photos, changed
        self._test = set(scene.test_indices)
        self._page = 0
        self._resort = True
        self._placed = np.zeros(len(scene.views), bool)  # the photos that were measured when they were sorted
        self._current: int | None = None
        self._sort_due = 0.0
        self._order: list[int] = list(range(len(scene.views)))
        self._shown: list[int] = []
        self._sort = gui.add_dropdown(
            "Order",
            ORDERS,
            hint="By PSNR: of test photos in the last evaluation, of the others when last trained on.",
        )
        # Always there: the pictures below must not move when it is wanted.
        self._again = gui.add_button("Sort again", color="gray", disabled=True, hint="By the errors of now.")
        # The list's pictures are labels of these buttons, which themselves are not to be seen: a click on a
        # label presses its button, without any script in the page.
        self._buttons = [gui.add_button(f"Photo {i + 1}") for i in range(PER_PAGE)]
        self._sheet = gui.add_html("")
        self._pager = gui.add_button_group("Page", ("« First", "‹ Back", "More ›"))
        self._sort.on_update(self._reorder)
        self._again.on_click(self._reorder)
        self._pager.on_click(self._turn_page)
        for place, button in enumerate(self._buttons):
            self._connect(button, place, on_pick)

    def neighbor(self, index: int | None, step: int) -> int:
        """Return the photo `step` places after `index` in the order of the list, round its end."""
        order = self._order or list(range(len(self._scene.views)))
        if index not in order:
            return order[0 if step > 0 else -1]
        return order[(order.index(index) + step) % len(order)]

    def show(self, current: int | None, *, turn: bool) -> None:
        """Mark the photo whose camera the browser stands in, and with `turn` turn to its page."""
        if current != self._current:
            self._current = current
            self._sort_due = time.monotonic() + REST_SECONDS
        if turn and current in self._order:
            self._page = self._order.index(current) // PER_PAGE

    def refresh(self, errors: Errors) -> None:
        """Draw the list; sort it again where that is due."""
        now = time.monotonic()
        if self._placed.any() and not errors.known.any():  # another training has begun
            self._placed[:], self._resort = False, True
        if self._resort or (self._waits(errors) and now >= self._sort_due):
            self._resort = False
            self._order = self._sorted(errors)
            self._placed |= errors.known
            self._sort_due = now + SORT_SECONDS
            # Who looks at a photo keeps it in the list.
            if self._current in self._order and self._page > 0:
                self._page = self._order.index(self._current) // PER_PAGE
        self._again.disabled = self._waits(errors) or self._order == self._sorted(errors)
        self._draw(errors)

    def _waits(self, errors: Errors) -> bool:
        # Whether a photo of the list was measured for the first time since it was sorted.
        return bool((errors.known & ~self._placed)[self._order].any())

    def _connect(self, button: viser.GuiButtonHandle, place: int, on_pick: Callable[[int], None]) -> None:
        @button.on_click
        async def _(_: viser.GuiEvent) -> None:
            if place < len(self._shown):
                on_pick(self._shown[place])

    async def _reorder(self, _: viser.GuiEvent) -> None:
        self._page, self._resort = 0, True
        self._changed()

    async def _turn_page(self, event: viser.GuiEvent) -> None:
        pages = -(-len(self._order) // PER_PAGE)
        step = {"« First": -self._page, "‹ Back": -1, "More ›": 1}[event.target.value]
        self._page = min(max(self._page + step, 0), max(pages - 1, 0))
        self._sort_due = time.monotonic() + REST_SECONDS
        self._changed()

    def _sorted(self, errors: Errors) -> list[int]:
        everything = range(len(self._scene.views))
        if self._sort.value == BY_NAME:
            return list(everything)
        chosen: dict[str, Sequence[int]] = {
            WORST: everything,
            WORST_TEST: self._scene.test_indices,
            WORST_TRAINING: self._scene.train_indices,
        }
        return errors.worst_first(chosen[self._sort.value])

    def _draw(self, errors: Errors) -> None:
        start = self._page * PER_PAGE
        self._shown = self._order[start : start + PER_PAGE]
        colors, bad = errors.colors(), errors.bad
        tiles = []
        for button, index in zip(self._buttons, self._shown, strict=False):
            picture = self._photos.thumbnail(index, self._changed)
            tiles.append(
                tile_html(
                    element_id(button),
                    self._scene.views[index].name,
                    picture or "",
                    figure=decibels(errors, index),
                    color=css(colors[index]),
                    test=index in self._test,
                    bad=bool(bad[index]),
                    current=index == self._current,
                )
            )
        ids = ", ".join(f'div:has(> [id="{element_id(button)}"])' for button in self._buttons)
        last = start + len(self._shown)
        total = f"{start + 1}–{last} of {len(self._order):,}" if self._shown else "No photos"
        num_bad = int(bad[self._order].sum()) if self._order else 0
        warning = f' · <span class="ss-bad">{num_bad} much worse than the others</span>' if num_bad else ""
        self._sheet.content = (
            f"<style>{ids} {{ display: none }}</style>"
            f'<div class="ss-photos" data-splatstudio="photos">{"".join(tiles)}</div>'
            f'<div class="ss-note">{total}{warning}</div>'
        )


def decibels(errors: Errors, index: int) -> str:
    """Return a photo's PSNR as text."""
    return f"{errors.psnr[index]:.1f} dB" if errors.known[index] else "–"


def tile_html(
    button_id: str, name: str, uri: str, *, figure: str, color: str, test: bool, bad: bool, current: bool
) -> str:
    """Return a photo of the list: a label whose click presses the button `button_id`.

    The page's own script lets Enter and Space click on the one that has the keyboard.
    """
    notes = [*(["test photo"] if test else []), *(["poor"] if bad else [])]
    said, name = html.escape(", ".join([name, figure, *notes])), html.escape(name)
    picture = f'<img src="{uri}" alt="{said}">' if uri else ""
    badge = '<span class="badge">poor</span>' if bad else ""
    mark = '<span class="ss-muted">test</span>' if test else ""
    return (
        f'<label for="{html.escape(button_id)}"><div class="ss-photo" title="{name}" data-photo="{name}"'
        f' role="button" tabindex="0" aria-label="{said}" aria-pressed="{str(current).lower()}">'
        f'<div class="picture">{picture}{badge}</div><div class="color" style="background:{color}"></div>'
        f'<div class="text"><div>{name}</div><div><span>{figure}</span>{mark}</div></div></div></label>'
    )


@dataclass(frozen=True, eq=False)
class SceneParts:
    """What all browsers share of a scene."""

    scene: Scene
    photos: PhotoCache
    frustums: Frustums
    psnr: PhotoPsnr


class ViewPanel(Panel):
    """Builds the tab's controls in each browser that comes, and tells them what is new."""

    look_seconds = 2.0  # the order of the photos and the colors of the cameras follow after a while

    def __init__(self, page: Page):
        super().__init__(page)
        controller = self.controller
        self._sky: tuple[Path | None, bool] = (None, False)  # the model from the disk that was looked at last
        self._views: dict[int, BrowserView] = {}
        self._lock = threading.Lock()
        self._shared: SceneParts | None = None
        scene, photos = controller.project.scene, page.viewport.photos
        if scene is not None and photos is not None:
            self._shared = SceneParts(scene, photos, Frustums.of_scene(scene), PhotoPsnr(scene))
            if controller.project.run_dir is not None:
                self._shared.psnr.load(controller.project.run_dir, controller.last_step)
        # Each browser's controls go in here, beside those of the others, which it does not see.
        self._container = self.gui.add_folder(None)
        page.viewport.listen(self._open, self._close)
        self._add_keys()

    def refresh(self) -> None:
        """Show new errors, legends and thumbnails."""
        has_sky = self._has_sky()
        for view in self._all():
            view.refresh(has_sky=has_sky)

    def follow(self, event: Event) -> None:
        """Take in which photos fit badly; put the points away while a model takes their place."""
        anew = event == StateChanged("ready") and self.controller.model_state().anew
        if isinstance(event, ModelLoaded) or anew:
            for view in self._all():
                view.show_points(anew)
        if self._shared is None:
            return
        psnr = self._shared.psnr
        if isinstance(event, PhotoErrors):
            psnr.note(event.step, event.psnr)
        elif isinstance(event, Evaluated) and event.path is not None:
            psnr.note_evaluation(event.path, event.step)
        elif anew or (isinstance(event, Started) and event.step == 0):
            psnr.clear()

    def compare(self, client: viser.ClientHandle, index: int) -> None:
        """Bring a browser to photo `index` and compare it with the model there."""
        self._do(lambda view: view.compare_at(index), client)

    def _has_sky(self) -> bool:
        """Return whether the model in the view has learned a sky, which then can be shown or hidden."""
        path = self.controller.shown_path
        if path is None:
            return self.controller.project.config.sky.enabled
        if self._sky[0] != path:
            self._sky = (path, has_sky(path))
        return self._sky[1]

    def _open(self, stream: Stream) -> None:
        dress_page(stream.client)
        with self._container:
            view = BrowserView(self.page, stream, self._shared, partial(self.page.changed, self))
        with self._lock:
            self._views[stream.client.client_id] = view
        self.page.changed(None)

    def _close(self, stream: Stream) -> None:
        with self._lock:
            self._views.pop(stream.client.client_id, None)
        self.page.changed(None)

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
        nearest = "Goes to the nearest photo's camera first"
        keys: list[tuple[str, str, Callable[[BrowserView], None], str | None]] = [
            ("M", "Next mode of the view", BrowserView.next_mode, None),
            ("G", "Compare with the photo", BrowserView.toggle_compare, nearest),
            ("C", "Show or hide the cameras", BrowserView.toggle_cameras, None),
            ("N", "Next photo", lambda view: view.walk(1), order),
            ("B", "Previous photo", lambda view: view.walk(-1), order),
        ]
        for key, label, action, description in keys if self._shared is not None else keys[:1]:
            self.page.hotkeys.add(key, label, partial(self._do, action), description)


def errors_in_view(controller: Controller, psnr: PhotoPsnr) -> Errors:
    """Return the figures of the photos, none where they are of another model than the one in the view."""
    return psnr.errors if controller.shows_own_newest else psnr.errors.unknown


class BrowserView:
    """Mode, comparison, photos and drawing of one browser. Methods may be called from any thread."""

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
        self._halves = ToldHalves(page, stream, None if parts is None else parts.scene)
        self._add_mode()
        if parts is not None:
            self._overlay = SceneOverlay(self._client, parts.scene, parts.frustums, self.visit)
            self._add_compare()
            with self._gui.add_folder("Photos"):
                self._list = PhotoList(self._gui, parts.scene, parts.photos, self.visit, changed)
        with self._gui.add_folder("Shown"):
            self._add_switches()
        with self._gui.add_folder("Drawing"):
            self._sky = Drawing(page, stream, self._on, has_scene=parts is not None).sky
        stream.on_news = changed
        if page.controller.status.has_model:
            self.show_points(False)

    # ---- what keys and clicks do

    def visit(self, index: int) -> None:
        """Fly to where photo `index` was taken."""
        if self._stream.camera_snap is not None:
            self._turn_to_photo = True
            self._stream.camera_snap.enter(index)
            self._changed()

    def compare_at(self, index: int) -> None:
        """Fly to photo `index` and compare it with the model there."""
        self.visit(index)
        if self._compare is not None and self._compare.value == "Off":
            self._compare.value = "Split"

    def walk(self, step: int) -> None:
        """Fly to the next photo of the list, or with `step` -1 to the one before."""
        if self._list is not None and self._stream.camera_snap is not None:
            self.visit(self._list.neighbor(self._stream.camera_snap.last, step))

    def visit_nearest(self) -> None:
        """Fly to the photo that was taken nearest to here."""
        viewpoint, camera_snap = self._stream.viewpoint, self._stream.camera_snap
        if camera_snap is not None and viewpoint is not None:
            self.visit(camera_snap.nearest(viewpoint))

    def next_mode(self) -> None:
        """Show the next mode of the list."""
        names = self._mode.options
        self._mode.value = names[(names.index(self._mode.value) + 1) % len(names)]

    def toggle_compare(self) -> None:
        """Compare with the photo, or stop it."""
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

    # ---- what is new

    def refresh(self, *, has_sky: bool) -> None:
        """Show what has changed. `has_sky`: of the model in the view."""
        with self._lock, self._while_open():
            frame, shows = self._stream.frame, self._stream.settings.splats
            self._legend.content = legend_html(frame.legend, frame.notice) if frame and shows else ""
            self._sky.visible = has_sky
            self._halves.refresh()
            parts, camera_snap = self._parts, self._stream.camera_snap
            if parts is None or self._list is None or self._overlay is None or camera_snap is None:
                return
            errors, here = errors_in_view(self._page.controller, parts.psnr), camera_snap.here
            turn, self._turn_to_photo = self._turn_to_photo and here is not None, False
            self._list.show(here, turn=turn)
            self._overlay.leave_out(here)
            self._show_cameras()
            self._list.refresh(errors)
            self._standing.content = self._standing_html(parts, errors)
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

    def _standing_html(self, parts: SceneParts, errors: Errors) -> str:
        """Return in which photo's camera this browser stands, or that it does not."""
        camera_snap, settings = self._stream.camera_snap, self._stream.settings
        assert camera_snap is not None
        last = camera_snap.last
        name = "" if last is None else html.escape(parts.scene.views[last].name)
        if last is not None and (camera_snap.here is not None or camera_snap.on_the_way):
            problem = self._stream.photo_problem
            test = " · test photo" if last in parts.scene.test_indices else ""
            text = f"At <b>{name}</b>{test}" + (f" · {decibels(errors, last)}" if errors.known[last] else "")
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

        def changed(name: str) -> None:
            self._set(mode=MODES[name])
            self._go_to_a_photo()

        self._mode = self._on(
            self._gui.add_dropdown("Mode", names, hint="What the picture shows. Key M."), changed
        )
        self._legend = self._gui.add_html("")

    def _add_compare(self) -> None:
        gui = self._gui
        compare = gui.add_dropdown(
            "Compare", tuple(COMPARISONS), hint="The model with the photo of the current camera. Key G."
        )
        self._compare = compare
        sliders = {
            "Split": gui.add_slider("Photo | model", 0.0, 1.0, 0.01, 0.5, visible=False),
            "Blend": gui.add_slider("Photo's share", 0.0, 1.0, 0.01, 0.5, visible=False),
            "Difference": gui.add_slider("Times", 1.0, 10.0, 0.5, 3.0, visible=False),
        }
        self._halves.photo_slider = element_id(sliders["Split"])
        steps = {PREVIOUS: lambda: self.walk(-1), NEXT: lambda: self.walk(1), NEAREST: self.visit_nearest}
        self._on(
            gui.add_button_group("Photo", tuple(steps), hint="Keys B and N."), lambda button: steps[button]()
        )
        self._standing = gui.add_html("")

        def changed(_: object) -> None:
            for name, slider in sliders.items():
                slider.visible = name == compare.value
            chosen = Comparison(COMPARISONS[compare.value], *(slider.value for slider in sliders.values()))
            self._change(comparison=chosen)
            self._go_to_a_photo()

        for control in (compare, *sliders.values()):
            self._on(control, changed)

    def _show_cameras(self) -> None:
        """Show the cameras where they are wanted, and cover no comparison with them."""
        assert self._overlay is not None and self._stream.camera_snap is not None
        compared = self._stream.camera_snap.here is not None and self._stream.settings.wants_photo
        self._overlay.show_cameras(self._cameras.value and not compared)

    def _go_to_a_photo(self) -> None:
        """Stand in a photo's camera if what is wanted can be seen only from there."""
        camera_snap = self._stream.camera_snap
        if camera_snap is None or camera_snap.here is not None or camera_snap.on_the_way:
            return
        if self._stream.settings.wants_photo:
            self.visit_nearest()

    def _add_switches(self) -> None:
        gui, on = self._gui, self._on
        splats = gui.add_checkbox("Splats", True, hint="The model itself.")
        on(splats, lambda value: self._change(splats=value))
        if self._overlay is None:
            return
        points = gui.add_checkbox("Points", True, hint="The sparse points that the scene came with.")
        self._points = on(points, self._overlay.show_points)
        click = "Click on one to stand where its photo was taken; hidden while a photo is compared. Key C."
        self._cameras = on(gui.add_checkbox("Cameras", True, hint=click), lambda _: self._show_cameras())
        on(gui.add_slider("Camera size", 0.2, 4.0, 0.1, 1.0), self._overlay.size_cameras)
        by_error = "By error: red is the worst photo, blue the best, gray not measured. Test photos: orange."
        choice = gui.add_dropdown("Camera color", ("Error", "Test or training"), hint=by_error)

        def paint_soon(_: str) -> None:
            self._paint_due = 0.0

        self._color_by = on(choice, paint_soon)

    def _on(self, control: HandleType, action: Callable[[Any], None]) -> HandleType:
        """Call `action` with each new value of a control, or press of a button, in order."""
        handle: Any = control

        async def update(_: viser.GuiEvent) -> None:
            action(handle.value)
            self._changed()

        (handle.on_click if hasattr(handle, "on_click") else handle.on_update)(update)
        return control

    def _change(self, **changes: Any) -> None:
        self._stream.change(lambda settings: replace(settings, **changes))

    def _set(self, **changes: Any) -> None:
        self._stream.change(lambda settings: replace(settings, options=replace(settings.options, **changes)))
