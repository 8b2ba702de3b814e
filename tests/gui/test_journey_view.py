"""The View tab in a real browser: comparison with the photo, the list of photos, modes; dots."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from gui_parts import MANY
from studio_page import CANVAS, DRAWN, PAGE_TEST, Screen, press_on_the_scene

from splatstudio.cameras.camera import look_at
from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.gui.state.photos import CanvasPlace, on_canvas, place_of
from splatstudio.gui.state.viewpoint import fly_to
from splatstudio.gui.tabs.view import MODES, ViewPanel
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import render_image
from splatstudio.runtime.messages import Evaluate
from splatstudio.scene.scaling import scaled
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

pytestmark = PAGE_TEST
Open = Callable[..., Screen]
BACKGROUND = (0.2, 0.4, 0.6)


def press(screen: Screen, key: str) -> None:
    """Press a key a moment after what was done before, as a hand does."""
    time.sleep(0.4)
    # A list that was chosen from holds the keyboard until the page takes it away again.
    screen.page.wait_for_function(
        "() => !['INPUT', 'TEXTAREA', 'SELECT'].includes(document.activeElement?.tagName)"
    )
    screen.page.keyboard.press(key)


def tiles(screen: Screen) -> list[tuple[str, float]]:
    """Return name and dB of the photos in the list, NaN where there is none."""
    # Asked of the page in one piece: a list redrawn in between leaves tiles outside the page, whose text runs
    # name and figure together.
    texts = screen.page.evaluate(
        """() => [...document.querySelectorAll("[data-photo]")]
            .map(tile => [tile.dataset.photo, tile.innerText])"""
    )
    found = []
    for name, text in texts:
        figure = re.search(r"([\d.]+) dB|–", text)
        assert figure is not None and name in text, text
        found.append((name, float(figure[1] or "nan")))
    return found


def paused_at_some_step(screen: Screen) -> Model:
    """Train a little, pause, and return the model that is on view."""
    screen.button("Start training").click()
    screen.wait(lambda: screen.step > 150, "training")
    screen.button("Pause").click()
    screen.wait(lambda: screen.text("state") == "Paused", "paused")
    screen.button("Save").click()
    run = screen.studio.controller.project.run_dir
    assert run is not None
    screen.wait(lambda: newest_checkpoint(run) is not None, "saved")
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    screen.close_notices()
    return load_model(checkpoint)


def standing_in(screen: Screen, scene: Scene) -> int:
    """Wait until the page says that it stands in a photo's camera, and return which one."""
    screen.wait(lambda: "At view_" in screen.text("standing"), "the browser stands in a camera")
    screen.settle()
    name = re.search(r"At (view_\d+\.png)", screen.text("standing"))
    assert name is not None
    index = [view.name for view in scene.views].index(name[1])
    wanted, camera = scene.cameras[index], screen.viewpoint.camera(1.0)
    assert np.allclose(camera.viewmat, wanted.viewmat, atol=4e-3)
    return index


def looks_like(screen: Screen, expected: np.ndarray, what: str, tolerance: float = 4.0) -> None:
    """Wait until the picture is the expected one, seam and dividers aside."""
    screen.wait(lambda: off(screen.picture(), expected) < tolerance, what)


def off(picture: np.ndarray, other: np.ndarray) -> float:
    """Return by how much two pictures of bytes differ, on average."""
    return float(cv2.absdiff(picture, other).mean())


def nearest(screen: Screen, seen: dict[str, np.ndarray]) -> tuple[float, str]:
    """Return which of the pictures is the most like what is on the screen, and how far off that is."""
    picture = screen.picture()
    return min((off(picture, other), name) for name, other in seen.items())


def test_the_view_from_the_photos_to_the_modes(open_page: Open, blob_folder: Path) -> None:
    screen = open_page(blob_folder, replace(MANY, background=BACKGROUND), height=540, sharp=True)
    model = see_photo_and_model_in_one_picture(screen)
    photos_are_sorted_by_error(screen)
    see_every_mode(screen, model)
    look_from_the_sides(screen)
    see_the_axes(screen)
    fly_as_fast_as_one_likes(screen)
    fly_to_what_is_double_clicked(screen)
    read_the_keys(screen)
    assert screen.errors == []


def see_photo_and_model_in_one_picture(screen: Screen) -> Model:
    """Compare a photo with the model in each way, and return the model; cameras are off afterward."""
    scene = screen.studio.controller.project.scene
    assert scene is not None
    screen.tab("View")
    screen.switch("Points").click()
    screen.wait(lambda: screen.text("standing") == "Free camera", "nowhere in particular at first")
    names = [f"view_{i:02d}.png" for i in range(1, 10)]
    screen.wait(lambda: [name for name, _ in tiles(screen)] == names, "all photos, by name")
    press(screen, "g")
    index = standing_in(screen, scene)
    place = place_of(scene.cameras[index], screen.viewpoint, 1.0)
    photo = scaled(scene.photo(index).rgb, place.width, place.height)
    looks_like(screen, on_canvas(photo, place), "without a model the photo alone, no cameras before it")
    model = paused_at_some_step(screen)
    place = place_of(scene.cameras[index], screen.viewpoint, 1.0)
    size = (place.width, place.height)
    assert place.height == screen.viewpoint.height or place.width == screen.viewpoint.width
    photo = scaled(scene.photo(index).rgb, *size)
    drawn = render_image(model.gaussians, scene.cameras[index].resized(*size), model.options)
    assert np.abs(photo.astype(int) - drawn).mean() > 8, "the two must differ for the test to tell"
    half = drawn.copy()
    half[:, : place.width // 2] = photo[:, : place.width // 2]
    looks_like(screen, on_canvas(half, place), "photo left, model right")
    drag_the_divider(screen, place, 0.5, 0.8)
    see_the_names_of_the_halves(screen, place, 0.8)
    half[:, : round(0.8 * place.width)] = photo[:, : round(0.8 * place.width)]
    looks_like(screen, on_canvas(half, place), "the divider was dragged")
    assert "At view_" in screen.text("standing"), "the camera stays"
    screen.enter("Photo | model", "1")
    looks_like(screen, on_canvas(photo, place), "all of the photo")
    screen.page.locator(".ss-half[data-side=right]").wait_for(state="hidden")
    screen.choose("Compare", "Blend")
    mixed = (photo.astype(float) + drawn) / 2
    looks_like(screen, on_canvas(mixed.astype(np.uint8), place), "half of each")
    screen.choose("Compare", "Difference")
    difference = (3 * np.abs(photo.astype(int) - drawn)).clip(0, 255).astype(np.uint8)
    looks_like(screen, on_canvas(difference, place), "the difference", tolerance=6.0)
    screen.switch("Cameras").click()  # which are shown again
    screen.drag(80)
    screen.wait(lambda: "Moved away from view_" in screen.text("standing"), "it says that one has left")
    screen.settle()
    expected = render_image(model.gaussians, screen.viewpoint.camera(1.0), model.options)
    looks_like(screen, expected, "the model alone")
    press(screen, "n")
    following = standing_in(screen, scene)
    press(screen, "b")
    screen.wait(lambda: scene.views[following].name not in screen.text("standing"), "B goes back")
    press(screen, "g")
    screen.wait(lambda: screen.page.get_by_label("Compare", exact=True).input_value() == "Off", "G ends it")
    return model


def see_the_names_of_the_halves(screen: Screen, place: CanvasPlace, share: float) -> None:
    """See what each half shows, at its own side of the line."""
    canvas = screen.box(screen.page.locator(CANVAS))
    line = canvas["x"] + canvas["width"] / place.canvas_width * (place.left + share * place.width)
    photo, model = (screen.page.locator(f".ss-half[data-side={side}]") for side in ("left", "right"))
    screen.wait(lambda: (photo.inner_text(), model.inner_text()) == ("Photo", "Model"), "both have names")
    at = [screen.box(name) for name in (photo, model)]
    assert canvas["x"] < at[0]["x"] < at[0]["x"] + at[0]["width"] < line < at[1]["x"], (at, line)
    assert all(canvas["y"] < box["y"] < canvas["y"] + 30 for box in at), "at the top"


def drag_the_divider(screen: Screen, place: CanvasPlace, start: float, end: float) -> None:
    """Drag the line between photo and model, of which both are shares of the photo's width."""
    box = screen.page.locator(CANVAS).bounding_box()
    assert box is not None
    scale = box["width"] / place.canvas_width
    height = box["y"] + box["height"] / 2
    first, last = (box["x"] + scale * (place.left + share * place.width) for share in (start, end))
    mouse, field = screen.page.mouse, screen.field("Photo | model")
    press_on_the_scene(screen.page, first, height)
    mouse.move(last, height, steps=8)
    mouse.up()
    screen.wait(
        lambda: abs(float(field.input_value()) - end) < 0.011, lambda: f"{end}: {field.input_value()}"
    )


def photos_are_sorted_by_error(screen: Screen) -> None:
    """Evaluate a paused training: the list has the worst first, and a click flies there."""
    screen.studio.controller.send(Evaluate())
    screen.wait(lambda: "dB" in screen.text("test-psnr"), "evaluated")

    def test_photos_are_known() -> bool:
        known = {name for name, value in tiles(screen) if np.isfinite(value)}
        return {"view_01.png", "view_09.png"} <= known and len(known) > 4

    screen.wait(test_photos_are_known, "errors of test and training photos are shown")

    def worst_are_first() -> bool:
        values = [value for _, value in tiles(screen)]
        known = [value for value in values if np.isfinite(value)]
        return known == sorted(known) and values[: len(known)] == known

    screen.wait(worst_are_first, "the worst is first, the unknown last")
    name = tiles(screen)[2][0]
    screen.page.locator(f'[data-photo="{name}"]').click()
    screen.wait(lambda: f"At {name}" in screen.text("standing"), "the click flies there")
    scene = screen.studio.controller.project.scene
    assert scene is not None
    standing_in(screen, scene)
    screen.choose("Order", "Worst test photos")
    screen.wait(lambda: {name for name, _ in tiles(screen)} == {"view_01.png", "view_09.png"}, "test photos")
    sort_again(screen)


def sort_again(screen: Screen) -> None:
    """Let the worst of two photos become the better one: they change places when that is asked for."""
    names = [name for name, _ in tiles(screen)]
    shared = screen.panel(ViewPanel)._shared
    assert shared is not None
    shared.psnr.note(screen.step, [(names[0], 99.0)])
    screen.studio._refresher.changed()
    screen.wait(screen.button("Sort again").is_enabled, "the order is out of date")
    assert [name for name, _ in tiles(screen)] == names, "nothing moves by itself"
    screen.button("Sort again").click()
    screen.wait(lambda: [name for name, _ in tiles(screen)] == names[::-1], "the worst is first again")


def see_every_mode(screen: Screen, model: Model) -> None:
    """See that each mode shows another picture, and what its colors mean."""
    looks_like(
        screen, render_image(model.gaussians, screen.viewpoint.camera(1.0), model.options), "the model"
    )
    seen = {"Color": screen.picture()}
    background = np.full_like(seen["Color"], np.rint(255 * np.array(BACKGROUND)))
    legend = screen.page.locator('[data-splatstudio="legend"]')
    for name in MODES:
        if name == "Color":
            continue
        screen.choose("Mode", name)
        screen.wait(lambda: nearest(screen, seen)[0] > 1.0, f"{name} differs from {', '.join(seen)}")
        wanted = int(name not in ("Normals", "Ellipsoids", "Points"))
        screen.wait(lambda wanted=wanted: legend.count() == wanted, f"{wanted} legends of {name}")
        screen.wait(screen.still_is_sent, f"all of {name}")
        screen.page.evaluate(DRAWN)
        seen[name] = screen.picture()
    press(screen, "m")
    # The browser may draw with other numbers of pixels than before, so that it is never quite the same.
    screen.wait(lambda: nearest(screen, seen)[1] == "Color", "M goes round to the colors")
    screen.wait(lambda: off(screen.picture(), seen["Color"]) < 6.0, "and these are as they were")
    screen.wait(lambda: legend.count() == 0, "colors need no legend")
    covered = off(seen["Color"], background)
    screen.enter("Splat size", "0.05")
    screen.wait(lambda: off(screen.picture(), background) < 0.7 * covered, "smaller splats let less be seen")
    screen.enter("Splat size", "1")
    screen.wait(lambda: off(screen.picture(), background) > 0.9 * covered, "as large as before")
    screen.enter("Near", "50")
    screen.wait(
        lambda: cv2.absdiff(screen.picture(), background).max() < 30, "everything is nearer than that"
    )
    screen.enter("Far", "20")
    screen.page.get_by_text("Far must be farther than Near.", exact=True).wait_for()
    screen.enter("Far", "0")
    screen.page.get_by_text("Far must be farther than Near.", exact=True).wait_for(state="hidden")


def look_from_the_sides(screen: Screen) -> None:
    """Go round by the digits, and step back by F: the camera looks at the middle from there."""

    def ahead() -> np.ndarray:
        return screen.viewpoint.camera(1.0).viewmat[2, :3]

    screen.page.evaluate("document.activeElement.blur()")  # what is typed into a field gives no commands
    for key, direction in (("1", (0, 1, 0)), ("4", (-1, 0, 0)), ("5", (0, 0, -1))):
        press(screen, key)
        screen.wait(
            lambda wanted=direction: bool(np.allclose(ahead(), wanted, atol=0.02)),
            lambda key=key: f"{key}: it looks along {ahead()}",
        )
    distance = float(np.linalg.norm(screen.viewpoint.position))
    screen.settle()
    screen.drag(60)
    box = screen.page.locator(CANVAS).bounding_box()
    screen.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    screen.page.mouse.wheel(0, -600)
    far = lambda: float(np.linalg.norm(screen.viewpoint.position))  # noqa: E731
    screen.wait(lambda: far() < 0.9 * distance, "the wheel goes nearer")
    screen.settle()
    before = ahead()
    press(screen, "f")
    screen.wait(lambda: math.isclose(far(), distance, rel_tol=1e-4), "F frames everything")
    assert np.allclose(ahead(), before, atol=0.02)


def see_the_axes(screen: Screen) -> None:
    """Look at the axes in the corner: each arm lies as the scene's does in the picture."""

    def arms() -> list[float]:
        return screen.page.evaluate(
            """() => ["x", "y", "z"].flatMap(name => {
                const line = document.querySelector(`.ss-axes [data-axis=${name}] line`);
                const end = key => Number(line.getAttribute(key));
                return [end("x2") - end("x1"), end("y2") - end("y1")].map(way => way / 26);
            })"""
        )

    expected = screen.viewpoint.camera(1.0).viewmat[:2, :3].T.ravel()
    screen.wait(lambda: bool(np.allclose(arms(), expected, atol=0.02)), lambda: f"{arms()} is {expected}")
    screen.page.get_by_text("This browser").click()
    for wanted in (False, True):
        screen.page.locator("[data-own=axes]").click()
        screen.wait(lambda wanted=wanted: screen.page.locator(".ss-axes").is_visible() == wanted, f"{wanted}")


def fly_as_fast_as_one_likes(screen: Screen) -> None:
    """Hold W: the camera flies ahead, and the wheel makes it faster meanwhile, here and at the next visit."""
    box = screen.page.locator(CANVAS).bounding_box()
    start, ahead = screen.viewpoint.position, screen.viewpoint.camera(1.0).viewmat[2, :3]
    flown = lambda: screen.viewpoint.position - start  # noqa: E731
    screen.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    screen.page.keyboard.down("w")
    screen.wait(lambda: float(flown() @ ahead) > 0.02, "it flies")
    screen.page.mouse.wheel(0, -100)
    screen.wait(lambda: screen.page.locator(".ss-speed").inner_text() == "Fly speed 1.2×", "it is told")
    screen.page.keyboard.up("w")
    screen.settle()
    assert np.linalg.norm(np.cross(flown(), ahead)) < 1e-3 * np.linalg.norm(flown()), "straight ahead"
    assert screen.page.evaluate("localStorage.getItem('splatstudio-speed')") == "0.25"
    screen.wait(
        lambda: screen.page.locator("[data-own=speed]").input_value() == "0.25", "the slider shows it"
    )


def fly_to_what_is_double_clicked(screen: Screen) -> None:
    """Click twice on the model: the camera flies half the way there, with the place in the middle."""
    screen.enter("Near", "0.01")
    screen.page.evaluate("document.activeElement.blur()")
    press(screen, "f")
    screen.settle()
    before = screen.viewpoint
    camera, box = before.camera(1.0), screen.page.locator(CANVAS).bounding_box()
    x, y = box["width"] * 0.45, box["height"] * 0.5
    screen.page.mouse.dblclick(box["x"] + x, box["y"] + y)
    screen.wait(lambda: not np.array_equal(screen.viewpoint.position, before.position), "it flies there")
    screen.settle()
    target = np.asarray(screen.client.camera.look_at)
    seen = camera.K @ camera.viewmat[:3] @ [*target, 1.0]
    assert np.allclose(seen[:2] / seen[2], (x, y), atol=2.0), "what was clicked is in the middle"
    far = np.linalg.norm(target - before.position)
    assert np.isclose(np.linalg.norm(target - screen.viewpoint.position), far / 2, rtol=0.01)
    assert np.allclose(screen.viewpoint.camera(1.0).viewmat[2, :3], camera.viewmat[2, :3], atol=0.01)


def read_the_keys(screen: Screen) -> None:
    """Press ? for the list of keys, and put it away in each of the ways that people try."""
    keys = screen.page.locator("[data-splatstudio=keys]")
    for put_away in (
        lambda: screen.button("Close").click(),
        lambda: screen.page.keyboard.press("Escape"),
        lambda: screen.page.mouse.click(60, 440),  # beside it
        lambda: screen.page.keyboard.press("h"),
    ):
        screen.page.keyboard.press("?")
        keys.get_by_text("Look from above").wait_for()
        assert keys.count() == 1
        put_away()
        keys.wait_for(state="detached")


def test_frames_lie_exactly_under_the_points(open_page: Open, blob_folder: Path) -> None:
    # After one step the splats still stand where the points are; made small and opaque they are dots.
    config = TrainConfig(
        steps=1, eval_steps=(), save_steps=(), sh_degree=0, init_scale=0.05, init_opacity=0.99
    )
    screen = open_page(blob_folder, config, sharp=True)
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
    screen.close_notices()
    screen.settle()
    screen.wait(screen.still_is_sent, "the splats in full size")
    splats = resting_picture(screen)
    screen.switch("Splats").click()
    screen.switch("Points").click()
    screen.wait(lambda: bool((screen.picture() != splats).any()), "points in place of splats")
    points = resting_picture(screen)
    camera = screen.viewpoint.camera(1.0)
    local = scene.points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    spots = (local @ camera.K.T)[:, :2] / local[:, 2:]
    offsets = {"splats": off_center(splats, spots), "points": off_center(points, spots)}
    for name, offset in offsets.items():
        assert len(offset) >= 5, f"too few {name} stand alone"
        # The browser draws points as squares of whole pixels.
        nearest = 1.0 if name == "points" else 0.5
        assert np.abs(np.median(offset, axis=0)).max() < nearest, f"{name} are beside their place: {offset}"
    assert np.abs(offsets["splats"] - offsets["points"]).max() < 1.5
    a_point_near_by_covers_little(screen, scene)


def a_point_near_by_covers_little(screen: Screen, scene: Scene) -> None:
    """Stand right before a point: it is a dot still, no disc that hides all others."""
    far = np.linalg.norm(scene.points[:, None] - scene.points[None], axis=-1) + 1e9 * np.eye(
        len(scene.points)
    )
    point = scene.points[far.min(axis=1).argmax()]  # that stands most alone
    eye = point - np.array([0.0, 0.02 * scene.extent, 0.0])
    viewmat = look_at(eye, point, np.array([0.0, 0.0, 1.0]))
    fly_to(screen.client, replace(scene.cameras[1], viewmat=viewmat), 0.02 * scene.extent)
    screen.settle()
    picture = resting_picture(screen)
    lit = (picture.max(axis=2) > 30).astype(np.uint8)
    _, labels, figures, _ = cv2.connectedComponentsWithStats(lit)
    middle = labels[picture.shape[0] // 2, picture.shape[1] // 2]
    assert middle > 0, "the point is in the middle"
    assert 4 <= max(figures[middle][cv2.CC_STAT_WIDTH], figures[middle][cv2.CC_STAT_HEIGHT]) <= 14


def resting_picture(screen: Screen) -> np.ndarray:
    """Return what is on the screen once it has not changed for a while."""
    pictures: list[np.ndarray] = []

    def rests() -> bool:
        screen.page.evaluate(DRAWN)
        pictures.append(screen.picture())
        return len(pictures) > 2 and all(np.array_equal(picture, pictures[-1]) for picture in pictures[-3:])

    screen.wait(rests, "the picture rests")
    return pictures[-1]


def off_center(picture: np.ndarray, spots: np.ndarray, reach: int = 9) -> np.ndarray:
    """Return how far each dot's center of light lies from its spot, px; for the spots that stand alone."""
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
        center_x = (window.sum(axis=0) @ (columns + 0.5)) / window.sum()
        center_y = (window.sum(axis=1) @ (rows + 0.5)) / window.sum()
        offsets.append((center_x - x, center_y - y))
    return np.array(offsets)
