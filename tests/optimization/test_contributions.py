"""What Gaussians contribute to pixels, against the definition; and smaller pictures of a photo."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
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
from splatstudio.strategy.survey import contributions, survey
from splatstudio.training import step as training_step
from splatstudio.training.data import resolution
from splatstudio.training.data.resolution import SMALLEST_SIDE, divisor_at, reduced, survey_divisor_at
from splatstudio.training.step import StepLoss, asked_photos
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


def test_a_survey_sums_up_to_the_picture_but_for_what_a_mask_leaves_out(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, TrainConfig(steps=10))
    population, views = trainer.parts.population, blob_scene.train_indices[:3]

    def whole(index: int) -> TrainView:
        return trainer.parts.views.of_photo(
            index, blob_scene.photo(index), (0.0, 0.0, 0.0), trainer.config, 1.0
        )

    def upper_half(index: int) -> TrainView:
        view = whole(index)
        mask = torch.zeros(view.camera.height, view.camera.width, dtype=torch.bool)
        mask[: view.camera.height // 2] = True
        return replace(view, mask=mask)

    def found(view_of: Callable[[int], TrainView]) -> list[Tensor]:
        return list(survey(population, blob_scene, views, view_of, RenderOptions()))

    full, masked = found(whole), found(upper_half)
    for number, view in enumerate(views):
        alpha = render(population.gaussians.detach(), blob_scene.cameras[view]).alpha
        assert full[number].shape == (len(population),)
        assert float(full[number].sum()) == pytest.approx(float(alpha.sum()), rel=1e-3)
        above = float(alpha[: len(alpha) // 2].sum())
        assert float(masked[number].sum()) == pytest.approx(above, rel=1e-3) and above < alpha.sum() - 1.0
    # Counted in pixels of the photo, whatever is drawn.
    small = found(lambda index: reduced(whole(index), 1.25))
    torch.testing.assert_close(small[0].sum(), full[0].sum(), rtol=0.1, atol=0.0)
    trainer.close()


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
    num = len(blob_scene.train_indices)
    assert len(list(trainer.parts.survey(3))) == num
    monkeypatch.setattr(resolution, "LARGE_SIDE", 40)  # px, of the photos of this scene
    assert len(list(trainer.parts.survey(3))) == num
    trainer.close()
    assert asked == [1.0] * num + [2.0] * num


def test_of_thousands_of_photos_as_many_are_asked_as_the_steps_allow(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = range(5, 8005, 2)  # 4000
    asked = asked_photos(photos, 20_000)
    assert len(asked) == 2000 and set(asked) <= set(photos)
    assert {later - sooner for sooner, later in pairwise(asked)} == {4}, "all along the capture"
    assert len(asked_photos(photos, 300)) == 1000 and asked_photos(photos, 40_000) == photos
    assert asked_photos(photos[:1000], 10) == photos[:1000]
    trainer = Trainer(blob_scene, TrainConfig(steps=10))
    monkeypatch.setattr(training_step, "ALWAYS_ASKED", 3)
    assert len(list(trainer.parts.survey(3))) == 3
    trainer.close()


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
