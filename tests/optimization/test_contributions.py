"""What Gaussians contribute to pixels, against the definition; and smaller pictures of a photo."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from blob_models import blobs, ring_of_cameras
from torch import Tensor

from splatstudio.distributed.ranks import ALONE
from splatstudio.gaussians.gaussians import rgb_to_sh0
from splatstudio.optimization.gradients import RenderOutput, TrainView
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import CoarseConfig
from splatstudio.strategy.survey import contributions, survey, views_of_step
from splatstudio.training.data import resolution
from splatstudio.training.data.resolution import SMALLEST_SIDE, divisor_at, reduced, survey_divisor_at
from splatstudio.training.step import StepLoss
from splatstudio.training.trainer import Trainer


def shot_of(index: int = 0) -> TrainView:
    camera = ring_of_cameras()[index]
    return TrainView(index, "0", camera, torch.zeros(camera.height, camera.width, 3), None, (0.0, 0.0, 0.0))


def test_the_sums_of_weights_are_what_each_gaussian_adds_to_the_picture() -> None:
    gaussians, shot = blobs(num=12), shot_of()
    maps = torch.rand(shot.camera.height, shot.camera.width, 3, generator=torch.Generator().manual_seed(3))
    (found,) = contributions(ALONE, gaussians, [shot], RenderOptions(), lambda *_: maps)
    for row in range(len(gaussians)):
        # All black but for one, which is white: the picture is that one's weight in each pixel.
        sh0 = rgb_to_sh0(torch.zeros(len(gaussians), 1, 3))
        sh0[row] = rgb_to_sh0(torch.ones(1, 3))
        lit = replace(gaussians, sh0=sh0, shN=torch.zeros_like(gaussians.shN))
        weights = render(lit, shot.camera).rgb
        torch.testing.assert_close(found[row], (weights * maps).sum(dim=(0, 1)), rtol=1e-3, atol=1e-3)
    assert found.max() > 1.0


def test_several_pictures_are_told_apart_and_what_is_not_seen_adds_nothing() -> None:
    gaussians = blobs(num=12)
    gaussians.means[0] = torch.tensor([0.0, 0.0, 50.0])
    shots = [shot_of(0), shot_of(3)]

    def ones(_: TrainView, rgb: Tensor, alpha: Tensor) -> Tensor:
        return torch.ones_like(rgb)

    together = contributions(ALONE, gaussians, shots, RenderOptions(), ones)
    for shot, found in zip(shots, together, strict=True):
        (alone,) = contributions(ALONE, gaussians, [shot], RenderOptions(), ones)
        assert torch.equal(found, alone) and not found[0].any()
    assert not torch.equal(together[0], together[1])


def test_a_survey_counts_the_errors_and_sums_up_to_the_picture(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, TrainConfig(steps=10))
    population = trainer.parts.population
    views = views_of_step(blob_scene, 42, 5, 3)

    def whole(index: int) -> TrainView:
        return trainer.parts.views.of_photo(
            index, blob_scene.photo(index), (0.0, 0.0, 0.0), trainer.config, 1.0
        )

    full = list(survey(population, blob_scene, views, whole, RenderOptions(), 1.0))
    for view, found in zip(views, full, strict=True):
        picture = render(population.gaussians.detach(), blob_scene.cameras[view])
        assert float(found[:, 2].sum()) == pytest.approx(float(picture.alpha.sum()), rel=1e-3)
        assert (found[:, 0] <= found[:, 2] + 1e-3).all() and found[:, 0].sum() > 0
    small = list(
        survey(population, blob_scene, views, lambda i: reduced(whole(i), 1.25), RenderOptions(), 1.0)
    )
    # Counted in pixels of the photo, whatever is drawn.
    torch.testing.assert_close(small[0][:, 2].sum(), full[0][:, 2].sum(), rtol=0.1, atol=0.0)
    trainer.close()


def test_only_errors_far_above_the_mean_count_and_none_outside_the_mask(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, TrainConfig(steps=10))
    population, index = trainer.parts.population, blob_scene.train_indices[0]
    trainer.close()
    camera = blob_scene.cameras[index]
    drawn = render(population.gaussians.detach(), camera, RenderOptions())
    corner = torch.zeros(camera.height, camera.width, dtype=torch.bool)
    corner[: camera.height // 2, : camera.width // 2] = True
    error = torch.where(corner, 0.3, 0.1)  # 0.15 in the mean
    inside, outside = float(drawn.alpha[corner].sum()), float(drawn.alpha[~corner].sum())

    def sums(error_ratio: float, mask: Tensor | None) -> list[float]:
        shot = TrainView(index, "0", camera, drawn.rgb - error[..., None], mask, (0.0, 0.0, 0.0))
        (found,) = survey(population, blob_scene, [index], lambda _: shot, RenderOptions(), error_ratio)
        return found.sum(dim=0).tolist()

    all_errors = 0.3 * inside + 0.1 * outside
    assert sums(1.9, None) == pytest.approx([inside, all_errors, inside + outside], rel=1e-3)
    assert sums(2.1, None)[0] == 0.0
    # Of what counts: 0.1 everywhere.
    assert sums(0.9, ~corner) == pytest.approx([outside, 0.1 * outside, outside], rel=1e-3)
    assert sums(1.1, ~corner)[0] == 0.0
    assert min(inside, outside) > 1.0


def test_views_of_a_step_are_training_views_that_follow_the_seed_and_the_step(blob_scene: Scene) -> None:
    chosen = views_of_step(blob_scene, 42, 100, 4)
    assert len(set(chosen)) == 4 and set(chosen) <= set(blob_scene.train_indices)
    assert chosen == views_of_step(blob_scene, 42, 100, 4)
    others = [views_of_step(blob_scene, 42, step, 4) for step in range(101, 106)]
    assert any(other != chosen for other in others)
    for num in (99, None):
        assert sorted(views_of_step(blob_scene, 1, 1, num)) == list(blob_scene.train_indices)


def test_the_divisor_falls_to_one() -> None:
    config = TrainConfig(steps=1000, coarse=CoarseConfig(first=4.0, until=0.5))
    assert [divisor_at(step, config) for step in (0, 250, 500, 999)] == [4.0, 2.0, 1.0, 1.0]
    assert divisor_at(0, TrainConfig()) == 1.0


def test_large_photos_are_asked_at_half_their_size(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, camera = TrainConfig(steps=1000, coarse=CoarseConfig(first=8.0, until=0.5)), ring_of_cameras()[0]
    at = [survey_divisor_at(step, config, camera.resized(300, 256)) for step in (0, 250, 500, 999)]
    assert at == pytest.approx([8.0, math.sqrt(8.0), 2.0, 2.0])
    assert survey_divisor_at(999, config, camera.resized(300, 255)) == 1.0
    trainer = Trainer(blob_scene, TrainConfig(steps=10))
    asked, of_photo = [], trainer.parts.views.of_photo

    def noted(*arguments: Any) -> TrainView:
        asked.append(arguments[-1])
        return of_photo(*arguments)

    monkeypatch.setattr(trainer.parts.views, "of_photo", noted)
    assert len(list(trainer.parts.survey(3, 2))) == 2
    monkeypatch.setattr(resolution, "LARGE_SIDE", 40)  # px, of the photos of this scene
    assert len(list(trainer.parts.survey(3, 2))) == 2
    trainer.close()
    assert asked == [1.0, 1.0, 2.0, 2.0]


def test_a_smaller_shot_shows_the_same_in_means() -> None:
    camera = ring_of_cameras()[0].resized(96, 80)
    target = torch.rand(80, 96, 3, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(80, 96, dtype=torch.bool)
    mask[10, 10] = False
    shot = TrainView(0, "0", camera, target, mask, (0.0, 0.0, 0.0))
    half = reduced(shot, 2.0)
    assert (half.camera.width, half.camera.height) == (48, 40) and half.target.shape == (40, 48, 3)
    torch.testing.assert_close(half.target[3, 4], target[6:8, 8:10].mean(dim=(0, 1)))
    assert half.mask is not None and (~half.mask).nonzero().tolist() == [[5, 5]]
    assert half.camera.K[0, 0] == camera.K[0, 0] / 2 and half.camera.K[0, 2] == camera.K[0, 2] / 2
    assert reduced(shot, 1.0) is shot
    tiny = reduced(shot, 1000.0)
    assert min(tiny.camera.width, tiny.camera.height) == SMALLEST_SIDE


@pytest.mark.parametrize("divisor", [5, 10, 11])
def test_a_mask_that_leaves_out_nothing_does_so_at_every_size(divisor: int) -> None:
    size = SMALLEST_SIDE * divisor
    camera = ring_of_cameras()[0].resized(size, size)
    mask = torch.ones(size, size, dtype=torch.bool)
    shot = TrainView(0, "0", camera, torch.rand(size, size, 3), mask, (0.0, 0.0, 0.0))
    # The mean of 121 ones is the last bit below one where they are multiplied by 1 / 121.
    small = reduced(shot, divisor).mask
    assert small is not None and small.shape == (SMALLEST_SIDE, SMALLEST_SIDE) and bool(small.all())


def test_a_training_begins_with_smaller_pictures(blob_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(steps=20, coarse=CoarseConfig(first=1.25, until=0.5))
    trainer = Trainer(blob_scene, config)
    sizes = []
    loss_of = StepLoss.__call__

    def note(self: StepLoss, shot: TrainView, drawing: RenderOutput) -> Tensor:
        sizes.append((shot.camera.width, shot.camera.height))
        return loss_of(self, shot, drawing)

    monkeypatch.setattr(StepLoss, "__call__", note)
    for _ in range(20):
        trainer.train_step()
    trainer.close()
    assert sizes[0] == (38, 32) and sizes[10:] == [(48, 40)] * 10
    assert sorted(sizes) == sizes
