"""The sparse points guide the depths: who shows which is read right, and the model comes to lie there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras
from rank_pool import RankPool
from sharded_training_tasks import Plan, train

from splatstudio import api
from splatstudio.cameras.camera import Camera
from splatstudio.kernels import reference_training
from splatstudio.optimization import losses
from splatstudio.optimization.gradients import RenderOutput, TrainView
from splatstudio.optimization.losses import DepthGuide, depth_weight
from splatstudio.rendering.render import render
from splatstudio.scene.colmap import NoVisiblePoints, visible_points
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import DepthConfig
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.settings.presets import PRESETS
from splatstudio.training.trainer import Trainer

SHARED = Path(__file__).parents[3] / "shared" / "scenes"


def test_a_photo_shows_the_points_of_its_observations(tracked: Scene) -> None:
    shown = visible_points(tracked)
    assert shown.keys() == {view.name for view in tracked.views}
    for number, view in enumerate(tracked.views, start=1):
        expected = tracked.points[[number - 1, number]]
        np.testing.assert_allclose(shown[view.name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not SHARED.exists(), reason="the scenes of photos are not here")
def test_binary_and_text_tell_the_same_and_the_points_lie_where_they_are_seen() -> None:
    binary, text = (visible_points(load_scene(SHARED / name)) for name in ("banana", "banana-txt"))
    assert binary.keys() == text.keys() and len(binary) == 14
    for name, points in binary.items():
        np.testing.assert_allclose(points, text[name], atol=1e-9)
    scene = load_scene(SHARED / "banana")
    for view in scene.views:
        seen = binary[view.name] @ view.camera.viewmat[:3, :3].T + view.camera.viewmat[:3, 3]
        pixels = (seen @ view.camera.K.T)[:, :2] / seen[:, 2:]
        inside = (pixels > -1.0) & (pixels < [view.camera.width + 1, view.camera.height + 1])
        assert (seen[:, 2] > 0).all() and inside.all() and len(pixels) > 100


def test_a_scene_that_does_not_tell_is_trained_without_and_who_asked_is_told(
    blob_scene: Scene, tracked: Scene
) -> None:
    preset = PRESETS["mcmc"].apply(TrainConfig())
    asked, camera = changed(preset, "depth.weight", 0.2), blob_scene.views[1].camera
    without = replace(tracked, points=tracked.points[:0], colors=tracked.colors[:0])
    for scene, why in (
        (blob_scene, "have no observations of sparse points."),
        (replace(tracked, format="Blender"), "does not tell which photos show its sparse points"),
        (without, "has no sparse points."),
    ):
        with pytest.raises(NoVisiblePoints):
            visible_points(scene)
        guide = DepthGuide.of(scene, asked.depth)
        assert guide.error(1, camera, *flat(camera, 1.0, 1.0)) is None
        note = guide.note(asked)
        assert (
            note is not None and note.startswith("The depths of sparse points do not guide") and why in note
        )
        assert guide.note(preset) is None, "nobody has asked but the preset"
        assert guide.note(changed(TrainConfig(), "depth.weight", 0.1)) == note, "it is not the preset's"
    for scene, config in ((tracked, asked), (blob_scene, TrainConfig())):
        assert DepthGuide.of(scene, config.depth).note(config) is None
    assert DepthGuide.of(tracked, DepthConfig()).error(1, camera, *flat(camera, 1.0, 1.0)) is None
    assert DepthGuide.of(tracked, asked.depth).error(1, camera, *flat(camera, 1.0, 1.0)) is not None


@pytest.mark.parametrize("damage", ["observations", "points"])
def test_damaged_observations_keep_no_training_from_going_on(
    tracked: Scene, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "scene"
    shutil.copytree(tracked.path, folder)
    config = PRESETS["fast"].apply(TrainConfig(steps=2), {"steps"})
    assert tracked.model_folder is not None
    model = folder / tracked.model_folder.relative_to(tracked.path)
    if damage == "points":
        (model / "points3D.txt").unlink()
    else:
        images = model / "images.txt"
        lines = images.read_text().splitlines()
        second = next(i for i, line in enumerate(lines) if not line.startswith("#")) + 1
        lines[second] = lines[second].rsplit(maxsplit=1)[0] + " many"
        images.write_text("\n".join(lines) + "\n")
    model_of_it = api.train(folder, config=config)
    assert model_of_it.step == 2
    told = [record.getMessage() for record in caplog.records if "do not guide" in record.getMessage()]
    assert len(told) == (damage == "observations") and all("line 2" in sentence for sentence in told)


def flat(camera: Camera, depth: float, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    covered = torch.full((camera.height, camera.width), alpha)
    return covered, covered * depth


def test_a_camera_that_moves_sees_the_points_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_KEPT", 2)
    camera = ring_of_cameras()[0]
    point = camera.position + 2.0 * camera.viewmat[2, :3]
    guide = DepthGuide({3: point[None]}, extent=1.0)
    nearer = camera.viewmat.copy()
    nearer[2, 3] -= 1.0  # a step toward the point
    for _ in range(2):
        for moved, depth in (
            (camera, 2.0),
            (replace(camera, viewmat=nearer), 1.0),
            (camera.resized(8, 6), 2.0),
        ):
            error = guide.error(3, moved, *flat(moved, 4.0, 1.0))
            assert error is not None and float(error) == pytest.approx(1 / depth - 1 / 4, rel=1e-5)


def test_the_error_is_that_of_the_inverse_depth_where_something_is_drawn() -> None:
    camera = ring_of_cameras()[0]
    points = camera.position + np.array([[2.0], [4.0], [-1.0]]) * camera.viewmat[2, :3]
    far = camera.position + camera.viewmat[:3, :3].T @ np.array([9.0, 0.0, 1.0])  # beside the picture
    guide = DepthGuide({3: np.vstack([points, far])}, extent=10.0)
    error = guide.error(3, camera, *flat(camera, 2.5, 0.9))
    assert error is not None
    expected = 10.0 * (abs(1 / 2.5 - 1 / 2.0) + abs(1 / 2.5 - 1 / 4.0)) / 2.0
    assert float(error) == pytest.approx(expected, rel=1e-5)
    assert guide.error(3, camera, *flat(camera, 2.5, 0.4)) == 0.0
    assert guide.error(2, camera, *flat(camera, 2.5, 0.9)) is None


def test_points_on_masked_pixels_say_nothing() -> None:
    camera = ring_of_cameras()[0]
    before = camera.position + 2.0 * camera.viewmat[2, :3]
    beside = before + 0.5 * camera.viewmat[0, :3] + 2.0 * camera.viewmat[2, :3]
    guide = DepthGuide({0: np.stack([before, beside])}, extent=1.0)
    picture, mask = flat(camera, 2.5, 0.9), torch.ones(camera.height, camera.width, dtype=torch.bool)
    both = guide.error(0, camera, *picture, mask)
    assert both is not None and both == guide.error(0, camera, *picture)
    mask[:, camera.width // 2 + 2 :] = False  # where the second one is
    left = guide.error(0, camera, *picture, mask)
    assert left is not None and float(left) == pytest.approx(abs(1 / 2.5 - 1 / 2.0), rel=1e-5)
    assert guide.error(0, camera, *picture, ~mask) != both
    assert guide.error(0, camera, *picture, torch.zeros_like(mask)) == 0.0
    shot = TrainView(0, "0", camera, torch.zeros(1), torch.zeros_like(mask), (0.0, 0.0, 0.0))
    drawing = SimpleNamespace(alpha=picture[0], depth_sum=picture[1])
    config = TrainConfig(depth=DepthConfig(weight=1.0))
    assert guide.penalty(shot, cast(RenderOutput, drawing), config, step=0) == 0.0


def test_however_many_points_a_photo_shows_their_gradients_repeat_bit_for_bit() -> None:
    camera = ring_of_cameras()[0]
    places = np.random.default_rng(1).uniform([-0.5, -0.5, 1.0], [0.5, 0.5, 4.0], (60_000, 3))
    guide = DepthGuide({0: camera.position + places @ camera.viewmat[:3, :3]}, extent=1.0)
    found = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(4):
            maps = [tensor.requires_grad_() for tensor in flat(camera, 2.5, 0.9)]
            error = guide.error(0, camera, *maps)
            assert error is not None
            found.append(torch.autograd.grad(error, maps))
    finally:
        torch.set_num_threads(before)
    assert found[0][0].any()
    for gradients in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(gradients, found[0], strict=True))


def test_a_guide_weighs_what_its_points_say_by_the_extent_of_the_scene() -> None:
    camera = ring_of_cameras()[0].resized(12, 10)
    random = np.random.default_rng(2)
    places = random.uniform([-0.6, -0.6, -0.5], [0.6, 0.6, 4.0], (200, 3))
    points = camera.position + places @ camera.viewmat[:3, :3]
    alpha, depth_sum = flat(camera, 2.5, 0.9)
    errors = [DepthGuide({0: points}, extent).error(0, camera, alpha, depth_sum) for extent in (1.0, 3.0)]
    expected = reference_training.depth_error(alpha, depth_sum, torch.from_numpy(points), camera=camera)
    assert errors[0] is not None and errors[1] is not None and float(expected) > 0
    assert float(errors[0]) == pytest.approx(float(expected), rel=1e-5)
    assert float(errors[1]) == pytest.approx(3.0 * float(expected), rel=1e-5)
    shot = TrainView(0, "0", camera, torch.zeros(1), None, (0.0, 0.0, 0.0))
    drawing = cast(RenderOutput, SimpleNamespace(alpha=alpha, depth_sum=depth_sum))
    config = TrainConfig(depth=DepthConfig(weight=0.5))
    weighted = DepthGuide({0: points}, 1.0).penalty(shot, drawing, config, step=0)
    assert weighted is not None and float(weighted) == pytest.approx(0.5 * float(expected), rel=1e-5)


def test_the_weight_falls_to_its_share_at_the_end() -> None:
    config = DepthConfig(weight=0.5, weight_decay=0.01)
    assert depth_weight(config, step=0, steps=100) == pytest.approx(0.5)
    assert depth_weight(config, step=50, steps=100) == pytest.approx(0.05)
    assert depth_weight(config, step=100, steps=100) == pytest.approx(0.005)
    camera = ring_of_cameras()[0]
    guide = DepthGuide({0: (camera.position + 2.0 * camera.viewmat[2, :3])[None]}, extent=1.0)
    shot = TrainView(0, "0", camera, torch.zeros(1), None, (0.0, 0.0, 0.0))
    alpha, depth_sum = flat(camera, 2.5, 0.9)
    drawing = cast(RenderOutput, SimpleNamespace(alpha=alpha, depth_sum=depth_sum))
    settings = TrainConfig(steps=100, depth=config)
    first, last = (guide.penalty(shot, drawing, settings, step=step) for step in (0, 100))
    assert first is not None and last is not None and 0 < float(last) == pytest.approx(0.01 * float(first))


def test_a_guided_training_draws_the_points_at_their_depths(tracked: Scene) -> None:
    # All photos are told to show all points in front, from a model with noise in its depths.
    truth = {index: tracked.points.astype(np.float64) for index in tracked.train_indices}
    guide = DepthGuide(truth, tracked.extent)

    def error(config: DepthConfig) -> float:
        trainer = Trainer(tracked, TrainConfig(steps=150, depth=config))
        if config.weight > 0:
            trainer.parts.guide = guide
        for _ in range(150):
            trainer.train_step()
        trainer.close()
        errors = []
        for index in tracked.train_indices:
            camera = tracked.views[index].camera
            with torch.no_grad():
                drawn = render(trainer.gaussians, camera)
            found = guide.error(index, camera, drawn.alpha, drawn.depth * drawn.alpha)
            assert found is not None
            errors.append(float(found))
        return float(np.mean(errors))

    assert len(blobs()) == len(tracked.points)
    assert error(DepthConfig(weight=20.0, weight_decay=1.0)) < 0.8 * error(DepthConfig())


def test_ranks_are_guided_as_one_process_is(tracked: Scene, pool: RankPool) -> None:
    settings = {"sh_degree": 0, "densify.enabled": False, "depth.weight": 0.5}
    one = pool.run(1, train, Plan(tracked.path, {**settings, "batch_size": 2}, 6))[0]
    two = pool.run(2, train, Plan(tracked.path, settings, 6))
    assert two[0].losses == two[1].losses == pytest.approx(one.losses, rel=1e-4)
    without = pool.run(2, train, Plan(tracked.path, {**settings, "depth.weight": 0.0}, 6))[0]
    assert all(loss < guided for loss, guided in zip(without.losses[:3], one.losses[:3], strict=True))
