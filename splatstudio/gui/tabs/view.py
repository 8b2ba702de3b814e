"""The View tab: what each browser sees, and from where. Every browser has controls of its own."""

from __future__ import annotations

import threading

import viser

from splatstudio.gui.dock.hotkeys import Hotkey
from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.server.viser_private import dress_page
from splatstudio.gui.state.photo_psnr import PhotoPsnr
from splatstudio.gui.state.scene_overlay import Frustums
from splatstudio.gui.state.sky_probe import SkyThere
from splatstudio.gui.state.stream import Stream
from splatstudio.gui.tabs.browser_view import BrowserView, SceneParts
from splatstudio.runtime.messages import Evaluated, Event, ModelLoaded, PhotoErrors, Started, StateChanged


class ViewPanel(Panel):
    """Builds the tab's controls in each browser that comes, and tells them what is new."""

    def __init__(self, page: Page):
        self._page = page
        self._sky = SkyThere(page.controller)
        self._views: dict[int, BrowserView] = {}
        self._lock = threading.Lock()
        self._parts: SceneParts | None = None
        scene, photos = page.controller.project.scene, page.viewport.photos
        if scene is not None and photos is not None:
            self._parts = SceneParts(scene, photos, Frustums.of_scene(scene), PhotoPsnr(scene))
            if page.controller.project.run_dir is not None:
                self._parts.book.load(page.controller.project.run_dir, page.controller.last_step)
        # Each browser's controls go in here, beside those of the others, which it does not see.
        self._container = page.server.gui.add_folder(None)
        page.viewport.listen(self._open, self._close)
        self._add_keys()

    def refresh(self) -> None:
        """Show new errors, legends and thumbnails."""
        has_sky = self._sky.there
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
        book = self._parts.book
        if isinstance(event, PhotoErrors):
            book.note(event.step, event.psnr)
        elif isinstance(event, Evaluated) and event.path is not None:
            book.note_evaluation(event.path, event.step)
            for view in self._all():
                view.sort_photos()
        elif isinstance(event, Started) and event.step == 0:
            book.clear()

    def compare(self, client: viser.ClientHandle, index: int) -> None:
        """Bring a browser to photograph `index` and compare it with the model there."""
        view = self._of(client)
        if view is not None:
            view.compare_at(index)

    def _open(self, stream: Stream) -> None:
        dress_page(stream.client)
        with self._container:
            view = BrowserView(self._page, stream, self._parts)
        with self._lock:
            self._views[stream.client.client_id] = view

    def _close(self, stream: Stream) -> None:
        with self._lock:
            self._views.pop(stream.client.client_id, None)

    def _all(self) -> list[BrowserView]:
        with self._lock:
            return list(self._views.values())

    def _of(self, client: viser.ClientHandle) -> BrowserView | None:
        with self._lock:
            return self._views.get(client.client_id)

    def _add_keys(self) -> None:
        keys = self._page.hotkeys

        def mode(client: viser.ClientHandle) -> None:
            if (view := self._of(client)) is not None:
                view.next_mode()

        keys.add(Hotkey("M", "Next mode of the view", mode))
        if self._parts is None:
            return

        def compare(client: viser.ClientHandle) -> None:
            if (view := self._of(client)) is not None:
                view.toggle_compare()

        def cameras(client: viser.ClientHandle) -> None:
            if (view := self._of(client)) is not None:
                view.toggle_cameras()

        def following(client: viser.ClientHandle) -> None:
            if (view := self._of(client)) is not None:
                view.walk(1)

        def previous(client: viser.ClientHandle) -> None:
            if (view := self._of(client)) is not None:
                view.walk(-1)

        keys.add(Hotkey("G", "Compare with the photo", compare, "Goes to the nearest photo's camera first"))
        keys.add(Hotkey("C", "Show or hide the cameras", cameras))
        keys.add(Hotkey("N", "Next photo", following, "In the order of the list of photos"))
        keys.add(Hotkey("B", "Previous photo", previous, "In the order of the list of photos"))
