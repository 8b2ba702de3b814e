"""A page of the studio in a real browser: what the tests of the page share."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import pytest

from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.files.run import Run
from splatstudio.gui.app import Studio
from splatstudio.gui.panel import Panel
from splatstudio.gui.server.access import Listen
from splatstudio.gui.state.scene_overlay import Draft
from splatstudio.gui.state.viewpoint import Viewpoint, read_viewpoint
from splatstudio.gui.tabs.render import RenderPanel
from splatstudio.runtime.messages import Pause, Resume
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

P = TypeVar("P", bound=Panel)
TIMEOUT = 120.0  # a machine with other work is many times slower
CANVAS = "canvas[data-engine]"  # of the scene; the plots have canvases too
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# The browser draws without a GPU and, once it is there, asks nothing of the network.
ARGUMENTS = [
    "--no-sandbox",
    # Text and fields are not what WebGL is emulated for: this takes a third of the browser's work away.
    "--disable-gpu-compositing",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WINDOW = {"width": 1160, "height": 460}  # without a GPU each pixel costs time
MANY = TrainConfig(steps=100_000, eval_steps=(), save_steps=(), sh_degree=1)

# The browser draws a few times, and has told the studio of what that changed.
DRAWN = """() => new Promise(done => {
  let frames = 0;
  const next = () => ++frames < 3 ? requestAnimationFrame(next) : setTimeout(done, 100);
  next();
})"""
# Our page from the first paint on has made way for the studio.
OPENED = "document.getElementById('root') && !document.getElementById('splatstudio-opening')"
# Draws 12 times a second at most: without a GPU all else on the machine waits for each picture.
PACED = """(() => {
  const interval = 80, onNextFrame = window.requestAnimationFrame.bind(window);
  let waiting = new Map(), due = new Map(), number = 0, last = 0;
  const draw = time => {
    [due, waiting, last] = [waiting, new Map(), performance.now()];
    for (const callback of due.values()) {
      try { callback(time); } catch (error) { reportError(error); }
    }
  };
  window.requestAnimationFrame = callback => {
    if (waiting.size === 0) {
      setTimeout(() => onNextFrame(draw), Math.max(0, last + interval - performance.now()));
    }
    waiting.set(++number, callback);
    return number;
  };
  window.cancelAnimationFrame = key => { waiting.delete(key); due.delete(key); };
})()"""
# Draws a sixteenth of the pixels of a scene unless its page asks for others: without a GPU they are half of a
# browser's work, and most tests look at what is around the scene.
COARSE = """(() => {
  const asked = URLSearchParams.prototype.get;
  URLSearchParams.prototype.get = function (name) {
    return asked.call(this, name) ?? (name === "fixedDpr" ? "0.25" : null);
  };
})()"""
# Closes the notices that are there, and waits until they are off the page.
CLOSE_NOTICES = """async () => {
  const buttons = [...document.querySelectorAll(".mantine-Notification-closeButton")];
  buttons.forEach(button => button.click());
  const end = Date.now() + 60_000;
  while (buttons.some(button => button.isConnected)) {
    if (Date.now() > end) throw new Error("a notice does not close");
    await new Promise(done => setTimeout(done, 50));
  }
}"""

# Whether a place of the window shows the scene: a notice, for one, may lie over it.
SHOWS_THE_SCENE = """([x, y]) => document.elementFromPoint(x, y)?.matches("canvas[data-engine]")"""

# For the tests of the page: a build server must not pass by leaving the browser away.
PAGE_TEST = [
    pytest.mark.gui,
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="no Chromium on this machine"),
    pytest.mark.timeout(900),  # a browser without a GPU beside other work
]


class Chromium:
    """Playwright and its browser, started once for all tests of a process: that takes a second of it.

    Its event loop counts as running from the start on, and asyncio lets a thread run one alone: between the
    tests of the page it is put away, so that others can run theirs.
    """

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        assert CHROMIUM is not None, "the tests of the page need Chromium: apt-get install chromium"
        self._driver = sync_playwright().start()
        self._loop = asyncio.get_running_loop()
        self._browser: Any = None

    def take(self) -> Any:
        """Return the browser; it is started anew if it has ended."""
        asyncio._set_running_loop(self._loop)
        if self._browser is None or not self._browser.is_connected():
            self._browser = self._driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        return self._browser

    def put_away(self) -> None:
        """Close all pages, which would go on to draw beside the tests that follow, and free the thread."""
        try:
            for profile in list(self._browser.contexts):
                profile.close()
        finally:
            asyncio._set_running_loop(None)

    def close(self) -> None:
        asyncio._set_running_loop(self._loop)
        if self._browser.is_connected():
            self._browser.close()
        self._driver.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    started = Chromium()
    started.take()
    started.put_away()
    yield started
    started.close()


def paced(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes the same pages or profiles, drawn no more often and no finer than tests need."""

    def made(**settings: Any) -> Any:
        opened = make(**settings)
        opened.add_init_script(PACED + ";" + COARSE)
        return opened

    return made


@pytest.fixture
def browser(chromium: Chromium, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The Chromium of all tests; each page is one of a profile of its own, with nothing in it.

    None outlives its test.
    """
    taken = chromium.take()
    for name in ("new_page", "new_context"):
        monkeypatch.setattr(taken, name, paced(getattr(taken, name)))
    yield taken
    chromium.put_away()


def press_on_the_scene(page: Any, x: float, y: float) -> None:
    """Press the left mouse button where the scene is seen, px in the window, once it is seen there."""
    page.wait_for_function(SHOWS_THE_SCENE, arg=[x, y])
    page.mouse.move(x, y)
    page.mouse.down()


@dataclass
class Screen:
    """A browser page with the studio in it."""

    page: Any
    studio: Studio
    errors: list[str]
    number: int = 0  # of the studio's browsers, in the order in which they came

    def close_notices(self) -> None:
        """Put away what covers the picture, as the warning that there is no GPU."""
        # Asked of the page in one piece: some go away by themselves meanwhile.
        self.page.evaluate(CLOSE_NOTICES)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Hold the training meanwhile: without a GPU it, and its pictures, take more than a processor."""
        self.studio.controller.send(Pause())
        self.wait(lambda: self.text("state") == "Paused", "it rests")
        yield
        self.studio.controller.send(Resume())
        self.wait(lambda: self.text("state") == "Training", "it goes on")

    def text(self, name: str) -> str:
        """Return a figure of the dock, as "step"."""
        return self.page.locator(f'[data-splatstudio="{name}"]').inner_text()

    @property
    def step(self) -> int:
        """Return the step that the page shows."""
        return int(self.text("step").partition("/")[0].replace(",", ""))

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def seen(self, name: str) -> Any:
        """Return the visible button of this name: others are in tabs that are not shown."""
        return self.button(name).locator("visible=true").first

    def field(self, label: str) -> Any:
        """Return the visible input field of this label."""
        # viser's text fields are beside their label, but not named by it.
        row = f"//label[normalize-space()='{label}']/ancestor::*[.//input][1]//input[not(@type='hidden')]"
        return self.page.locator(row).locator("visible=true").first

    def enter(self, label: str, text: str) -> None:
        """Type into the field of this label, and see that it stands there."""
        field = self.field(label)

        def stands_there() -> bool:
            # Playwright selects what is there and types then: a field that is drawn anew in between loses
            # the selection, and has what was typed behind what it shows.
            field.fill(text)
            return field.input_value() == text

        self.wait(stands_there, lambda: f"{text} in {label}, which has {field.input_value()}")
        field.press("Tab")

    def panel(self, kind: type[P]) -> P:
        """Return the studio's only panel of a kind."""
        (panel,) = (panel for panel in self.studio._refresher.panels if isinstance(panel, kind))
        return panel

    def looks(self, panel: Panel) -> None:
        """Wait until a panel has looked around anew, from the beginning, and shown what it found."""
        ends: list[None] = []
        look, refresh = panel.look, panel.refresh
        begun: list[None] = []

        def noted_look() -> None:
            begun.append(None)
            look()

        def noted_refresh() -> None:
            refresh()
            ends.extend(begun)

        panel.look, panel.refresh = noted_look, noted_refresh  # type: ignore[method-assign]
        self.wait(lambda: bool(ends), "it looks around")
        del panel.look, panel.refresh

    @property
    def draft(self) -> Draft:
        """Return the camera path that the studio holds."""
        return self.panel(RenderPanel)._editor.draft

    def switch(self, name: str) -> Any:
        return self.page.get_by_role("checkbox", name=name, exact=True)

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    def choose(self, label: str, option: str) -> None:
        """Choose an option of a dropdown."""
        from playwright.sync_api import TimeoutError as NotThere

        row = self.page.get_by_role("option", name=option, exact=True).locator("visible=true")

        def chosen() -> bool:
            # A list closes when what it stands in is drawn anew, as after another choice.
            self.page.get_by_label(label, exact=True).locator("visible=true").first.click()
            try:
                row.click(timeout=5000)
            except NotThere:
                return False
            return True

        self.wait(chosen, f"{option} in the list of {label}")

    def box(self, locator: Any) -> dict[str, float]:
        """Return where something is in the window, px; it may be drawn anew meanwhile."""
        found: list[dict[str, float]] = []

        def there() -> bool:
            # Playwright finds the element first and measures it then: in between it may be replaced.
            found.extend(box for box in [locator.bounding_box()] if box is not None)
            return bool(found)

        self.wait(there, f"{locator} is in the window")
        return found[0]

    def settle(self) -> None:
        """Wait until the camera rests, which moves on for a while, and the studio knows where."""
        places: list[np.ndarray] = []

        def rests() -> bool:
            self.page.evaluate(DRAWN)
            viewpoint = self.viewpoint
            places.append(np.concatenate([viewpoint.position, viewpoint.wxyz]))
            return len(places) > 2 and all(np.array_equal(place, places[-1]) for place in places[-3:])

        self.wait(rests, "the camera rests")

    @property
    def client(self) -> Any:
        """Return this browser as the studio knows it."""
        return list(self.studio._server.get_clients().values())[self.number]

    @property
    def viewpoint(self) -> Viewpoint:
        """Return where this browser looks from, with the size that its canvas has on the screen."""
        viewpoint = read_viewpoint(self.client.camera)
        assert viewpoint is not None
        # viser tells the pixels that it draws, which it makes fewer when the browser is slow.
        box = self.page.locator(CANVAS).bounding_box()
        return replace(viewpoint, width=round(box["width"]), height=round(box["height"]))

    def picture(self) -> np.ndarray:
        """Return what the user sees beside the dock, [H, W, 3] uint8, without notices, which come and go."""
        box = self.page.locator(CANVAS).bounding_box()
        clip = {"x": box["x"], "y": box["y"], "width": round(box["width"]), "height": round(box["height"])}
        over_it = ".ss-axes, .ss-speed, .ss-half, .mantine-Notifications-notification"
        alone = f"{over_it} {{ visibility: hidden !important }}"
        png = np.frombuffer(self.page.screenshot(clip=clip, style=alone), np.uint8)
        decoded = cv2.imdecode(png, cv2.IMREAD_COLOR)
        assert decoded is not None
        return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)

    def drag(self, pixels: int, moves: int = 10) -> None:
        """Turn the camera with the left mouse button."""
        box = self.page.locator(CANVAS).bounding_box()
        x, y = box["x"] + 0.25 * box["width"], box["y"] + 0.5 * box["height"]
        press_on_the_scene(self.page, x, y)
        for i in range(1, moves + 1):
            self.page.mouse.move(x + i * pixels // moves, y)
            time.sleep(0.03)
        self.page.mouse.up()

    def still_is_sent(self) -> bool:
        """Return whether the browser has the picture of its resting camera, in full size."""
        stream = self.studio._viewport.stream(self.client)
        if stream is None or stream._shown is None or stream._acknowledged is None:
            return False
        shown, now = stream._shown, stream._version
        whole = shown.version == now and not shown.moving and shown.scale == shown.settings.max_scale
        return whole and stream._acknowledged.done()

    def wait(self, condition: Callable[[], bool], what: str | Callable[[], str]) -> None:
        """Wait for a condition; `what` says what should have come, or tells what is there instead."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            told = what if isinstance(what, str) else what()
            assert time.monotonic() < deadline, f"never: {told}; {self.studio.controller.status}"
            time.sleep(0.05)


def open_screen(
    browser: Any,
    path: Path,
    config: TrainConfig = MANY,
    width: int = WINDOW["width"],
    height: int = WINDOW["height"],
    sharp: bool = False,
    **settings: Any,
) -> Screen:
    """Open the studio and its page, `sharp`: with every pixel; who opened it calls `close_screen`."""
    studio = Studio(path, network=Listen(port=0), config=config, **settings)
    return screen_of(browser, studio, width, height, sharp)


def screen_of(
    browser: Any,
    studio: Studio,
    width: int = WINDOW["width"],
    height: int = WINDOW["height"],
    sharp: bool = False,
    **page_settings: Any,
) -> Screen:
    """Open the page of a studio, `sharp`: with every pixel; who opened it calls `close_screen`."""
    page = browser.new_page(viewport={"width": width, "height": height}, **page_settings)
    page.set_default_timeout(1000 * TIMEOUT)
    screen = Screen(page, studio, [])
    page.on("pageerror", lambda error: screen.errors.append(str(error)))
    page.goto(f"{studio.url}&fixedDpr=1" if sharp else studio.url)
    page.wait_for_selector(CANVAS)
    screen.wait(lambda: len(studio._server.get_clients()) == 1, "the browser connects")
    # What is sent last: by then the page has its buttons, fields and keys.
    page.get_by_role("tab", name="Log").wait_for()
    page.wait_for_function(OPENED)
    screen.wait(lambda: screen.text("state") != "", "the head of the dock")
    screen.close_notices()
    return screen


def close_screen(screen: Screen) -> None:
    screen.page.close()
    screen.studio.close()


@pytest.fixture
def open_page(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Screen]]:
    """Open the studio and its page; both are closed after the test."""
    monkeypatch.chdir(tmp_path)
    opened: list[Screen] = []

    def make(*arguments: Any, **settings: Any) -> Screen:
        opened.append(open_screen(browser, *arguments, **settings))
        return opened[-1]

    yield make
    for screen in opened:
        close_screen(screen)


def likeness(picture: np.ndarray, other: np.ndarray) -> float:
    """Return the correlation of two pictures of one size, 1: equal up to brightness."""
    a, b = (image.astype(float).ravel() - image.mean() for image in (picture, other))
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-9))


def row(screen: Screen, start: str) -> Any:
    """Return the visible button whose label begins like this."""
    return screen.page.get_by_role("button").filter(has_text=start).locator("visible=true").first


@pytest.fixture
def saved_run(blob_scene: Scene, tmp_path: Path) -> Path:
    """A run below runs/ with checkpoints of steps 20 and 40, the first of two ranks; the third is damaged."""
    config = replace(MANY, steps=60, eval_every=0)  # scores are those that a test asks for
    run = Run.create(tmp_path / "runs" / "blobs", blob_scene.path, config)
    trainer = Trainer(blob_scene, config)
    for step in range(1, 51):
        trainer.train_step()
        if step in (20, 40, 50):
            save_checkpoint(run.path, trainer.checkpoint(), num_shards=2 if step == 20 else 1)
    trainer.close()
    return run.path
