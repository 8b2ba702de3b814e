"""What is learned beside the Gaussians: it mends what it is for, repeats, and goes on where it stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras
from corrected_scenes import ALL_ON, repainted
from correction_tasks import corrections_after
from rank_pool import RankPool

from splatstudio.cameras.camera import Camera, CameraModel
from splatstudio.checkpoints.checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint
from splatstudio.checkpoints.manifest import read_manifest
from splatstudio.checkpoints.saver import snapshot
from splatstudio.cli.export import export_model
from splatstudio.corrections.corrections import LearnedRows, exposed, roughness
from splatstudio.corrections.poses import corrected_camera
from splatstudio.distributed.ranks import ALONE
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.sky import Sky, over_sky, viewing_directions
from splatstudio.gaussians.transform import transformed_sky
from splatstudio.kernels.reference import fisheye, pinhole
from splatstudio.models.exporter import page_view
from splatstudio.models.merging import merge
from splatstudio.models.model import load_model
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ExposureConfig, PoseConfig, ShapeConfig, SkyConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.trainer import Trainer


def trained(scene: Scene, config: TrainConfig, num_steps: int | None = None) -> Trainer:
    trainer = Trainer(scene, config)
    for _ in range(config.steps if num_steps is None else num_steps):
        trainer.train_step()
    trainer.close()
    return trainer


def test_psnr(trainer: Trainer, scene: Scene) -> float:
    return evaluate(trainer.gaussians, scene, options=trainer.display_options).psnr


test_psnr.__test__ = False  # type: ignore[attr-defined] - a measure


# Of each photo and channel; the test photos, the first and the last, are in the mean light.
GAINS = np.random.default_rng(4).uniform(0.55, 1.0, (9, 3))
GAINS[[0, 8]] = GAINS[1:8].mean(axis=0)


@pytest.fixture(scope="module")
def uneven(blob_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The blobs in changing light."""
    folder = tmp_path_factory.mktemp("uneven") / "scene"
    return load_scene(repainted(blob_folder, folder, lambda number, rgb: rgb * GAINS[number]))


@pytest.fixture(scope="module")
def from_the_truth(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A training that starts from the blobs themselves, so that nothing but a correction is to be learned."""
    file = tmp_path_factory.mktemp("model") / "blobs.ply"
    write_ply(file, blobs())
    return TrainConfig(steps=300, init=str(file), densify=DensifyConfig(enabled=False))


@pytest.mark.parametrize("grid", [False, True])
def test_exposures_free_the_model_of_changing_light(
    uneven: Scene, from_the_truth: TrainConfig, grid: bool
) -> None:
    exposure = ExposureConfig(enabled=True, grid=grid, grid_size=4, grid_depth=4)
    without = trained(uneven, from_the_truth)
    corrected = trained(uneven, replace(from_the_truth, exposure=exposure))
    assert test_psnr(corrected, uneven) > test_psnr(without, uneven) + 2.0


def test_an_exposure_is_found_and_their_mean_stays_none(uneven: Scene, from_the_truth: TrainConfig) -> None:
    corrected = trained(uneven, replace(from_the_truth, exposure=ExposureConfig(enabled=True, lr=0.03)))
    saved = corrected.checkpoint().corrections
    assert saved is not None
    found = saved.tensors["exposure.values"].diagonal(dim1=1, dim2=2).numpy() + 1.0
    true = GAINS[1:8] / GAINS[1:8].mean(axis=0)
    assert np.abs(found - true).mean() < 0.5 * np.abs(true - 1.0).mean()
    np.testing.assert_allclose(found.mean(axis=0), 1.0, atol=0.02)


def test_depths_between_which_nothing_lies_are_refused(blob_scene: Scene) -> None:
    for near, far in ((5.0, 1.0), (1.0, 1.0)):
        with pytest.raises(ValueError, match=f"nothing lies between near {near:g} and far {far:g}"):
            Trainer(blob_scene, TrainConfig(near=near, far=far))


def test_a_photo_without_a_correction_is_shown_as_it_is() -> None:
    rgb = torch.rand(6, 7, 3)
    assert torch.allclose(exposed(rgb, torch.zeros(3, 4)), rgb, atol=1e-7)
    assert torch.equal(exposed(rgb, torch.zeros(12, 2, 3, 3)), rgb)


def test_a_grid_of_one_map_everywhere_is_that_map() -> None:
    rgb, difference = torch.rand(6, 7, 3), 0.2 * torch.randn(3, 4)
    grid = difference.reshape(12, 1, 1, 1).expand(12, 4, 3, 3).contiguous()
    torch.testing.assert_close(exposed(rgb, grid), exposed(rgb, difference))
    assert float(roughness(grid)) == 0.0


def test_a_grid_tells_left_from_right_and_dark_from_bright() -> None:
    grid = torch.zeros(12, 2, 2, 2)
    grid[3, :, :, 1] = 0.5  # red offset at the right
    grid[11, 1] = 0.25  # blue offset where it is bright
    dark, bright = torch.zeros(2, 2, 3), torch.ones(2, 2, 3)
    changed = exposed(dark, grid)
    assert torch.allclose(changed[:, 0], torch.zeros(2, 3)) and torch.allclose(
        changed[:, 1, 0], torch.full((2,), 0.5)
    )
    assert torch.allclose(exposed(bright, grid)[..., 2], torch.full((2, 2), 1.25))


def test_both_maps_have_the_gradients_that_finite_differences_tell() -> None:
    generator = torch.Generator().manual_seed(2)
    rgb = (0.2 + 0.6 * torch.rand(3, 4, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    affine = torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    grid = torch.randn(12, 3, 2, 2, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(exposed, (rgb, affine))
    assert torch.autograd.gradcheck(exposed, (rgb, grid))


def with_shaken_cameras(scene: Scene) -> Scene:
    random = np.random.default_rng(8)
    views = list(scene.views)
    for index in scene.train_indices:
        shake = random.normal(0.0, 0.012, 6)
        views[index] = replace(views[index], camera=corrected_camera(views[index].camera, shake))
    return replace(scene, views=tuple(views))


def test_poses_find_back_where_the_cameras_stood(blob_scene: Scene, from_the_truth: TrainConfig) -> None:
    shaken = with_shaken_cameras(blob_scene)
    poses = PoseConfig(enabled=True, start_step=0, lr=2e-3)
    without = trained(shaken, from_the_truth)
    refined = trained(shaken, replace(from_the_truth, poses=poses))

    def error(trainer: Trainer) -> float:
        turns = []
        for index in shaken.train_indices:
            found, true = trainer.camera(index), blob_scene.views[index].camera
            between = found.viewmat[:3, :3] @ true.viewmat[:3, :3].T
            turns.append(np.arccos(np.clip((np.trace(between) - 1.0) / 2.0, -1.0, 1.0)))
        return float(np.mean(turns))

    assert error(refined) < 0.6 * error(without)
    assert test_psnr(refined, blob_scene) > test_psnr(without, blob_scene) + 2.0


def test_a_sky_is_learned_and_shown_to_the_test_cameras(blob_scene: Scene, tmp_path: Path) -> None:
    true = Sky(((0.2, 0.5, 1.2), (0.1, 0.0, 0.0), (0.3, 0.6, 0.9), (0.0, 0.4, 0.0)))
    files = load_scene(blob_scene.path)
    options = RenderOptions(sky=true)
    shutil.copytree(blob_scene.path, tmp_path / "scene")
    for view, camera in zip(files.views, ring_of_cameras(), strict=True):
        with torch.no_grad():
            rgb = render(blobs(), camera, options).rgb.clamp(0, 1).numpy()
        file = tmp_path / "scene" / "images" / view.name
        cv2.imwrite(str(file), np.rint(rgb[..., ::-1] * 255.0).astype(np.uint8))
    scene, plain = load_scene(tmp_path / "scene"), TrainConfig(steps=300)
    sky = replace(plain, sky=SkyConfig(enabled=True, degree=1, lr=0.02))
    best = replace(plain, background=true.mean_color)  # of what needs no sky
    assert test_psnr(trained(scene, sky), scene) > test_psnr(trained(scene, best), scene) + 1.0


@pytest.mark.parametrize("model", ["pinhole", "fisheye"])
def test_a_pixel_looks_where_a_point_there_would_be_drawn(blob_scene: Scene, model: CameraModel) -> None:
    camera = replace(blob_scene.views[3].camera, model=model)
    directions = viewing_directions(camera, torch.device("cpu")).double().T
    points = directions @ torch.as_tensor(camera.viewmat[:3, :3]).T  # in the camera's axes
    pixels = (pinhole if model == "pinhole" else fisheye)(points, camera)[0].numpy()
    y, x = np.mgrid[: camera.height, : camera.width]
    np.testing.assert_allclose(pixels, np.stack([x, y], -1).reshape(-1, 2) + 0.5, atol=1e-3)


def test_a_sky_turns_with_the_world(blob_scene: Scene) -> None:
    similarity = np.diag([2.0, 2.0, 2.0, 1.0])
    similarity[:3, :3] = 2.0 * cv2.Rodrigues(np.array([0.3, -0.8, 0.4]))[0]
    camera = blob_scene.views[2].camera
    sky = Sky(tuple(tuple(row) for row in np.random.default_rng(1).normal(0, 0.2, (9, 3)).tolist()))
    black = torch.zeros(camera.height, camera.width, 3, dtype=torch.float64)
    here = sky.over(black, black[..., 0], camera)
    there = transformed_sky(sky, similarity).over(black, black[..., 0], camera.transformed(similarity))
    torch.testing.assert_close(here, there, rtol=0.0, atol=1e-5)


def test_a_sky_has_the_gradients_that_finite_differences_tell(blob_scene: Scene) -> None:
    small: Camera = blob_scene.views[0].camera.resized(4, 3)
    generator = torch.Generator().manual_seed(3)
    rgb = torch.rand(3, 4, 3, generator=generator, dtype=torch.float64).requires_grad_()
    alpha = torch.rand(3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    sky = (0.1 * torch.randn(9, 3, generator=generator, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b, c: over_sky(a, b, c, small), (rgb, alpha, sky))


def test_a_sky_before_random_backgrounds_is_refused(blob_scene: Scene) -> None:
    with pytest.raises(ValueError, match=r"switch sky\.enabled or random_background off"):
        Trainer(blob_scene, replace(ALL_ON, random_background=True))


def test_a_step_moves_the_rows_that_it_learned_from_and_no_other() -> None:
    rows = LearnedRows.starting_at(torch.zeros(4, 2))
    rows.step([2, 0], torch.tensor([[1.0, -1.0], [0.0, 5.0]]), 0.1)
    expected = torch.tensor([[0.0, -0.1], [0.0, 0.0], [-0.1, 0.1], [0.0, 0.0]])
    torch.testing.assert_close(rows.values, expected)
    assert rows.num_steps.tolist() == [1, 0, 1, 0]
    assert not rows.exp_avg[[1, 3]].any() and not rows.exp_avg_sq[[1, 3]].any()


@pytest.mark.parametrize("how", ["one file", "three shards", "merged", "copied"])
def test_a_break_changes_nothing(uneven: Scene, tmp_path: Path, how: str) -> None:
    straight = Trainer(uneven, ALL_ON)
    for _ in range(11):
        straight.train_step()
    checkpoint = straight.checkpoint()
    if how == "copied":
        checkpoint = snapshot(checkpoint)
        for _ in range(3):
            straight.train_step()
    folder = save_checkpoint(tmp_path, checkpoint, num_shards=3 if how == "three shards" else 1)
    if how == "merged":
        merge(folder, tmp_path / "merged")
        folder = tmp_path / "merged"
    resumed = Trainer.resume(uneven, folder)
    for trainer in (straight, resumed):
        while trainer.step < 30:
            trainer.train_step()
        trainer.close()
    one, two = straight.checkpoint(), resumed.checkpoint()
    for name, tensor in one.gaussians.tensors().items():
        assert torch.equal(tensor, two.gaussians.tensors()[name]), name
    assert one.corrections is not None and two.corrections is not None
    assert one.corrections.tensors.keys() == two.corrections.tensors.keys()
    for name, tensor in one.corrections.tensors.items():
        assert torch.equal(tensor, two.corrections.tensors[name]), name
        assert tensor.any(), f"{name} has learned nothing"


def test_a_training_without_corrections_keeps_nothing_of_them(blob_scene: Scene, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, trained(blob_scene, TrainConfig(steps=3)).checkpoint())
    assert "corrections" not in read_manifest(folder) and not list(folder.glob("corrections*"))
    assert load_checkpoint(folder).corrections is None


def test_a_model_from_the_disk_has_its_sky(uneven: Scene, tmp_path: Path) -> None:
    trainer = trained(uneven, ALL_ON, 12)
    folder = save_checkpoint(tmp_path, trainer.checkpoint())
    assert load_model(folder).options.sky == trainer.display_options.sky is not None


def test_damage_of_the_corrections_is_found(uneven: Scene, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, trained(uneven, ALL_ON, 2).checkpoint())
    file = folder / "corrections.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"corrections\.safetensors is damaged: its SHA-256"):
        verify_checkpoint(folder)
    file.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"corrections\.safetensors is damaged: it has"):
        verify_checkpoint(folder, content=False)
    file.unlink()
    with pytest.raises(ValueError, match=r"corrections\.safetensors cannot be read: it is missing"):
        load_checkpoint(folder)


def test_other_photos_start_without_corrections(uneven: Scene, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, trained(uneven, ALL_ON, 20).checkpoint())
    views = list(uneven.views)
    views[3] = replace(views[3], name="view_03b.png")
    resumed = Trainer.resume(replace(uneven, views=tuple(views)), folder)
    resumed.close()
    saved = resumed.checkpoint().corrections
    assert saved is not None and saved.photos[2] == "view_03b.png"
    learned = saved.tensors["exposure.values"].flatten(1).any(dim=1)
    assert learned.tolist() == [index != 2 for index in range(len(saved.photos))]


def test_an_exported_file_is_told_to_have_no_sky_and_a_page_has_its_mean(
    uneven: Scene, tmp_path: Path
) -> None:
    folder = save_checkpoint(tmp_path, trained(uneven, ALL_ON, 12).checkpoint())
    note = export_model(folder, tmp_path / "model.ply").note
    assert note is not None and "has learned a sky, which no file of splats holds" in note
    model = load_model(folder)
    assert model.options.sky is not None
    assert page_view(model, model.transform).background == model.options.sky.mean_color
    plain = save_checkpoint(tmp_path / "plain", trained(uneven, TrainConfig(steps=2)).checkpoint())
    assert export_model(plain, tmp_path / "plain.ply").note is None


def test_the_mean_of_a_sky_is_that_of_all_directions() -> None:
    sky = Sky(((0.3, -0.2, 0.5), (0.1, 0.0, 0.2), (0.0, 0.1, 0.0), (0.2, 0.0, 0.1)))
    K = np.array([[16 / np.pi, 0, 16], [0, 16 / np.pi, 16], [0, 0, 1]])
    halves = []
    for turn in (1.0, -1.0):  # two fisheye cameras back to back see everything
        viewmat = np.diag([1.0, turn, turn, 1.0])
        camera = Camera(viewmat, K, 32, 32, model="fisheye")
        x, y = np.meshgrid(np.arange(32) - 15.5, np.arange(32) - 15.5)
        angle = np.hypot(x, y) * np.pi / 16
        area = torch.as_tensor(np.where(angle < np.pi / 2, np.sinc(angle / np.pi), 0.0))[..., None]
        black = torch.zeros(32, 32, 3, dtype=torch.float64)
        halves.append(((sky.over(black, black[..., 0], camera) * area).sum((0, 1)), area.sum()))
    mean = (halves[0][0] + halves[1][0]) / (halves[0][1] + halves[1][1])
    np.testing.assert_allclose(mean.numpy(), sky.mean_color, atol=0.01)


CONFIG = TrainConfig(
    steps=100,
    sh_degree=1,
    sh_degree_every=3,
    densify=DensifyConfig(enabled=False),
    exposure=ExposureConfig(enabled=True),
    poses=PoseConfig(enabled=True, start_step=2),
    sky=SkyConfig(enabled=True, degree=1),
    shapes=ShapeConfig(min_views=1, min_views_every=4),
)
NUM_STEPS = 8


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_learn_what_one_process_learns_of_the_same_batch(
    blob_folder: Path, tmp_path: Path, pool: RankPool, num_ranks: int
) -> None:
    alone = corrections_after(
        ALONE, blob_folder, replace(CONFIG, batch_size=num_ranks), NUM_STEPS, tmp_path / "alone"
    )
    found = pool.run(num_ranks, corrections_after, blob_folder, CONFIG, NUM_STEPS, tmp_path / "ranks")
    first = found[0]
    assert set(first[0]) == set(alone[0])
    for name, tensor in first[0].items():
        for other in found[1:]:
            assert torch.equal(tensor, other[0][name]), name
        assert tensor.any(), f"{name} has learned nothing"
        if name.endswith((".values", ".exp_avg")):
            scale = float(alone[0][name].abs().max())
            torch.testing.assert_close(tensor, alone[0][name], rtol=0.02, atol=0.02 * scale)
    assert first[1] == pytest.approx(alone[1], rel=1e-4)


def test_ranks_save_their_corrections_once_and_a_merged_model_has_them(
    blob_folder: Path, tmp_path: Path, pool: RankPool
) -> None:
    found = pool.run(2, corrections_after, blob_folder, CONFIG, NUM_STEPS, tmp_path / "run")
    folder = Path(found[0][2])
    assert len(list(folder.glob("rank*"))) == 2 and len(list(folder.glob("corrections*"))) == 1
    model = merge(folder, tmp_path / "merged")
    assert model.options.sky is not None
    for place in (folder, tmp_path / "merged"):
        saved = load_checkpoint(place).corrections
        assert saved is not None
        for name, tensor in found[0][0].items():
            assert torch.equal(saved.tensors[name], tensor), name
