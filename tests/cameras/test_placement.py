"""Where an exported model lies: in the scene's coordinates or upright, with the cameras in the same place."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras
from command_line import CommandLine

from splatstudio import api
from splatstudio.cameras.camera import Camera
from splatstudio.formats import write_gaussians
from splatstudio.models.model import Model
from splatstudio.rendering.render import render
from splatstudio.runtime.messages import Event, Export, JobDone, JobFailed
from splatstudio.runtime.tasks import Tasks
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.trainer import Trainer


def cameras_in(path: Path) -> dict[str, Camera]:
    """Return the cameras of a cameras.json, as a reader of that layout makes them."""
    found = {}
    for row in json.loads(path.read_text()):
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = row["rotation"], row["position"]
        K = np.array([[row["fx"], 0, row["cx"]], [0, row["fy"], row["cy"]], [0, 0, 1]])
        found[row["img_name"]] = Camera(np.linalg.inv(pose), K, row["width"], row["height"])
    return found


def assert_seen_alike(model: Model, scene: Scene, file: Path, cameras_file: Path) -> None:
    """Check that a file shows from its cameras what the model shows from the scene's."""
    written, cameras = api.load_model(file).gaussians, cameras_in(cameras_file)
    assert len(cameras) == len(scene.views)
    for view in scene.views[:3]:
        ours = render(model.in_frame_of(scene).gaussians, view.camera).rgb
        assert float(ours.max()) > 0.3
        torch.testing.assert_close(
            render(written, cameras[view.name]).rgb, ours, atol=5e-3, rtol=0, msg=view.name
        )


@pytest.fixture
def checkpoint(tmp_path: Path, blob_scene: Scene) -> Path:
    write_gaussians(tmp_path / "start.ply", blobs())
    config = TrainConfig(steps=1, init=str(tmp_path / "start.ply"), densify=DensifyConfig(enabled=False))
    trainer = Trainer(blob_scene, config)
    trainer.train_step()
    trainer.close()
    return trainer.save(tmp_path / "run")


@pytest.mark.parametrize("upright", [False, True])
def test_the_command(
    tmp_path: Path, checkpoint: Path, blob_scene: Scene, upright: bool, command: CommandLine
) -> None:
    output, cameras = tmp_path / "a.ply", tmp_path / "new" / "cameras.json"
    flags = ["--upright"] if upright else []
    assert command("export", checkpoint, "-o", output, "--cameras", cameras, *flags)[0] == 0
    model = api.load_model(checkpoint)
    assert_seen_alike(model, blob_scene, output, cameras)
    means = api.load_model(output).gaussians.means
    if upright:
        x, y, z = model.gaussians.means.T
        torch.testing.assert_close(means, torch.stack([x, -z, y], dim=1), atol=1e-5, rtol=1e-5)
    else:
        positions = np.array([camera.position for camera in cameras_in(cameras).values()])
        np.testing.assert_allclose(positions, [c.position for c in ring_of_cameras()], atol=1e-4)


def test_a_file_needs_its_scene(
    tmp_path: Path, blob_folder: Path, blob_scene: Scene, command: CommandLine
) -> None:
    model = Model(blobs())
    model.save(tmp_path / "a.ply")
    export = partial(command, "export", tmp_path / "a.ply", "-o", tmp_path / "b.ply")
    for flags in (["--upright"], ["--cameras", tmp_path / "cameras.json"]):
        code, output = export(*flags)
        assert code == 2 and "name it with --scene FOLDER" in " ".join(output.split())
    assert not (tmp_path / "b.ply").exists()
    flags = ["--upright", "--cameras", tmp_path / "cameras.json", "--scene", blob_folder]
    assert export(*flags)[0] == 0
    assert_seen_alike(model, blob_scene, tmp_path / "b.ply", tmp_path / "cameras.json")


@pytest.mark.parametrize("upright", [False, True])
def test_the_job(tmp_path: Path, blob_scene: Scene, upright: bool) -> None:
    model = Model(blobs()).in_frame_of(blob_scene)
    cameras = tuple((view.name, view.camera) for view in blob_scene.views)
    events: list[Event] = []
    jobs = Tasks(events.append, lambda: False)
    jobs.start(Export(tmp_path / "a.ply", upright=upright, cameras=cameras), lambda: model)
    for thread in [task.thread for task in jobs._tasks]:
        assert thread is not None
        thread.join()
    assert isinstance(events[-1], JobDone), events
    assert_seen_alike(model, blob_scene, tmp_path / "a.ply", tmp_path / "a.ply.cameras.json")
    jobs.start(Export(tmp_path / "b.ply", upright=True), lambda: replace(model, transform=np.eye(4)))
    jobs.close()
    assert isinstance(events[-1], JobFailed) and "how it lies in its scene" in events[-1].sentence
    assert not (tmp_path / "b.ply").exists()
