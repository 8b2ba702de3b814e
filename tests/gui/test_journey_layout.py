"""The page at its smallest and its usual size, in turns: every tab open, no control cut off at its side.

SPLATSTUDIO_SCREENSHOTS=FOLDER also writes a picture of each tab, of the bundled scene.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_nvml import RECORD, FakeNvml
from gui_parts import MANY, TIMEOUT
from studio_page import CANVAS, PAGE_TEST, Screen, row

from splatstudio.gui import dock
from splatstudio.gui.state.controller import Controller
from splatstudio.runtime.messages import RankFigures, RanksReport
from splatstudio.training.time_plan import StepTimes

pytestmark = PAGE_TEST
SCREENSHOTS = os.environ.get("SPLATSTUDIO_SCREENSHOTS")
DEMO = Path(__file__).parents[2] / "assets" / "demo"
SIZES = ((1440, 900), (1280, 720))
RIGHT = ("Train", "View", "Evaluate", "Render", "Export")

# Controls and texts of the docks that reach over their dock's edge, or whose text does over their own.
CUT_OFF = """() => {
  const found = [];
  const visible = e => e.offsetParent !== null && e.getClientRects().length > 0;
  const name = e => (e.getAttribute("aria-label") || e.innerText || e.value || e.tagName).trim().slice(0, 60);
  const kinds = "button, input, textarea, label, [role=tab], [role=slider], [data-splatstudio], .uplot";
  for (const e of document.querySelectorAll(kinds)) {
    if (!visible(e) || e.closest("[data-photo]") || e.type === "file") continue;
    const style = getComputedStyle(e);
    if (style.opacity === "0" || style.visibility === "hidden") continue;
    const box = e.getBoundingClientRect();
    if (box.width < 2) continue;
    if (box.left < -0.5 || box.right > innerWidth + 0.5) found.push("off the window: " + name(e));
    for (let a = e.parentElement; a && a !== document.body; a = a.parentElement) {
      if (!["hidden", "auto", "scroll", "clip"].includes(getComputedStyle(a).overflowX)) continue;
      const outer = a.getBoundingClientRect();
      if (box.left < outer.left - 1 || box.right > outer.right + 1)
        { found.push("over the edge of its dock: " + name(e)); break; }
    }
    if (e.matches("button") && e.scrollWidth > e.clientWidth + 1) found.push("text cut off: " + name(e));
    for (const inner of e.matches("button") ? e.querySelectorAll("span") : [])
      if (inner.scrollWidth > inner.clientWidth + 1 && inner.clientWidth > 0
          && getComputedStyle(inner).overflowX !== "visible") found.push("text cut off: " + name(e));
  }
  return [...new Set(found)];
}"""

# Returns once nothing has moved for a while, or never rests; the docks are scrolled down where asked.
AT_REST = """at_end => new Promise(done => {
  const places = () => [...document.querySelectorAll("button, input, label, [role=tab], .uplot")]
    .map(e => e.getBoundingClientRect()).map(box => [box.x, box.y, box.width, box.height]).join();
  let last = "", alike = 0, asked = 0;
  const next = () => {
    if (at_end)
      for (const dock of document.querySelectorAll(".mantine-ScrollArea-viewport")) dock.scrollTo(0, 1e6);
    const now = places();
    alike = now === last ? alike + 1 : 0;
    last = now;
    alike < 2 && ++asked < 200 ? setTimeout(() => requestAnimationFrame(next), 40) : done();
  };
  next();
})"""

# Makes the last visible button wider than any dock.
TOO_WIDE = """
  const buttons = [...document.querySelectorAll("button")].filter(button => button.offsetParent !== null);
  buttons.at(-1).style.minWidth = "2000px";
"""


def press_the_shorter_training(screen: Screen) -> None:
    """Choose the training that is offered, and the full one again."""
    screen.wait(lambda: row(screen, "Shorter training").is_visible(), "a shorter training is offered")
    row(screen, "Shorter training").click()
    row(screen, "Full training").click()
    row(screen, "Shorter training").wait_for()


def test_nothing_is_cut_off_in_any_tab(
    open_page: Callable[..., Screen], blob_folder: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seven of eight GPUs are those of the studio's ranks; the driver refuses the temperature of one.
    nvml.refused.add(("temperature", 6))
    monkeypatch.setattr(Controller, "pids", tuple(RECORD["our_pids"]))
    # A slow machine, where a shorter training is offered.
    monkeypatch.setattr(dock, "measured_times", lambda device: StepTimes(step=0.15, pixel=0.0, splat=0.0))
    scene = DEMO if SCREENSHOTS else blob_folder
    screen = open_page(scene, replace(MANY, steps=30_000, downscale=2 if SCREENSHOTS else 1), *SIZES[1])
    problems: dict[str, list[str]] = {}

    def look(name: str, at_end: bool = False) -> None:
        for width, height in SIZES:
            screen.page.set_viewport_size({"width": width, "height": height})
            screen.page.evaluate(AT_REST, at_end)
            if SCREENSHOTS:
                time.sleep(1.5)
                screen.close_notices()
                screen.page.screenshot(path=Path(SCREENSHOTS) / f"{width}-{name}.png")
            # What is still on its way, as a notice that slides in, may be over an edge for a moment.
            deadline = time.monotonic() + TIMEOUT / 10
            while (found := screen.page.evaluate(CUT_OFF)) and time.monotonic() < deadline:
                time.sleep(0.2)
            if found:
                problems[f"{name} at {width} x {height}"] = found

    press_the_shorter_training(screen)
    look("1-ready")
    see_most_of_the_scene(screen)
    see_eight_gpus(screen)
    screen.button("Start training").click()
    screen.wait(lambda: screen.step > (300 if SCREENSHOTS else 10), "training")
    screen.button("Save").click()
    for name in RIGHT:
        screen.tab(name)
        look(f"2-{name}")
        if name == "Train" and not SCREENSHOTS:  # a browser without a GPU is slow where pictures come
            screen.button("Pause").click()
            screen.wait(lambda: screen.text("state") == "Paused", "paused")
        if name == "Render":
            screen.button("Orbit").click()
            look("2-Render-orbit")
        look(f"3-{name}-end", at_end=True)
    look("4-Devices")
    controller = screen.studio.controller
    ranks = tuple(RankFigures(i, 1_150_000 + 17_000 * i, 0.0312, 0.0009 * i) for i in range(7))
    controller._take(controller._worker, RanksReport(20, ranks))
    shown = screen.page.locator('[data-splatstudio="rank"]')
    screen.wait(lambda: shown.count() == 7 and "31.2 ms, 5.4 ms" in shown.last.inner_text(), "rank by rank")
    assert "splats 1.04, work 1.09; waiting 9 % of a step" in screen.text("balance")
    see_rows_and_plot_at_once(screen)
    see_no_dots_beside_a_chart(screen)
    look("4-Devices-ranks")
    screen.tab("Log")
    look("4-Log")
    see_a_list_without_its_tooltip(screen)
    assert problems == {}
    assert screen.page.evaluate(f"() => {{ {TOO_WIDE} return ({CUT_OFF})(); }}"), "what is cut off is found"
    assert screen.errors == []


def see_rows_and_plot_at_once(screen: Screen) -> None:
    """See eight GPUs with their ranks, and the plot below, without scrolling."""
    plot = screen.page.locator(".uplot").locator("visible=true").first
    for width, height in SIZES:
        screen.page.set_viewport_size({"width": width, "height": height})
        screen.page.evaluate(AT_REST, False)

        def fits(height: int = height) -> bool:
            box = screen.box(plot)
            return box["y"] + box["height"] <= height

        # The rows come to rest a moment after the window has its size.
        screen.wait(fits, f"rows and plot fit into {height} px")


def see_no_dots_beside_a_chart(screen: Screen) -> None:
    """Rest with the mouse on the chart: the dots of curves without a value there would lie at its corner."""
    box = screen.box(screen.page.locator(".uplot .u-over").locator("visible=true").first)
    screen.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"], steps=3)
    assert screen.page.locator(".u-cursor-pt").count() > 0, "uPlot has dots to hide"
    assert screen.page.locator(".u-cursor-pt").locator("visible=true").count() == 0


def see_a_list_without_its_tooltip(screen: Screen) -> None:
    """Rest with the mouse on a dropdown, read its hint, and open it: the hint does not cover the list."""
    screen.tab("Evaluate")
    screen.page.get_by_text("Measures and files", exact=True).click()
    field = screen.page.get_by_label("LPIPS", exact=True).locator("visible=true").first
    hint = screen.page.locator(".mantine-Tooltip-tooltip", has_text="Measured if the network's weights")
    name = screen.page.get_by_text("LPIPS", exact=True).locator("visible=true").first
    name.hover()
    place = screen.box(name)

    def is_read() -> bool:
        # A hand is never quite still. Where the tab is drawn anew under a mouse that is, no hint opens.
        for aside in (1, 0):
            screen.page.mouse.move(
                place["x"] + 0.5 * place["width"] + aside, place["y"] + 0.5 * place["height"]
            )
        return hint.locator("visible=true").count() > 0

    screen.wait(is_read, "the hint")
    assert name.bounding_box() == place, "what a folder shows stays where it is"
    field.click()
    screen.page.get_by_role("option", name="AlexNet", exact=True).wait_for()
    assert hint.locator("visible=true").count() == 0
    screen.page.keyboard.press("Escape")


def see_most_of_the_scene(screen: Screen) -> None:
    """See that the docks leave more than 60 % of the usual window to the picture."""
    screen.page.set_viewport_size({"width": 1440, "height": 900})
    screen.page.evaluate(AT_REST, False)
    assert screen.box(screen.page.locator(CANVAS))["width"] > 0.6 * 1440


def see_eight_gpus(screen: Screen) -> None:
    """See eight GPUs at once, in a window of the usual size."""
    screen.page.set_viewport_size({"width": 1440, "height": 900})
    rows = screen.page.locator('[data-splatstudio="device"]')
    screen.wait(lambda: rows.count() == 8, "eight rows")
    assert "GPU 0" in rows.first.inner_text() and "412 W" in rows.first.inner_text()
    assert rows.nth(6).locator('[data-splatstudio="temperature"]').inner_text() == "not available"
    plot = screen.box(screen.page.locator(".uplot").first)
    assert plot["y"] + plot["height"] < 900, "rows and plot fit without scrolling"
    # In one piece: the rows are drawn anew with each sample.
    widths = screen.page.evaluate(
        """() => [...document.querySelectorAll('[data-splatstudio="device"]')]
            .map(row => [row.scrollWidth, row.clientWidth])"""
    )
    assert len(widths) == 8 and all(0 < needed <= given for needed, given in widths), widths
