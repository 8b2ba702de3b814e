"""How the model is drawn in one browser: the folder Drawing of the View tab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from splatstudio.gui.panel import HandleType, Page
from splatstudio.gui.state.stream import Stream
from splatstudio.gui.state.viewpoint import Axis
from splatstudio.gui.theme import note_html, rgb_bytes

RESOLUTIONS = {"Full": 1.0, "High": 0.75, "Medium": 0.5, "Low": 0.25}
UP_AXES: dict[str, Axis] = {"-y (COLMAP)": "-y", "+y": "+y", "+z": "+z", "-z": "-z", "+x": "+x", "-x": "-x"}
TOO_NEAR = "Far must be farther than Near."


class On(Protocol):
    """Calls an action with each new value of a control, or press of a button, and returns the control."""

    def __call__(self, control: HandleType, action: Callable[[Any], None], /) -> HandleType: ...


class Drawing:
    """Resolution, background, splats and limits of one browser's pictures, and the way back to the start."""

    def __init__(self, page: Page, stream: Stream, on: On, *, has_scene: bool):
        self._first_view, self._stream, self._gui = page.first_view, stream, stream.client.gui
        gui, self._near_at_first = self._gui, page.controller.project.config.near
        adapts = "Of the window at rest. While the camera moves or a training runs it adapts by itself."
        on(
            gui.add_dropdown("Resolution", tuple(RESOLUTIONS), initial_value="Full", hint=adapts),
            lambda value: stream.change(lambda settings: replace(settings, max_scale=RESOLUTIONS[value])),
        )
        learned = "Show the sky that the model has learned, not the background."
        self.sky = gui.add_checkbox("Sky", True, visible=False, hint=learned)
        on(self.sky, lambda value: self._set(sky=value))
        background = gui.add_rgb("Background", rgb_bytes(stream.settings.options.background))
        on(background, lambda value: self._set(background=tuple(channel / 255.0 for channel in value)))
        times = "Multiplies the size of each splat in the view; the model is unchanged."
        size = gui.add_slider("Splat size", 0.05, 2.0, 0.05, 1.0, hint=times)
        on(size, lambda value: self._set(splat_scale=value))
        highest = "Highest degree of the view-dependent color; 0: none."
        degree = gui.add_slider("SH degree", 0, 3, 1, 3, hint=highest)
        on(degree, lambda value: self._set(sh_degree=None if value == 3 else value))
        nearer = "Nothing nearer is drawn; scene units."
        self._near = gui.add_number("Near", self._near_at_first, min=1e-6, max=1e6, step=0.01, hint=nearer)
        farther = "Nothing farther is drawn; scene units. 0: no limit."
        self._far = gui.add_number("Far", 0.0, min=0.0, max=1e6, step=0.1, hint=farther)
        self._refusal = gui.add_html(note_html(TOO_NEAR, "warning", mark="near-far"), visible=False)
        at_first: tuple[Any, ...] = (self.sky, background, size, degree, self._near, self._far)
        self._at_first = [(handle, handle.value) for handle in at_first]
        for limit in (self._near, self._far):
            on(limit, lambda _: self._limit())
        if not has_scene:
            self._add_up(on)
        resets = "Camera, background, sky, splat size, SH degree, Near and Far as at the start."
        on(gui.add_button("Reset the view", color="gray", hint=resets), lambda _: self._reset())

    def _add_up(self, on: On) -> None:
        client, first_view = self._stream.client, self._first_view
        likely = next(name for name, axis in UP_AXES.items() if axis == first_view.up)
        which = "Which axis of the file's coordinates is up, in your browser."
        up = self._gui.add_dropdown("Up", tuple(UP_AXES), initial_value=likely, hint=which)
        on(up, lambda value: first_view.set_up(client, UP_AXES[value]))

    def _limit(self) -> None:
        """Draw between Near and Far; where nothing lies between them, say so and leave the picture alone."""
        near, far = self._near.value, self._far.value
        self._refusal.visible = 0.0 < far <= near
        if not self._refusal.visible:
            self._set(near=None if near == self._near_at_first else near, far=far or None)

    def _reset(self) -> None:
        for handle, value in self._at_first:
            handle.value = value
        self._first_view.show(self._stream.client)

    def _set(self, **changes: Any) -> None:
        self._stream.change(lambda settings: replace(settings, options=replace(settings.options, **changes)))
