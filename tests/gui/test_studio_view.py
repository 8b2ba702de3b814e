"""What the View tab is made of: comparisons, where a photograph lies, errors, the list of photographs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cv2
import numpy as np
import pytest
import viser
import viser.transforms
from conftest import ring_of_cameras, write_blob_scene

from splatstudio.cameras.camera import Camera
from splatstudio.files.run import Run
from splatstudio.gui.state.compare import Comparison, compared, error_map, on_canvas, place_of
from splatstudio.gui.state.photos import Errors, PhotoCache, PhotoPixels, PhotoPsnr
from splatstudio.gui.state.scene_overlay import Frustums, SceneOverlay
from splatstudio.gui.state.stream import ViewSettings, shot_for
from splatstudio.gui.state.viewpoint import CameraSnap, Viewpoint, fitting_fov
from splatstudio.gui.tabs.photo_list import tile_html
from splatstudio.gui.tabs.view import legend_html
from splatstudio.rendering.color_maps import color_table
from splatstudio.rendering.modes import Legend
from splatstudio.runtime.messages import ViewOptions
from splatstudio.scene import load_scene
from splatstudio.scene.scaling import scaled, thumbnail
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

OFF_CENTRE = Camera(np.eye(4), np.array([[50.0, 0, 31.0], [0, 55.0, 12.0], [0, 0, 1]]), 60, 40)


def standing_in(camera: Camera, width: int, height: int) -> Viewpoint:
    """Return the viewpoint of a browser with this canvas that was sent to `camera`."""
    rotation = viser.transforms.SO3.from_matrix(camera.viewmat[:3, :3].T)
    return Viewpoint(rotation.wxyz, camera.position, fitting_fov(camera, width / height), width, height)


@pytest.mark.parametrize(("width", "height"), [(900, 500), (300, 700)])
@pytest.mark.parametrize("camera", [OFF_CENTRE, ring_of_cameras()[2]])
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
    # It fills the canvas in one direction (twice its larger half, where the middle is not the centre).
    assert place.width > 0.6 * width or place.height > 0.6 * height


def test_what_lies_beyond_the_canvas_is_cut_off() -> None:
    viewpoint = standing_in(OFF_CENTRE, 300, 200)
    narrow = replace(viewpoint, fov=0.5 * viewpoint.fov)
    place = place_of(OFF_CENTRE, narrow, 1.0)
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


def test_only_in_its_camera_is_the_photo_compared_with() -> None:
    camera = ring_of_cameras()[0]
    viewpoint = standing_in(camera, 800, 400)
    options = ViewOptions(mode="depth", background=(0.1, 0.2, 0.3))
    split = ViewSettings(options, Comparison("split"))
    away = shot_for(split, viewpoint, 0.5, None)
    assert away.place is None and (away.camera.width, away.camera.height) == (400, 200)
    here = shot_for(split, viewpoint, 0.5, (3, camera))
    assert here.place is not None and here.photo == here.options.photo == 3
    assert here.options == replace(options, photo=3)
    # Exactly the photograph's camera, at half of the pixels that it has on the canvas.
    assert here.camera.width == here.place.width // 2
    assert np.allclose(here.camera.K, camera.resized(here.camera.width, here.camera.height).K)
    assert np.array_equal(here.camera.viewmat, camera.viewmat)
    assert (
        shot_for(
            replace(split, comparison=Comparison("difference")), viewpoint, 1.0, (3, camera)
        ).options.mode
        == "color"
    )
    assert shot_for(ViewSettings(options), viewpoint, 1.0, (3, camera)).place is None
    error = ViewSettings(ViewOptions(mode="error"))
    assert shot_for(error, viewpoint, 1.0, (3, camera)).options == ViewOptions(mode="error", photo=3)
    assert shot_for(error, viewpoint, 1.0, None).options.mode == "color", "there is nothing to compare with"


def test_a_new_comparison_needs_no_new_picture_of_the_model() -> None:
    look = ViewSettings(comparison=Comparison("split"))
    assert replace(look, comparison=Comparison("split", split=0.1)).draws_like(look)
    assert not replace(look, comparison=Comparison("difference")).draws_like(look)
    assert not replace(look, options=ViewOptions(mode="depth")).draws_like(look)


class FakeClient:
    """A browser that goes where it is sent."""

    def __init__(self) -> None:
        self.camera = SimpleNamespace(
            wxyz=np.array([1.0, 0, 0, 0]), position=np.zeros(3), fov=1.0, image_width=900, image_height=500
        )

    def atomic(self) -> Any:
        return threading.Lock()

    @property
    def viewpoint(self) -> Viewpoint:
        return Viewpoint(self.camera.wxyz, self.camera.position, self.camera.fov, 900, 500)


def test_a_browser_enters_and_leaves_a_photos_camera(blob_scene: Scene) -> None:
    client = FakeClient()
    standpoint = CameraSnap(cast(viser.ClientHandle, client), blob_scene)
    assert standpoint.here is None and standpoint.last is None and not standpoint.on_the_way
    standpoint.enter(4)
    assert standpoint.here is None and standpoint.on_the_way
    assert standpoint.moved(client.viewpoint) and standpoint.here == 4
    assert standpoint.nearest(client.viewpoint) == 4
    assert not standpoint.moved(client.viewpoint), "nothing has changed"
    standpoint.enter(4)
    assert standpoint.here == 4, "it was there already"
    client.camera.position = client.camera.position + 0.05 * blob_scene.extent
    assert standpoint.moved(client.viewpoint) and standpoint.here is None and standpoint.last == 4
    client.camera.position = blob_scene.cameras[4].position
    assert standpoint.moved(client.viewpoint) and standpoint.here == 4
    turned = viser.transforms.SO3(client.camera.wxyz) @ viser.transforms.SO3.from_y_radians(0.02)
    client.camera.wxyz = turned.wxyz
    assert standpoint.moved(client.viewpoint) and standpoint.here is None


def test_the_photo_still_fits_when_the_window_gets_another_shape(blob_scene: Scene) -> None:
    client = FakeClient()
    standpoint = CameraSnap(cast(viser.ClientHandle, client), blob_scene)
    standpoint.enter(0)
    standpoint.moved(client.viewpoint)
    standpoint.moved(replace(client.viewpoint, width=200, height=500))
    assert np.isclose(client.camera.fov, fitting_fov(blob_scene.cameras[0], 0.4))


# ---- errors


def test_errors_are_sorted_and_the_bad_ones_told() -> None:
    psnr = np.array([25.0, 24.0, 25.5, np.nan, 14.0, 24.5, 26.0])
    errors = Errors(psnr)
    assert errors.worst_first(range(7)) == [4, 1, 5, 0, 2, 6, 3]
    assert errors.worst_first([0, 3, 5]) == [5, 0, 3]
    assert errors.bad.tolist() == [False, False, False, False, True, False, False]
    colors = errors.colors().astype(int)
    assert colors[4][0] > colors[4][2] + 100, "the worst is red"
    assert colors[6][2] > colors[6][0] + 100, "the best is blue"
    assert np.ptp(colors[3]) < 40, "what was not measured is grey"
    assert not Errors(np.full(7, np.nan)).bad.any() and Errors(np.full(7, np.nan)).range is None
    assert not Errors(np.full(7, 20.0)).bad.any()
    few = np.concatenate([psnr, np.full(8, np.nan)])
    assert not Errors(few).bad.any(), "6 of 15 do not say what is typical"
    assert np.flatnonzero(Errors(few[:12]).bad).tolist() == [4], "6 of 12 do"


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


# ---- photographs


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


def test_an_unreadable_photo_is_told_and_ends_no_thread(tmp_path: Path) -> None:
    folder = write_blob_scene(tmp_path / "capture")
    scene = load_scene(folder)
    scene.views[2].image_path.write_bytes(b"no picture")
    shelf = PhotoCache(scene)
    try:
        for _ in range(3):
            pixels = wait_for(lambda: shelf.pixels(2, (24, 20), (0, 0, 0), lambda: None))
            assert isinstance(pixels, PhotoPixels) and "view_03.png" in pixels.problem
        assert wait_for(lambda: shelf.thumbnail(2, lambda: None)).uri == ""
        assert wait_for(lambda: shelf.thumbnail(3, lambda: None)).uri.startswith("data:image/jpeg;base64,")
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


def test_names_of_photos_cannot_inject_html() -> None:
    name = '"><script>alert(1)</script>.png'
    text = tile_html("id", name, "", figure="–", color="red", test=True, bad=True, current=False)
    assert "<script" not in text and "&lt;script" in text and "bad" in text and "test" in text
    legend = legend_html(Legend(0.0, 12.345, "<b>", "turbo"), "<i>why</i>")
    assert "<b>" not in legend and "<i>" not in legend and "12.3" in legend and legend_html(None, None) == ""


def test_two_thousand_cameras_are_quickly_drawn_and_hit() -> None:
    generator = np.random.default_rng(0)
    rotations = viser.transforms.SO3(generator.normal(size=(2000, 4))).normalize().as_matrix()
    positions = generator.normal(size=(2000, 3)) * 5
    frustums = Frustums(rotations, positions, np.full((2000, 3), 0.01), np.zeros((2000, 3), np.uint8))
    start = time.thread_time()
    lines = frustums.lines(2.0)
    assert lines.shape == (2000, 10, 2, 3) and time.thread_time() - start < 0.5
    assert np.allclose(lines[7, 0, 0], positions[7]), "an edge begins at the camera's centre"
    middle = positions[7] + 0.5 * 2.0 * 0.01 * rotations[7, :, 2]
    origin = middle + np.array([3.0, 1.0, 2.0])
    assert frustums.hit(origin, (middle - origin) / np.linalg.norm(middle - origin), 2.0) == 7


def test_cameras_are_painted_sized_and_clicked(blob_scene: Scene) -> None:
    server, clicked = viser.ViserServer(host="127.0.0.1", port=0, verbose=False), []
    try:
        client = cast(viser.ClientHandle, SimpleNamespace(scene=server.scene))
        frustums = Frustums.of_scene(blob_scene)
        stage = SceneOverlay(client, blob_scene, frustums, clicked.append)
        nodes = server.scene._handle_from_node_name
        edges, bodies = nodes["/cameras/edges"], nodes["/cameras/bodies"]
        assert isinstance(edges, viser.LineSegmentsHandle) and isinstance(bodies, viser.BatchedMeshHandle)
        assert len(np.unique(bodies.batched_colors, axis=0)) == 2, "test and training photographs"
        colors = np.arange(27, dtype=np.uint8).reshape(9, 3) * 9
        stage.paint(colors)
        assert np.array_equal(bodies.batched_colors, colors)
        assert len(np.unique(np.asarray(edges.colors).reshape(9, -1, 3)[4], axis=0)) == 1
        before = np.ptp(np.asarray(edges.points).reshape(9, -1, 3)[2], axis=0)
        stage.size_cameras(3.0)
        assert np.allclose(
            np.ptp(np.asarray(edges.points).reshape(9, -1, 3)[2], axis=0), 3.0 * before, rtol=1e-3
        )
        stage.leave_out(2)
        sizes = np.ptp(np.asarray(edges.points).reshape(9, -1, 3), axis=1).max(axis=1)
        assert sizes[2] == 0.0 and np.delete(sizes, 2).min() > 0.0
        stage.leave_out(None)
        assert np.ptp(np.asarray(edges.points).reshape(9, -1, 3)[2], axis=0).max() > 0.0
        stage.show_cameras(False)
        assert not edges.visible and not bodies.visible
        event = SimpleNamespace(instance_index=5, ray_origin=(0, 0, 0), ray_direction=(1, 0, 0))
        assert stage._clicked(cast(Any, event)) == 5
        event.instance_index = None
        event.ray_origin = tuple(blob_scene.cameras[7].position * 3)
        event.ray_direction = tuple(-blob_scene.cameras[7].position)
        assert stage._clicked(cast(Any, event)) == 7
    finally:
        server.stop()
