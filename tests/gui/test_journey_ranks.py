"""Two ranks, whose score stands still at last, and a training elsewhere, in a real browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from free_ports import free_port
from gui_parts import TIMEOUT
from studio_page import PAGE_TEST, WINDOW, Screen, close_screen, row, screen_of

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.checkpoints.manifest import read_manifest, step_of
from splatstudio.formats.ply import read_ply
from splatstudio.gui.attached import open_attached
from splatstudio.gui.panel import PRESS_SECONDS
from splatstudio.gui.server.access import Listen
from splatstudio.runtime.messages import Pause, PlateauReached, Resume
from splatstudio.runtime.stop_signals import StopRequest
from splatstudio.training.device_options import DeviceOptions

pytestmark = PAGE_TEST


def test_two_ranks_are_watched_paused_merged_and_exported(
    open_page: Callable[..., Screen], browser: Any, blob_folder: Path, tmp_path: Path
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
    screen.wait(lambda: np.ptp(screen.picture(), axis=2).max() > 40, "colored splats are on screen")
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
    screen.close_notices()
    put_the_offer_away_and_take_it(screen, browser)
    newest = newest_checkpoint(tmp_path / "runs" / "blobs")
    assert newest is not None and step_of(newest) == screen.step
    assert screen.errors == []


def put_the_offer_away_and_take_it(screen: Screen, browser: Any) -> None:
    """Let the test score of a paused training stand still: go on in spite of it, and stop another time."""
    controller, stop = screen.studio.controller, screen.button("Stop here")

    def flat_since(step: int) -> None:
        reached = PlateauReached(step + 10, 100_000, step, 27.94, stops=False, waits=False, rates_left=1.0)
        controller._take(controller._worker, reached)
        screen.page.get_by_text(f"flat since step {step} (").first.wait_for()

    flat_since(5)
    assert screen.page.get_by_text("The test score has been flat since step", exact=False).count() > 0
    screen.page.get_by_text("dB): stop here, or go on?").wait_for()
    # Who comes later sees it, too.
    other = browser.new_page(viewport=WINDOW)
    other.goto(screen.studio.url)
    other.get_by_role("button", name="Stop here", exact=True).wait_for(timeout=1000 * TIMEOUT)
    other.close()
    screen.button("Continue").click()
    stop.wait_for(state="hidden")
    assert controller.status.state == "paused", "what is paused stays so"
    screen.button("Resume").click()
    screen.wait(lambda: screen.text("state") == "Training", "it goes on")
    flat_since(15)
    screen.button("Stop here").click()
    screen.wait(lambda: controller.status.state == "finished", "it stops")
    stop.wait_for(state="hidden")
    screen.wait(lambda: screen.text("state") == "Stopped", "the head says so")


@pytest.fixture
def training(blob_folder: Path, tmp_path: Path) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """Start a training as a launcher does, of one rank; return its address, its token and the process."""
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
        yield found[1], found[2], process
    finally:
        process.kill()
        process.communicate()


def test_a_training_elsewhere_is_watched_and_paused_in_its_page_until_it_is_gone(
    browser: Any, training: tuple[str, str, subprocess.Popen[str]]
) -> None:
    address, token, process = training
    studio = open_attached(address, token, network=Listen(port=0), browser=False)
    studio.controller.send(Pause())  # it takes a processor from the page that opens
    screen = screen_of(browser, studio)
    try:
        step = screen.step
        studio.controller.send(Resume())
        screen.wait(lambda: screen.step > step + 20, "the page shows how it gets on")
        screen.button("Pause").click()
        screen.wait(lambda: screen.text("state") == "Paused", "it pauses")
        step = screen.step
        time.sleep(PRESS_SECONDS)
        screen.button("Resume").click()
        screen.wait(lambda: screen.step > step, "it goes on")
        assert screen.button("Close this page").count() == 0, "there is something to steer"
        process.kill()
        screen.wait(lambda: screen.text("state") == "Not connected", "the line broke")
        assert "may have ended" in screen.text("message") and screen.button("Save").count() == 0
        assert screen.button("Not connected").is_disabled()
        screen.tab("Export")
        screen.wait(screen.button("Export PLY").is_disabled, "nothing of it can be written")
        studio._request = request = StopRequest()
        screen.button("Close this page").click()
        screen.wait(lambda: request._let_go and not request, "the studio ends, without a signal")
        assert screen.errors == []
    finally:
        close_screen(screen)
