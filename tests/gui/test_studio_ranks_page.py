"""A training on two ranks, steered in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from studio_page import PAGE_TEST, Screen

from splatstudio.checkpoints.manifest import read_manifest
from splatstudio.formats.ply import read_ply
from splatstudio.training.device_options import DeviceOptions

pytestmark = PAGE_TEST


def row(screen: Screen, start: str):
    return screen.page.get_by_role("button").filter(has_text=start).locator("visible=true").first


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
