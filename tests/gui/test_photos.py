"""The photos that the page shows, how well each is learned, and each beside the model's picture."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import viser
from blob_models import ring_of_cameras
from blob_scenes import write_blob_scene
from gui_parts import as_user, standing_in

from splatstudio.cameras.camera import Camera
from splatstudio.files.run import Run
from splatstudio.gui.state.photos import (
    Comparison,
    Errors,
    PhotoCache,
    PhotoPixels,
    PhotoPsnr,
    compared,
    error_map,
    on_canvas,
    place_of,
)
from splatstudio.gui.tabs import view as view_tab
from splatstudio.gui.tabs.view import tile_html
from splatstudio.gui.theme import legend_html
from splatstudio.rendering.mode_pictures import color_table
from splatstudio.rendering.modes import Legend
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import Photo
from splatstudio.scene.scaling import scaled, thumbnail
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig


def test_errors_are_sorted_and_the_bad_ones_told() -> None:
    psnr = np.array([25.0, 24.0, 25.5, np.nan, 14.0, 24.5, 26.0])
    errors = Errors(psnr)
    assert errors.worst_first(range(7)) == [4, 1, 5, 0, 2, 6, 3]
    assert errors.worst_first([0, 3, 5]) == [5, 0, 3]
    assert errors.bad.tolist() == [False, False, False, False, True, False, False]
    colors = errors.colors().astype(int)
    assert colors[4][0] > colors[4][2] + 100, "the worst is red"
    assert colors[6][2] > colors[6][0] + 100, "the best is blue"
    assert np.ptp(colors[3]) < 40, "what was not measured is gray"
    assert not Errors(np.full(7, np.nan)).bad.any() and Errors(np.full(7, np.nan)).range is None
    assert not Errors(np.full(7, 20.0)).bad.any()
    held_out = np.array([False] * 7 + [True] * 4)
    overfitted = np.concatenate([psnr, [15.0, 14.5, 15.5, 8.0]])
    assert np.flatnonzero(Errors(overfitted, held_out).bad).tolist() == [4, 10], "each among its own"
    assert not Errors(overfitted, held_out).unknown.known.any()
    few = np.concatenate([psnr, np.full(8, np.nan)])
    assert not Errors(few).bad.any(), "6 of 15 do not say what is typical"
    assert np.flatnonzero(Errors(few[:12]).bad).tolist() == [4], "6 of 12 do"


def test_the_score_of_a_photo_that_is_cut_is_that_of_its_views(blob_scene: Scene) -> None:
    cut = [replace(view, photo="panorama.jpg") if i < 3 else view for i, view in enumerate(blob_scene.views)]
    book = PhotoPsnr(replace(blob_scene, views=tuple(cut)))
    book.note(1, [("panorama.jpg", 23.4), (cut[5].name, 20.0)])
    assert book.errors.psnr[:3].tolist() == [23.4] * 3 and book.errors.psnr[5] == 20.0
    assert np.isnan(book.errors.psnr[3])


def test_the_book_is_filled_from_events_and_files(blob_scene: Scene, tmp_path: Path) -> None:
    names = [view.name for view in blob_scene.views]
    book = PhotoPsnr(blob_scene)
    book.note(100, [(names[1], 11.0), ("elsewhere.png", 3.0)])
    book.note(150, [(names[2], 15.0)])
    assert book.errors.psnr[1] == 11.0 and book.errors.known.sum() == 2
    book.note(300, [(names[3], 20.0)])
    assert book.errors.known.tolist() == [False, False, True, True, *[False] * 5], "1 is from long ago"
    book.clear()
    assert not book.errors.known.any()

    run = Run.create(tmp_path / "run", blob_scene.path, TrainConfig())
    run.append_metrics({"step": 10, "psnr": 12.0, "view": names[1]})
    run.append_metrics({"step": 20, "psnr": 13.0, "view": names[2]})
    run.append_metrics({"step": 20, "loss": 0.1})
    for step, value in ((10, 9.0), (20, 19.0)):
        path = run.path / "eval" / f"step_{step:08d}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"images": [{"name": names[0], "psnr": value}]}))
    book.load(run.path)
    assert book.errors.psnr[:3].tolist() == [19.0, 12.0, 13.0]
    (run.path / "eval" / "step_00000030.json").write_text("{cut off")
    book.note_evaluation(run.path / "eval", 30)
    book.load(tmp_path / "nowhere")
    assert book.errors.psnr[0] == 19.0


def wait_for(ask: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60.0
    while (answer := ask()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


def test_photos_come_later_and_within_the_bound(blob_scene: Scene) -> None:
    size, ready = (30, 25), threading.Event()
    one = 30 * 25 * 3
    shelf = PhotoCache(blob_scene, max_bytes=3 * one)
    try:
        assert shelf.pixels(0, size, (0, 0, 0), ready.set) is None, "asking does not wait"
        assert ready.wait(60.0)
        pixels = shelf.pixels(0, size, (0, 0, 0), ready.set)
        assert pixels is not None and not pixels.problem
        assert np.array_equal(pixels.rgb, scaled(blob_scene.photo(0).rgb, *size))
        for index in range(6):
            wait_for(lambda index=index: shelf.pixels(index, size, (0, 0, 0), ready.set))
            assert shelf.kept_bytes <= 3 * one
        assert shelf.pixels(5, size, (0, 0, 0), ready.set) is not None
        assert shelf.pixels(0, size, (0, 0, 0), ready.set) is None, "the oldest went"
    finally:
        shelf.close()


def test_a_photo_is_shown_as_sharp_as_its_file_however_small_it_is_trained_on(blob_folder: Path) -> None:
    small, whole = load_scene(blob_folder, downscale=4), load_scene(blob_folder)
    photos = PhotoCache(small)
    size = (whole.cameras[0].width, whole.cameras[0].height)
    try:
        ready = threading.Event()
        assert photos.pixels(0, size, (0.0, 0.0, 0.0), ready.set) is None and ready.wait(20)
        shown = photos.pixels(0, size, (0.0, 0.0, 0.0), ready.set)
        assert shown is not None and np.array_equal(shown.rgb, whole.photo(0).rgb)
    finally:
        photos.close()


def test_an_unreadable_photo_is_told_and_ends_no_thread(tmp_path: Path) -> None:
    folder = write_blob_scene(tmp_path / "capture")
    scene = load_scene(folder)
    scene.views[2].image_path.write_bytes(b"no picture")
    shelf = PhotoCache(scene)
    try:
        for _ in range(3):
            pixels = wait_for(lambda: shelf.pixels(2, (24, 20), (0, 0, 0), lambda: None))
            assert isinstance(pixels, PhotoPixels) and "view_03.png" in pixels.problem
        assert wait_for(lambda: shelf.thumbnail(2, lambda: None)) == ""
        assert wait_for(lambda: shelf.thumbnail(3, lambda: None)).startswith("data:image/jpeg;base64,")
    finally:
        shelf.close()


def test_a_lack_of_memory_ends_no_thread(blob_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    read = type(blob_scene).whole_photo

    def short(scene: Scene, index: int) -> Photo:
        if index < 3:
            raise MemoryError
        return read(scene, index)

    monkeypatch.setattr(type(blob_scene), "whole_photo", short)
    shelf = PhotoCache(blob_scene)
    try:
        for index in range(3):  # more than there are threads
            pixels = wait_for(lambda at=index: shelf.pixels(at, (24, 20), (0, 0, 0), lambda: None))
            assert isinstance(pixels, PhotoPixels) and "cannot be shown: MemoryError" in pixels.problem
        pixels = wait_for(lambda: shelf.pixels(3, (24, 20), (0, 0, 0), lambda: None))
        assert isinstance(pixels, PhotoPixels) and not pixels.problem and pixels.rgb.any()
    finally:
        shelf.close()


def test_thumbnails_are_upright_whatever_the_file(tmp_path: Path, blob_scene: Scene) -> None:
    view = blob_scene.views[0]
    small = thumbnail(view, 24)
    assert small.shape == (20, 24, 3)
    assert np.abs(small.astype(int) - scaled(blob_scene.photo(0).rgb, 24, 20)).max() <= 1
    picture = np.zeros((400, 800, 3), np.uint8)
    picture[:, :400] = (0, 0, 255)  # red in OpenCV's order, on the left
    cv2.imwrite(str(tmp_path / "a.jpg"), picture)
    turned = thumbnail(replace(view, image_path=tmp_path / "a.jpg", orientation=6), 60)
    assert turned.shape == (60, 30, 3), "orientation 6: to be turned clockwise"
    assert turned[5, 15, 0] > 200 and turned[55, 15, 0] < 50, "left has become top"


def test_the_order_of_photos_stays_once_they_are_measured(
    blob_scene: Scene, server: viser.ViserServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_tab, "SORT_SECONDS", 0.0)
    photos = PhotoCache(blob_scene)
    shown = view_tab.PhotoList(server.gui, blob_scene, photos, lambda _: None, lambda: None)
    rising = np.arange(len(blob_scene.views), dtype=float)

    def order(psnr: np.ndarray) -> list[int]:
        shown.refresh(Errors(psnr))
        first = shown.neighbor(None, 1)
        places = [first]
        while (following := shown.neighbor(places[-1], 1)) != first:
            places.append(following)
        return places

    try:
        some = np.where(rising > 2, rising, np.nan)
        assert order(some)[:2] == [3, 4] and shown._again.disabled
        assert order(np.where(rising > 2, -rising, np.nan))[:2] == [3, 4], "nothing moves by itself"
        assert not shown._again.disabled
        assert order(rising)[:2] == [0, 1] and shown._again.disabled, "the worst come as they are known"
        assert order(-rising)[:2] == [0, 1] and not shown._again.disabled
        as_user(shown._again, True)
        assert order(-rising)[0] == len(rising) - 1 and shown._again.disabled
        assert order(np.full(len(rising), np.nan))[0] == 0, "nothing is known of another training yet"
        assert order(-rising)[0] == len(rising) - 1
    finally:
        photos.close()


def test_names_of_photos_cannot_inject_html() -> None:
    name = '"><script>alert(1)</script>.png'
    text = tile_html("id", name, "", figure="–", color="red", test=True, bad=True, current=False)
    assert "<script" not in text and "&lt;script" in text and "poor" in text and "test" in text
    legend = legend_html(Legend(0.0, 12.345, "<b>", "turbo"), "<i>why</i>")
    assert "<b>" not in legend and "<i>" not in legend and "12.3" in legend and legend_html(None, None) == ""


def test_a_photo_tells_its_name_and_score() -> None:
    text = tile_html(
        "id", "a<b>.jpg", "data:,", figure="21.4 dB", color="red", test=True, bad=False, current=True
    )
    assert 'alt="a&lt;b&gt;.jpg, 21.4 dB, test photo"' in text and 'aria-pressed="true"' in text


OFF_CENTER = Camera(np.eye(4), np.array([[50.0, 0, 31.0], [0, 55.0, 12.0], [0, 0, 1]]), 60, 40)


@pytest.mark.parametrize(("width", "height"), [(900, 500), (300, 700)])
@pytest.mark.parametrize("camera", [OFF_CENTER, ring_of_cameras()[2]])
def test_the_photo_lies_where_its_camera_sees_the_world(camera: Camera, width: int, height: int) -> None:
    viewpoint = standing_in(camera, width, height)
    place = place_of(camera, viewpoint, 1.0)
    assert place.left >= -1 and place.top >= -1
    assert place.left + place.width <= width + 1 and place.top + place.height <= height + 1
    canvas = viewpoint.camera(1.0)
    ray = camera.camera_to_world[:3, :3] @ np.array([0.21, -0.13, 1.0])
    seen = canvas.viewmat[:3, :3] @ ray
    on_screen = (canvas.K @ seen / seen[2])[:2]
    pixel = (camera.K @ np.array([0.21, -0.13, 1.0]))[:2]
    there = np.array([place.left, place.top]) + pixel * (place.width, place.height) / (
        camera.width,
        camera.height,
    )
    assert np.abs(on_screen - there).max() < 1.0
    # It fills the canvas in one direction (twice its larger half, where the middle is not the center).
    assert place.width > 0.6 * width or place.height > 0.6 * height


def test_what_lies_beyond_the_canvas_is_cut_off() -> None:
    viewpoint = standing_in(OFF_CENTER, 300, 200)
    narrow = replace(viewpoint, fov=0.5 * viewpoint.fov)
    place = place_of(OFF_CENTER, narrow, 1.0)
    assert place.left < 0 and place.width > 300
    image = np.arange(place.width * place.height * 3, dtype=np.uint32).astype(np.uint8)
    image = image.reshape(place.height, place.width, 3)
    canvas = on_canvas(image, place)
    assert canvas.shape == (200, 300, 3)
    row, column = 100, 150
    assert np.array_equal(canvas[row, column], image[row - place.top, column - place.left])


def test_split_blend_and_difference() -> None:
    model = np.full((10, 20, 3), 100, np.uint8)
    photo = np.full((10, 20, 3), 160, np.uint8)
    split = compared(model, photo, Comparison("split", split=0.25))
    assert (split[:, :4] == 160).all() and (split[:, 4:6] == 255).all() and (split[:, 6:] == 100).all()
    assert (compared(model, photo, Comparison("split", split=0.0)) == 100).all()
    assert (compared(model, photo, Comparison("split", split=1.0)) == 160).all()
    assert (compared(model, photo, Comparison("blend", blend=0.5)) == 130).all()
    assert (compared(model, photo, Comparison("blend", blend=1.0)) == 160).all()
    for one, other in ((model, photo), (photo, model)):
        assert (compared(one, other, Comparison("difference", gain=2.0)) == 120).all()
    assert (compared(model, photo, Comparison("difference", gain=10.0)) == 255).all()
    assert compared(model, photo, Comparison()) is model
    assert (model == 100).all() and (photo == 160).all(), "neither is written into"


def test_the_error_map_tells_small_from_large_differences() -> None:
    photo = np.full((40, 40, 3), 100, np.uint8)
    model = photo.copy()
    model[:, 20:] += 90
    image, legend = error_map(model, photo)
    assert (legend.low, legend.high, legend.color_map) == (0.0, 90.0, "turbo")
    table = color_table("turbo").numpy()
    assert (image[:, :20] == table[0]).all() and (image[:, 20:] == table[255]).all()
    assert error_map(photo, photo)[1].high == 16.0, "a good model does not look as bad as a bad one"
