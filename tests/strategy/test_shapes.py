"""Shapes stay in their limits, and what too few photos show is removed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras

from splatstudio.cameras.camera import Camera
from splatstudio.distributed.ranks import ALONE
from splatstudio.gaussians.gaussians import Gaussians, concatenated
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ShapeConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.presets import PRESETS
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.strategy.population import Population, trainable
from splatstudio.strategy.shapes import ShapeLimits, limit_shapes, remove_unseen, views_showing
from splatstudio.training.trainer import Trainer

OPTIONS = RenderOptions(sh_degree=0)


def one(mean: np.ndarray, size: float, opacity: float = 4.0) -> Gaussians:
    """Return one round Gaussian."""
    template = blobs(num=1)
    return replace(
        template,
        means=torch.tensor(mean, dtype=torch.float32)[None],
        scales=torch.full((1, 3), float(np.log(size))),
        opacities=torch.full((1,), opacity),
    )


def at_least(min_views: int) -> ShapeLimits:
    """Return limits that remove what fewer photos show."""
    return ShapeLimits(ShapeConfig(min_views=min_views), 1.0, OPTIONS)


def before(camera: Camera, distance: float) -> np.ndarray:
    """Return the place in the middle of a camera's picture, so far away."""
    return camera.position + distance * camera.viewmat[2, :3]


def test_no_gaussian_is_larger_or_longer_than_the_limits() -> None:
    gaussians = blobs()
    gaussians.scales[0] = torch.tensor([9.0, 2.0, 2.0]).log()
    gaussians.scales[1] = torch.tensor([0.5, 0.001, 0.01]).log()
    gaussians.scales[2] = torch.tensor([0.5, 0.4, 0.0001]).log()  # a disc
    kept = gaussians.scales.clone()
    limit_shapes(gaussians, ShapeConfig(max_scale=1.5, max_ratio=10.0), extent=2.0)
    torch.testing.assert_close(gaussians.scales[0].exp(), torch.tensor([3.0, 2.0, 2.0]))
    torch.testing.assert_close(gaussians.scales[1].exp(), torch.tensor([0.1, 0.001, 0.01]))
    assert torch.equal(gaussians.scales[2:], kept[2:])


def test_splats_become_discs_of_the_thickness_that_is_allowed() -> None:
    gaussians = blobs()
    gaussians.scales[0] = torch.tensor([9.0, 2.0, 1.0]).log()
    gaussians.scales[1] = torch.tensor([0.5, 0.5, 0.5]).log()
    gaussians.scales[2] = torch.tensor([0.01, 0.4, 0.5]).log()  # thin enough
    kept = gaussians.scales.clone()
    limit_shapes(gaussians, ShapeConfig(max_thickness=0.1), extent=1.0)
    torch.testing.assert_close(gaussians.scales[0].exp(), torch.tensor([9.0, 2.0, 0.2]))
    torch.testing.assert_close(gaussians.scales[1].exp().sort().values, torch.tensor([0.05, 0.5, 0.5]))
    assert torch.equal(gaussians.scales[2], kept[2])


def test_a_training_with_the_preset_surface_is_one_of_discs(blob_scene: Scene) -> None:
    config = PRESETS["surface"].apply(TrainConfig(steps=20))
    trainer = Trainer(blob_scene, config)
    for _ in range(20):
        trainer.train_step()
    scales = trainer.gaussians.scales.detach().exp().sort(dim=1).values
    assert float((scales[:, 0] / scales[:, 1]).max()) <= config.shapes.max_thickness * 1.001
    trainer.close()


def test_a_ratio_that_would_flatten_everything_is_refused_also_while_training(blob_scene: Scene) -> None:
    sentence = r"setting shapes\.max_ratio is 0\.5, but must be 0, which is off, or at least 1"
    with pytest.raises(ValueError, match=sentence):
        Trainer(blob_scene, TrainConfig(shapes=ShapeConfig(max_ratio=0.5)))
    trainer = Trainer(blob_scene, TrainConfig())
    with pytest.raises(ValueError, match=sentence):
        trainer.update_setting("shapes.max_ratio", 0.5)
    for value in (0.0, 1.0, 7.0):
        trainer.update_setting("shapes.max_ratio", value)
    with pytest.raises(ValueError, match="must be at least 0"):
        trainer.update_setting("shapes.max_ratio", float("nan"))
    trainer.close()


def test_without_limits_nothing_changes() -> None:
    gaussians = blobs()
    kept = gaussians.scales.clone()
    limit_shapes(gaussians, ShapeConfig(), extent=1.0)
    assert torch.equal(gaussians.scales, kept)


def test_what_is_hidden_or_out_of_sight_is_shown_by_nobody() -> None:
    cameras = ring_of_cameras()
    wall = one(before(cameras[0], 0.5), 0.3, opacity=9.0)
    hidden = one(before(cameras[0], 1.0), 0.05)
    nowhere = one(np.array([0.0, 0.0, 50.0]), 0.05)
    gaussians = concatenated([wall, hidden, nowhere])
    assert views_showing(ALONE, gaussians, cameras[:1], OPTIONS).tolist() == [1, 0, 0]
    assert views_showing(ALONE, gaussians, cameras, OPTIONS)[2] == 0


def test_the_middle_of_a_ring_is_shown_by_every_camera() -> None:
    assert views_showing(ALONE, one(np.zeros(3), 0.1), ring_of_cameras(), OPTIONS).tolist() == [9]


def test_what_floats_before_one_camera_is_removed_with_its_moments() -> None:
    cameras = ring_of_cameras()[3:6]  # the others see the floater from across the ring
    floater = one(before(cameras[1], 0.3), 0.02)
    gaussians = trainable(concatenated([one(np.zeros(3), 0.3), floater, one(np.array([0.1, 0.2, 0.1]), 0.3)]))
    optimizer = SplatAdam.zeros(gaussians)
    optimizer.exp_avg.means[:] = torch.arange(3.0)[:, None]
    population = Population(gaussians, optimizer, {"visible": torch.arange(3.0)})
    assert remove_unseen(population, cameras, at_least(2)) == 1
    assert len(population) == 2 and population.counts["visible"].tolist() == [0.0, 2.0]
    assert population.optimizer.exp_avg.means[:, 0].tolist() == [0.0, 2.0]
    assert remove_unseen(population, cameras, at_least(2)) == 0


def test_the_last_gaussians_are_not_removed() -> None:
    gaussians = trainable(one(np.array([0.0, 0.0, 50.0]), 0.05))
    population = Population(gaussians, SplatAdam.zeros(gaussians), {})
    assert remove_unseen(population, ring_of_cameras(), at_least(1)) == 0


def test_a_training_keeps_the_limits_and_tells_what_it_removed(blob_scene: Scene) -> None:
    still = DensifyConfig(enabled=False)
    shapes = ShapeConfig(max_scale=0.05, max_ratio=3.0, min_views=2, min_views_every=20)
    trainer = Trainer(blob_scene, TrainConfig(steps=100, densify=still, shapes=shapes))
    with torch.no_grad():
        trainer.gaussians.means[7] += 90.0
    changes = [trainer.train_step().change for _ in range(20)]
    trainer.close()
    assert changes[:19] == [None] * 19 and changes[19] is not None and changes[19].pruned >= 1
    scales = trainer.gaussians.scales.exp().sort(dim=1).values
    assert len(scales) == 60 - changes[19].pruned
    assert bool((scales[:, 2] <= 0.05 * 1.1 * blob_scene.extent * 1.001).all())
    assert bool((scales[:, 2] <= 3.001 * scales[:, 1]).all())


@pytest.mark.parametrize(
    ("weighed", "tensor"),
    [(ShapeConfig(opacity_weight=5.0), "opacities"), (ShapeConfig(scale_weight=5.0), "scales")],
)
def test_a_weight_on_opacity_or_size_lowers_it(blob_scene: Scene, weighed: ShapeConfig, tensor: str) -> None:
    def mean(shapes: ShapeConfig) -> float:
        still = DensifyConfig(enabled=False)
        trainer = Trainer(blob_scene, TrainConfig(steps=60, densify=still, shapes=shapes))
        for _ in range(60):
            trainer.train_step()
        trainer.close()
        return float(getattr(trainer.gaussians, tensor).mean())

    assert mean(weighed) < mean(ShapeConfig()) - 0.1
