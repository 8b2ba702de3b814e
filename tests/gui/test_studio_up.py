"""Which way is up, in two real browsers of one studio: each chooses for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import blobs
from gui_parts import TIMEOUT
from studio_page import CANVAS, PAGE_TEST, Screen, close_screen, open_screen

from splatstudio.formats.ply import write_ply

pytestmark = PAGE_TEST


def test_up_is_each_browsers_own(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_ply(tmp_path / "blobs.ply", blobs())
    screen = open_screen(browser, tmp_path / "blobs.ply", width=1100, height=500)
    try:
        screen.wait(lambda: screen.studio.controller.status.has_model, "the model is shown")
        page = browser.new_page(viewport={"width": 1100, "height": 500})
        page.set_default_timeout(1000 * TIMEOUT)
        page.goto(screen.studio.url)
        page.locator(CANVAS).wait_for()
        screen.wait(lambda: len(screen.studio._server.get_clients()) == 2, "another browser")
        other = Screen(page, screen.studio, [], number=1)
        mine, its = screen.client, other.client
        screen.settle()
        other.settle()
        before = {"up": np.array(its.camera.up_direction), "position": np.array(its.camera.position)}
        assert np.allclose(mine.camera.up_direction, before["up"], atol=1e-3)
        screen.tab("View")
        screen.choose("Up", "+z")
        screen.wait(
            lambda: bool(np.allclose(mine.camera.up_direction, [0, 0, 1], atol=1e-3)), "up is +z here"
        )
        screen.settle()
        other.settle()
        assert np.allclose(its.camera.up_direction, before["up"], atol=1e-6), "the other one's up is its own"
        assert np.allclose(its.camera.position, before["position"], atol=1e-6)
        # A drag to the side turns each around its own up: the height over the ground stays.
        screen.drag(150)
        screen.wait(lambda: abs(float(mine.camera.position[0])) > 0.3, "it turns")
        height = float(before["position"] @ before["up"])
        screen.wait(lambda: bool(np.allclose(mine.camera.up_direction, [0, 0, 1], atol=1e-3)), "still +z")
        other.drag(150)
        screen.wait(
            lambda: not np.allclose(its.camera.position, before["position"], atol=0.1), "it turns too"
        )
        other.settle()
        assert abs(float(np.array(its.camera.position) @ before["up"]) - height) < 0.05
        page.close()
    finally:
        close_screen(screen)
