"""A file in a real browser: a part that is merged, which way is up, and who comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blob_models import blobs
from gui_parts import TIMEOUT
from studio_page import CANVAS, PAGE_TEST, Screen

from splatstudio.files.path_words import path_words
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.gui.tabs.trim import BOX_SIDES, BoxSide
from splatstudio.models.merging import place_of_merged
from splatstudio.runtime.messages import Export

pytestmark = PAGE_TEST

TOLD = (
    "ckpt_9_rank0.pt is rank 0 of 2: about half of the scene; merge with ckpt_9_rank1.pt (found beside it)?"
)


def test_a_part_is_merged_turned_and_watched_by_browsers_that_come_and_go(
    open_page: Callable[..., Screen], browser: Any, part: Path, tmp_path: Path
) -> None:
    other = part.parent / "ckpt_9_rank1.pt"
    content = torch.load(other, weights_only=True)
    other.unlink()
    (part.parent / "ckpt_8_rank1.pt").touch()  # that there were two ranks is known
    screen = open_page(part, width=1100, height=700)
    missing = "the file of rank 1 is not beside it. Copy it there to merge them."
    screen.wait(lambda: missing in screen.text("part"), "what is missing is told")
    merge = screen.button("Merge and open")
    assert merge.count() == 0 and screen.text("name") == part.name
    torch.save(content, other)
    merge.wait_for()
    assert screen.text("part") == TOLD
    half = screen.studio.controller.status.num_gaussians
    merged = place_of_merged(part).name
    merge.click()
    screen.wait(lambda: screen.text("name") == merged, "the whole model is open")
    controller = screen.studio.controller
    screen.wait(lambda: controller.status.num_gaussians == len(blobs()) != half, "and shown")
    shown = screen.page.locator('[data-splatstudio="part"]')
    screen.wait(lambda: shown.count() == 0 and merge.count() == 0, "the notice is gone")
    assert controller.project.export_path(None).parent == (part.parent / "exports").resolve()
    screen.wait(lambda: screen.page.get_by_text("Written").count() > 0, "it is told where it lies")
    type_negative_fractions(screen)
    choose_up_in_one_of_two_browsers(screen, browser)
    come_back_after_a_failure(screen, tmp_path)
    assert screen.errors == []


def type_negative_fractions(screen: Screen) -> None:
    """Type the corner of a crop box as people do: the sign stays, and what is no number is forgotten."""
    screen.tab("Export")
    screen.page.get_by_text("Filter", exact=True).click()
    screen.switch("Crop to a box").click()
    trim = screen.panel(ExportPanel)._trim
    drag_a_side_of_the_box(screen)
    field, keyboard = screen.field("From"), screen.page.keyboard

    def begin(typed: str) -> None:
        field.click()
        # The field looks after its caret in the frame after a click: nobody selects as fast as that.
        screen.page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        keyboard.press("Control+A")
        keyboard.type(typed, delay=20)

    def wait_for(number: float) -> None:
        held = lambda: (trim.trim.crop and trim.trim.crop[0], field.input_value())  # noqa: E731
        screen.wait(lambda: held() == (number, f"{number:g}"), lambda: f"{number}, it is {held()}")

    numbers = [("-0.22", -0.22), ("-0.05", -0.05), ("-1.5", -1.5), ("-", -1.5), ("0.25", 0.25)]
    numbers += [("5e-1", 0.5), ("-2.5E-1", -0.25), ("3e", 3), ("1e1", 10), ("-0", 0)]
    for typed, number in numbers:
        begin(typed)
        keyboard.press("Tab")
        wait_for(number)
    # The controls are drawn anew while somebody types.
    begin("-")
    for label in ("From here", "From"):
        trim._from.label = label
        screen.page.get_by_text(label, exact=True).wait_for()
    keyboard.type("0.75", delay=20)
    keyboard.press("Tab")
    wait_for(-0.75)
    # The picture tells how many stay: of a box with one corner far away, none.
    note = screen.page.locator("[data-splatstudio=kept-trim]")
    begin("1000")
    keyboard.press("Tab")
    screen.wait(lambda: note.inner_text().startswith("Keeps 0 splats."), "none stays")
    begin("-1000")
    keyboard.press("Tab")
    screen.wait(lambda: not note.inner_text().startswith("Keeps 0 splats."), "some stay")
    # The hint is there over the name, too.
    screen.page.get_by_text("Minimum opacity", exact=True).hover()
    screen.page.get_by_text("Splats less opaque than this are left out.").wait_for()
    screen.page.get_by_text("Crop to a box", exact=True).hover()
    screen.page.get_by_text("Splats less opaque than this are left out.").wait_for(state="hidden")
    screen.switch("Crop to a box").click()


def drag_a_side_of_the_box(screen: Screen) -> None:
    """Pull the arrow of a side toward the middle: that side comes along, and is there after all else."""
    trim = screen.panel(ExportPanel)._trim
    screen.wait(lambda: len(trim._box._handles) == 6, "there are arrows")
    low, high = np.array(trim.trim.crop).reshape(2, 3)
    center, seen_from = (low + high) / 2.0, np.array(screen.client.camera.position)
    away = seen_from - np.array(screen.client.camera.look_at)
    away *= 2.2 * np.linalg.norm(high - low) / np.linalg.norm(away)
    with screen.client.atomic():
        screen.client.camera.position = center + away
        screen.client.camera.look_at = center
    screen.settle()
    canvas = screen.box(screen.page.locator(CANVAS))

    def spot(point: np.ndarray) -> np.ndarray:
        camera = screen.viewpoint.camera(1.0)
        x, y, z = camera.K @ (camera.viewmat @ [*point, 1.0])[:3]
        return np.array([x / z + canvas["x"], y / z + canvas["y"]])

    def length(face: BoxSide) -> float:
        place = np.array(trim._box._handles[face].position)
        inside = np.array([canvas["x"], canvas["y"]]) + 70 < spot(place)
        inside &= spot(place) < np.array([canvas["x"] + canvas["width"], canvas["y"] + canvas["height"]]) - 70
        return float(np.linalg.norm(spot(place) - spot(center)) * inside.all())

    face = max(BOX_SIDES, key=length)
    place = np.array(trim._box._handles[face].position)
    before = np.array(trim.trim.crop)

    def dragged() -> bool:
        # A browser that has not drawn the arrow yet turns the camera instead.
        screen.settle()
        start, outward = spot(place), spot(place + 0.01 * (place - center)) - spot(place)
        outward /= np.linalg.norm(outward)
        screen.page.mouse.move(*(start + 25 * outward))
        time.sleep(0.5)
        screen.page.mouse.down()
        for pixels in range(20, -25, -5):
            screen.page.mouse.move(*(start + pixels * outward))
            time.sleep(0.05)
        screen.page.mouse.up()
        time.sleep(0.5)
        return bool((np.array(trim.trim.crop) != before).any())

    screen.wait(dragged, "the side is dragged")
    changed = np.flatnonzero(np.array(trim.trim.crop) != before)
    assert changed.tolist() == [face.axis + 3 * face.is_upper]
    screen.wait(trim._file.exists, "it is kept")
    screen.seen("Box around the model").click()
    screen.wait(lambda: trim.trim.crop == tuple(before.tolist()), "the box lies where it lay at first")


def choose_up_in_one_of_two_browsers(screen: Screen, browser: Any) -> None:
    """Choose which way is up: it is so in this browser alone, and each turns around its own."""
    page = browser.new_page(viewport={"width": 1100, "height": 500})
    page.set_default_timeout(1000 * TIMEOUT)
    page.goto(screen.studio.url)
    page.locator(CANVAS).wait_for()
    screen.wait(lambda: len(screen.studio._server.get_clients()) == 2, "another browser")
    other = Screen(page, screen.studio, [], number=1)
    mine, its = screen.client, other.client
    screen.settle()
    other.settle()
    before = {"up": np.array(its.camera.up_direction), "position": np.array(its.camera.position)}
    assert np.allclose(mine.camera.up_direction, before["up"], atol=1e-3)
    screen.tab("View")
    screen.choose("Up", "+z")
    screen.wait(lambda: bool(np.allclose(mine.camera.up_direction, [0, 0, 1], atol=1e-3)), "up is +z here")
    screen.settle()
    other.settle()
    assert np.allclose(its.camera.up_direction, before["up"], atol=1e-6), "the other one's up is its own"
    assert np.allclose(its.camera.position, before["position"], atol=1e-6)
    # A drag to the side turns each around its own up: the height over the ground stays.
    screen.drag(150)
    screen.wait(lambda: abs(float(mine.camera.position[0])) > 0.3, "it turns")
    height = float(before["position"] @ before["up"])
    screen.wait(lambda: bool(np.allclose(mine.camera.up_direction, [0, 0, 1], atol=1e-3)), "still +z")
    other.drag(150)
    screen.wait(lambda: not np.allclose(its.camera.position, before["position"], atol=0.1), "it turns too")
    other.settle()
    assert abs(float(np.array(its.camera.position) @ before["up"]) - height) < 0.05
    page.close()


def come_back_after_a_failure(screen: Screen, folder: Path) -> None:
    """Leave, and see on coming back what failed and what was written meanwhile."""
    studio = screen.studio
    (folder / "in the way").write_text("a file where a folder would have to be")
    screen.page.goto("about:blank")
    screen.wait(lambda: not studio._server.get_clients(), "the browsers are gone")
    for output in (folder / "in the way" / "a.ply", folder / "b.ply"):
        studio._tasks.submit(Export(output))
        screen.wait(lambda: studio._tasks.newest(Export).end is not None, "it ends")  # type: ignore[union-attr]
    screen.page.goto(studio.url)
    screen.page.get_by_text("a.ply: failed").first.wait_for()
    screen.close_notices()
    screen.tab("Export")
    written = path_words(folder / "b.ply")
    screen.wait(lambda: written in screen.text("job"), "the path stays below the button")
    screen.tab("Log")
    screen.wait(lambda: "in the way" in screen.text("news"), "the failure is in the Log tab")
    assert written in screen.text("news")
