"""What one sees at first: the points, and the cameras that took the photographs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from splatstudio.cameras.camera import look_at
from splatstudio.gui.state.viewpoint import MIN_IN_SIGHT, FirstView, num_in_sight
from splatstudio.scene.scene import Scene


def view_of(scene: Scene) -> FirstView:
    scene_api = SimpleNamespace(set_up_direction=lambda up: None)
    server = SimpleNamespace(
        scene=scene_api, initial_camera=SimpleNamespace(), on_client_disconnect=lambda call: None
    )
    view = FirstView(cast(Any, server))
    view.of_scene(scene)
    return view


def in_a_row(scene: Scene) -> Scene:
    """Let all photographs be taken side by side, so that no camera sees another."""
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


def test_it_steps_back_until_cameras_are_in_sight(blob_scene: Scene) -> None:
    scene = in_a_row(blob_scene)
    camera, view = scene.cameras[0], view_of(scene)
    positions = np.stack([camera.position for camera in scene.cameras])
    assert num_in_sight(positions, camera.position, camera.viewmat[:3, :3], view._fov) == 0
    assert num_in_sight(positions, view._position, camera.viewmat[:3, :3], view._fov) >= MIN_IN_SIGHT
    ahead = camera.viewmat[:3, :3] @ (view._position - camera.position)
    assert np.allclose(ahead[:2], 0.0, atol=1e-9) and ahead[2] < 0.0
