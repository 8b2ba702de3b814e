"""Take the guide's screenshots: the studio on the demo scene, in a headless Chromium.

    PYTHONPATH=tests/support python docs/take_screenshots.py [FOLDER] [--every-tab]

`--every-tab` takes each tab in three widths instead, dark, and two of them light, to be looked at.

The Devices picture, of eight GPUs, takes the record that the tests of devices have for its figures.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from fake_nvml import FakeNvml
from playwright.sync_api import sync_playwright

from splatstudio.cli.start import start_content
from splatstudio.devices import monitor
from splatstudio.files.recent import remember
from splatstudio.gui.app import Studio
from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.start_page import StartPage
from splatstudio.settings.config import TrainConfig

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 1440, 900
ARGUMENTS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
STEPS = 3000


def take(page: Any, folder: Path, name: str) -> None:
    """Save what the page shows, without the notices that cover it."""
    time.sleep(2.0)
    # Asked of the page in one piece: some go away by themselves meanwhile, and only two are to be seen.
    page.evaluate(
        "document.querySelectorAll('.mantine-Notification-closeButton').forEach(button => button.click())"
    )
    time.sleep(1.0)
    page.screenshot(path=folder / f"{name}.jpg", type="jpeg", quality=85)
    print(f"{folder / name}.jpg")


def wait_for_step(studio: Studio, step: int) -> None:
    """Return once the training has done so many steps."""
    deadline = time.monotonic() + 600
    while studio.controller.status.step < step and time.monotonic() < deadline:
        time.sleep(0.5)


def tour(studio: Studio, page: Any, folder: Path) -> None:
    """Go through the tabs as a new user would."""
    page.goto(studio.url)
    page.get_by_role("button", name="Start training", exact=True).wait_for(timeout=120_000)
    time.sleep(6.0)
    take(page, folder, "ready")
    page.get_by_role("button", name="Start training", exact=True).click()
    wait_for_step(studio, 1200)
    take(page, folder, "training")
    page.get_by_role("tab", name="View").click()
    page.locator("[data-photo]").first.click()
    time.sleep(3.0)
    page.keyboard.press("g")  # the photo beside the model
    take(page, folder, "compare")
    page.keyboard.press("g")
    page.get_by_role("tab", name="Render").click()
    page.get_by_role("button", name="Orbit", exact=True).click()
    page.mouse.move(700, 880)  # away from the button, whose hint lies over the tabs
    take(page, folder, "render")
    page.get_by_role("tab", name="Export").click()
    take(page, folder, "export")
    page.get_by_role("tab", name="Evaluate").click()
    take(page, folder, "evaluate")


def every_tab(studio: Studio, page: Any, folder: Path) -> None:
    """Take each tab of a paused training in windows of three widths."""
    page.goto(studio.url)
    page.get_by_role("button", name="Start training", exact=True).click(timeout=120_000)
    wait_for_step(studio, 700)
    page.get_by_role("button", name="Pause", exact=True).click()
    for width, height in ((1440, 900), (1024, 768), (400, 800)):
        page.set_viewport_size({"width": width, "height": height})
        for side in ("left", "right"):
            fold = page.locator(f"[data-dock-region-collapse={side}][aria-expanded=false]")
            if fold.count() and (side == "right" or width > 720):
                fold.first.click()
        for name in ("Train", "View", "Evaluate", "Render", "Export", "Devices", "Log"):
            if (tab := page.get_by_role("tab", name=name)).count():
                tab.first.click()
                take(page, folder, f"{width}-{name.lower()}")
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.evaluate("localStorage.setItem('splatstudio-theme', 'light')")
    page.reload()
    for name in ("Train", "View"):
        page.get_by_role("tab", name=name).click(timeout=120_000)
        time.sleep(4.0)
        take(page, folder, f"light-{name.lower()}")


def see_devices(studio: Studio, page: Any, folder: Path) -> None:
    """Take the picture of eight GPUs, whose figures are those of a record."""
    page.goto(studio.url)
    page.locator('[data-splatstudio="device"]').nth(7).wait_for(timeout=120_000)
    time.sleep(10.0)  # for the plot
    take(page, folder, "devices")


def see_start_page(page: Any, runs: Path, folder: Path) -> None:
    """Take the picture of `open` without a path, in a folder with a run."""
    os.environ["XDG_STATE_HOME"] = str(runs / "state")
    os.chdir(runs)
    remember(runs / "photos" / "table")
    start = StartPage(Listen(port=0), start_content)
    page.goto(start.url)
    take(page, folder, "start")
    start.close()


def main() -> None:
    """Take all pictures into a folder, that of the repository by default."""
    words = [word for word in sys.argv[1:] if word != "--every-tab"]
    folder = Path(words[0]) if words else ROOT / "assets" / "screenshots"
    shows = (
        (("table", every_tab),) if "--every-tab" in sys.argv else (("table", tour), ("devices", see_devices))
    )
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    config = TrainConfig(steps=STEPS, eval_steps=(300, 600, 900), save_steps=(600, 900), sh_degree=2)
    with tempfile.TemporaryDirectory(prefix="captures-") as runs, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        scene = Path(runs) / "photos" / "table"  # so that no picture shows where this repository is
        shutil.copytree(ROOT / "assets" / "demo", scene)
        for name, show in shows:
            if show is see_devices:
                monitor.pynvml = FakeNvml()  # type: ignore[assignment] - for this picture alone
                psutil.pid_exists = lambda pid: True
            run_dir = Path(runs) / "runs" / name
            studio = Studio(scene, network=Listen(port=0), config=config, run_dir=run_dir)
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            try:
                show(studio, page, folder)
            finally:
                page.close()
                studio.close()
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        see_start_page(page, Path(runs), folder)
        browser.close()


if __name__ == "__main__":
    main()
