"""Every button of the page in a real browser: one studio for all tests here.

They may go on from what earlier ones left, and make it themselves where those were not run.

The table at the end names the test of each button; a button without one fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import viser
from blob_scenes import write_blob_scene
from gui_parts import MANY, TIMEOUT, wait_until
from studio_page import CANVAS, PAGE_TEST, Screen, close_screen, open_screen, row

from splatstudio.cameras.path_file import read_camera_path
from splatstudio.checkpoints.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from splatstudio.formats.ply import read_ply
from splatstudio.gui.state.tasks import TaskBoard
from splatstudio.gui.tabs.log import LogPanel
from splatstudio.settings.config import TrainConfig

pytestmark = PAGE_TEST
NUM_PHOTOS = 12  # more than the list shows at once
STEPS = 40


@pytest.fixture(scope="module")
def screen(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    folder = tmp_path_factory.mktemp("buttons")
    before = Path.cwd()
    os.chdir(folder)
    scene = write_blob_scene(folder / "ring", NUM_PHOTOS)
    opened = open_screen(
        browser,
        scene,
        replace(MANY, steps=STEPS, save_steps=tuple(range(5, STEPS, 5))),
        width=1280,
        height=900,
    )
    yield opened
    close_screen(opened)
    os.chdir(before)


def tiles(screen: Screen) -> list[str]:
    script = "() => [...document.querySelectorAll('[data-photo]')].map(tile => tile.dataset.photo)"
    return screen.page.evaluate(script)


def run_folder(screen: Screen) -> Path:
    run_dir = screen.studio.controller.project.run_dir
    assert run_dir is not None
    return run_dir


@pytest.fixture
def trained(screen: Screen) -> Path:
    """Return the run, trained to its last step and five beyond: by an earlier test, or now."""
    if newest_checkpoint(run_folder(screen)) is None:
        screen.seen("Start training").click()
        screen.wait(lambda: screen.text("state") == "Finished" and screen.step == STEPS, "all steps")
        screen.studio.controller.train_more(5)
        screen.wait(lambda: screen.text("state") == "Finished" and screen.step == STEPS + 5, "five more")
        screen.close_notices()
    return run_folder(screen)


def add_two_keyframes(screen: Screen) -> None:
    """Make a path of two keyframes, in a Render tab that is open."""
    screen.seen("Empty").click()
    screen.wait(lambda: screen.draft.name == "path", "a new one")
    assert screen.draft.path.keyframes == ()
    for num in (1, 2):
        screen.drag(60)
        screen.settle()
        screen.seen("Add keyframe (K)").click()
        screen.wait(lambda num=num: len(screen.draft.path.keyframes) == num, "a keyframe is added")


PAGE, BROWSER, RENDER, EVALUATE = (
    "test_journey_train_tab.py",
    "test_journey_first_look.py",
    "test_journey_render_tab.py",
    "test_journey_evaluate_tab.py",
)
# For each button that is not pressed in this file by its name: the file, and where in it. The first ones are
# called otherwise once they have something to show.
PRESSED_ELSEWHERE = {
    "Model": (EVALUATE, 'row(screen, "Step 40 · ").click()'),
    "Photo": ("test_journey_view_tab.py", '[data-photo="{name}"]\').click()'),
    "Apply": (PAGE, '"Apply 2 changes").click()'),
    "Train on": (PAGE, '"Train on to step 60").click()'),
    "Download": (BROWSER, 'name=f"Download {ply.name}").click()'),
    "Render": (RENDER, '"Render 61 frames").click()'),
    "Stop": (BROWSER, '"Stop").click()'),
    "Stop here": ("test_journey_trainings.py", '"Stop here").click()'),
    "Go on": ("test_journey_trainings.py", '"Go on").click()'),
    "Save": (BROWSER, '"Save").click()'),
    "Evaluate now": (BROWSER, '"Evaluate now").click()'),
    "Export PLY": (BROWSER, '"Export PLY").click()'),
    "Open": (EVALUATE, '"Open").click()'),
    "Export": (EVALUATE, '"Export").locator("visible=true").first.click()'),
    "Delete": (EVALUATE, '"Delete").click()'),
    "Keep it": (EVALUATE, '"Keep it").click()'),
    "Delete it": (EVALUATE, '"Delete it").click()'),
    "Play": (RENDER, '"Play").click()'),
    "Go to": (RENDER, '"Go to").click()'),
    "Merge and open": ("test_journey_previews.py", 'button("Merge and open")'),
    "Back to the training": ("test_journey_previews.py", 'name="Back to the training")'),
    "Take a picture": (RENDER, '"Take a picture").click()'),
}


def test_every_button_of_the_page_is_pressed_in_a_test(screen: Screen) -> None:
    (client,) = screen.studio._server.get_clients().values()
    labels: set[str] = set()
    for gui in (screen.studio._server.gui, client.gui):
        for handle in gui._gui_input_handle_from_uuid.values():
            if isinstance(handle, (viser.GuiButtonHandle, viser.GuiUploadButtonHandle)):
                labels.add(re.sub(r" \d+$", "", handle.label))
            elif isinstance(handle, viser.GuiButtonGroupHandle):
                labels.update(handle.options)
    assert len(labels) > 40
    here = Path(__file__).read_text()
    for label in sorted(labels):
        file, press = PRESSED_ELSEWHERE.get(label, (Path(__file__).name, f'"{label}").click()'))
        text = here if file == Path(__file__).name else (Path(__file__).parent / file).read_text()
        # Buttons that a loop presses are named in its list.
        listed = f'("{label}", "' in here
        assert press in text or listed, f"no test presses {label!r}"


def test_undo_brings_back_the_settings_of_the_run(screen: Screen) -> None:
    screen.page.get_by_text("Live settings").click()
    before = screen.field("Positions").input_value()
    screen.enter("Positions", "5e-4")
    screen.seen("Apply 1 change").wait_for()
    screen.seen("Undo").click()
    screen.wait(lambda: screen.field("Positions").input_value() == before, "the run's value is back")
    screen.wait(lambda: screen.seen("Apply").is_disabled(), "nothing is left to apply")
    assert screen.studio.controller.project.config.optim == TrainConfig().optim
    screen.page.get_by_text("Live settings").click()


def test_the_photo_list_turns_its_pages(screen: Screen) -> None:
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


def test_from_photo_to_photo_and_back_to_the_first_view(screen: Screen) -> None:
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


def test_ready_made_paths_and_the_order_of_keyframes(screen: Screen) -> None:
    screen.tab("Render")
    for button, name in (("Orbit", "orbit"), ("Spiral", "spiral"), ("Photos", "photos")):
        screen.seen(button).click()
        screen.wait(lambda name=name: screen.draft.name == name, f"{button} makes a path")
        assert len(screen.draft.path.keyframes) >= 4
    assert screen.draft.path.duration > 0
    add_two_keyframes(screen)
    one, two = tuple(screen.draft.path.keyframes)[:2]
    screen.seen("Earlier").click()
    screen.wait(lambda: screen.draft.path.keyframes[0] is two, "the second comes first")
    screen.seen("Later").click()
    screen.wait(lambda: screen.draft.path.keyframes[0] is one, "and goes back")
    screen.drag(90)
    screen.settle()
    screen.seen("Set here").click()
    here = screen.viewpoint.position
    screen.wait(
        lambda: bool(np.allclose(screen.draft.path.keyframes[1].camera_to_world[:3, 3], here, atol=1e-6)),
        "the keyframe is where the camera is",
    )


def test_path_files_come_and_go(screen: Screen, tmp_path: Path) -> None:
    screen.tab("Render")
    if len(screen.draft.path.keyframes) != 2:
        add_two_keyframes(screen)
    keyframes = screen.draft.path.keyframes
    screen.page.get_by_text("Path file", exact=True).click()
    with screen.page.expect_download() as download:
        screen.seen("Download the path file").click()
    assert download.value.suggested_filename == "path.json"
    copy = tmp_path / "other.json"
    copy.write_bytes(Path(download.value.path()).read_bytes())
    assert len(read_camera_path(copy).keyframes) == 2
    assert len(json.loads(copy.read_text())["camera_path"]) == len(screen.draft.path.frame_times)
    with screen.page.expect_file_chooser() as chooser:
        screen.seen("Open a path file").click()
    chooser.value.set_files(copy)
    screen.wait(lambda: screen.draft.name == "other", "the file is opened")
    for mine, its in zip(keyframes, screen.draft.path.keyframes, strict=True):
        assert np.allclose(mine.camera_to_world, its.camera_to_world, atol=1e-5)
    screen.close_notices()


def files_of(run: Path) -> dict[Path, bytes]:
    """Return a run's files and what is in them, but for the log, and the mark of who writes into it."""
    files = (path for path in run.rglob("*") if path.is_file() and path.suffix not in ("", ".log"))
    return {path: path.read_bytes() for path in files}


def test_train_on_and_start_over(screen: Screen) -> None:
    first = run_folder(screen)
    screen.seen("Start training").click()
    screen.wait(lambda: screen.text("state") == "Finished" and screen.step == STEPS, "all steps")
    screen.tab("Train")
    screen.enter("More steps", "5")
    screen.seen(f"Train on to step {STEPS + 5}").click()
    screen.wait(lambda: screen.text("state") == "Finished" and screen.step == STEPS + 5, "five more")
    newest = newest_checkpoint(first)
    assert newest is not None and newest.name == f"step_{STEPS + 5:08d}"
    screen.close_notices()
    content = files_of(first)
    screen.seen("Start over").click()
    second = first.with_name("ring-2")
    screen.seen("Start training").click()
    screen.wait(lambda: newest_checkpoint(second) == second / "ckpts" / newest.name, "a run of its own")
    screen.wait(lambda: screen.text("state") == "Finished" and screen.step == STEPS + 5, "trained anew")
    assert files_of(first) == content, "the old run is as it was"
    lines = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert min(line["step"] for line in lines) <= 10, "it began at the beginning"
    screen.close_notices()


@pytest.mark.usefixtures("trained")
def test_the_log_stands_still_and_is_downloaded(screen: Screen) -> None:
    screen.tab("Log")
    log, path = screen.page.locator('[data-splatstudio="log"]'), screen.studio.controller.log_path
    screen.wait(lambda: "trains here" in log.inner_text(), "the worker's log")
    (panel,) = (panel for panel in screen.studio._refresher.panels if isinstance(panel, LogPanel))
    screen.switch("Follow").click()
    screen.wait(lambda: not panel._follow.value, "the studio knows")
    time.sleep(1.0)  # the log may be being read at this moment
    with path.open("a") as file:
        file.write("one more line\n")
    time.sleep(2.0)
    assert "one more line" not in log.inner_text()
    screen.switch("Follow").click()
    screen.wait(lambda: "one more line" in log.inner_text(), "followed again")
    with screen.page.expect_download() as download:
        screen.seen("Download the log").click()
    assert Path(download.value.path()).read_bytes() == path.read_bytes()


def test_another_quantity_of_the_devices_is_plotted(screen: Screen) -> None:
    screen.tab("Devices")
    titles = screen.page.locator(".uplot")
    titles.first.wait_for()
    screen.choose("Plot", "Memory of ours")
    script = """() => Object.values(window.__viserTestpoints?.uplots ?? {})
        .map(plot => Math.max(...(plot.chart.data[1] ?? [0])))"""
    # The share of a processor is shown in per cent, the memory in GB: a small process has less than 20.
    screen.wait(lambda: any(0 < value < 20 for value in screen.page.evaluate(script)), "gigabytes")


def hold_process_of(tasks: TaskBoard) -> None:
    """Stop the process of the first task of the Evaluate tab as soon as it is there."""
    while (files := tasks._files.get("evaluate")) is None or (process := files._process) is None:
        time.sleep(0.001)
    wait_until(lambda: process.pid is not None)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)


def test_models_are_evaluated_and_a_task_is_cancelled(screen: Screen, trained: Path) -> None:
    run = trained
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


def test_the_files_of_two_ranks_are_merged_and_downloaded(screen: Screen, trained: Path) -> None:
    run = trained
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
    assert screen.errors == []


def test_photographs_are_pressed_by_keys_and_narrow_windows_keep_a_picture(screen: Screen) -> None:
    page, held = screen.page, "() => document.activeElement.dataset?.photo ?? ''"
    screen.tab("View")
    assert screen.switch("Splats").count() == 1 and screen.switch("Sky").count() == 0
    page.locator("[data-photo]").first.focus()
    for key in ("Enter", "Space"):
        name = page.evaluate(held)
        page.keyboard.press(key)
        screen.wait(lambda name=name: name and f"At {name}" in screen.text("standing"), "it flies there")
        # The list marks it, is drawn anew for that, and the keyboard stays where it was.
        page.locator(f'[data-photo="{name}"][aria-pressed=true]').wait_for()
        screen.wait(lambda name=name: page.evaluate(held) == name, "the keyboard stays")
        page.keyboard.press("Tab")
    for width, least in ((1000, 500), (640, 480)):  # without the left dock, then without both
        page.set_viewport_size({"width": width, "height": 400})
        screen.wait(lambda n=least: screen.box(page.locator(CANVAS))["width"] > n, "a picture of some width")
    page.set_viewport_size({"width": 400, "height": 800})
    head = page.locator(".mantine-Paper-root").filter(has=page.locator('[data-splatstudio="state"]'))
    screen.wait(lambda: screen.box(head)["width"] == 400, "the dock is as wide as the window")
    screen.wait(lambda: screen.box(head)["y"] > 400, "and leaves the upper half to the picture")
    assert screen.errors == []
