"""The folder Drawing of the View tab: limits that leave nothing to see, and the way back to the start."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import viser
from gui_parts import as_user, wait_until

from splatstudio.gui.panel import Page
from splatstudio.gui.state.stream import ViewSettings
from splatstudio.gui.tabs.drawing import Drawing
from splatstudio.gui.tabs.view import BrowserView
from splatstudio.runtime.messages import ViewOptions


class Watched:
    """What one browser has chosen to see, without pictures."""

    drawing: Drawing

    def __init__(self, gui: viser.GuiApi) -> None:
        self.client = SimpleNamespace(gui=gui)
        self.settings = ViewSettings(ViewOptions((0.2, 0.4, 0.6)))
        self.returns: list[Any] = []

    def change(self, do: Any) -> None:
        self.settings = do(self.settings)


@pytest.fixture
def watched(page: Page, server: viser.ViserServer) -> Watched:
    watched = Watched(server.gui)
    view = BrowserView.__new__(BrowserView)
    view._changed = lambda: None
    page = replace(page, first_view=cast(Any, SimpleNamespace(show=watched.returns.append, up="+z")))
    watched.drawing = Drawing(page, cast(Any, watched), view._on, has_scene=False)
    return watched


def control(watched: Watched, label: str) -> Any:
    handles = watched.client.gui._gui_input_handle_from_uuid.values()
    return next(handle for handle in handles if handle.label == label)


def test_limits_between_which_nothing_lies_are_told_and_change_no_picture(watched: Watched) -> None:
    near, far, told = control(watched, "Near"), control(watched, "Far"), watched.drawing._refusal
    as_user(near, 5.0)
    as_user(far, 9.0)
    before = watched.settings
    assert (before.options.near, before.options.far) == (5.0, 9.0) and not told.visible
    for limit, value in ((far, 5.0), (far, 3.0), (near, 4.0)):
        as_user(limit, value)
        assert watched.settings == before and told.visible
        assert "Far must be farther than Near." in told.content
    as_user(far, 4.5)
    assert (watched.settings.options.near, watched.settings.options.far) == (4.0, 4.5) and not told.visible
    as_user(near, 50.0)
    as_user(far, 0.0)
    assert (watched.settings.options.near, watched.settings.options.far) == (50.0, None) and not told.visible


def test_the_view_is_reset_with_all_that_was_chosen_in_it(watched: Watched) -> None:
    at_first = watched.settings
    values = {
        "Background": (0, 0, 0),
        "Splat size": 0.5,
        "SH degree": 1,
        "Sky": False,
        "Near": 7.0,
        "Far": 3.0,
    }
    before = {label: control(watched, label).value for label in values}
    for label, value in values.items():
        as_user(control(watched, label), value)
    assert watched.settings != at_first and watched.drawing._refusal.visible
    as_user(control(watched, "Reset the view"), True)
    grounds = at_first.options.background

    def drawn() -> ViewSettings:
        """Return the settings; the control has the background in steps of 1/255."""
        now = watched.settings
        same = np.allclose(now.options.background, grounds, atol=0.003)
        return replace(now, options=replace(now.options, background=grounds)) if same else now

    wait_until(lambda: drawn() == at_first and not watched.drawing._refusal.visible, "all of it is reset")
    assert {label: control(watched, label).value for label in values} == before
    assert watched.returns == [watched.client]
