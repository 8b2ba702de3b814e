"""The View tab: what is shown in the viewport, and how."""

from __future__ import annotations

from dataclasses import replace

import viser

from splatstudio.studio.first_view import Axis
from splatstudio.studio.page import Page, Panel
from splatstudio.worker.messages import Event, ModelLoaded

RESOLUTIONS = {"Full": 1.0, "High": 0.75, "Medium": 0.5, "Low": 0.25}
UP_AXES: dict[str, Axis] = {
    "-y (COLMAP)": "-y",
    "+y": "+y",
    "+z": "+z",
    "-z": "-z",
    "+x": "+x",
    "-x": "-x",
}


class ViewPanel(Panel):
    """Switches for splats, points and cameras; resolution; background; the way back to the first view."""

    def __init__(self, page: Page):
        server, controller, viewport = page.server, page.controller, page.viewport
        stage, first_view = page.stage, page.first_view
        gui = server.gui
        self._controller = controller
        self._viewport = viewport
        self._splats = gui.add_checkbox("Splats", True, hint="The model itself.")
        self._splats.on_update(lambda _: self._show_splats(server))
        self._points = None
        if stage is not None:
            self._points = gui.add_checkbox(
                "Points", True, hint="The sparse points that the scene came with."
            )
            cameras = gui.add_checkbox(
                "Cameras", True, hint="Click on one to stand where its photograph was taken. Orange: test."
            )
            self._points.on_update(lambda event: stage.show_points(event.target.value))
            cameras.on_update(lambda _: stage.show_cameras(cameras.value))
        resolution = gui.add_dropdown(
            "Resolution",
            tuple(RESOLUTIONS),
            initial_value="Full",
            hint="Of the window at rest. While the camera moves or a training runs it adapts by itself.",
        )
        resolution.on_update(lambda _: viewport.set_max_scale(RESOLUTIONS[resolution.value]))
        background = gui.add_rgb("Background", _to_bytes(controller.options.background))
        background.on_update(lambda _: self._set_background(background.value))
        if stage is None:
            up = gui.add_dropdown("Up", tuple(UP_AXES), hint="Which way of the file's coordinates is up.")
            up.on_update(lambda _: first_view.set_up(UP_AXES[up.value]))
        reset = gui.add_button("Reset the view", color="gray")

        @reset.on_click
        def _(event: viser.GuiEvent) -> None:
            if event.client is not None:
                first_view.show(event.client)

    def follow(self, event: Event) -> None:
        """Put the points away when the model takes their place."""
        if isinstance(event, ModelLoaded) and self._points is not None and self._points.value:
            self._points.value = False

    def _show_splats(self, server: viser.ViserServer) -> None:
        self._viewport.hide(not self._splats.value)
        if not self._splats.value:
            for client in server.get_clients().values():
                client.scene.set_background_image(None)

    def _set_background(self, color: tuple[int, int, int]) -> None:
        red, green, blue = (value / 255.0 for value in color)
        self._controller.options = replace(self._controller.options, background=(red, green, blue))
        self._viewport.invalidate()


def _to_bytes(color: tuple[float, float, float]) -> tuple[int, int, int]:
    red, green, blue = (round(255.0 * value) for value in color)
    return (red, green, blue)
