"""The offer to stop where the test score stands still, in a real browser: put away, and taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gui_parts import TIMEOUT
from studio_page import PAGE_TEST, Screen
from test_plateau import ANYHOW

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.checkpoints.manifest import step_of
from splatstudio.runtime.messages import Start

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
    controller._take(controller._worker, replace(controller.status.flat, step=30, since=24))
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
