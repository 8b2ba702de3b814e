"""Cameras that a training refined reach others: in the cameras.json of an export, by command or studio."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from command_line import CommandLine
from worker_watcher import finish

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.placement import Placement
from splatstudio.cli.export import export_model
from splatstudio.models.exporter import REFINED, refined_camera
from splatstudio.models.model import Model, load_model
from splatstudio.runtime.messages import Event, Export
from splatstudio.runtime.tasks import Tasks
from splatstudio.runtime.training import Training
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import PoseConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

POSES = PoseConfig(enabled=True, start_step=0, lr=0.01)


@pytest.fixture(scope="module")
def trained(blob_scene: Scene) -> Trainer:
    trainer = Trainer(blob_scene, TrainConfig(steps=20, poses=POSES))
    for _ in range(10):
        trainer.train_step()
    trainer.close()
    return trainer


def model_in(trainer: Trainer) -> Model:
    """Return the model as a training hands it to its jobs."""
    return Training._model(cast(Training, None), trainer)


def cameras_of(trainer: Trainer) -> list[Camera]:
    """Return the cameras as the training knows them, in the coordinates of the scene's files."""
    scene, training = trainer.scene, set(trainer.scene.train_indices)
    known = [trainer.camera(i) if i in training else view.camera for i, view in enumerate(scene.views)]
    return [camera.transformed(np.linalg.inv(scene.transform)) for camera in known]


def check(file: Path, cameras: Sequence[Camera], scene: Scene) -> None:
    rows = json.loads(file.read_text())
    assert [row["img_name"] for row in rows] == [view.name for view in scene.views]
    for row, camera in zip(rows, cameras, strict=True):
        np.testing.assert_allclose(row["position"], camera.position, atol=1e-9)
        np.testing.assert_allclose(row["rotation"], camera.camera_to_world[:3, :3], atol=1e-9)


def moved(trainer: Trainer) -> list[bool]:
    """Return of which views the camera is elsewhere than the files say."""
    files = [view.camera.transformed(np.linalg.inv(trainer.scene.transform)) for view in trainer.scene.views]
    pairs = zip(files, cameras_of(trainer), strict=True)
    return [not np.allclose(one.viewmat, other.viewmat, atol=1e-4) for one, other in pairs]


def test_a_checkpoint_is_exported_with_the_cameras_that_were_refined(
    trained: Trainer, tmp_path: Path
) -> None:
    scene, checkpoint = trained.scene, trained.save(tmp_path / "run")
    assert moved(trained) == [index in scene.train_indices for index in range(len(scene.views))]
    placement = Placement(cameras=tmp_path / "cameras.json")
    exported = export_model(checkpoint, tmp_path / "model.ply", placement=placement)
    check(tmp_path / "cameras.json", cameras_of(trained), scene)
    assert exported.note == REFINED
    assert export_model(checkpoint, tmp_path / "alone.ply").note is None


def test_the_command_writes_them_and_says_so(trained: Trainer, tmp_path: Path, command: CommandLine) -> None:
    checkpoint, files = trained.save(tmp_path / "run"), (tmp_path / "model.ply", tmp_path / "cameras.json")
    code, output = command("export", checkpoint, "-o", files[0], "--cameras", files[1])
    assert code == 0 and REFINED in " ".join(output.split())
    check(files[1], cameras_of(trained), trained.scene)


def test_the_studio_exports_them_beside_a_model_that_trains(trained: Trainer, tmp_path: Path) -> None:
    named = tuple((view.name, view.camera) for view in trained.scene.views)
    events: list[Event] = []
    jobs = Tasks(events.append, lambda: False)
    jobs.start(Export(tmp_path / "model.ply", cameras=named), lambda: model_in(trained))
    finish(jobs)
    check(tmp_path / "model.ply.cameras.json", cameras_of(trained), trained.scene)


def test_a_refined_camera_follows_its_model_into_another_frame(trained: Trainer) -> None:
    scene, model = trained.scene, model_in(trained)
    away = np.diag([3.0, 3.0, 3.0, 1.0]) @ scene.transform
    away[:3, 3] += 5.0
    there = model.in_frame(away)
    step = away @ np.linalg.inv(scene.transform)
    for index in scene.train_indices:
        name, camera = scene.views[index].name, scene.views[index].camera
        expected = refined_camera(model, name, camera).transformed(step)
        found = refined_camera(there, name, camera.transformed(step))
        np.testing.assert_allclose(found.viewmat, expected.viewmat, atol=1e-9)


def test_without_poses_the_cameras_stay_as_read(blob_scene: Scene, tmp_path: Path) -> None:
    trainer = Trainer(blob_scene, TrainConfig(steps=3))
    trainer.train_step()
    trainer.close()
    assert not trainer.poses and not any(moved(trainer))
    model = load_model(trainer.save(tmp_path))
    camera = blob_scene.views[3].camera
    assert refined_camera(model, blob_scene.views[3].name, camera) is camera
