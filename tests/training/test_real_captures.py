"""The options for real captures beside each other, and beside photos that tell less than all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras
from corrected_scenes import repainted

from splatstudio.cli.export import export_model
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.sky import _rays, viewing_directions
from splatstudio.models.model import load_model
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ExposureConfig, PoseConfig, SkyConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

CPU = torch.device("cpu")
UNDER_A_SKY = TrainConfig(steps=20, sh_degree=1, sky=SkyConfig(enabled=True, lr=0.05))


def test_random_backgrounds_cannot_be_switched_on_beside_a_sky(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, UNDER_A_SKY)
    with pytest.raises(ValueError, match=r"switch sky\.enabled or random_background off"):
        trainer.update_setting("random_background", True)
    assert not trainer.config.random_background
    trainer.close()


def test_a_sky_wins_over_random_backgrounds_of_an_older_training(blob_scene: Scene, tmp_path: Path) -> None:
    straight = Trainer(blob_scene, UNDER_A_SKY)
    straight.train_step()
    both = replace(straight.config, random_background=True)
    plain = straight.save(tmp_path / "plain")
    straight.config = both  # as a training had it that was not refused this
    trainers = [Trainer.resume(blob_scene, plain), Trainer.resume(blob_scene, straight.save(tmp_path))]
    assert trainers[1].config == both
    for trainer in (straight, *trainers):
        for _ in range(4):
            trainer.train_step()
        trainer.close()
    for trainer in trainers:
        assert torch.equal(trainer.gaussians.means, straight.gaussians.means)
    with pytest.raises(ValueError, match="a sky cannot be learned over random backgrounds"):
        Trainer.resume(blob_scene, plain, random_background=True)


def test_rates_of_corrections_fall_and_cameras_wait_for_their_start(blob_scene: Scene) -> None:
    exposure = ExposureConfig(enabled=True, lr_decay=1e-6)
    poses = PoseConfig(enabled=True, start_step=7, lr_decay=1e-6)
    trainer = Trainer(blob_scene, TrainConfig(steps=12, exposure=exposure, poses=poses))
    tables = [trainer.parts.corrections._tables[name].values for name in ("exposure", "poses")]
    moved: list[list[float]] = []
    for _ in range(12):
        before = [values.clone() for values in tables]
        trainer.train_step()
        moved.append([float((v - b).abs().max()) for v, b in zip(tables, before, strict=True)])
    trainer.close()
    exposed, turned = zip(*moved, strict=True)
    assert exposed[0] > 1000.0 * exposed[11] > 0.0
    assert not any(turned[:7]) and turned[7] > 20.0 * turned[11] > 0.0


def test_an_antialiased_training_learns_and_shows_specks_as_faint_as_they_are(
    blob_folder: Path, tmp_path: Path
) -> None:
    specks = replace(blobs(), scales=blobs().scales - 3.0, opacities=blobs().opacities + 3.0)
    options, cameras = RenderOptions(antialiased=True), ring_of_cameras()

    def drawn(number: int, _: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return render(specks, cameras[number], options).rgb.numpy()

    scene = load_scene(repainted(blob_folder, tmp_path / "scene", drawn))
    write_ply(tmp_path / "specks.ply", specks)
    losses, scores = [], []
    for antialiased in (True, False):
        config = TrainConfig(steps=9, init=str(tmp_path / "specks.ply"), antialiased=antialiased)
        trainer = Trainer(scene, config)
        losses.append(trainer.train_step().loss)
        model = load_model(trainer.save(tmp_path / f"{antialiased}"))
        trainer.close()
        assert model.options == trainer.display_options
        scores.append(evaluate(model.gaussians, scene, options=model.options).psnr)
        exported = tmp_path / f"{antialiased}.ply"
        assert export_model(tmp_path / f"{antialiased}", exported).note is None
        assert load_model(exported).options.antialiased == antialiased
    # But for what 8 bits of a photo round.
    assert losses[0] < 0.1 * losses[1] and scores[0] > scores[1] + 5.0


def test_cameras_that_differ_in_where_they_stand_share_their_rays(blob_scene: Scene) -> None:
    _rays.cache_clear()
    first, second = blob_scene.cameras[:2]
    found = [viewing_directions(camera, CPU) for camera in (first, second, first)]
    assert _rays.cache_info().misses == 1
    assert torch.equal(found[0], found[2]) and not torch.allclose(found[0], found[1], atol=0.1)
    for camera, directions in zip((first, second), found, strict=False):
        middle = directions.reshape(3, camera.height, camera.width).mean(dim=(1, 2)).numpy()
        np.testing.assert_allclose(middle / np.linalg.norm(middle), camera.viewmat[2, :3], atol=1e-3)
    wider = replace(first, K=first.K * np.array([[0.5], [0.5], [1.0]]))
    assert not torch.allclose(viewing_directions(wider, CPU), found[0], atol=0.1)
    assert _rays.cache_info().misses == 2
