"""Journeys in a browser: another model in the view, parts that are merged, and who comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from blob_models import blobs
from gui_parts import MANY, TIMEOUT, trained_run
from studio_page import PAGE_TEST, Screen, open_screen, row
from test_parts_named import part, shard  # noqa: F401  (fixtures)

from splatstudio.models.merging import place_of_merged
from splatstudio.runtime.messages import Export
from splatstudio.scene.scene import Scene

pytestmark = PAGE_TEST

TOLD = (
    "ckpt_9_rank0.pt is rank 0 of 2: about half of the scene; merge with ckpt_9_rank1.pt (found beside it)?"
)


def test_open_shows_a_checkpoint_beside_the_training(
    open_page: Callable[..., Screen],
    blob_folder: Path,
    saved_run: Path,
) -> None:
    screen: Screen = open_page(blob_folder, height=900, config=MANY)
    screen.button("Resume from step 50").click()
    screen.wait(lambda: screen.text("state") == "Training", "training")
    screen.tab("Evaluate")
    row(screen, "Step 40 · ").click()
    screen.wait(lambda: "step_00000040" in screen.text("entry"), "it is chosen")
    screen.button("Open").click()
    back = screen.page.get_by_role("button", name="Back to the training")
    back.wait_for()
    screen.wait(lambda: screen.studio.controller.model_state().step == 40, "it is in the view")
    step = screen.step
    screen.wait(lambda: screen.step > step, "the training goes on")
    assert screen.text("state") == "Training"
    back.click()
    back.wait_for(state="hidden")
    screen.wait(lambda: (screen.studio.controller.model_state().step or 0) > 50, "its own again")
    assert screen.errors == []


def test_the_notice_stays_until_the_whole_model_is_shown(
    open_page: Callable[..., Screen],
    part: Path,  # noqa: F811
) -> None:
    other = part.parent / "ckpt_9_rank1.pt"
    content = torch.load(other, weights_only=True)
    other.unlink()
    (part.parent / "ckpt_8_rank1.pt").touch()  # that there were two ranks is known
    screen = open_page(part, height=700)
    missing = "the file of rank 1 is not beside it. Copy it there to merge them."
    screen.wait(lambda: missing in screen.text("part"), "what is missing is told")
    merge = screen.button("Merge and open")
    assert merge.count() == 0 and screen.text("name") == part.name
    torch.save(content, other)
    merge.wait_for()
    assert screen.text("part") == TOLD
    half = screen.studio.controller.status.num_gaussians
    merged = place_of_merged(part).name
    merge.click()
    screen.wait(lambda: screen.text("name") == merged, "the whole model is open")
    controller = screen.studio.controller
    screen.wait(lambda: controller.status.num_gaussians == len(blobs()) != half, "and shown")
    shown = screen.page.locator('[data-splatstudio="part"]')
    screen.wait(lambda: shown.count() == 0 and merge.count() == 0, "the notice is gone")
    assert controller.project.export_path(None).parent == (part.parent / "exports").resolve()
    screen.wait(lambda: screen.page.get_by_text("Written").count() > 0, "it is told where it lies")
    assert screen.errors == []


def test_a_browser_that_comes_back_sees_what_failed_and_what_was_written_meanwhile(
    browser: Any, blob_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained_run(blob_scene, tmp_path / "run")
    (tmp_path / "in the way").write_text("a file where a folder would have to be")
    screen = open_screen(browser, tmp_path / "run")
    studio = screen.studio
    try:
        screen.wait(lambda: studio.controller.status.state == "viewing", "the model is there")
        screen.page.goto("about:blank")
        screen.wait(lambda: not studio._server.get_clients(), "the browser is gone")
        for output in (tmp_path / "in the way" / "a.ply", tmp_path / "b.ply"):
            studio._tasks.submit(Export(output))
            screen.wait(lambda: studio._tasks.newest(Export).end is not None, "it ends")  # type: ignore[union-attr]
        screen.page.goto(studio.url)
        shown = screen.page.get_by_text("a.ply: failed")
        shown.first.wait_for(timeout=1000 * TIMEOUT)
        screen.close_notices()
        screen.tab("Export")
        screen.wait(lambda: str(tmp_path / "b.ply") in screen.text("job"), "the path stays below the button")
        screen.tab("Log")
        screen.wait(lambda: "in the way" in screen.text("news"), "the failure is in the Log tab")
        assert str(tmp_path / "b.ply") in screen.text("news")
        assert not screen.errors
    finally:
        screen.page.close()
        studio.close()
