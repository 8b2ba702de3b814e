"""A folder of runs in a real browser: models are opened, evaluated beside a training, deleted, merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from blob_models import blobs
from studio_page import CANVAS, DRAWN, PAGE_TEST, Screen, press_on_the_scene, row

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.files.path_words import path_words
from splatstudio.formats.ply import read_ply
from splatstudio.gui.dock import StatusPanel
from splatstudio.models.model import load_model
from splatstudio.rendering.render import render_image
from splatstudio.runtime.messages import Event, ModelLoaded

pytestmark = PAGE_TEST
# Notes in the page each place where the visible button Export is, in the order in which they come.
NOTE_PLACES = """() => {
  window.places = [];
  window.noting = setInterval(() => {
    const all = [...document.querySelectorAll("button")];
    const top = all.find(e => e.offsetParent && e.textContent === "Export")?.getBoundingClientRect().top;
    if (top !== window.places.at(-1)) window.places.push(top);
  }, 10);
}"""
PLACES = "() => { clearInterval(window.noting); return window.places; }"
Open = Callable[..., Screen]


def test_the_models_of_runs_are_opened_evaluated_exported_deleted_and_merged(
    open_page: Open, blob_folder: Path, saved_run: Path, tmp_path: Path
) -> None:
    damaged = saved_run / "ckpts" / "step_00000050" / "rank00000-of-00001.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    screen = open_page(blob_folder, height=900, sharp=True)
    screen.tab("Evaluate")
    row(screen, "Step 50 · ").wait_for()
    assert "damaged" in row(screen, "Step 50 · ").inner_text()
    screen.wait(lambda: "rank 0 of 1) is damaged: it has" in screen.text("entry"), "the reason is told")
    screen.wait(screen.button("Evaluate").is_disabled, "a damaged model cannot be evaluated")
    open_and_export(screen, saved_run)
    screen.button("Resume from step 40").click()
    screen.wait(lambda: screen.text("state") == "Training", "training")
    evaluate_beside_the_training(screen, saved_run)
    show_a_checkpoint_beside_the_training(screen)
    screen.button("Stop").click()
    screen.wait(lambda: screen.text("state") == "Stopped", "stopped")
    screen.close_notices()
    delete(screen, saved_run)
    compare_two_runs(screen, saved_run)
    merge_gsplats_parts(screen, tmp_path)
    assert screen.errors == []


def choose_step_40(screen: Screen) -> None:
    screen.tab("Evaluate")
    row(screen, "Step 40 · ").click()
    screen.wait(lambda: "step_00000040" in screen.text("entry"), "it is chosen")


def open_and_export(screen: Screen, run: Path) -> None:
    """Show a checkpoint while nothing is trained, and write it."""
    choose_step_40(screen)
    screen.page.evaluate(NOTE_PLACES)
    loaded: list[Event] = []
    screen.studio.controller.listen(lambda event: loaded.extend([event] * isinstance(event, ModelLoaded)))
    screen.button("Open").click()
    screen.wait(lambda: bool(loaded), "it is shown")
    screen.looks(screen.panel(StatusPanel))
    screen.page.evaluate(DRAWN)
    places = screen.page.evaluate(PLACES)
    assert len(places) == len(set(places)), f"Export goes away under the mouse and comes back: {places}"
    screen.button("Export").locator("visible=true").first.click()
    exported = run / "exports" / "blobs-40.ply"
    screen.wait(exported.exists, "it is exported")
    screen.page.get_by_role("button", name="Download blobs-40.ply").wait_for()
    screen.close_notices()


def evaluate_beside_the_training(screen: Screen, run: Path) -> None:
    """Merge and evaluate a checkpoint of two ranks, and stand in the camera of its worst photo."""
    row(screen, "Step 20 · 2 ranks").click()
    screen.wait(lambda: "rank00001-of-00002" in screen.text("entry"), "its files are named")
    step = screen.step
    screen.button("Merge & evaluate").click()
    scores = run / "eval" / "step_00000020.json"
    screen.wait(scores.exists, "it is evaluated")
    screen.wait(lambda: screen.step > step, "the training went on")
    psnr = json.loads(scores.read_text())["psnr"]
    screen.wait(lambda: f"{psnr:.2f} dB" in screen.text("scores"), "the scores are shown")
    screen.wait(lambda: screen.text("test-psnr") == f"{psnr:.2f} dB", "the head shows it, too")
    read_what_is_told(screen, scores)
    merged = run / "exports" / "blobs-20-merged.ply"
    assert len(read_ply(merged)) == len(screen.studio.controller.project.scene.points)  # type: ignore[union-attr]
    with screen.at_rest():
        stand_in_the_camera_of_the_worst_photo(screen, scores)


def read_what_is_told(screen: Screen, scores: Path) -> None:
    """See that the scores are told once, with the path of their file."""

    def told_of() -> list[str]:
        notices = (item.notice for item in screen.studio._news.items)
        return [notice.text for notice in notices if notice.title.startswith("Evaluated")]

    screen.wait(lambda: told_of() == [path_words(scores)], "it is told once")
    told = screen.page.locator(".mantine-Notification-description").filter(has_text=scores.name)
    assert told.evaluate("e => e.scrollWidth <= e.clientWidth && e.innerText"), "nothing of it is cut off"
    assert "weights not found" in screen.text("scores") or "LPIPS" in screen.text("scores")
    screen.close_notices()


def stand_in_the_camera_of_the_worst_photo(screen: Screen, scores: Path) -> None:
    """Click on the worst photo: the browser stands in its camera and compares."""
    worst = json.loads(scores.read_text())["images"]
    name = min(worst, key=lambda image: image["psnr"])["name"]
    row(screen, f"{name} · ").click()
    screen.tab("View")
    screen.wait(lambda: f"At {name}" in screen.text("standing"), "the browser stands in its camera")
    compare = screen.page.get_by_label("Compare", exact=True).locator("visible=true").first
    screen.wait(lambda: compare.input_value() == "Split", "and compares")


def show_a_checkpoint_beside_the_training(screen: Screen) -> None:
    """Look at another model while the training goes on, and go back."""
    choose_step_40(screen)
    screen.button("Open").click()
    back = screen.page.get_by_role("button", name="Back to the training")
    back.wait_for()
    screen.wait(lambda: screen.studio.controller.model_state().step == 40, "it is in the view")
    step = screen.step
    screen.wait(lambda: screen.step > step, "the training goes on")
    assert screen.text("state") == "Training"
    back.click()
    back.wait_for(state="hidden")
    screen.wait(lambda: (screen.studio.controller.model_state().step or 0) > 40, "its own again")


def delete(screen: Screen, run: Path) -> None:
    """Delete a checkpoint, after the question was answered otherwise once."""
    newest = newest_checkpoint(run)
    choose_step_40(screen)
    question = screen.page.get_by_text("Delete step 40 of blobs")
    for answer in ("Cancel", "Delete"):  # what is kept can be asked about again
        screen.button("Delete").click()
        question.wait_for()
        assert (run / "ckpts" / "step_00000040").exists()
        screen.button(answer).click()
        question.wait_for(state="hidden")
    screen.wait(lambda: not (run / "ckpts" / "step_00000040").exists(), "it is deleted")
    assert newest is not None and newest_checkpoint(run) == newest
    screen.wait(lambda: row(screen, "Step 40 · ").count() == 0, "the list knows")
    screen.close_notices()


def compare_two_runs(screen: Screen, run: Path) -> None:
    """See an earlier run left of the line and this one at its right; drag the line, and end it."""
    earlier = shutil.copytree(run, run.parent / "earlier")
    for checkpoint in (earlier / "ckpts").iterdir():
        if checkpoint.name != "step_00000020":
            shutil.rmtree(checkpoint)
    newest = newest_checkpoint(run)
    assert newest is not None
    models = [load_model(path) for path in (earlier / "ckpts" / "step_00000020", newest)]
    screen.tab("View")
    screen.choose("Compare", "Off")
    screen.switch("Cameras").click()
    screen.switch("Points").click()
    screen.tab("Evaluate")
    screen.page.get_by_text("Compare runs").click()
    screen.wait(lambda: "earlier" in screen.text("runs"), "the table has it")
    screen.choose("With", "earlier")
    charts = screen.page.get_by_text("PSNR, dB (orange: the other; dots: test)")
    charts.wait_for()
    screen.button("Show both").click()
    screen.wait(lambda: screen.text("beside").startswith("Left: "), "it is there")
    screen.settle()
    camera = screen.viewpoint.camera(1.0)
    drawn = [render_image(model.gaussians, camera, model.options) for model in models]
    seen_left_of(screen, drawn, 0.5)
    box = screen.page.locator(CANVAS).bounding_box()
    middle = box["y"] + 0.7 * box["height"]
    press_on_the_scene(screen.page, box["x"] + 0.5 * box["width"], middle)
    screen.page.mouse.move(box["x"] + 0.25 * box["width"], middle, steps=5)
    screen.page.mouse.up()
    seen_left_of(screen, drawn, 0.25)
    screen.button("End the comparison").click()
    screen.page.locator("[data-splatstudio=beside]").wait_for(state="hidden")
    seen_left_of(screen, drawn, 0.0)
    shutil.rmtree(earlier)


def seen_left_of(screen: Screen, drawn: list[np.ndarray], share: float) -> None:
    """Wait until the first picture is seen in that share of the width, and the second at its right."""
    expected = drawn[1].copy()
    column = round(share * expected.shape[1])
    expected[:, :column] = drawn[0][:, :column]
    difference = np.abs(drawn[0].astype(int) - drawn[1]).mean()
    assert difference > 6.0, "the two must differ for the test to tell"
    off = lambda: float(np.abs(screen.picture().astype(int) - expected).mean())  # noqa: E731
    screen.wait(lambda: off() < 0.2 * difference, lambda: f"off by {off():.2f} of {difference:.2f}")


def merge_gsplats_parts(screen: Screen, tmp_path: Path) -> None:
    """Let results of gsplat's trainer be listed, told of what is missing, merged, evaluated and opened."""
    results = tmp_path / "results" / "garden" / "ckpts"
    results.mkdir(parents=True)
    for rank in range(2):
        content = {"step": 6999, "splats": dict(blobs()[rank::2].tensors())}
        torch.save(content, results / f"ckpt_6999_rank{rank}.pt")
        torch.save({**content, "step": 29999}, results / f"ckpt_29999_rank{rank}.pt")
    (results / "ckpt_29999_rank1.pt").unlink()
    screen.page.get_by_text("Runs elsewhere", exact=True).click()
    screen.button("Browse for runs").click()
    screen.button("Up one folder").click()
    screen.button("results").click()
    screen.wait(lambda: screen.text("folder").endswith("results"), "the button below is that of this folder")
    screen.button("Choose this folder").click()
    row(screen, "Step 29,999 · 2 ranks").wait_for()
    assert "part" in row(screen, "Step 29,999 · ").inner_text()
    screen.wait(lambda: "missing rank 1" in screen.text("entry"), "the reason is told")
    screen.wait(screen.button("Merge").is_disabled, "what is not whole is not merged")
    row(screen, "Step 6,999 · 2 ranks").click()
    screen.wait(lambda: "ckpt_6999_rank1.pt" in screen.text("entry"), "it is chosen")
    screen.button("Merge & evaluate").click()
    merged = tmp_path / "results" / "garden" / "exports" / "garden-6999-merged.pt"
    screen.wait(merged.exists, "it is merged")
    whole = torch.load(merged, weights_only=True)["splats"]
    assert len(whole["means"]) == 60
    # The Gaussians are those of the photos themselves, in the coordinates of the scene's files.
    screen.wait(lambda: "PSNR" in screen.text("scores"), "the scores are shown")
    shown = float(screen.text("scores").partition("PSNR")[2].split()[0])
    assert shown > 50.0
    # Opened, it is merged as well: what is there already stays.
    screen.button("Open").click()
    opened = merged.with_name("garden-6999-merged-2.pt")
    screen.wait(lambda: screen.studio.controller.shown_path == opened, "the whole model is shown")
    screen.wait(lambda: screen.studio.controller.status.num_gaussians == 60, "all of it")
    screen.button("Back to this run's model").click()
    newest = screen.studio.controller.project.checkpoint()
    screen.wait(lambda: screen.studio.controller.shown_path == newest is not None, "its own is shown again")
