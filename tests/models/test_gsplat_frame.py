"""What gsplat's trainer leaves lies in a frame of its own, which is found from the scene and the splats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import CommandLine
from format_models import close
from format_models import model as trained
from scene_builder import tiny_scene, write_colmap

from splatstudio.cameras.camera import look_at
from splatstudio.formats import FileExtras, write_gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.models.gsplat_frame import frame_of_gsplat, possible_frames
from splatstudio.models.model import load_model
from splatstudio.models.scoring import EvaluationTask, evaluate_task
from splatstudio.runtime.activity import Viewing, WorkerContext
from splatstudio.runtime.messages import ViewJob
from splatstudio.runtime.view_renderer import ShownModel
from splatstudio.scene.colmap import read_model
from splatstudio.scene.colmap_model import ColmapImage, ColmapModel
from splatstudio.scene.load import load_scene

# What gsplat's examples make of `capture`, version of August 2026: `similarity_from_cameras`, then
# `align_principal_axes`, then the half turn for scenes upside down.
OF_GSPLAT = np.array(
    [
        [-0.1268637, 0.017755, -0.0520468, 0.8335868],
        [-0.0196905, -0.1368542, 0.0013097, -0.2722805],
        [-0.0513458, 0.0086135, 0.1280934, -0.1086632],
        [0.0, 0.0, 0.0, 1.0],
    ]
)
SPLATS = 400


def capture() -> ColmapModel:
    i = np.arange(200.0)
    x, z = 5 + 3 * np.sin(1.7 * i), 1 + 0.5 * np.sin(3.1 * i + 2)
    y = -2 + 1.1 * np.sin(2.3 * i + 1) + 0.2 * np.cos(9 * i) ** 2
    z = z + 0.4 * x
    points = np.stack([x, y - 0.3 * z, z], axis=1)
    images = []
    for k in range(7):
        position = np.array([5 + 9 * np.cos(0.7 * k), -2 + 7 * np.sin(0.7 * k), 3 + 0.4 * k])
        pose = look_at(position, np.array([5.0, -2.0, 1 + 0.1 * k]), np.array([0.1, 0.2, 1.0]))
        images.append(ColmapImage(f"{k}.png", 1, pose))
    return ColmapModel({}, images, points, np.zeros((200, 3), np.uint8))


def moved(points: np.ndarray, frame: np.ndarray) -> np.ndarray:
    return points @ frame[:3, :3].T + frame[:3, 3]


def splats_near(points: np.ndarray) -> np.ndarray:
    generator = np.random.default_rng(0)
    return points[generator.integers(len(points), size=SPLATS)] + generator.normal(0, 0.01, (SPLATS, 3))


def test_the_frame_is_that_of_gsplat_whatever_the_signs_of_the_axes() -> None:
    scene = capture()
    frames = possible_frames(np.stack([image.viewmat for image in scene.images]), scene.points)
    np.testing.assert_allclose(min(np.abs(frame - OF_GSPLAT).max() for frame in frames), 0.0, atol=1e-6)
    for frame in frames:
        found = frame_of_gsplat(scene, moved(splats_near(scene.points), frame))
        assert found is not None
        np.testing.assert_array_equal(found, frame)


def test_where_gsplat_mirrors_the_world_nothing_is_turned() -> None:
    scene = capture()
    poses = np.tile(np.diag([-1.0, -1.0, 1.0, 1.0]), (3, 1, 1))  # upright along +y
    poses[:, 0, 3] = [-1.0, 0.0, 1.0]
    assert possible_frames(poses, scene.points) == []
    turned = replace(scene, images=[ColmapImage(str(k), 1, pose) for k, pose in enumerate(poses)])
    assert frame_of_gsplat(turned, moved(splats_near(scene.points), OF_GSPLAT)) is None


@pytest.mark.parametrize("kind", ["one point", "every way", "no photos", "points at one place", "NaN"])
def test_a_scene_that_has_no_such_frame_is_no_error(kind: str) -> None:
    scene, splats = capture(), moved(splats_near(capture().points), OF_GSPLAT)
    poses = [image.viewmat.copy() for image in scene.images]
    if kind == "one point":
        for pose in poses:
            pose[:3, 3] = 0.0
    if kind == "every way":
        poses = [np.diag([1.0, sign, sign, 1.0]) for sign in (1.0, -1.0)]
    images = [ColmapImage(str(k), 1, pose) for k, pose in enumerate(poses)]
    scene = replace(scene, images=[] if kind == "no photos" else images)
    if kind == "points at one place":
        scene = replace(scene, points=np.ones((200, 3)))
    if kind == "NaN":
        scene = replace(scene, points=np.where(np.arange(200)[:, None] == 7, np.nan, scene.points))
    found = frame_of_gsplat(scene, splats)
    assert (found is not None) == (kind == "NaN")


def test_splats_that_lie_at_the_points_already_or_nowhere_near_stay() -> None:
    scene = capture()
    assert frame_of_gsplat(scene, splats_near(scene.points)) is None
    assert frame_of_gsplat(scene, np.random.default_rng(1).normal(size=(500, 3))) is None
    few = replace(scene, points=scene.points[:5], colors=scene.colors[:5])
    assert frame_of_gsplat(few, splats_near(scene.points)) is None
    assert frame_of_gsplat(scene, np.full((50, 3), np.nan)) is None


def test_a_model_of_gsplat_lies_in_the_coordinates_of_its_scene(tmp_path: Path, command: CommandLine) -> None:
    scene = write_colmap(tmp_path / "scene", tiny_scene())
    colmap = read_model(scene / "sparse" / "0")
    splats = trained(SPLATS, 1)
    splats = replace(splats, means=torch.from_numpy(splats_near(colmap.points)).float())
    frame = possible_frames(np.stack([image.viewmat for image in colmap.images]), colmap.points)[2]
    file, own = tmp_path / "results/ckpts/ckpt_6999_rank0.pt", tmp_path / "own.ply"
    file.parent.mkdir(parents=True)
    write_gaussians(file, transformed(splats, frame), FileExtras(step=6999))
    write_gaussians(own, splats)
    # Where nobody says which scene it is of, it stays as it lies; a file elsewhere is brought there as well.
    assert load_model(file).notes == ()
    for named in (None, scene):
        if named is None:
            (tmp_path / "results/cfg.yml").write_text(f"data_dir: {scene}\nnormalize_world_space: true\n")
        else:
            file = file.rename(tmp_path / "ckpt_6999_rank0.pt")
        loaded = load_model(file, scene=named)
        assert "normalized coordinates of gsplat" in loaded.notes[-1]
        close(loaded.in_frame(np.eye(4)).gaussians.means, splats.means, 1e-4)
    assert load_model(own, scene=scene).notes == ()
    scores = [evaluate_task(EvaluationTask(path, scene)).evaluation.psnr for path in (file, own)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    # Beside the scene's own model on the page it lies in that one's frame.
    shown: list[ShownModel] = []
    there = load_scene(scene).transform
    job = ViewJob(file, tuple(map(tuple, there.tolist())), scene)
    Viewing(job, WorkerContext(publish=shown.append)).begin()
    expected = torch.from_numpy(moved(splats.means.double().numpy(), there)).float()
    close(shown[0].gaussians.means, expected, 1e-4)
    code, told = command("export", file, "--scene", scene, "-o", tmp_path / "out.ply")
    assert code == 0 and "gsplat" in told
    close(load_model(tmp_path / "out.ply").gaussians.means, splats.means, 1e-4)
