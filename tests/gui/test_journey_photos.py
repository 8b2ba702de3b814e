"""Photos in a real browser: cameras appear while their poses are found."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from estimations import kept_so_far
from studio_page import CANVAS, PAGE_TEST, TIMEOUT, WINDOW
from textured_rooms import FOCAL, HEIGHT, WIDTH, ring, table_with_boxes, write_photos

from splatstudio.cli import start
from splatstudio.gui.app import Studio
from splatstudio.gui.estimation import EstimationPage
from splatstudio.gui.server.access import Listen
from splatstudio.poses.estimate import PoseProgress
from splatstudio.poses.growing import GrowingModel
from splatstudio.poses.store import PoseStore
from splatstudio.settings.config import TrainConfig
from splatstudio.training.device_options import AS_FOUND

pytestmark = PAGE_TEST


def growing(folder: Path, num: int) -> Any:
    """Return an estimation that has found the poses of `num` photos, and goes on."""
    random = np.random.default_rng(0)
    half_sizes = np.tile([WIDTH / 2 / FOCAL, HEIGHT / 2 / FOCAL], (num, 1))
    points = random.uniform(-1, 1, (2000, 3)).astype(np.float32)
    found = GrowingModel(num, 9, ring(9)[:num], half_sizes, points, np.full((2000, 3), 255, np.uint8))
    store = PoseStore(folder)
    store.path.mkdir(parents=True, exist_ok=True)
    store.growing_file.write_bytes(b"new")
    progress = PoseProgress("poses", num, 9, "photos with a pose", 65.0)
    ended: list[bool] = []
    wanted: list[bool] = []
    return SimpleNamespace(
        source=folder,
        store=store,
        progress=progress,
        growing=lambda: found,
        end=lambda: ended.append(True),
        ended=ended,
        asked=False,
        want_so_far=lambda: wanted.append(True),
        wanted=wanted,
    )


def pixels(page: Any) -> np.ndarray:
    """Return what the canvas shows, [H, W, 3] BGR."""
    picture = cv2.imdecode(np.frombuffer(page.locator(CANVAS).screenshot(), np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return picture


def num_blue(page: Any) -> int:
    """Return how many pixels have the color of cameras."""
    blue, green, red = (pixels(page)[..., channel].astype(int) for channel in range(3))
    return int(((blue > red + 60) & (blue > 120) & (green > red)).sum())


def test_cameras_and_points_grow_on_the_page(browser: Any, tmp_path: Path) -> None:
    estimation = growing(tmp_path / "photos <b>", 3)
    served = EstimationPage(Listen(port=0), estimation)
    page = browser.new_page(viewport=WINDOW)
    page.set_default_timeout(1000 * TIMEOUT)
    try:
        page.goto(served.url)
        page.get_by_text("3 of 9").wait_for()
        assert page.get_by_text("photos <b>").is_visible() and page.get_by_text("1:05 min").is_visible()
        page.wait_for_timeout(1500)
        before = num_blue(page)
        # Without a GPU the light of viser's own surroundings takes seconds, in which nothing is shown.
        assert page.evaluate("window.__viserMutable.scene.environment") is None
        assert page.get_by_role("button", name="Train with the 3 photos so far").is_disabled()
        assert (pixels(page).max(axis=-1) > 230).sum() > 200, "points"
        more = growing(tmp_path / "photos <b>", 9)
        estimation.growing, estimation.progress = more.growing, more.progress
        page.get_by_text("9 of 9").wait_for()
        page.wait_for_timeout(1500)
        assert num_blue(page) > 1.5 * max(before, 50), "cameras"
        page.get_by_role("button", name="Train with the 9 photos so far").click()
        page.get_by_role("button", name="One moment ...").wait_for()
        page.get_by_role("button", name="End", exact=True).click()
        page.wait_for_timeout(500)
        assert estimation.ended and estimation.wanted
    finally:
        page.close()
        served.close()


def test_training_begins_with_the_photos_so_far_and_the_others_join(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    photos = tmp_path / "photos"
    write_photos(photos, table_with_boxes(), ring(12, share=0.5))
    (photos / "notes.png").write_bytes(b"no picture")
    estimation, so_far, _ = kept_so_far(photos)
    process = estimation._stop._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # it would be over before the page is there
    num_first, end = len(so_far.posed), time.monotonic() + 2 * TIMEOUT
    assert 5 <= num_first < 12
    studio = Studio(photos, network=Listen(port=0), config=TrainConfig(steps=100))
    studio.follow_estimation(estimation)
    served, page = studio, browser.new_page(viewport=WINDOW)
    page.set_default_timeout(1000 * TIMEOUT)
    try:
        page.goto(studio.url)
        page.get_by_role("tab", name="Photos").click()
        page.get_by_text(f"{num_first} of 13 photos have a pose so far").wait_for()
        page.get_by_text("photos with a pose").wait_for()
        os.kill(process.pid, signal.SIGCONT)
        assert estimation.wait(end - time.monotonic()) and estimation.report is not None
        take_in = page.get_by_role("button", name=f"Take in {12 - num_first} more photos").first
        take_in.click()
        while not studio._again:
            assert time.monotonic() < end
            time.sleep(0.05)
        opened: list[Studio] = []
        again = threading.Event()

        def opens(path: Path, **asked: Any) -> Studio:
            opened.append(Studio(path, network=asked["network"], config=asked["config"]))
            again.set()
            return opened[0]

        monkeypatch.setattr("splatstudio.gui.app.open_studio", opens)
        monkeypatch.setattr(Studio, "run_forever", lambda one: one is studio and (one.close() or True))
        start.run_until_closed(studio, AS_FOUND)
        assert again.is_set()
        served = opened[0]
        assert served.url == studio.url and served.controller.project.scene is not None
        assert len(served.controller.project.scene.views) == 12
        # Until the page has heard of the other studio it shows the tabs of the first one, grayed out.
        take_in.wait_for(state="hidden")
        page.get_by_role("tab", name="Photos").click()
        page.get_by_text("12 of 13 photos have a pose").first.wait_for()
        page.locator("img").locator("visible=true").first.wait_for()  # the contact sheet
    finally:
        page.close()
        served.close()
