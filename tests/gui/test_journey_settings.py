"""Settings that are chosen in a real browser, trained and evaluated; and that each button is pressed.

Each button of the page is pressed in one of the journeys: one that is not fails here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import viser
from blob_scenes import write_blob_scene
from gui_parts import MANY, TIMEOUT, wait_until
from studio_page import CANVAS, OPENED, PAGE_TEST, Screen, row

from splatstudio.checkpoints.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from splatstudio.formats.ply import read_ply
from splatstudio.gui.state.tasks import TaskBoard
from splatstudio.gui.tabs import scores
from splatstudio.gui.tabs.train import options_on
from splatstudio.settings.config import TrainConfig, from_json, value_of
from splatstudio.settings.presets import PRESETS

pytestmark = PAGE_TEST
NUM_PHOTOS = 12  # more than the list shows at once
STEPS = 40
# What presses the buttons that no test presses by their own name, as they are called otherwise by then.
PRESSED_AS = {
    "Model": 'row(screen, "Step 40 · ").click()',
    "Photo": '[data-photo="{name}"]\').click()',
    "Apply": '"Apply 2 changes").click()',
    "Download": 'name=f"Download {ply.name}").click()',
    "Render": '"Render 61 frames").click()',
    "Export": '"Export").locator("visible=true").first.click()',
    "Merge and open": 'merge = screen.button("Merge and open")',
    "Back to the training": 'back = screen.page.get_by_role("button", name="Back to the training")',
    "Shorter training": 'row(screen, "Shorter training").click()',
    "Cancel": '("Cancel", "Delete")',
    "Delete": '("Cancel", "Delete")',
}


def test_from_the_settings_through_two_trainings_to_the_merged_file(
    open_page: Callable[..., Screen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []  # networks whose weights would be downloaded
    monkeypatch.setattr(scores, "fetch_lpips", fetched.append)
    monkeypatch.setattr(scores, "lacks_weights", lambda name: name not in fetched)
    scene = write_blob_scene(tmp_path / "ring", NUM_PHOTOS)
    config = replace(MANY, save_steps=tuple(range(5, STEPS, 5)))
    screen = open_page(scene, config, width=1280, height=900)
    every_button_is_pressed_in_a_journey(screen)
    undo_what_was_typed(screen)
    turn_the_pages_of_the_photos(screen)
    go_from_photo_to_photo(screen)
    press_photos_by_keys(screen)
    run = train_what_was_chosen(screen, tmp_path / "runs" / "ring")
    second = train_on_and_begin_a_new_run(screen, run)
    evaluate_and_cancel(screen, second)
    fetch_weights(screen, fetched)
    merge_the_files_of_two_ranks(screen, second)
    narrow_the_window(screen)
    assert screen.errors == []


def every_button_is_pressed_in_a_journey(screen: Screen) -> None:
    (client,) = screen.studio._server.get_clients().values()
    labels: set[str] = set()
    for gui in (screen.studio._server.gui, client.gui):
        for handle in gui._gui_input_handle_from_uuid.values():
            if isinstance(handle, (viser.GuiButtonHandle, viser.GuiUploadButtonHandle)):
                labels.add(re.sub(r" \d+$|, about .*$", "", handle.label))
            elif isinstance(handle, viser.GuiButtonGroupHandle):
                labels.update(handle.options)
    assert len(labels) > 40
    texts = (path.read_text() for path in Path(__file__).parent.glob("test_journey_*.py"))
    text = "".join(text.partition("\nPRESSED_AS")[0] + text.partition("\ndef test_")[2] for text in texts)
    for label in sorted(labels):
        # Buttons that a loop presses are named in its list.
        presses = (PRESSED_AS.get(label, f'"{label}").click()'), f'("{label}", "')
        assert any(press in text for press in presses), f"no journey presses {label!r}"


def tiles(screen: Screen) -> list[str]:
    script = "() => [...document.querySelectorAll('[data-photo]')].map(tile => tile.dataset.photo)"
    return screen.page.evaluate(script)


def undo_what_was_typed(screen: Screen) -> None:
    """Change a live setting and take it back."""
    screen.page.get_by_text("Live settings").click()
    before = screen.field("Positions").input_value()
    screen.enter("Positions", "5e-4")
    screen.seen("Apply 1 change").wait_for()
    screen.seen("Undo").click()
    screen.wait(lambda: screen.field("Positions").input_value() == before, "the run's value is back")
    screen.wait(lambda: screen.seen("Apply").is_disabled(), "nothing is left to apply")
    assert screen.studio.controller.project.config.optim == TrainConfig().optim
    screen.page.get_by_text("Live settings").click()


def turn_the_pages_of_the_photos(screen: Screen) -> None:
    """Turn the pages of the list of photos."""
    screen.tab("View")
    first = [f"view_{i:02d}.png" for i in range(1, 10)]
    screen.wait(lambda: tiles(screen) == first, "the first nine")
    screen.seen("More ›").click()
    screen.wait(lambda: tiles(screen) == ["view_10.png", "view_11.png", "view_12.png"], "the last three")
    screen.seen("‹ Back").click()
    screen.wait(lambda: tiles(screen) == first, "back")
    screen.seen("More ›").click()
    screen.wait(lambda: tiles(screen) != first, "on again")
    screen.seen("« First").click()
    screen.wait(lambda: tiles(screen) == first, "the first ones")


def go_from_photo_to_photo(screen: Screen) -> None:
    """Go from photo to photo and back to the first view."""
    screen.tab("View")
    screen.settle()
    start = screen.viewpoint.position
    for button, name in (("Next ›", "view_01"), ("Next ›", "view_02"), ("‹ Previous", "view_01")):
        screen.seen(button).click()
        screen.wait(lambda name=name: f"At {name}" in screen.text("standing"), f"{button} goes to {name}")
    screen.drag(20)
    screen.wait(lambda: "Free camera" in screen.text("standing"), "it has left the photo's camera")
    screen.seen("Nearest").click()
    screen.wait(lambda: "At view_01" in screen.text("standing"), "the nearest one is where it came from")
    screen.seen("Reset the view").click()
    screen.wait(lambda: bool(np.allclose(screen.viewpoint.position, start, atol=1e-3)), "where it began")


def train_what_was_chosen(screen: Screen, run: Path) -> Path:
    """Choose a preset, sizes and what is in the capture, train, and return the run, which has all of that."""
    screen.tab("Train")
    # The steps of this page were asked for.
    assert screen.text("preset") == f"{PRESETS['default'].description} Changed: Steps, SH degree."
    screen.choose("Preset", "preview")
    description = re.escape(PRESETS["preview"].description)
    described = re.compile(
        rf"{description} With these photos it makes at most [\d,]+ splats\. Changed: Steps, SH degree\."
    )
    screen.wait(lambda: described.fullmatch(screen.text("preset")) is not None, "the preset's text")
    screen.enter("Steps", str(STEPS))
    screen.enter("Max splats", "70")
    screen.wait(lambda: screen.text("step") == f"0 / {STEPS}", "the steps that were typed")
    screen.choose("Preset", "mcmc")
    told = PRESETS["mcmc"].description + (
        " With these photos it makes at most 70 splats. Changed: Steps, SH degree."
    )
    screen.wait(lambda: screen.text("preset") == told, "what was typed stays as it is")
    screen.choose("Photos", "1/2, 24 × 20 px")
    screen.wait(lambda: screen.text("step") == f"0 / {STEPS}", "the page shows the steps that were chosen")
    screen.page.get_by_text("Capture issues").click()
    # All in one go, as a busy page takes them; then the sky off again.
    boxes = [
        screen.switch(label).element_handle() for label in ("Open sky", "Varying exposure", "Remove floaters")
    ]
    screen.page.evaluate("boxes => boxes.forEach(box => box.click())", boxes)
    screen.switch("Open sky").click()
    wanted = ["Varying exposure", "Remove floaters"]
    controller = screen.studio.controller
    screen.wait(
        lambda: options_on(controller.project.config) == wanted,
        lambda: f"{wanted}, but {options_on(controller.project.config)}",
    )
    screen.seen("Start training").click()
    screen.wait(lambda: screen.text("state") == "Finished" and screen.step == STEPS, "all steps")
    config = json.loads((run / "run.json").read_text())["config"]
    assert (config["steps"], config["densify"]["max_gaussians"], config["downscale"]) == (STEPS, 70, 2)
    assert config["exposure"]["enabled"] and config["shapes"]["min_views"] == 2
    assert not (config["sky"]["enabled"] or config["antialiased"] or config["poses"]["enabled"])
    assert "Varying exposure, Remove floaters" in screen.page.content()
    mcmc = PRESETS["mcmc"].settings
    assert mcmc and all(value_of(from_json(TrainConfig, config), path) == mcmc[path] for path in mcmc)
    more = screen.seen(f"Train on to step {2 * STEPS}")
    screen.wait(more.is_enabled, "as many again are proposed, after the rest of a button that was Pause")
    return run


def see_numbers_at_all_axes(screen: Screen) -> None:
    """See that all plots have numbers below them, whenever one comes."""
    script = """() => Object.values(window.__viserTestpoints?.uplots ?? {})
        .map(plot => plot.chart.axes[0]._found?.[1] > 0 ? plot.chart.axes[0]._values.length : 0)"""

    def complete() -> bool:
        numbers = screen.page.evaluate(script)
        return len(numbers) == 5 and min(numbers) > 1

    screen.page.reload()
    screen.wait(complete, "five plots, all with numbers")
    # What a chart is left with that got other ranges while its tab was not shown, now and then.
    lost = "Object.assign(plot.chart.axes[0], {_found: [0, 0], _splits: null, _values: null})"
    screen.page.evaluate(f"() => Object.values(window.__viserTestpoints.uplots).forEach(plot => {lost})")
    screen.wait(complete, "all have numbers again")


def files_of(run: Path) -> dict[Path, bytes]:
    """Return a run's files and what is in them, but for the log, and the mark of who writes into it."""
    files = (path for path in run.rglob("*") if path.is_file() and path.suffix not in ("", ".log"))
    return {path: path.read_bytes() for path in files}


def train_on_and_begin_a_new_run(screen: Screen, first: Path) -> Path:
    """Add steps to a finished training, begin a new run, and return the second run."""
    screen.enter("More steps", "5")
    screen.seen(f"Train on to step {STEPS + 5}").click()
    screen.wait(lambda: screen.text("state") == "Finished" and screen.step == STEPS + 5, "five more")
    newest = newest_checkpoint(first)
    assert newest is not None and newest.name == f"step_{STEPS + 5:08d}"
    see_numbers_at_all_axes(screen)
    screen.close_notices()
    content = files_of(first)
    screen.seen("New training").click()
    second = first.with_name("ring-2")
    screen.seen("Start training").click()
    screen.wait(lambda: newest_checkpoint(second) == second / "ckpts" / newest.name, "a run of its own")
    screen.wait(lambda: screen.text("state") == "Finished" and screen.step == STEPS + 5, "trained anew")
    assert files_of(first) == content, "the old run is as it was"
    lines = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert min(line["step"] for line in lines) <= 10, "it began at the beginning"
    screen.close_notices()
    return second


def fetch_weights(screen: Screen, fetched: list[str]) -> None:
    """Download the weights of LPIPS, after which nothing is offered any more."""
    screen.page.get_by_text("Measures and files", exact=True).click()
    screen.seen("Download LPIPS weights").click()
    screen.wait(lambda: fetched == ["alex", "vgg"], "both are fetched")
    screen.button("Download LPIPS weights").wait_for(state="hidden")
    screen.page.get_by_text("Measures and files", exact=True).click()


def hold_process_of(tasks: TaskBoard) -> None:
    """Stop the process of the first task of the Evaluate tab as soon as it is there."""
    while (files := tasks._files.get("evaluate")) is None or (process := files._process) is None:
        time.sleep(0.001)
    wait_until(lambda: process.pid is not None)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)


def evaluate_and_cancel(screen: Screen, run: Path) -> None:
    """Evaluate the oldest checkpoint, after a first attempt was cancelled."""
    screen.tab("Evaluate")
    screen.choose("Run", run.name)
    row(screen, f"Step {STEPS + 5} · ").wait_for()
    screen.seen("Earlier ›").click()
    row(screen, "Step 5 · ").click()
    screen.wait(lambda: "step_00000005" in screen.text("entry"), "the oldest one is chosen")
    scores = run / "eval" / "step_00000005.json"
    assert not scores.exists()
    # Small as it is, it could be done before there is time to press Cancel.
    holder = threading.Thread(target=hold_process_of, args=(screen.studio._tasks,))
    holder.start()
    screen.seen("Evaluate").click()
    holder.join(TIMEOUT)
    screen.seen("Cancel").click()
    screen.page.get_by_text("Nothing of it was kept.", exact=True).wait_for()
    assert not scores.exists()
    screen.wait(lambda: screen.seen("Evaluate").is_enabled(), "the next task can be started")
    screen.seen("Evaluate").click()
    screen.wait(scores.exists, "it is evaluated")
    psnr = json.loads(scores.read_text())["psnr"]
    screen.wait(lambda: f"{psnr:.2f} dB" in screen.text("scores"), "the scores are shown")
    screen.seen("‹ Later").click()
    row(screen, f"Step {STEPS + 5} · ").wait_for()
    screen.close_notices()


def merge_the_files_of_two_ranks(screen: Screen, run: Path) -> None:
    """Merge the files of two ranks and download the whole."""
    newest = newest_checkpoint(run)
    assert newest is not None
    whole = load_checkpoint(newest)
    shutil.rmtree(newest)
    save_checkpoint(run, whole, num_shards=2)
    screen.tab("Evaluate")
    screen.choose("Run", run.name)
    row(screen, f"Step {STEPS + 5} · 2 ranks").click()
    screen.wait(lambda: "rank00001-of-00002" in screen.text("entry"), "it is chosen")
    screen.seen("Merge").click()
    merged = run / "exports" / f"{run.name}-{STEPS + 5}-merged.ply"
    with screen.page.expect_download() as download:
        row(screen, f"Download {merged.name} (").click()
    assert Path(download.value.path()).read_bytes() == merged.read_bytes()
    assert len(read_ply(merged)) == len(whole.population)
    screen.close_notices()


# Returns the photo that has the keyboard once its list was not drawn anew for a while.
HELD_AT_REST = """() => new Promise(done => {
  let last = null, since = 0;
  const next = () => {
    const now = document.activeElement;
    if (now !== last || !now.dataset.photo) [last, since] = [now, performance.now()];
    performance.now() - since > 600 ? done(now.dataset.photo) : setTimeout(next, 30);
  };
  next();
})"""


def press_photos_by_keys(screen: Screen) -> None:
    """Choose photos by the keyboard, which stays in their list."""
    page, held = screen.page, "() => document.activeElement.dataset?.photo ?? ''"
    assert screen.switch("Splats").count() == 1 and screen.switch("Sky").count() == 0
    page.locator("[data-photo]").first.focus()
    for key in ("Enter", "Space"):
        name = page.evaluate(HELD_AT_REST)
        page.keyboard.press(key)
        screen.wait(lambda name=name: name and f"At {name}" in screen.text("standing"), "it flies there")
        # The list marks it, is drawn anew for that, and the keyboard stays where it was.
        page.locator(f'[data-photo="{name}"][aria-pressed=true]').wait_for()
        screen.wait(lambda name=name: page.evaluate(held) == name, "the keyboard stays")
        page.keyboard.press("Tab")


def narrow_the_window(screen: Screen) -> None:
    """Make the window narrow: a picture stays, and the buttons."""
    page = screen.page
    for width, least in ((1000, 500), (640, 200)):  # without the left dock
        page.set_viewport_size({"width": width, "height": 400})
        screen.wait(lambda n=least: screen.box(page.locator(CANVAS))["width"] > n, "a picture of some width")
        page.locator('[data-splatstudio="state"]').wait_for()
    page.set_viewport_size({"width": 400, "height": 800})
    head = page.locator(".mantine-Paper-root").filter(has=page.locator('[data-splatstudio="state"]'))

    def lies_below_the_picture() -> bool:
        box = screen.box(head)
        return box["width"] == 400 and box["y"] > 400

    screen.wait(lies_below_the_picture, "the dock is as wide as the window, in its lower half")
    page.reload()  # as a phone opens it
    page.wait_for_function(OPENED)
    screen.wait(lies_below_the_picture, "the same from the beginning")
    assert screen.box(page.locator(CANVAS))["width"] == 400
    others = page.get_by_text("Devices · Log", exact=True)
    screen.wait(lambda: 400 < screen.box(others)["y"] < 600, "what stands at the left otherwise is in sight")
    others.click()
    plot = page.locator(".uplot-container").locator("visible=true").first
    plot.wait_for()
    page.wait_for_timeout(2500)  # in which the plots are drawn anew
    assert screen.box(plot)["width"] <= 400, "a plot that is as wide as its place does not make that wider"
    page.get_by_role("tab", name="Log").click()
    page.locator(".ss-log").wait_for()
    for width in (933, 600):  # a phone that is turned and turned back
        page.set_viewport_size({"width": width, "height": 500})
        screen.wait(lambda: screen.box(page.locator(CANVAS))["width"] > 200, "the left dock is folded")
        page.locator('[data-splatstudio="state"]').wait_for()
