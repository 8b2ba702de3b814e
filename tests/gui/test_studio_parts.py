"""The studio's parts one by one: cameras, pace, curves, texts, and what it takes from viser and nerfview."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import viser

from splatstudio.formats import FORMATS
from splatstudio.gui.dock.status import header_html
from splatstudio.gui.server import viser_private
from splatstudio.gui.state.controller import Status
from splatstudio.gui.state.history import MAX_PLOT_POINTS, Curve, History
from splatstudio.gui.state.nerfview_adapter import ForeignSource
from splatstudio.gui.state.scene_overlay import frustum_size
from splatstudio.gui.state.stream import MIN_SCALE, RETRY_SECONDS, ModelState, Pace, Stream, ViewSettings
from splatstudio.gui.state.viewpoint import Viewpoint, read_viewpoint
from splatstudio.gui.tabs.export import with_ending
from splatstudio.gui.tabs.plot import axis_ranges, joined
from splatstudio.gui.theme import duration, size
from splatstudio.runtime.channel import MAX_FRAME_PIXELS
from splatstudio.runtime.messages import ViewOptions
from splatstudio.scene.scene import Scene


def fake_camera(**changes: Any) -> viser.CameraHandle:
    values: dict[str, Any] = {
        "wxyz": np.array([1.0, 0.0, 0.0, 0.0]),
        "position": np.array([0.0, 0.0, -2.0]),
        "fov": 1.0,
        "image_width": 900,
        "image_height": 600,
    }
    return cast(viser.CameraHandle, type("Camera", (), values | changes)())


@pytest.mark.parametrize(
    "changes",
    [
        {"fov": math.nan},
        {"fov": 0.0},
        {"fov": 4.0},
        {"image_height": 0},
        {"image_width": 1_000_000_000, "image_height": 1_000_000_000},
        {"wxyz": np.zeros(4)},
        {"wxyz": np.full(4, math.nan)},
        {"position": np.array([math.inf, 0, 0])},
        {"position": np.array([1e30, 0, 0])},
        {"position": np.zeros(2)},
    ],
)
def test_cameras_that_cannot_be_are_ignored(changes: dict[str, Any]) -> None:
    assert read_viewpoint(fake_camera()) is not None
    assert read_viewpoint(fake_camera(**changes)) is None


def test_a_reduced_picture_covers_exactly_the_same_view() -> None:
    viewpoint = read_viewpoint(fake_camera(image_width=901, image_height=603))
    assert viewpoint is not None
    point = np.array([0.31, -0.22, 1.7]) - viewpoint.position  # camera axes are the world's here
    for scale in (1.0, 0.5, 0.333, 0.15):
        camera = viewpoint.camera(scale)
        pixel = camera.K @ point / point[2]
        # As a share of the picture, where three.js's projection puts it on the canvas.
        tangent = math.tan(viewpoint.fov / 2)
        share = 0.5 + 0.5 * point[:2] / point[2] / (tangent * 901 / 603, tangent)
        assert np.allclose(pixel[:2] / (camera.width, camera.height), share, atol=1e-12)
    giant = Viewpoint(viewpoint.wxyz, viewpoint.position, 1.0, 8000, 4000).camera(1.0)
    assert giant.width * giant.height <= MAX_FRAME_PIXELS and abs(giant.width / giant.height - 2.0) < 0.01


def test_the_pace_finds_the_scale_that_takes_the_wanted_time() -> None:
    pace = Pace(0.08, 0.5)
    for _ in range(40):
        pace.measured(pace.scale, 0.02 + 0.9 * pace.scale**2)  # a slow machine: 0.92 s at full size
    assert abs(0.02 + 0.9 * pace.scale**2 - 0.08) < 0.01
    for _ in range(40):
        pace.measured(pace.scale, 0.001)
    assert pace.scale == 1.0
    for _ in range(40):
        pace.measured(pace.scale, 100.0)
    assert pace.scale == MIN_SCALE


def test_frustums_do_not_overlap_their_neighbours(blob_scene: Scene) -> None:
    positions = np.stack([camera.position for camera in blob_scene.cameras])
    size = frustum_size(positions, blob_scene.extent)
    nearest = np.linalg.norm(positions[0] - positions[1])
    assert 0.005 < size < 0.5 * nearest
    assert frustum_size(positions[:1], 1.0) > 0


def test_curves_are_thinned_and_overwritten_after_a_resume() -> None:
    curve = Curve()
    for step in range(50_000):
        curve.add(step, math.sin(step / 3000))
    steps, values = curve.arrays()
    assert MAX_PLOT_POINTS / 3 < len(steps) <= MAX_PLOT_POINTS and (np.diff(steps) > 0).all()
    assert steps[0] == 0 and steps[-1] > 49_500
    assert np.abs(np.interp(np.arange(40_000), steps, values) - np.sin(np.arange(40_000) / 3000)).max() < 0.01
    curve.add(1024, 7.0)
    assert curve.arrays()[0][-1] == 1024 and curve.arrays()[1][-1] == 7.0


def test_curves_are_read_while_they_grow() -> None:
    curve, done = Curve(), threading.Event()

    def grow() -> None:
        for _ in range(4):
            for step in range(20_000):
                curve.add(step, float(step))
        done.set()

    thread = threading.Thread(target=grow)
    thread.start()
    while not done.is_set():
        steps, values = curve.arrays()
        assert np.array_equal(steps, values)
    thread.join()


def test_a_stream_without_pictures_does_not_spin() -> None:
    asked: list[int] = []

    class Silent:
        def model_state(self) -> ModelState:
            return ModelState(1, training=False)

        def render(self, view: int, camera: Any, options: Any) -> None:
            asked.append(view)

        def forget(self, view: int) -> None: ...

    client = cast(viser.ClientHandle, type("Client", (), {"camera": fake_camera(), "client_id": 7})())
    stream = Stream(client, Silent(), ViewSettings())
    start = time.monotonic()
    while not asked or time.monotonic() - start < 0.6:
        time.sleep(0.05)
    stream.close()
    stream._thread.join(60.0)
    assert len(asked) <= 2 + (time.monotonic() - start) / RETRY_SECONDS


def test_curves_of_different_steps_share_one_axis() -> None:
    history = History()
    history.load(
        [
            {"step": 10, "psnr": 20.0},
            {"step": 20, "psnr": None, "test_psnr": 18.0},
            {"step": 30, "psnr": 22.0},
        ]
    )
    steps, train, test = joined([history.train_psnr, history.test_psnr])
    assert steps.tolist() == [10, 20, 30]
    assert np.array_equal(train, [20, np.nan, 20.2], equal_nan=True)  # smoothed as while it was trained
    assert np.array_equal(test, [np.nan, 18, np.nan], equal_nan=True)


def test_names_and_messages_cannot_inject_html() -> None:
    text = header_html('<img src=x onerror="alert(1)">', Status(state="failed", message="<script>"), 2)
    assert "<img" not in text and "<script" not in text and "2 viewers" in text and "Failed" in text


def test_a_training_that_was_stopped_is_not_called_finished() -> None:
    def shown(step: int) -> str:
        return header_html("demo", Status(state="finished", step=step, total_steps=50), 1)

    assert ">Stopped<" in shown(49) and "Finished" not in shown(49)
    assert ">Finished<" in shown(50) and "Stopped" not in shown(50)


def test_numbers_are_said_as_people_say_them() -> None:
    assert [duration(s) for s in (None, 7, 65, 3700, math.inf)] == ["–", "7 s", "1:05 min", "1:01 h", "–"]
    assert [size(n) for n in (12, 45_000, 1_234_567, 2.5e9)] == ["12 B", "45 kB", "1.2 MB", "2.50 GB"]


def test_viser_still_has_what_the_viewport_takes_from_its_inside() -> None:
    server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    try:
        queued: list[Any] = []
        client = cast(
            viser.ClientHandle, type("Client", (), {"scene": server.scene, "flush": lambda self: None})()
        )
        original = server.scene._websock_interface.queue_message
        server.scene._websock_interface.queue_message = queued.append  # type: ignore[method-assign]
        viser_private.push_background_jpeg(client, b"jpeg")
        server.scene._websock_interface.queue_message = original  # type: ignore[method-assign]
        queued_ours = replace(queued[0])
        # The public call must still send the same kind of message, with the same fields.
        server.scene._websock_interface.queue_message = queued.append  # type: ignore[method-assign]
        server.scene.set_background_image(np.zeros((4, 4, 3), np.uint8), format="jpeg")
        assert type(queued[-1]) is type(queued_ours) and queued[-1].format == "jpeg"
        assert isinstance(queued[-1].rgb_data, bytes) and queued_ours.rgb_data == b"jpeg"
        server.scene._websock_interface.queue_message = original  # type: ignore[method-assign]
    finally:
        server.stop()


def test_a_render_function_of_nerfviews_contract() -> None:
    seen: list[Any] = []

    def render_fn(camera_state: Any, tab_state: Any) -> np.ndarray:
        seen.append((camera_state, tab_state))
        K = camera_state.get_K((tab_state.viewer_width, tab_state.viewer_height))
        return np.full((tab_state.viewer_height, tab_state.viewer_width, 3), 0.5) * (K[2, 2] == 1)

    source = ForeignSource(render_fn)
    viewpoint = read_viewpoint(fake_camera())
    assert viewpoint is not None and source.model_state() == ModelState(0, training=False)
    camera = viewpoint.camera(0.5)
    received = source.render(1, camera, ViewOptions())
    assert received is not None and received.image.shape == (300, 450, 3) and (received.image == 128).all()
    camera_state, tab_state = seen[0]
    assert np.allclose(camera_state.get_K((450, 300)), camera.K)
    assert np.allclose(camera_state.c2w[:3, 3], (0, 0, -2)) and (tab_state.viewer_width == 450)


def test_plot_axes_hold_the_data_and_seldom_change() -> None:
    steps = np.array([3.0, 250.0])
    assert np.allclose(axis_ranges((steps, np.array([0.31, 0.12])), 0.1), ((0.0, 300.0), (0.1, 0.4)))
    with_gap = (steps, np.array([13.0, np.nan]), np.array([np.nan, np.nan]))
    assert axis_ranges(with_gap, 5.0) == ((0.0, 300.0), (10.0, 15.0))
    assert axis_ranges((np.array([40.0]), np.array([20.0])), 5.0) == ((0.0, 100.0), (20.0, 25.0))


def test_the_ending_follows_the_chosen_format() -> None:
    by_name = {format_.name: format_ for format_ in FORMATS}
    assert with_ending("a/model", by_name["PLY"]) == "a/model.ply"
    assert with_ending("a/model.ply", by_name["SPZ"]) == "a/model.spz"
    assert with_ending("a/model.compressed.ply", by_name["PLY"]) == "a/model.ply"
    assert with_ending("a/model.v2.ply", by_name["PLY"]) == "a/model.v2.ply"
