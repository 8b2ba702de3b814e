"""How soon a browser shows a scene, and how many pictures a second it displays while a training goes on.

A headless Chromium, which draws without a GPU, opens the studio's page as a user does. `first_view_s` are the
seconds from the opening of the address, with nothing in the browser's cache, until the points are on the
screen; before any training. A finished run is then loaded `--loads` times: when our own page was first
painted, when it showed the model from the first view, when the opening was gone and viser's page there, and
how many pictures were rendered from another camera than the first view. `displayed_fps` are the different
pictures of the model that the browser drew a second while its camera was turned with the mouse and the model
trained on the same cores.

    python tests/bench/page.py --json
    python tests/bench/page.py --scene FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
from playwright.sync_api import Error as PlaywrightError

from splatstudio.api import train
from splatstudio.cameras.camera import Camera
from splatstudio.gui.app import Studio
from splatstudio.gui.server.access import Listen
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.project import open_project
from splatstudio.runtime.messages import ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame
from splatstudio.settings.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
BANANA = ROOT.parent / "shared" / "scenes" / "banana"
DEMO = ROOT / "assets" / "demo"
CANVAS = "canvas[data-engine]"  # of the scene; the plots have canvases too
ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--no-first-run"]
COLORED = 40  # of 255: how far the channels of a pixel differ that shows a point or a camera
MIN_PIXELS = 200
LIMIT_SECONDS = 60.0
RUN_STEPS = 300  # of the run that is opened when it is finished

# Counts the redraws that show another picture than the one before.
COUNT_PICTURES = """() => {
  const counted = window.countedPictures = { shown: 0, last: null };
  const look = () => {
    const texture = window.__viserMutable?.backgroundMaterial?.uniforms?.colorMap?.value ?? null;
    if (texture !== null && texture !== counted.last) { counted.shown += 1; counted.last = texture; }
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


OPENED = "document.getElementById('root') && !document.getElementById('splatstudio-opening')"
FIRST_PICTURE = "performance.getEntriesByName('splatstudio-first-picture')[0].startTime"
SHOWN = "window.countedPictures.shown"


def browser_seconds() -> float:
    """Return the processor time that the browser's processes have used, s; those that have ended left out."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "chrom" in process.name().lower():
                used = process.cpu_times()
                total += used.user + used.system
        except psutil.Error:
            continue  # it has just ended
    return total


def seconds_to_points(browser: Any, url: str, size: tuple[int, int]) -> tuple[float, float]:
    """Open the address in a browser without a cache; return when colored points were first on the screen.

    Also the processor time that this took in the browser, s.
    """
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    start, used = time.monotonic(), browser_seconds()
    page.goto(url, wait_until="commit")
    page.wait_for_function(OPENED)
    # Where neither dock nor notification is.
    clip = {"x": 320, "y": 60, "width": max(100, size[0] - 750), "height": size[1] - 200}
    while not shows_points(page, clip):
        if time.monotonic() - start > LIMIT_SECONDS:
            sys.exit(f"no points within {LIMIT_SECONDS:.0f} s")
    seconds, used = time.monotonic() - start, browser_seconds() - used
    context.close()
    return seconds, used


def opened_runs(browser: Any, run: Path, size: tuple[int, int], loads: int) -> dict[str, float]:
    """Open a finished run several times; return the medians in seconds, and the pictures of wrong cameras."""
    cameras: list[np.ndarray] = []

    class Watched(Controller):
        def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
            cameras.append(camera.position)
            return super().render(view, camera, options)

    painted: list[float] = []
    pictured: list[float] = []
    opened: list[float] = []
    studio = Studio.__new__(Studio)
    studio._serve(open_project(run, TrainConfig(), None, None), Listen(port=0), Watched)
    try:
        while not studio.controller.status.has_model:
            time.sleep(0.1)
        for _ in range(loads):
            context = browser.new_context(viewport={"width": size[0], "height": size[1]})
            page = context.new_page()
            start = time.monotonic()
            page.goto(studio.url, wait_until="commit")
            page.wait_for_function(OPENED)
            opened.append(time.monotonic() - start)
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            painted.append(paint / 1000.0)
            pictured.append(page.evaluate(FIRST_PICTURE) / 1000.0)
            time.sleep(1.0)
            context.close()
        first = studio._server.initial_camera.position
        wrong = int(sum(np.linalg.norm(position - first) > 1e-3 for position in cameras))
    finally:
        studio.close()
    return {
        "first_paint_s": round(statistics.median(painted), 2),
        "first_picture_s": round(statistics.median(pictured), 2),
        "first_picture_worst_s": round(max(pictured), 2),
        "opened_s": round(statistics.median(opened), 2),
        "loads": loads,
        "pictures": len(cameras),
        "pictures_from_a_wrong_camera": wrong,
    }


def shows_points(page: Any, clip: dict[str, int]) -> bool:
    """Return whether there is something colorful in the middle of the window."""
    try:
        png = np.frombuffer(page.screenshot(clip=clip), np.uint8)
    except PlaywrightError:  # the browser has drawn nothing at all yet
        return False
    picture = cv2.imdecode(png, cv2.IMREAD_COLOR)
    assert picture is not None
    return int((np.ptp(picture, axis=2) > COLORED).sum()) >= MIN_PIXELS


def displayed_fps(browser: Any, studio: Studio, size: tuple[int, int], seconds: float) -> tuple[float, float]:
    """Turn the camera with the mouse while the studio trains; return the pictures displayed a second.

    Also the browser's processor time for each of them, s.
    """
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(studio.url)
    page.wait_for_selector(CANVAS)
    studio.start_training()
    while not (studio.controller.status.has_model and studio.controller.status.step > 5):
        if studio.controller.status.state == "failed":
            sys.exit(studio.controller.status.message)
        time.sleep(0.1)
    page.evaluate(COUNT_PICTURES)
    box = page.locator(CANVAS).bounding_box()
    x, y = box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"]
    page.mouse.move(x, y)
    page.mouse.down()
    drag(page, x, y, 3.0)  # until the resolution has found its place
    before, start, used = page.evaluate(SHOWN), time.monotonic(), browser_seconds()
    drag(page, x, y, seconds)
    shown, elapsed, used = page.evaluate(SHOWN) - before, time.monotonic() - start, browser_seconds() - used
    page.mouse.up()
    page.close()
    return shown / elapsed, used / max(shown, 1)


def drag(page: Any, x: float, y: float, seconds: float) -> None:
    """Move the held mouse slowly to and fro."""
    start = time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        page.mouse.move(x + 60.0 * np.sin(now), y)
        time.sleep(1 / 30)


def measure(
    scenes: list[Path], size: tuple[int, int], rounds: int, seconds: float, loads: int
) -> dict[str, float]:
    """Measure all, on each scene; `displayed_fps` and the loads of a run on the last."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    figures: dict[str, float] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for scene in scenes:
            start = time.monotonic()
            config = TrainConfig(steps=100_000, eval_steps=(), save_steps=(), downscale=2)
            studio = Studio(scene, network=Listen(port=0), config=config)
            try:
                figures[f"open_s_{scene.name}"] = round(time.monotonic() - start, 2)
                times = [seconds_to_points(browser, studio.url, size) for _ in range(rounds)]
                figures[f"first_view_s_{scene.name}"] = round(statistics.median(t for t, _ in times), 2)
                figures[f"first_view_cpu_s_{scene.name}"] = round(statistics.median(c for _, c in times), 2)
                if scene is scenes[-1]:
                    fps, cpu = displayed_fps(browser, studio, size, seconds)
                    figures["displayed_fps"] = round(fps, 1)
                    figures["browser_cpu_ms_a_picture"] = round(1000.0 * cpu)
            finally:
                studio.controller.kill()
                studio.close()
        run = Path("finished").resolve()
        train(scenes[-1], steps=RUN_STEPS, downscale=2, run_dir=run)
        figures |= opened_runs(browser, run, size, loads)
        browser.close()
    views = [value for name, value in figures.items() if name.startswith("first_view_s_")]
    return {"first_view_s": max(views), **figures, "load_average": round(os.getloadavg()[0], 1)}


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scene", type=Path, action="append", help="may be given several times")
    parser.add_argument("--width", type=int, default=1280, help="of the window, px")
    parser.add_argument("--height", type=int, default=720)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loads", type=int, default=20, help="of a finished run")
    parser.add_argument("--seconds", type=float, default=10.0, help="of dragging")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    scenes = arguments.scene or [scene for scene in (BANANA, DEMO) if scene.exists()]
    with tempfile.TemporaryDirectory() as folder:
        scenes = [scene.resolve() for scene in scenes]
        os.chdir(folder)
        size = (arguments.width, arguments.height)
        figures = measure(scenes, size, arguments.rounds, arguments.seconds, arguments.loads)
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
