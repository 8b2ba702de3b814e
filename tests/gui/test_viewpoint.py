"""Where browsers look from: cameras that cannot be, photos that one stands in, the first view."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import viser
import viser.transforms
from gui_parts import fake_camera

from splatstudio.cameras.camera import look_at
from splatstudio.gui.state.viewpoint import (
    MIN_IN_SIGHT,
    CameraSnap,
    FirstView,
    Viewpoint,
    fitting_fov,
    num_in_sight,
    read_viewpoint,
)
from splatstudio.runtime.channel.frame_slots import MAX_FRAME_PIXELS
from splatstudio.scene.scene import Scene


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


class FakeClient:
    """A browser that goes where it is sent."""

    client_id = 1

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
    camera_snap = CameraSnap(cast(viser.ClientHandle, client), blob_scene)
    assert camera_snap.here is None and camera_snap.last is None and not camera_snap.on_the_way
    camera_snap.enter(4)
    assert camera_snap.here is None and camera_snap.on_the_way
    assert camera_snap.moved(client.viewpoint) and camera_snap.here == 4
    assert camera_snap.nearest(client.viewpoint) == 4
    assert not camera_snap.moved(client.viewpoint), "nothing has changed"
    camera_snap.enter(4)
    assert camera_snap.here == 4, "it was there already"
    client.camera.position = client.camera.position + 0.05 * blob_scene.extent
    assert camera_snap.moved(client.viewpoint) and camera_snap.here is None and camera_snap.last == 4
    client.camera.position = blob_scene.cameras[4].position
    assert camera_snap.moved(client.viewpoint) and camera_snap.here == 4
    turned = viser.transforms.SO3(client.camera.wxyz) @ viser.transforms.SO3.from_y_radians(0.02)
    client.camera.wxyz = turned.wxyz
    assert camera_snap.moved(client.viewpoint) and camera_snap.here is None


def test_the_photo_still_fits_when_the_window_gets_another_shape(blob_scene: Scene) -> None:
    client = FakeClient()
    camera_snap = CameraSnap(cast(viser.ClientHandle, client), blob_scene)
    camera_snap.enter(0)
    camera_snap.moved(client.viewpoint)
    camera_snap.moved(replace(client.viewpoint, width=200, height=500))
    assert np.isclose(client.camera.fov, fitting_fov(blob_scene.cameras[0], 0.4))


def view_of(scene: Scene | None, *up: Any) -> FirstView:
    scene_api = SimpleNamespace(set_up_direction=lambda up: None)
    server = SimpleNamespace(
        scene=scene_api,
        initial_camera=SimpleNamespace(),
        on_client_disconnect=lambda call: None,
        get_clients=dict,
    )
    view = FirstView(cast(Any, server), *up)
    if scene is not None:
        view.of_scene(scene)
    return view


def in_a_row(scene: Scene) -> Scene:
    """Let all photos be taken side by side, so that no camera sees another."""
    views = []
    for number, view in enumerate(scene.views):
        position = np.array([0.1 * number, -3.0, 0.5])
        viewmat = look_at(position, position + np.array([0.0, 3.0, -0.5]), np.array([0.0, 0.0, 1.0]))
        views.append(replace(view, camera=replace(view.camera, viewmat=viewmat)))
    return replace(scene, views=tuple(views))


def test_the_first_view_is_a_photos_own_where_other_cameras_are_seen(blob_scene: Scene) -> None:
    camera, view = blob_scene.cameras[0], view_of(blob_scene)
    ahead = camera.viewmat[:3, :3] @ (view._position - camera.position)
    assert np.allclose(ahead[:2], 0.0, atol=1e-9) and 0.0 < ahead[2] < 0.5


def test_the_camera_of_the_first_view_is_where_a_browser_is_sent(blob_scene: Scene) -> None:
    view = view_of(blob_scene)
    sent = FakeClient()
    view.show(cast(Any, sent))
    told = view.viewpoint(900, 500)
    np.testing.assert_allclose(told.position, sent.camera.position, atol=1e-9)
    forward = viser.transforms.SO3(told.wxyz).as_matrix()[:, 2]
    aim = np.asarray(sent.camera.look_at) - told.position
    np.testing.assert_allclose(forward, aim / np.linalg.norm(aim), atol=1e-9)
    assert (told.width, told.height) == (900, 500)


def test_it_steps_back_until_cameras_are_in_sight(blob_scene: Scene) -> None:
    scene = in_a_row(blob_scene)
    camera, view = scene.cameras[0], view_of(scene)
    positions = np.stack([camera.position for camera in scene.cameras])
    assert num_in_sight(positions, camera.position, camera.viewmat[:3, :3], view._fov) == 0
    assert num_in_sight(positions, view._position, camera.viewmat[:3, :3], view._fov) >= MIN_IN_SIGHT
    ahead = camera.viewmat[:3, :3] @ (view._position - camera.position)
    assert np.allclose(ahead[:2], 0.0, atol=1e-9) and ahead[2] < 0.0


@pytest.mark.parametrize(
    ("up", "directions"),
    [
        ("+z", {"front": "+y", "back": "-y", "left": "+x", "right": "-x", "above": "-z", "below": "+z"}),
        ("-y", {"front": "+z", "back": "-z", "left": "+x", "right": "-x", "above": "+y", "below": "-y"}),
    ],
)
def test_each_side_is_looked_at_from_the_same_distance(
    blob_scene: Scene, up: Any, directions: dict[Any, str]
) -> None:
    view, client, middle = view_of(blob_scene), FakeClient(), np.array([1.0, 2.0, 3.0])
    view.up = up
    view.of_model((1.0, 2.0, 3.0), 0.5)
    for side, axis in directions.items():
        view.look_from(cast(Any, client), side)
        away = middle - client.camera.position
        assert np.linalg.norm(away) == pytest.approx(0.5 * math.hypot(1.0, 2.8))
        along = away @ np.eye(3)["xyz".index(axis[1])] * (1.0 if axis[0] == "+" else -1.0)
        assert along > 0.999 * np.linalg.norm(away), side
        # Straight up and down no direction is upwards: the camera stands a little aside.
        assert np.linalg.norm(np.cross(away, client.camera.up_direction)) > 1e-3
        assert np.array_equal(client.camera.look_at, middle)


def test_a_file_that_leans_is_seen_upright(blob_scene: Scene) -> None:
    up, client = np.array([0.8, 0.6, 0.0]), FakeClient()
    view = view_of(None, "+x", (0.8, 0.6, 0.0))
    view.of_model((1.0, 2.0, 3.0), 0.5)
    view.show(cast(Any, client))
    assert np.array_equal(client.camera.up_direction, up)
    assert (client.camera.position - client.camera.look_at) @ up == pytest.approx(0.5), "a little above it"
    right = viser.transforms.SO3(view.viewpoint(900, 500).wxyz).as_matrix()[:, 0]
    assert abs(right @ up) < 1e-9, "the horizon is level"
    view.look_from(cast(Any, client), "front")
    assert abs((client.camera.position - client.camera.look_at) @ up) < 1e-9
    view.set_up(cast(Any, client), "+y")
    assert np.array_equal(client.camera.up_direction, (0.0, 1.0, 0.0)), "as this browser wants it"
    view.of_scene(blob_scene)
    assert np.array_equal(view._upward(), (0.0, 0.0, 1.0)), "cameras tell it"


def test_framing_keeps_the_direction(blob_scene: Scene) -> None:
    view, client = view_of(blob_scene), FakeClient()
    turned = viser.transforms.SO3.from_y_radians(0.4)
    client.camera.wxyz = turned.wxyz
    view.frame(cast(Any, client))
    ahead = -client.camera.position / np.linalg.norm(client.camera.position)
    assert np.allclose(ahead, turned.as_matrix()[:, 2])
    distances = [np.linalg.norm(camera.position) for camera in blob_scene.cameras]
    assert np.linalg.norm(client.camera.position) == pytest.approx(np.median(distances))
