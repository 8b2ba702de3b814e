"""The studio's page in a real browser, against a real training: what a user sees and what the buttons do.

SPLATSTUDIO_SCREENSHOTS=FOLDER also trains the bundled scene for a while and writes pictures of the page.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blob_models import NUM_VIEWS
from gui_parts import TIMEOUT
from studio_page import CANVAS, DRAWN, PAGE_TEST, Screen, likeness

from splatstudio.cameras.camera import look_at
from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.formats.ply import read_ply
from splatstudio.gui.state.viewpoint import fly_to
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import render_image
from splatstudio.settings.config import TrainConfig

ROOT = Path(__file__).parents[2]
SCREENSHOTS = os.environ.get("SPLATSTUDIO_SCREENSHOTS")

pytestmark = PAGE_TEST


def test_from_the_first_look_to_the_exported_file(
    open_page: Callable[..., Screen], blob_folder: Path, tmp_path: Path
) -> None:
    screen = open_page(blob_folder)
    run = tmp_path / "runs" / "blobs"
    # Before any training: points and cameras.
    assert screen.text("state") == "Ready"
    screen.wait(lambda: np.ptp(screen.picture(), axis=2).max() > 40, "coloured points are on screen")
    screen.button("Start training").click()
    screen.wait(lambda: screen.text("state") == "Training" and screen.step > 10, "the step counter moves")
    drag_while_training(screen)
    screen.button("Pause").click()
    screen.wait(lambda: screen.text("state") == "Paused", "paused")
    screen.settle()
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
    screen.tab("Train")
    screen.button("Evaluate now").click()
    screen.wait(lambda: screen.text("test-psnr").endswith("dB"), "the evaluation is shown")
    plotted = ("Loss", "PSNR", "Splats", "Steps a second")
    for title in plotted:
        screen.page.locator(".u-title", has_text=title).wait_for()
    screen.button("Resume").click()
    screen.wait(lambda: screen.step > step, "training goes on after Resume")
    screen.button("Stop").click()
    screen.wait(lambda: screen.text("state") == "Stopped", "stopped")
    saved = newest_checkpoint(run)
    assert saved is not None and load_model(saved).step == screen.studio.controller.status.step > step
    assert screen.errors == []


def drag_while_training(screen: Screen) -> None:
    """Turn the camera and see the picture change and the training go on; cameras are off afterwards."""
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


def saved_model(screen: Screen, run: Path) -> tuple[int, Model]:
    """Press Save while paused, see it told with its path, and return the step and what was saved."""
    screen.button("Save").click()
    screen.wait(lambda: newest_checkpoint(run) is not None, "saved")
    step, checkpoint = screen.step, newest_checkpoint(run)
    assert checkpoint is not None
    screen.page.get_by_text(f"Saved step {step:,}").wait_for()
    screen.page.get_by_text(f"runs/blobs/ckpts/{checkpoint.name}").wait_for()
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
    with screen.page.expect_download() as download:
        screen.page.get_by_role("button", name=f"Download {ply.name}").click()
    assert Path(download.value.path()).read_bytes() == ply.read_bytes()
    screen.close_notices()
    in_files = ply.read_bytes()
    for label in ("Stand upright", "Cameras beside it"):
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


def test_frames_lie_exactly_under_the_points(open_page: Callable[..., Screen], blob_folder: Path) -> None:
    # After one step the splats still stand where the points are; made small and opaque they are dots.
    config = TrainConfig(
        steps=1, eval_steps=(), save_steps=(), sh_degree=0, init_scale=0.05, init_opacity=0.99
    )
    screen = open_page(blob_folder, config)
    screen.studio.start_training()
    screen.wait(lambda: screen.text("state") == "Finished", "the one step")
    screen.tab("View")
    screen.switch("Cameras").click()
    scene = screen.studio.controller.project.scene
    assert scene is not None
    # A view from the side, of no special symmetry, and the same in every run.
    eye = scene.cameras[1].position * 0.55 + (0.31, -0.17, 0.23)
    viewmat = look_at(eye, np.median(scene.points, axis=0), np.array([0.0, 0.0, 1.0]))
    side = replace(scene.cameras[1], viewmat=viewmat)
    fly_to(screen.client, side, float(np.linalg.norm(eye)))
    screen.settle()
    screen.close_notices()
    screen.wait(screen.still_is_sent, "the splats in full size")
    splats = resting_picture(screen)
    screen.switch("Splats").click()
    screen.switch("Points").click()
    screen.wait(lambda: bool((screen.picture() != splats).any()), "points in place of splats")
    points = resting_picture(screen)
    camera = screen.viewpoint.camera(1.0)
    local = scene.points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    spots = (local @ camera.K.T)[:, :2] / local[:, 2:]
    offsets = {"splats": off_centre(splats, spots), "points": off_centre(points, spots)}
    for name, offset in offsets.items():
        assert len(offset) >= 5, f"too few {name} stand alone"
        # The browser draws points as squares of whole pixels.
        nearest = 1.0 if name == "points" else 0.5
        assert np.abs(np.median(offset, axis=0)).max() < nearest, f"{name} are beside their place: {offset}"
    assert np.abs(offsets["splats"] - offsets["points"]).max() < 1.5


def resting_picture(screen: Screen) -> np.ndarray:
    """Return what is on the screen once it has not changed for a while."""
    pictures: list[np.ndarray] = []

    def rests() -> bool:
        screen.page.evaluate(DRAWN)
        pictures.append(screen.picture())
        return len(pictures) > 2 and all(np.array_equal(picture, pictures[-1]) for picture in pictures[-3:])

    screen.wait(rests, "the picture rests")
    return pictures[-1]


def off_centre(picture: np.ndarray, spots: np.ndarray, reach: int = 9) -> np.ndarray:
    """Return how far each dot's centre of light lies from its spot, px; for the spots that stand alone."""
    height, width = picture.shape[:2]
    light = np.clip(picture.max(axis=2).astype(float) - 30.0, 0.0, None)
    offsets = []
    for i, (x, y) in enumerate(spots):
        others = np.linalg.norm(np.delete(spots, i, axis=0) - (x, y), axis=1)
        if not (others.min() > 3 * reach and reach < x < width - reach and reach < y < height - reach):
            continue
        rows = np.arange(int(y) - reach, int(y) + reach + 1)
        columns = np.arange(int(x) - reach, int(x) + reach + 1)
        window = light[np.ix_(rows, columns)]
        assert window.sum() > 0, f"nothing is to be seen at {(x, y)}"
        centre_x = (window.sum(axis=0) @ (columns + 0.5)) / window.sum()
        centre_y = (window.sum(axis=1) @ (rows + 0.5)) / window.sum()
        offsets.append((centre_x - x, centre_y - y))
    return np.array(offsets)


def test_a_click_on_a_camera_flies_there_and_two_browsers_look_apart(
    open_page: Callable[..., Screen], blob_folder: Path, browser: Any
) -> None:
    screen = open_page(blob_folder)
    scene = screen.studio.controller.project.scene
    assert scene is not None
    screen.settle()
    # The camera whose pyramid is nearest to the middle of the picture.
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
    screen.page.mouse.move(x, y)
    screen.page.mouse.down()
    time.sleep(0.1)
    screen.page.mouse.up()
    wanted = scene.cameras[index]
    screen.wait(
        lambda: bool(np.allclose(screen.viewpoint.camera(1.0).viewmat, wanted.viewmat, atol=1e-3)),
        "it flies there",
    )

    screen.studio.start_training()
    second = browser.new_page(viewport={"width": 860, "height": 240})
    second.goto(screen.studio.url, timeout=1000 * TIMEOUT)
    screen.page.get_by_text("2 viewers").wait_for()
    positions = {
        tuple(np.round(client.camera.position, 3)) for client in screen.studio._server.get_clients().values()
    }
    assert len(positions) == 2, "each browser has a camera of its own"
    # One leaves in the middle of a frame: neither the training nor the other one notices.
    time.sleep(0.5)
    second.close()
    step = screen.step
    screen.wait(lambda: screen.step > step + 50, "training goes on")
    screen.wait(lambda: screen.studio._viewport.num_viewers == 1, "the stream of the other one ends")
    screen.settle()
    before = screen.picture()
    screen.drag(150)
    screen.wait(lambda: np.abs(screen.picture().astype(int) - before).mean() > 2, "it still gets pictures")


def test_failure_is_told_and_resume_offered(open_page: Callable[..., Screen], blob_folder: Path) -> None:
    screen = open_page(blob_folder)
    screen.button("Start training").click()
    screen.wait(lambda: screen.step > 20, "training")
    screen.button("Save").click()
    screen.page.get_by_text("Saved step").first.wait_for()
    screen.studio.controller._worker.kill()
    screen.wait(lambda: screen.text("state") == "Failed", "the failure is shown")
    screen.page.get_by_text("is safe; press Resume").first.wait_for()
    assert screen.page.get_by_text("Training finished").count() == 0
    screen.page.get_by_role("button", name="Resume from step").click()
    screen.wait(lambda: screen.text("state") == "Training", "training again")


@pytest.mark.skipif(SCREENSHOTS is None, reason="pictures of the page are written on demand")
@pytest.mark.timeout(1800)
def test_pictures_for_the_documentation(open_page: Callable[..., Screen]) -> None:
    folder = Path(str(SCREENSHOTS))
    folder.mkdir(parents=True, exist_ok=True)
    config = TrainConfig(steps=3000, eval_steps=(500, 1000, 1500), save_steps=(1000,), sh_degree=2)
    screen = open_page(ROOT / "assets" / "demo", config, width=1440, height=900)

    def shoot(name: str, seconds: float = 2.0) -> None:
        time.sleep(seconds)
        screen.close_notices()
        screen.page.screenshot(path=folder / f"{name}.jpg", type="jpeg", quality=85)

    shoot("ready", 3.0)
    screen.button("Start training").click()
    deadline = time.monotonic() + 1200
    while screen.step < 1600 and time.monotonic() < deadline:
        time.sleep(1.0)
    shoot("training")
    screen.tab("View")
    screen.page.locator("[data-photo]").first.click()
    time.sleep(3.0)
    screen.page.keyboard.press("g")
    shoot("compare", 4.0)
    screen.tab("Evaluate")
    shoot("evaluate", 4.0)
    screen.tab("Render")
    screen.button("Orbit").click()
    screen.drag(60)
    shoot("render", 4.0)
    screen.tab("Export")
    screen.button("Export PLY").click()
    screen.page.get_by_text("Exported").first.wait_for(timeout=60_000)
    shoot("export", 1.0)
