"""A model as the start of a training: in the scene's frame, of the right degree, recorded, and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from blob_models import blobs
from command_line import CommandLine
from rank_pool import RankPool
from scipy.spatial.transform import Rotation
from sharded_training_tasks import start_note

from splatstudio import api
from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.evaluation.evaluate import evaluate, pixels_of, target_of
from splatstudio.formats import write_gaussians
from splatstudio.formats.ply import write_ply, write_point_cloud
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.gui.state.project import open_project
from splatstudio.models.model import load_model
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.data import train_views
from splatstudio.training.starting_model import gaussians_to_start_from, note_on_start, with_sh_degree
from splatstudio.training.trainer import Trainer

DEMO = Path(__file__).parents[2] / "assets" / "demo"
STILL = DensifyConfig(enabled=False)


def started(scene: Scene, init: Path, **settings: object) -> tuple[TrainConfig, Gaussians]:
    config = replace(TrainConfig(steps=9, init=str(init), densify=STILL), **settings)  # type: ignore[arg-type]
    trainer = Trainer(scene, config)
    try:
        return trainer.config, trainer.gaussians.map(torch.clone)
    finally:
        trainer.close()


def with_harmonics(degree: int) -> Gaussians:
    shN = torch.randn(60, (degree + 1) ** 2 - 1, 3, generator=torch.Generator().manual_seed(5)) * 0.1
    return replace(blobs(), shN=shN)


@pytest.mark.parametrize("ending", [".ply", ".spz", ".pt"])
def test_a_file_is_moved_into_the_scene_s_frame(tmp_path: Path, blob_scene: Scene, ending: str) -> None:
    # The photos show `blobs` in the coordinates of the scene's files, which are not its frame.
    assert not np.allclose(blob_scene.transform, np.eye(4), atol=0.1)
    write_gaussians(tmp_path / f"a{ending}", blobs())
    _, gaussians = started(blob_scene, tmp_path / f"a{ending}")
    assert evaluate(gaussians, blob_scene).psnr > 35.0
    write_gaussians(tmp_path / f"b{ending}", transformed(blobs(), blob_scene.transform))
    _, misplaced = started(blob_scene, tmp_path / f"b{ending}")
    assert evaluate(misplaced, blob_scene).psnr < 20.0


def test_plain_points_are_shown_and_trained_from(tmp_path: Path, blob_scene: Scene) -> None:
    file = tmp_path / "my points.ply"
    write_point_cloud(file, blobs())
    shown = load_model(file)
    assert torch.allclose(shown.gaussians.means, blobs().means, atol=1e-5)
    assert torch.allclose(shown.gaussians.sh0, blobs().sh0, atol=0.02), "they keep their colors"
    assert f"--init '{file}'" in shown.notes[0] and "points, not splats" in shown.notes[0]
    config, gaussians = started(blob_scene, file, init_opacity=0.25)
    assert config.init == str(file) and len(gaussians) == len(blobs())
    assert torch.allclose(gaussians.opacities.sigmoid(), torch.tensor(0.25)), "as other first splats"
    in_scene = transformed(blobs(), blob_scene.transform)
    assert torch.allclose(gaussians.means, in_scene.means, atol=1e-4)


def test_a_file_of_splats_that_lacks_a_property_is_not_taken_for_points(tmp_path: Path) -> None:
    file = tmp_path / "a.ply"
    write_ply(file, blobs())
    file.write_bytes(file.read_bytes().replace(b"property float opacity", b"property float opaque_"))
    with pytest.raises(ValueError, match="opacity"):
        load_model(file)
    file.write_bytes(
        b"ply\nformat ascii 1.0\nelement vertex 1\n"
        b"property float x\nproperty float y\nproperty float z\nend_header\nnan 0 0\n"
    )
    with pytest.raises(ValueError, match=r"a\.ply holds no splats, and no points"):
        load_model(file)


def test_training_goes_on_from_it(tmp_path: Path, blob_scene: Scene) -> None:
    write_gaussians(tmp_path / "a.ply", with_harmonics(3))
    config = TrainConfig(steps=9, init=str(tmp_path / "a.ply"), densify=STILL)
    straight = Trainer(blob_scene, config)
    first = straight.train_step()
    assert first.step == 1 and first.sh_degree == 3  # what depends on the view counts from the first step on
    saved = straight.save(tmp_path / "run")
    losses = [straight.train_step().loss for _ in range(3)]
    (tmp_path / "a.ply").unlink()  # a checkpoint holds all that is needed
    again = Trainer.resume(blob_scene, saved)
    assert [again.train_step().loss for _ in range(3)] == losses
    for trainer in (straight, again):
        trainer.close()
    assert load_checkpoint(saved).config.init == str(tmp_path / "a.ply")
    with pytest.raises(ValueError, match="init cannot be changed"):
        Trainer.resume(blob_scene, saved, init="")


def test_a_checkpoint_starts_another_training(tmp_path: Path, blob_scene: Scene) -> None:
    first = Trainer(blob_scene, TrainConfig(steps=5, densify=STILL))
    for _ in range(5):
        first.train_step()
    first.save(tmp_path / "run")
    first.close()
    _, gaussians = started(blob_scene, tmp_path / "run")
    for name, tensor in gaussians.tensors().items():
        torch.testing.assert_close(tensor, first.gaussians.tensors()[name])


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_the_degree_is_the_training_s(tmp_path: Path, blob_scene: Scene, degree: int) -> None:
    model = with_harmonics(2)
    write_gaussians(tmp_path / "a.ply", transformed(model, np.linalg.inv(blob_scene.transform)))
    _, gaussians = started(blob_scene, tmp_path / "a.ply", sh_degree=degree)
    num, kept = (degree + 1) ** 2 - 1, min(8, (degree + 1) ** 2 - 1)
    assert gaussians.shN.shape[1] == num
    torch.testing.assert_close(gaussians.shN[:, :kept], model.shN[:, :kept], atol=1e-5, rtol=1e-5)
    assert not gaussians.shN[:, kept:].any()
    assert with_sh_degree(gaussians, degree).shN.equal(gaussians.shN)


def test_a_model_of_another_scene_is_refused(tmp_path: Path, blob_scene: Scene) -> None:
    away = replace(blobs(), means=blobs().means + torch.tensor([0.0, 0.0, 500.0]))
    write_gaussians(tmp_path / "away.ply", away)
    with pytest.raises(ValueError, match=r"away\.ply does not belong to .*blobs: no photo's camera"):
        started(blob_scene, tmp_path / "away.ply")
    with pytest.raises(ValueError, match="no model to start from at"):
        started(blob_scene, tmp_path / "missing.ply")
    (tmp_path / "bad.ply").write_bytes((tmp_path / "away.ply").read_bytes()[:700])
    with pytest.raises(ValueError, match=r"bad\.ply is (cut off|damaged)"):
        started(blob_scene, tmp_path / "bad.ply")


TURNED = np.diag([1.0, -1.0, -1.0, 1.0])
LYING = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def trained() -> tuple[Scene, api.Model]:
    """Return the bundled scene and a model of it."""
    scene = api.load_scene(DEMO, downscale=8)
    return scene, api.train(scene, steps=150, sh_degree=0)


@pytest.mark.parametrize("kept", [1, 20], ids=["all splats", "few splats"])
def test_a_model_in_other_coordinates_is_told(trained: tuple[Scene, api.Model], kept: int) -> None:
    scene, model = trained
    config, gaussians = TrainConfig(init="model.ply"), model.gaussians[slice(None, None, kept)]
    assert note_on_start(scene, config, gaussians) is None
    assert note_on_start(replace(scene, points=scene.points[:0]), config, gaussians) is None
    few = replace(config, init="", densify=DensifyConfig(max_gaussians=len(scene.points) - 1))
    crowded = note_on_start(scene, few, gaussians)
    assert crowded is not None and f"more than the {len(scene.points) - 1:,} splats" in crowded
    enough = replace(few, densify=DensifyConfig(max_gaussians=len(scene.points)))
    assert note_on_start(scene, enough, gaussians) is None
    in_files = np.linalg.inv(scene.transform)
    for placed in (TURNED, LYING, in_files, np.diag([0.5, 0.5, 0.5, 1.0])):
        if kept > 1 and placed is TURNED:
            continue  # of so few splats some are near each point
        note = note_on_start(scene, config, transformed(gaussians, placed))
        assert note is not None and "in other coordinates" in note
    assert note_on_start(scene, TrainConfig(), transformed(gaussians, TURNED)) is None


def test_the_share_of_a_rank_is_not_taken_for_the_model(
    trained: tuple[Scene, api.Model], pool: RankPool, tmp_path: Path
) -> None:
    _, model = trained
    along = model.gaussians.means[
        :, 0
    ].argsort()  # so that the first third of the rows is a side of the scene
    replace(model, gaussians=model.gaussians[along]).save(tmp_path / "sorted.ply")
    assert pool.run(3, start_note, DEMO, tmp_path / "sorted.ply") == [None, None, None]
    elsewhere = transformed(model.gaussians, LYING)
    replace(model, gaussians=elsewhere).save(tmp_path / "lying.ply")
    notes = pool.run(3, start_note, DEMO, tmp_path / "lying.ply")
    assert all(note is not None and "in other coordinates" in note for note in notes)


def test_a_model_in_other_coordinates_is_fitted_where_that_is_asked_for(
    trained: tuple[Scene, api.Model], tmp_path: Path
) -> None:
    scene, model = trained
    turn = Rotation.from_rotvec([1.0, 2.0, 0.5]).as_matrix()
    away = np.block([[3.0 * turn, np.array([[5.0], [1.0], [2.0]])], [np.zeros((1, 3)), np.ones((1, 1))]])
    write_gaussians(tmp_path / "a.ply", transformed(model.gaussians, away))
    config = TrainConfig(init=str(tmp_path / "a.ply"), init_fit=True, sh_degree=0)
    gaussians = gaussians_to_start_from(scene, config)
    assert (gaussians.means - model.gaussians.means).norm(dim=1).median() < 0.03
    few = replace(scene, points=scene.points[:20])
    with pytest.raises(ValueError, match=r"cannot be fitted to .* fewer than 30 points or splats"):
        gaussians_to_start_from(few, config)
    angles = np.linspace(0, 6, 200, dtype=np.float32)
    ring = np.stack([5 * np.cos(angles), 5 * np.sin(angles), 0 * angles], axis=1)
    with pytest.raises(
        ValueError, match=r"cannot be fitted to the points .* of another scene; omit --init-fit"
    ):
        gaussians_to_start_from(replace(scene, points=ring), config)


def test_the_command_tells_of_other_coordinates(
    trained: tuple[Scene, api.Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    _, model = trained
    model.save_ply("right.ply")
    write_gaussians("normalized.ply", model.gaussians)
    for name, told in (("right", False), ("normalized", True)):
        options = ("--steps", 1, "--downscale", 8, "--init", f"{name}.ply", "--run", name)
        code, output = command("train", DEMO, *options)
        assert code == 0 and ("in other coordinates" in " ".join(output.split())) == told


def test_the_command_tells_where_a_run_began(
    tmp_path: Path, blob_folder: Path, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    monkeypatch.chdir(tmp_path)
    write_gaussians("model.ply", blobs())
    write_gaussians("away.ply", replace(blobs(), means=blobs().means + 500.0))
    train = partial(command, "train", blob_folder, "--steps", "2")
    code, output = train("--run", "bad", "--init", "away.ply")
    assert code == 2 and "does not belong" in output
    assert not Path("bad").exists()  # the name is free for another try
    assert train("--run", "good", "--init", "model.ply")[0] == 0
    config = json.loads(Path("good/run.json").read_text())["config"]
    assert config["init"] == str(tmp_path / "model.ply")
    assert api.load_model("good").evaluate(api.load_scene(blob_folder)).psnr > 30.0
    assert train("--run", "good", "--resume", "--init", "model.ply", "--steps", "3")[0] == 0
    assert train("--run", "good", "--resume", "--init", "away.ply")[0] == 2


def test_the_studio_trains_from_it(
    tmp_path: Path, blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_gaussians("model.ply", blobs())
    project = open_project(blob_folder, TrainConfig(init="model.ply"), None)
    assert project.training_job().config.init == str(tmp_path / "model.ply")
    with pytest.raises(ValueError, match="no model to start from"):
        open_project(blob_folder, TrainConfig(init="other.ply"), None)


WHITE = (1.0, 1.0, 1.0)


def with_pictures(scene: Path, copy: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """Return a copy of a scene whose photos hold what `change` makes of theirs."""
    shutil.copytree(scene, copy)
    for picture in (copy / "images").iterdir():
        values = cv2.imread(str(picture))
        assert values is not None
        cv2.imwrite(str(picture), change(values))
    return copy


def test_photos_that_are_transparent_in_places_are_told(blob_folder: Path, tmp_path: Path) -> None:
    def cleared(values: np.ndarray) -> np.ndarray:
        alpha = np.full(values.shape[:2], 255, np.uint8)
        alpha[:9] = 0
        return np.dstack([values, alpha])

    folder = with_pictures(blob_folder, tmp_path / "clear", cleared)
    told = Trainer(api.load_scene(folder), TrainConfig(steps=5)).start_note
    assert told is not None and "is transparent in places: transparent pixels become empty space" in told


def test_where_photos_are_transparent_the_model_is_empty_before_every_color(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_out(values: np.ndarray) -> np.ndarray:
        return np.dstack([values, np.where(values.max(axis=2) > 60, 255, 0).astype(np.uint8)])

    scene = api.load_scene(with_pictures(blob_folder, tmp_path / "cut", cut_out))

    def error_over_white() -> float:
        trainer = Trainer(scene, TrainConfig(steps=300))
        for _ in range(300):
            trainer.train_step()
        errors = []
        for index in range(len(scene.views)):
            target, _ = target_of(pixels_of(scene.photo(index), torch.device("cpu")), WHITE)
            drawn = render(trainer.gaussians, scene.cameras[index], RenderOptions(background=WHITE)).rgb
            errors.append(float((drawn - target).abs().mean()))
        trainer.close()
        return float(np.mean(errors))

    found = error_over_white()
    monkeypatch.setattr(train_views, "behind_transparency", lambda *_: (0.0, 0.0, 0.0))
    over_black_alone = error_over_white()
    assert found < 0.9 * over_black_alone, (found, over_black_alone)


def test_photos_that_are_nearly_black_are_told(blob_folder: Path, tmp_path: Path) -> None:
    # 12 bits in a file of 16.
    folder = with_pictures(blob_folder, tmp_path / "dark", lambda values: values.astype(np.uint16) * 16)
    dark = api.load_scene(folder)
    told = Trainer(dark, TrainConfig(steps=5)).start_note
    assert told is not None and told.startswith("The photos are nearly black: the brightest value of view_0")
    first = dark.views[dark.train_indices[0]]
    shutil.copy(blob_folder / "images" / first.name, folder / "images")
    told = Trainer(api.load_scene(folder), TrainConfig(steps=5)).start_note
    assert told is not None and told.startswith("2 of 3 photos that were looked at are nearly black")
    assert Trainer(api.load_scene(blob_folder), TrainConfig(steps=5)).start_note is None
