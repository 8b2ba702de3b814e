"""The Evaluate tab in a real browser: a list of models, merge, evaluation beside a training, deletion."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from blob_models import blobs
from gui_parts import MANY
from studio_page import PAGE_TEST, Screen, row

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.formats.ply import read_ply
from splatstudio.gui.tabs.evaluate import EvaluatePanel

pytestmark = PAGE_TEST
Open = Callable[..., Screen]


def panel_of(screen: Screen) -> EvaluatePanel:
    (panel,) = (panel for panel in screen.studio._refresher.panels if isinstance(panel, EvaluatePanel))
    return panel


def test_models_are_listed_evaluated_and_compared_while_a_training_goes_on(
    open_page: Open, blob_folder: Path, saved_run: Path
) -> None:
    damaged = saved_run / "ckpts" / "step_00000050" / "rank00000-of-00001.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    screen = open_page(blob_folder, height=900, config=replace(MANY, steps=100_000))
    screen.button("Resume from step 40").click()
    screen.wait(lambda: screen.text("state") == "Training", "training")
    screen.tab("Evaluate")
    row(screen, "Step 50 · ").wait_for()
    assert "damaged" in row(screen, "Step 50 · ").inner_text()
    screen.wait(lambda: "rank 0 of 1) is damaged: it has" in screen.text("entry"), "the reason is told")
    screen.wait(screen.button("Evaluate").is_disabled, "a damaged model cannot be evaluated")
    row(screen, "Step 20 · 2 ranks").click()
    screen.wait(lambda: "rank00001-of-00002" in screen.text("entry"), "its files are named")
    step = screen.step
    screen.button("Merge & evaluate").click()
    scores = saved_run / "eval" / "step_00000020.json"
    screen.wait(scores.exists, "it is evaluated")
    screen.wait(lambda: screen.step > step, "the training went on")
    psnr = json.loads(scores.read_text())["psnr"]
    screen.wait(lambda: f"{psnr:.2f} dB" in screen.text("scores"), "the scores are shown")
    screen.wait(lambda: screen.text("test-psnr") == f"{psnr:.2f} dB", "the head shows it, too")

    def told_of() -> list[str]:
        return [
            item.notice.text
            for item in screen.studio._news.items
            if item.notice.title.startswith("Evaluated")
        ]

    screen.wait(lambda: told_of() == [str(scores)], "it is told once")
    told = screen.page.locator(".mantine-Notification-description").filter(has_text=scores.name)
    assert told.evaluate("e => e.scrollWidth <= e.clientWidth && e.innerText"), "nothing of it is cut off"
    assert "weights not found" in screen.text("scores") or "LPIPS" in screen.text("scores")
    merged = saved_run / "exports" / "blobs-20-merged.ply"
    assert len(read_ply(merged)) == len(screen.studio.controller.project.scene.points)  # type: ignore[union-attr]
    screen.close_notices()
    if os.environ.get("SCREENSHOT"):
        screen.page.screenshot(path=os.environ["SCREENSHOT"])
    # The worst photograph: a click stands in its camera and compares.
    worst = json.loads(scores.read_text())["images"]
    name = min(worst, key=lambda image: image["psnr"])["name"]
    row(screen, f"{name} · ").click()
    screen.tab("View")
    screen.wait(lambda: f"At {name}" in screen.text("standing"), "the browser stands in its camera")
    compare = screen.page.get_by_label("Compare", exact=True).locator("visible=true").first
    screen.wait(lambda: compare.input_value() == "Split", "and compares")
    assert screen.errors == []


def test_a_model_is_opened_exported_and_deleted_and_parts_are_merged(
    open_page: Open, blob_folder: Path, saved_run: Path, tmp_path: Path
) -> None:
    screen = open_page(blob_folder, height=900, config=replace(MANY, steps=60))
    screen.tab("Evaluate")
    row(screen, "Step 40 · ").click()
    screen.wait(lambda: "step_00000040" in screen.text("entry"), "it is chosen")
    screen.button("Open").click()
    screen.wait(lambda: screen.studio.controller.status.step == 40, "it is shown")
    screen.button("Export").locator("visible=true").first.click()
    exported = saved_run / "exports" / "blobs-40.ply"
    screen.wait(exported.exists, "it is exported")
    screen.page.get_by_role("button", name="Download blobs-40.ply").wait_for()
    screen.close_notices()
    screen.button("Delete").click()
    screen.page.get_by_text("Delete step 40 of blobs").wait_for()
    screen.button("Keep it").click()
    time.sleep(0.5)
    assert (saved_run / "ckpts" / "step_00000040").exists()
    screen.button("Delete").click()
    screen.button("Delete it").click()
    screen.wait(lambda: not (saved_run / "ckpts" / "step_00000040").exists(), "it is deleted")
    assert newest_checkpoint(saved_run) == saved_run / "ckpts" / "step_00000050"
    screen.wait(lambda: row(screen, "Step 40 · ").count() == 0, "the list knows")
    screen.close_notices()
    merge_gsplats_parts(screen, tmp_path)
    assert screen.errors == []


def merge_gsplats_parts(screen: Screen, tmp_path: Path) -> None:
    """Let results of gsplat's trainer be listed, told of what is missing, merged, evaluated and opened."""
    results = tmp_path / "results" / "garden" / "ckpts"
    results.mkdir(parents=True)
    for rank in range(2):
        content = {"step": 6999, "splats": dict(blobs()[rank::2].tensors())}
        torch.save(content, results / f"ckpt_6999_rank{rank}.pt")
        torch.save({**content, "step": 29999}, results / f"ckpt_29999_rank{rank}.pt")
    (results / "ckpt_29999_rank1.pt").unlink()
    field = screen.page.locator('input[value="runs"]').first
    field.fill(str(tmp_path / "results"))
    row(screen, "Step 29,999 · 2 ranks").wait_for()
    assert "part" in row(screen, "Step 29,999 · ").inner_text()
    screen.wait(lambda: "of the ranks 0 to 1, 1 is missing" in screen.text("entry"), "the reason is told")
    screen.wait(screen.button("Merge").is_disabled, "what is not whole is not merged")
    row(screen, "Step 6,999 · 2 ranks").click()
    screen.wait(lambda: "ckpt_6999_rank1.pt" in screen.text("entry"), "it is chosen")
    screen.button("Merge & evaluate").click()
    merged = tmp_path / "results" / "garden" / "exports" / "garden-6999-merged.pt"
    screen.wait(merged.exists, "it is merged")
    whole = torch.load(merged, weights_only=True)["splats"]
    assert len(whole["means"]) == 60
    # The Gaussians are those of the photographs themselves, in the coordinates of the scene's files.
    screen.wait(lambda: "PSNR" in screen.text("scores"), "the scores are shown")
    shown = float(screen.text("scores").partition("PSNR")[2].split()[0])
    assert shown > 50.0
    # Opened, it is merged as well: what is there already stays.
    screen.button("Open").click()
    opened = merged.with_name("garden-6999-merged-2.pt")
    screen.wait(lambda: screen.studio.controller.shown_path == opened, "the whole model is shown")
    screen.wait(lambda: screen.studio.controller.status.num_gaussians == 60, "all of it")
