"""A first training in a real browser, from the first look to the exported file and back after a failure."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blob_models import NUM_VIEWS
from gui_parts import TIMEOUT
from studio_page import CANVAS, PAGE_TEST, Screen, likeness, press_on_the_scene

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.formats.ply import read_ply
from splatstudio.gui.panel import PRESS_SECONDS
from splatstudio.gui.tabs.log import LogPanel
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import render_image

pytestmark = PAGE_TEST


def test_from_the_first_look_to_the_exported_file_and_back_after_a_failure(
    open_page: Callable[..., Screen], blob_folder: Path, tmp_path: Path, browser: Any
) -> None:
    screen = open_page(blob_folder, sharp=True)
    run, keyboard = tmp_path / "runs" / "blobs", screen.page.keyboard
    # Before any training: points and cameras.
    assert screen.text("state") == "Ready"
    screen.wait(lambda: np.ptp(screen.picture(), axis=2).max() > 40, "colored points are on screen")
    click_on_a_camera(screen)
    keyboard.press("p")
    screen.wait(lambda: screen.text("state") == "Training" and screen.step > 10, "P starts")
    see_the_process_at_work(screen)
    with screen.at_rest():
        follow_the_log(screen)
        second = open_a_second_browser(screen, browser)
    look_from_a_second_browser(screen, second)
    drag_while_training(screen)
    change_live_settings(screen, run)
    keyboard.press("p")
    screen.wait(lambda: screen.text("state") == "Paused", "P pauses")
    screen.settle()
    keyboard.press("Control+s")
    step, model = saved_model(screen, run)
    # What is on the screen is this model, seen by this browser's camera, pixel by pixel.
    expected = render_image(model.gaussians, screen.viewpoint.camera(1.0), model.options)
    assert expected.std() > 10, "the picture to compare with is empty"

    def differs() -> float:
        return float(np.abs(screen.picture().astype(int) - expected.astype(int)).mean())

    screen.wait(lambda: likeness(screen.picture(), expected) > 0.99, "the model is on screen")
    screen.wait(lambda: differs() < 3, f"the same pixels, which differ by {differs()} on average")
    assert screen.step == step, "paused means that no step is trained"
    export_and_download(screen, tmp_path / "out" / "model", model)
    make_a_mesh(screen, tmp_path / "meshes" / "model.glb")
    screen.tab("Train")
    screen.button("Evaluate now").click()
    screen.wait(lambda: screen.text("test-psnr").endswith("dB"), "the evaluation is shown")
    for title in ("Loss", "PSNR", "Splats", "it/s"):
        screen.page.locator(".u-title", has_text=title).wait_for()
    resume_by_the_palette(screen)
    screen.wait(lambda: screen.step > step + 20, "training goes on")
    fail_and_resume(screen)
    time.sleep(PRESS_SECONDS)  # else it is the second half of the click on Resume
    screen.button("Pause").click()
    screen.wait(lambda: screen.text("state") == "Paused", "paused by the button")
    time.sleep(PRESS_SECONDS)
    screen.button("Resume").dblclick()
    screen.wait(lambda: screen.text("state") == "Training", "and resumed")
    resumed = screen.step
    screen.wait(lambda: screen.step > resumed + 5, "the second click is one with the first")
    screen.button("Stop").click()
    screen.wait(lambda: screen.text("state") == "Stopped", "stopped")
    saved = newest_checkpoint(run)
    assert saved is not None and load_model(saved).step == screen.studio.controller.status.step > step
    assert screen.errors == []


def click_on_a_camera(screen: Screen) -> None:
    """Click on the camera whose pyramid is nearest to the middle of the picture, and fly there."""
    scene = screen.studio.controller.project.scene
    assert scene is not None
    screen.settle()
    view = screen.viewpoint.camera(1.0)
    size = 0.03
    spots = []
    for index, camera in enumerate(scene.cameras):
        middle = camera.camera_to_world @ (0, 0, size, 1)
        x, y, z = view.K @ (view.viewmat @ middle)[:3]
        if z > 0.3 and 20 < x / z < view.width - 20 and 20 < y / z < view.height - 20:
            spots.append((abs(x / z - view.width / 2), index, x / z, y / z))
    assert spots, "no camera is in sight"
    _, index, x, y = min(spots)
    # As a hand does: first there, then press and release.
    box = screen.page.locator(CANVAS).bounding_box()
    x, y = x + box["x"], y + box["y"]
    screen.page.mouse.move(x + 2, y)
    time.sleep(0.3)
    press_on_the_scene(screen.page, x, y)
    time.sleep(0.1)
    screen.page.mouse.up()
    wanted = scene.cameras[index]
    screen.wait(
        lambda: bool(np.allclose(screen.viewpoint.camera(1.0).viewmat, wanted.viewmat, atol=1e-3)),
        "it flies there",
    )


def see_the_process_at_work(screen: Screen) -> None:
    """See the training's process on the CPU in the Devices tab."""
    row = screen.page.locator('[data-splatstudio="device"]')
    screen.wait(lambda: "ms a step" in row.first.inner_text(), "the rank's figures stand beside it")
    assert row.count() == 1
    text = row.inner_text()
    assert "CPU rank 0" in text and "this app" in text
    share = row.locator('[data-splatstudio="utilization"]')
    screen.wait(lambda: share.inner_text() not in ("0 %", "not available"), "it works")
    screen.page.locator(".uplot").first.wait_for()
    screen.choose("Plot", "Memory of this app")
    script = """() => Object.values(window.__viserTestpoints?.uplots ?? {})
        .map(plot => Math.max(...(plot.chart.data[1] ?? [0])))"""
    # The share of a processor is shown in per cent, the memory in GB: a small process has less than 20.
    screen.wait(lambda: any(0 < value < 20 for value in screen.page.evaluate(script)), "gigabytes")


def follow_the_log(screen: Screen) -> None:
    """See the end of the worker's log, with errors marked; let it stand still, and download it."""
    screen.tab("Log")
    log = screen.page.locator('[data-splatstudio="log"]')
    screen.wait(lambda: "worker started" in log.inner_text(), "the worker's log is shown")
    path = screen.studio.controller.log_path
    screen.page.get_by_text(str(path)).wait_for()
    with path.open("a") as file:
        file.writelines(f"line {i}\n" for i in range(500))
        file.write("<b>ValueError</b>: it <i>broke</i>\n")
    screen.wait(lambda: "it <i>broke</i>" in log.inner_text(), "new lines appear, as text")
    marked = log.locator('[data-splatstudio="bad"]').last
    assert marked.inner_text() == "<b>ValueError</b>: it <i>broke</i>" and marked.is_visible()
    assert log.inner_text().count("\n") == 199, "the last 200 lines"
    top, bottom = screen.box(marked), screen.box(log)
    assert top["y"] + top["height"] < bottom["y"] + bottom["height"], "the end is in sight"

    panel = screen.panel(LogPanel)
    screen.switch("Follow").click()
    screen.wait(lambda: not panel._follow.value, "the studio knows")
    screen.looks(panel)  # it may be being read at this moment
    with path.open("a") as file:
        file.write("one more line\n")
    screen.looks(panel)
    assert "one more line" not in log.inner_text()
    screen.switch("Follow").click()
    screen.wait(lambda: "one more line" in log.inner_text(), "followed again")
    with screen.page.expect_download() as download:
        screen.seen("Download the log").click()
    assert Path(download.value.path()).read_bytes() == path.read_bytes()


def open_a_second_browser(screen: Screen, browser: Any) -> Any:
    """Let another browser come, and return its page."""
    second = browser.new_page(viewport={"width": 860, "height": 240})
    second.goto(screen.studio.url, timeout=1000 * TIMEOUT)
    screen.page.get_by_text("2 viewers").wait_for()
    clients = screen.studio._server.get_clients().values()
    positions = {tuple(np.round(client.camera.position, 3)) for client in clients}
    assert len(positions) == 2, "each browser has a camera of its own"
    return second


def look_from_a_second_browser(screen: Screen, second: Any) -> None:
    """Let another browser leave amid a frame: neither the training nor this one notices."""
    step = screen.step
    screen.wait(lambda: screen.step > step, "frames of new steps are on their way to both")
    second.close()
    step = screen.step
    screen.wait(lambda: screen.step > step + 50, "training goes on")
    screen.wait(lambda: screen.studio._viewport.num_viewers == 1, "the stream of the other one ends")


def drag_while_training(screen: Screen) -> None:
    """Turn the camera and see the picture change and the training go on; cameras are off afterward."""
    screen.tab("View")
    screen.wait(lambda: not screen.switch("Points").is_checked(), "off by itself when the model appeared")
    screen.switch("Cameras").click()
    screen.settle()
    before, step = screen.picture(), screen.step
    screen.drag(220)
    screen.wait(lambda: screen.step > step, "training goes on while the picture turns")
    screen.wait(
        lambda: np.abs(screen.picture().astype(int) - before).mean() > 3, "dragging changes the picture"
    )
    screen.wait(lambda: screen.step > step + 200, "training goes on")


def change_live_settings(screen: Screen, run: Path) -> None:
    """Enter settings that are refused, and others that are confirmed."""
    apply = screen.page.get_by_role("button", name="Apply")
    with screen.at_rest():
        enter_what_is_refused(screen, apply)
    screen.enter("Positions", "2e-4")
    screen.enter("Max splats", "123")
    screen.button("Apply 2 changes").click()
    screen.page.get_by_text("Learning rates: Positions changed to 0.0002 at step").first.wait_for()
    screen.page.get_by_text("Densification: Max splats changed to 123 at step").first.wait_for()
    screen.wait(lambda: apply.is_disabled(), "nothing is left to apply")
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    changes = {row["setting"]: row["value"] for row in rows if "setting" in row}
    assert changes == {"optim.means_lr": 2e-4, "densify.max_gaussians": 123}
    assert screen.studio.controller.project.config.optim.means_lr == 2e-4
    screen.page.get_by_text("Live settings").click()
    screen.close_notices()


def enter_what_is_refused(screen: Screen, apply: Any) -> None:
    """Enter a rate that is too high: it is said below, where nothing moves for it."""
    screen.tab("Train")
    screen.page.get_by_text("Live settings").click()
    assert apply.is_disabled()

    def below_apply() -> float:
        """How far the field is below the button, px, however the dock is scrolled."""
        return screen.box(screen.field("Positions"))["y"] - screen.box(apply)["y"]

    before = below_apply()
    screen.enter("Positions", "7")
    screen.button("Apply 1 change").click()
    refusal = screen.page.locator('[data-splatstudio="refusal"]')
    refusal.wait_for()
    assert refusal.inner_text() == "Not changed: Positions must be 1 or less."
    assert abs(below_apply() - before) < 1.0, "nothing moves under the mouse"


def saved_model(screen: Screen, run: Path) -> tuple[int, Model]:
    """See that the paused model is saved and told with its path, and return the step and what was saved."""
    step = screen.step
    checkpoint = run / "ckpts" / f"step_{step:08d}"  # not one that the clock has saved before
    screen.wait(lambda: newest_checkpoint(run) == checkpoint, "saved")
    screen.page.get_by_text(f"Saved step {step:,}", exact=True).first.wait_for()
    screen.page.get_by_text(f"runs/blobs/ckpts/{checkpoint.name}").first.wait_for()
    screen.close_notices()
    model = load_model(checkpoint)
    assert model.step == step
    return step, model


def export_and_download(screen: Screen, path: Path, model: Model) -> None:
    """Export under a name without its ending, and download the same file."""
    screen.tab("Export")
    screen.page.get_by_role("textbox").locator("visible=true").last.fill(str(path))
    screen.button("Export PLY").click()
    screen.page.get_by_text("Exported").first.wait_for()
    ply = path.with_suffix(".ply")
    screen.page.get_by_text(str(ply)).first.wait_for()
    assert len(read_ply(ply)) == len(model) == int(screen.text("splats").replace(",", ""))
    download_it = screen.page.get_by_role("button", name=f"Download {ply.name}")
    height = screen.page.evaluate("innerHeight")
    screen.wait(
        lambda: (box := screen.box(download_it))["y"] + box["height"] <= height + 1, "it is brought to sight"
    )
    field = screen.field("File")
    screen.wait(lambda: field.get_attribute("title") == str(ply), "the whole path, where the field cuts it")
    left, whole, shown = field.evaluate("e => [e.scrollLeft, e.scrollWidth, e.clientWidth]")
    assert left >= whole - shown - 1 > 0, "its end is shown"
    with screen.page.expect_download() as download:
        screen.page.get_by_role("button", name=f"Download {ply.name}").click()
    assert Path(download.value.path()).read_bytes() == ply.read_bytes()
    screen.close_notices()
    in_files = ply.read_bytes()
    for label in ("Align upright", "Also export cameras"):
        screen.page.get_by_label(label).locator("visible=true").first.click()
    screen.button("Export PLY").click()
    second = ply.with_name(f"{path.name}-2.ply")  # the first is not written over
    screen.wait(lambda: any(ply.parent.glob(f"{second.stem}*.cameras.json")), "the cameras are written")
    assert ply.read_bytes() == in_files
    x, y, z = model.gaussians.means.T
    torch.testing.assert_close(
        read_ply(second).gaussians.means, torch.stack([x, -z, y], dim=1), atol=1e-5, rtol=1e-5
    )
    (cameras,) = ply.parent.glob("*.cameras.json")
    assert len(json.loads(cameras.read_text())) == NUM_VIEWS
    screen.close_notices()


def make_a_mesh(screen: Screen, path: Path) -> None:
    """Make a mesh of the model that was saved, and read how good it is."""
    screen.tab("Export")
    screen.page.get_by_text("Mesh", exact=True).click()
    screen.enter("Resolution", "32")
    screen.enter("Mesh file", str(path))
    splats = screen.picture().astype(int)

    def changed() -> float:
        return float(np.abs(screen.picture() - splats).mean())

    screen.button("Make mesh").click()
    screen.page.get_by_text("of the surface").first.wait_for()
    screen.wait(lambda: changed() > 5, "the mesh is over the splats at once")
    report = json.loads(path.with_name(f"{path.name}.report.json").read_text())
    assert path.stat().st_size > 0 and screen.page.get_by_text(f"{report['triangles']:,}").count() > 0
    screen.choose("Show in the view", "What is reliable")
    legend = screen.page.get_by_text("Green: three photos or more saw it.").locator("visible=true")
    legend.first.wait_for()
    screen.choose("Show in the view", "Nothing")
    screen.wait(lambda: changed() < 1, "the splats alone are there again")
    screen.page.get_by_text("Mesh", exact=True).click()
    screen.close_notices()


def resume_by_the_palette(screen: Screen) -> None:
    """Type a key's letter into a field, where it is text; the palette lists all commands and gives them."""
    keyboard = screen.page.keyboard
    screen.tab("Export")
    field = screen.page.get_by_role("textbox").locator("visible=true").last
    field.click()
    field.press("End")
    keyboard.type("ppp")
    assert field.input_value().endswith("ppp")
    screen.page.locator(CANVAS).click()
    keyboard.press("Control+k")
    search = screen.page.get_by_placeholder("Search commands...")
    offered = screen.page.locator(".mantine-Spotlight-action").locator("visible=true")
    search.fill("zebra")  # viser's own search finds a few letters of it in three commands
    screen.page.locator("[data-ss-none=true]").wait_for()
    assert offered.count() == 0
    search.fill("camras")
    screen.wait(lambda: "cameras" in offered.first.inner_text(), "one letter may be missing")
    search.fill("resume")
    screen.page.get_by_text("Pause or resume").wait_for()
    keyboard.press("Enter")
    # Had the letters been commands it would train already, and pause now.
    screen.wait(lambda: screen.text("state") == "Training", "the palette resumes")


def fail_and_resume(screen: Screen) -> None:
    """Lose the process of a training: it is told what is safe, and goes on from there."""
    screen.seen("Save").click()
    screen.page.get_by_text("Saved step").first.wait_for()
    screen.studio.controller._worker.kill()
    screen.wait(lambda: screen.text("state") == "Failed", "the failure is shown")
    screen.page.get_by_text("is safe; press Resume").first.wait_for()
    assert screen.page.get_by_text("Training finished").count() == 0
    screen.page.get_by_role("button", name="Resume from step").click()
    screen.wait(lambda: screen.text("state") == "Training", "training again")
