"""Photos with alpha beside a sky that is learned: where they are transparent they tell nothing of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras

from splatstudio.evaluation.evaluate import target_for
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.sky import Sky
from splatstudio.rendering.mode_pictures import color_table
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.runtime.messages import ViewOptions
from splatstudio.runtime.view_renderer import Painter
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import Photo
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ExposureConfig, SkyConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import CoarseConfig, DensifyConfig
from splatstudio.training.trainer import Trainer

CPU = torch.device("cpu")
BRIGHT = Sky(((0.9, 1.1, 1.3),))  # 0.75 to 0.87


@pytest.fixture(scope="module")
def half_cut_out(blob_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The blobs before a bright sky, of which the left half of each photo is transparent (and black)."""
    folder = tmp_path_factory.mktemp("cut") / "scene"
    shutil.copytree(blob_folder, folder)
    files = sorted((folder / "images").iterdir())
    for file, camera in zip(files, ring_of_cameras(), strict=True):
        with torch.no_grad():
            rgb = render(blobs(), camera, RenderOptions(sky=BRIGHT)).rgb.clamp(0, 1).numpy()
        pixels = np.rint(np.dstack([rgb[..., ::-1], np.ones(rgb.shape[:2])]) * 255.0).astype(np.uint8)
        pixels[:, : camera.width // 2] = 0
        cv2.imwrite(str(file), pixels)
    return load_scene(folder)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    file = tmp_path_factory.mktemp("model") / "blobs.ply"
    write_ply(file, blobs())
    still = DensifyConfig(enabled=False)
    sky = SkyConfig(enabled=True, degree=0, lr=0.05)
    return TrainConfig(steps=80, init=str(file), densify=still, sky=sky)


@pytest.mark.parametrize("beside", ["nothing", "exposures", "small pictures"])
def test_the_sky_is_learned_from_what_is_not_transparent(
    half_cut_out: Scene, truth: TrainConfig, beside: str
) -> None:
    if beside == "exposures":
        truth = replace(truth, exposure=ExposureConfig(enabled=True))
    elif beside == "small pictures":
        truth = replace(truth, coarse=CoarseConfig(first=1.25, until=1.0))
    trainer = Trainer(half_cut_out, truth)
    for _ in range(truth.steps):
        trainer.train_step()
    trainer.close()
    sky = trainer.display_options.sky
    assert sky is not None
    np.testing.assert_allclose(sky.mean_color, BRIGHT.mean_color, atol=0.06)


@pytest.mark.parametrize("before", [None, (0.9, 0.6, 0.7)], ids=["sky", "color"])
def test_nothing_transparent_moves_anything(
    half_cut_out: Scene, truth: TrainConfig, before: tuple[float, float, float] | None
) -> None:
    sky = truth.sky if before is None else replace(truth.sky, enabled=False)
    config = replace(truth, exposure=ExposureConfig(enabled=True), sky=sky)
    trainer = Trainer(half_cut_out, config)
    empty = trainer.parts.corrections
    if before is None:
        empty._tables["sky"].values.fill_(0.4)
    empty._tables["exposure"].values += 0.1 * torch.rand_like(empty._tables["exposure"].values)
    index, camera = half_cut_out.train_indices[0], half_cut_out.cameras[half_cut_out.train_indices[0]]
    nothing = np.zeros((camera.height, camera.width), np.uint8)
    photo = Photo(np.zeros((*nothing.shape, 3), np.uint8), alpha=nothing)
    behind = before or (0.0, 0.0, 0.0)
    shot = trainer.parts.views.of_photo(index, photo, behind, config, 1.0)
    with torch.no_grad():
        trainer.gaussians.means[:] += 500.0  # out of sight
    leaves = empty.begin([index])
    drawn = render(trainer.gaussians, camera, RenderOptions(background=behind))
    shown = empty.shown(shot, drawn)  # type: ignore[arg-type] - has what is used of a RenderOutput
    assert torch.equal(shown.detach(), shot.target) and float(shown.detach().min()) > 0.5
    gradients = torch.autograd.grad((shown * torch.rand_like(shown)).sum(), leaves)
    if before is None:
        assert not gradients[list(empty._leaves).index("sky")].any()
    trainer.close()


def test_a_photo_is_compared_before_the_sky(blob_scene: Scene) -> None:
    camera = blob_scene.cameras[0]
    size = (camera.height, camera.width)
    alpha = np.zeros(size, np.uint8)
    alpha[:10] = 255
    photo = Photo(np.full((*size, 3), 51, np.uint8), alpha=alpha)
    target, _ = target_for(photo, camera, RenderOptions(sky=BRIGHT, background=(1.0, 0.0, 0.0)), CPU)
    np.testing.assert_allclose(target[:10], 0.2, atol=1e-6)
    expected = np.broadcast_to(BRIGHT.mean_color, (size[0] - 10, size[1], 3))
    np.testing.assert_allclose(target[10:], expected, atol=1e-5)
    plain, _ = target_for(photo, camera, RenderOptions(background=(1.0, 0.0, 0.0)), CPU)
    np.testing.assert_allclose(plain[20, 20], [1.0, 0.0, 0.0], atol=1e-6)


def test_the_shown_error_follows_the_sky_where_a_photo_is_transparent(half_cut_out: Scene) -> None:
    painter, wanted = Painter(), ViewOptions(mode="error", photo=3)
    camera, gaussians = half_cut_out.cameras[3], blobs()

    gaussians.means[:] += 500.0  # out of sight
    for sky in (BRIGHT, Sky(((-0.5, -0.5, 0.2),))):
        painted = painter.paint(gaussians, camera, RenderOptions(sky=sky), wanted, half_cut_out)
        assert painted.notice is None
        none = (painted.picture.image == color_table("turbo")[0].numpy()).all(axis=-1)
        assert none[:, : camera.width // 2].all() and not none[:, camera.width // 2 :].all()
