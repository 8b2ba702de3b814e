"""How one moves through the scene: keys, a double click, and what each browser sets for itself.

What needs no answer of the studio (flying, the axes in the corner, notifications) is in page/navigation.js.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy as np
import viser
import viser.transforms

from splatstudio.gui.panel import Hotkeys, Page, Panel
from splatstudio.gui.state.stream import FrameSource
from splatstudio.gui.state.viewpoint import FirstView, Side, Viewpoint, read_viewpoint
from splatstudio.gui.theme import table_html
from splatstudio.rendering.mode_pictures import color_table
from splatstudio.runtime.messages import ViewOptions

PATCH = 8  # px: a side of the small picture that tells what lies at a place
MIDDLE = slice(PATCH // 2 - 2, PATCH // 2 + 2)  # of it: what counts
APPROACH = 0.5  # of the way to a place is left after a double click on it
FLIGHT_SECONDS, FLIGHT_PICTURES = 0.3, 10

# What viser, and page/navigation.js, hear.
MOUSE = (
    ("Left drag", "Turn about the middle"),
    ("Right drag", "Move sideways"),
    ("Wheel", "Nearer or farther"),
    ("Double click, Shift+click", "Fly there and turn about it"),
    ("W A S D, Q E", "Fly; with Shift three times as fast"),
    ("Wheel while flying", "Slower or faster"),
    ("Arrows", "Turn"),
    ("?", "This list"),
    ("Ctrl+K", "All commands"),
)


def add_view_keys(hotkeys: Hotkeys, first_view: FirstView) -> None:
    """Add the keys that move one browser's camera to a view of everything."""
    hotkeys.add("F", "Frame everything", first_view.frame, "From the direction in which you look")
    sides = get_args(Side)
    for number, side in enumerate(sides, 1):
        preposition = "" if side in ("above", "below") else "the "
        look = partial(first_view.look_from, side=side)
        hotkeys.add(f"{number}", f"Look from {preposition}{side}", look, "At everything")
    hotkeys.add(f"{len(sides) + 1}", "Reset the camera", first_view.show, "Where a new browser stands")


def point_seen(
    source: FrameSource, view: int, viewpoint: Viewpoint, options: ViewOptions, place: tuple[float, float]
) -> np.ndarray | None:
    """Return the point [3] of the model that is seen at a place of the canvas, None where there is nothing.

    `place` is 0..1 to the right and down. The depth is read from a small picture of the median depth, which
    has its own range: to 1/255 of how much the depth differs there.
    """
    camera = viewpoint.camera(1.0)
    pixel = np.array(place) * (camera.width, camera.height)
    K = camera.K.copy()
    K[:2, 2] += PATCH / 2 - pixel
    small = replace(camera, K=K, width=PATCH, height=PATCH)
    seen = replace(options, mode="median_depth", background=(0.0, 0.0, 0.0), photo=None)
    received = source.render(view, small, seen)
    source.forget(view)
    if received is None or received.frame.legend is None:
        return None
    legend = received.frame.legend
    colors = received.image[MIDDLE, MIDDLE].reshape(-1, 3)
    colors = colors[colors.any(axis=1)].astype(int)  # black, which the color map has not, is nothing
    if len(colors) == 0:
        return None
    table = color_table(legend.color_map).numpy().astype(int)
    places = np.abs(colors[:, None] - table).sum(axis=-1).argmin(axis=1)
    depth = legend.low + float(np.median(places)) / 255.0 * (legend.high - legend.low)
    x, y = (pixel - camera.K[:2, 2]) / camera.K[[0, 1], [0, 1]]
    return camera.position + depth * (np.array([x, y, 1.0]) @ camera.viewmat[:3, :3])


def fly_toward(client: viser.ClientHandle, viewpoint: Viewpoint, point: np.ndarray) -> None:
    """Bring a point to the middle of a browser's canvas, half as far away, and turn about it from then on."""
    start, direction = viewpoint.position, viser.transforms.SO3(viewpoint.wxyz).as_matrix()[:, 2]
    end = point - APPROACH * float(np.linalg.norm(point - start)) * direction
    ahead = max(float((point - start) @ direction), 1e-6)
    for number in range(1, FLIGHT_PICTURES + 1):
        share = number / FLIGHT_PICTURES
        eased = share * share * (3.0 - 2.0 * share)
        target = (1.0 - eased) * (start + ahead * direction) + eased * point
        with client.atomic():
            client.camera.position = (1.0 - eased) * start + eased * end
            client.camera.look_at = target
        time.sleep(FLIGHT_SECONDS / FLIGHT_PICTURES)


class Navigation(Panel):
    """What each browser sets for itself, below the View tab; the double click; the list of keys."""

    def __init__(self, page: Page):
        super().__init__(page)
        with self.gui.add_folder("This browser", expand_by_default=False):
            self.gui.add_html(_OWN_SETTINGS)
        self.keep(self.gui.add_html(""), content=self._distance)
        self._keys: dict[int, Any] = {}  # the list of keys, by browser
        page.hotkeys.add("H", "Keys and mouse", self._show_keys, "The list that ? shows")

        # Not each click: the mouse would be a hand all over the scene.
        @page.server.scene.on_click(modifier="shift")
        def _(event: viser.SceneClickEvent) -> None:
            self._look_at(event.client, event.screen_pos)

    def _distance(self) -> str:
        """Return what tells the page how large the scene is."""
        return f'<div data-distance="{self.page.first_view.distance:.6g}"></div>'

    def _look_at(self, client: viser.ClientHandle, place: tuple[float, float]) -> None:
        stream, viewpoint = self.page.viewport.stream(client), read_viewpoint(client.camera)
        if stream is None or viewpoint is None or self.controller.model_state().step is None:
            return
        options = stream.settings.options
        # A view of its own: the browser's pictures go on meanwhile.
        point = point_seen(self.controller, -1 - client.client_id, viewpoint, options, place)
        if point is not None:
            fly_toward(client, viewpoint, point)

    def _show_keys(self, client: viser.ClientHandle) -> None:
        """Show the list of keys in a browser, or put it away where it is there."""
        before = self._keys.pop(client.client_id, None)
        if before is not None and not before.closed:
            before.close()
            return
        with client.gui.add_modal("Keys and mouse") as modal:
            self._keys[client.client_id] = modal
            client.gui.add_html(table_html([*MOUSE, *self.page.hotkeys.labels], mark="keys"))
            close = client.gui.add_button("Close")

        @close.on_click
        def _(_: viser.GuiEvent) -> None:
            self._keys.pop(client.client_id, None)
            modal.close()


_OWN_SETTINGS = """
<div class="ss-own">
  <label>Fly speed <input type="range" data-own="speed" min="-4" max="4" step="0.25" value="0"></label>
  <label>Colors <select data-own="theme">
    <option value="dark">Dark</option><option value="light">Light</option>
    <option value="system">As this computer</option></select></label>
  <label><input type="checkbox" data-own="axes" checked> Show the axes</label>
  <label><input type="checkbox" data-own="notify"> Notify me when a training ends</label>
</div>
"""
