"""Journeys in a browser: a flat score, two ranks, a training elsewhere, which way is up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blob_models import blobs
from free_ports import free_port
from gui_parts import TIMEOUT
from msgspec import structs
from studio_page import CANVAS, PAGE_TEST, Screen, close_screen, open_screen, row, screen_of
from test_plateau import ANYHOW

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.checkpoints.manifest import read_manifest, step_of
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.gui.app import open_attached
from splatstudio.gui.server.access import Listen
from splatstudio.runtime.messages import Start
from splatstudio.training.device_options import DeviceOptions

pytestmark = PAGE_TEST


def test_the_offer_is_put_away_and_taken(
    open_page: Callable[..., Screen], browser: Any, blob_folder: Path
) -> None:
    screen = open_page(blob_folder, ANYHOW, width=1100, height=700)
    controller = screen.studio.controller
    stop = screen.button("Stop here")
    offers = screen.page.get_by_text("The test score has been flat since step", exact=False)
    controller.send(Start(pause_at=30))  # it is flat at step 20
    stop.wait_for(timeout=1000 * TIMEOUT)
    screen.page.get_by_text("dB): stop here, or go on?").wait_for()
    assert controller.status.flat is not None
    screen.wait(lambda: controller.status.state == "paused", "it goes on, to where it was told to pause")

    # Who comes later sees it, too.
    other = browser.new_page()
    other.goto(screen.studio.url)
    other.get_by_role("button", name="Stop here", exact=True).wait_for(timeout=1000 * TIMEOUT)
    other.close()

    screen.button("Go on").click()
    stop.wait_for(state="hidden")
    assert controller.status.state == "paused" and controller.status.step == 30
    screen.close_notices()

    # Another stretch, after a rise that this scene does not have.
    controller._take(controller._worker, structs.replace(controller.status.flat, step=30, since=24))
    screen.page.get_by_text("flat since step 24 (").first.wait_for()
    assert offers.count() > 0
    screen.button("Stop here").click()
    screen.wait(lambda: controller.status.state == "finished", "it stops")
    stop.wait_for(state="hidden")
    screen.wait(lambda: screen.text("state") == "Stopped", "the head says so")
    run_dir = controller.project.run_dir
    assert run_dir is not None
    newest = newest_checkpoint(run_dir)
    assert newest is not None and step_of(newest) == 30
    assert screen.errors == []


def test_two_ranks_are_watched_paused_merged_and_exported(
    open_page: Callable[..., Screen], blob_folder: Path, tmp_path: Path
) -> None:
    screen = open_page(blob_folder, height=900, devices=DeviceOptions(ranks=2))
    screen.button("Start training").click()
    screen.wait(lambda: screen.step > 20, "training")
    assert len(screen.studio.controller._worker.pids) == 2

    screen.tab("Devices")
    ranks = screen.page.locator('[data-splatstudio="rank"]')
    screen.wait(lambda: ranks.count() == 2, "a row for each rank")
    for rank in range(2):
        screen.wait(lambda rank=rank: " ms" in ranks.nth(rank).inner_text(), f"how fast rank {rank} is")

    screen.close_notices()
    screen.wait(lambda: np.ptp(screen.picture(), axis=2).max() > 40, "coloured splats are on screen")
    before, step = screen.picture(), screen.step
    screen.drag(200)
    screen.wait(
        lambda: np.abs(screen.picture().astype(int) - before).mean() > 3, "dragging changes the picture"
    )
    screen.wait(lambda: screen.step > step, "the training went on")
    screen.settle()
    screen.button("Pause").click()
    screen.wait(lambda: screen.text("state") == "Paused", "it pauses")
    before = screen.picture()
    screen.drag(-200)
    screen.wait(
        lambda: np.abs(screen.picture().astype(int) - before).mean() > 3, "the view lives while it is paused"
    )
    screen.page.keyboard.press("Control+s")
    folder = tmp_path / "runs" / "blobs" / "ckpts" / f"step_{screen.step:08d}"
    screen.wait(folder.exists, "it is saved")
    assert len(read_manifest(folder)["ranks"]) == 2

    screen.tab("Evaluate")
    row(screen, f"Step {screen.step:,} · 2 ranks").click()
    screen.button("Merge & evaluate").click()
    screen.wait(lambda: " dB" in screen.text("scores"), "the whole is evaluated")
    screen.button("Export").locator("visible=true").first.click()
    exported = tmp_path / "runs" / "blobs" / "exports" / f"blobs-{screen.step}.ply"
    screen.wait(exported.exists, "it is exported")
    assert len(read_ply(exported)) == read_manifest(folder)["num_gaussians"]
    screen.button("Resume").click()
    screen.wait(lambda: screen.text("state") == "Training", "it goes on")
    assert screen.errors == []


@pytest.fixture
def training(blob_folder: Path, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Start a training as a launcher does, of one rank, and return its address and token."""
    variables = {"TORCHELASTIC_RUN_ID": "page", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    variables |= {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [str(Path(sys.executable).parent / "splatstudio"), "train", str(blob_folder)]
    command += ["--run", str(tmp_path / "run"), "--steps", "100000", "--sh-degree", "1"]
    command += ["--save-steps", "--eval-steps", "--attach", "127.0.0.1:0"]
    log = tmp_path / "log"
    with open(log, "wb") as written:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
        )
    try:
        assert process.stdout is not None
        found = None
        while found is None and (line := process.stdout.readline()):
            found = re.search(r"attach (\S+) --token (\S+)", line)
        assert found is not None, log.read_text()
        yield found[1], found[2]
    finally:
        process.kill()
        process.communicate()


def test_a_training_elsewhere_is_watched_and_paused_in_its_page(
    browser: Any, training: tuple[str, str]
) -> None:
    studio = open_attached(*training, network=Listen(port=0), browser=False)
    screen = screen_of(browser, studio)
    try:
        screen.wait(lambda: screen.step > 20, "the page shows how it gets on")
        screen.button("Pause").click()
        screen.wait(lambda: screen.text("state") == "Paused", "it pauses")
        step = screen.step
        screen.button("Resume").click()
        screen.wait(lambda: screen.step > step, "it goes on")
        assert screen.errors == []
    finally:
        close_screen(screen)


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
