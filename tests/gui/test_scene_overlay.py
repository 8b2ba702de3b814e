"""What stands in the space of the viewer: cameras, points, the path, and what the model hides of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import viser
import viser.transforms
from blob_models import blobs
from path_builder import random_keys

from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.formats.ply import write_ply
from splatstudio.gui.panel import Page
from splatstudio.gui.state.scene_overlay import Frustums, PathEditor, PathScene, SceneOverlay
from splatstudio.gui.state.stream import ModelState
from splatstudio.gui.state.viewpoint import frustum_size
from splatstudio.gui.tabs.view import ViewPanel
from splatstudio.runtime.messages import ModelLoaded, StateChanged
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import SkyConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("own_folder")


def test_two_thousand_cameras_are_quickly_drawn_and_hit() -> None:
    generator = np.random.default_rng(0)
    rotations = viser.transforms.SO3(generator.normal(size=(2000, 4))).normalize().as_matrix()
    positions = generator.normal(size=(2000, 3)) * 5
    frustums = Frustums(rotations, positions, np.full((2000, 3), 0.01), np.zeros((2000, 3), np.uint8))
    start = time.thread_time()
    lines = frustums.lines(2.0)
    assert lines.shape == (2000, 10, 2, 3) and time.thread_time() - start < 0.5
    assert np.allclose(lines[7, 0, 0], positions[7]), "an edge begins at the camera's center"
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
        assert len(np.unique(bodies.batched_colors, axis=0)) == 2, "test and training photos"
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


def test_nobody_meets_the_mesh_of_the_cameras_but_where_they_are(blob_scene: Scene) -> None:
    server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    try:
        frustums = Frustums.of_scene(blob_scene)
        _, bodies = frustums.draw(server.scene, "/edges", "/bodies", 1.0, 0.1)
        # viser hears clicks on the mesh at the middle of the scene, too, as large as it is by itself.
        assert np.abs(bodies.vertices).max() < 0.01 * frustums.scales.max()
        drawn = bodies.vertices[None] * np.asarray(bodies.batched_scales)[:, None]
        assert np.allclose(drawn[:, 4], frustums.scales * [-1, 1, 1], rtol=1e-4)
    finally:
        server.stop()


def test_frustums_do_not_overlap_their_neighbors(blob_scene: Scene) -> None:
    positions = np.stack([camera.position for camera in blob_scene.cameras])
    size = frustum_size(positions, blob_scene.extent)
    nearest = np.linalg.norm(positions[0] - positions[1])
    assert 0.005 < size < 0.5 * nearest
    assert frustum_size(positions[:1], 1.0) > 0


class FakeServer:
    """Takes nodes, and says who leaves."""

    def __init__(self) -> None:
        self.scene = self
        self.left: Callable[[Any], Any] | None = None
        self.update: Callable[[Any], Any] | None = None

    def add_frame(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace()

    def add_transform_controls(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(on_update=lambda do: setattr(self, "update", do))

    def on_client_disconnect(self, do: Callable[[Any], Any]) -> None:
        self.left = do


def test_handles_are_free_again_when_who_drags_them_leaves() -> None:
    import asyncio

    server, editor = FakeServer(), PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    drawn = PathScene(cast(viser.ViserServer, server), editor, 1.0)
    drawn.show_handles(True)
    assert server.update is not None and server.left is not None and drawn._handles is not None
    target = SimpleNamespace(wxyz=np.array([1.0, 0, 0, 0]), position=np.ones(3))
    asyncio.run(server.update(SimpleNamespace(client_id=3, phase="start", target=target)))

    def place_of(selected: int) -> bool:
        assert drawn._handles is not None
        editor.select(selected)
        drawn._place_handles()
        return np.allclose(drawn._handles.position, editor.path.keyframes[selected].camera_to_world[:3, 3])

    assert not place_of(0), "they stay where they are held"
    asyncio.run(server.left(SimpleNamespace(client_id=4)))
    assert not place_of(0), "somebody else has left"
    asyncio.run(server.left(SimpleNamespace(client_id=3)))
    assert place_of(0) and place_of(1)


def test_the_points_come_back_when_a_new_run_takes_the_model_away() -> None:
    shown: list[bool] = []
    panel: Any = object.__new__(ViewPanel)
    state = ModelState(None, False)
    panel.controller = SimpleNamespace(model_state=lambda: state)
    panel._shared, panel._all = None, lambda: [SimpleNamespace(show_points=shown.append)]
    panel.follow(ModelLoaded(3, 60, (0.0, 0.0, 0.0), 1.0))
    panel.follow(StateChanged("ready"))
    assert shown == [False], "before the first training they are as the user has them"
    state = ModelState(None, False, anew=True)
    panel.follow(StateChanged("ready"))
    assert shown == [False, True]
    cleared: list[bool] = []
    panel._shared = SimpleNamespace(psnr=SimpleNamespace(clear=lambda: cleared.append(True)))
    panel.follow(StateChanged("ready"))
    assert cleared, "the scores of the run before are not those of the new one"


def test_the_sky_can_be_hidden_where_there_is_one(page: Page, blob_scene: Scene, tmp_path: Path) -> None:
    controller: Any = page.controller
    object.__setattr__(page, "viewport", SimpleNamespace(photos=None, listen=lambda *_: None))
    panel = ViewPanel(page)

    def offered(path: Path | None, config: TrainConfig = TrainConfig()) -> bool:
        controller.shown_path = path
        controller.project = replace(controller.project, config=config)
        return panel._has_sky()

    wide = TrainConfig(sky=SkyConfig(enabled=True))
    assert offered(None, wide) and not offered(None)
    write_ply(tmp_path / "model.ply", blobs())
    assert not offered(tmp_path / "model.ply", wide), "a file of others has none"
    trainer = Trainer(blob_scene, wide)
    trainer.train_step()
    saved = save_checkpoint(tmp_path, trainer.checkpoint())
    trainer.close()
    assert offered(saved) and offered(next(saved.glob("rank*.safetensors")))
    (saved / "manifest.json").write_text("{")
    assert not offered(saved)
