"""Steps that learn from halves of photos: the same pixels at full size, each as often as the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from splatstudio.cameras.camera import Camera
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import TrainView
from splatstudio.optimization.train_step import TrainStep, begin_step
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ExposureConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import CoarseConfig, DensifyConfig
from splatstudio.training.data.resolution import divisor_at
from splatstudio.training.data.train_views import crops, random_crop
from splatstudio.training.plateau import settled_after
from splatstudio.training.trainer import Trainer

WIDTH, HEIGHT = 192, 144
CONFIG = TrainConfig(steps=100, coarse=CoarseConfig(halves_from=0.5))


@pytest.fixture
def shot() -> TrainView:
    camera = Camera(np.eye(4), np.array([[150.0, 0, 90], [0, 140, 70], [0, 0, 1]]), WIDTH, HEIGHT)
    pixels = torch.arange(WIDTH * HEIGHT, dtype=torch.float32).reshape(HEIGHT, WIDTH)
    target = torch.stack([pixels, pixels + 0.25, pixels + 0.5], dim=-1)
    mask = pixels % 3 > 0
    return TrainView(0, "a.jpg", camera, target, mask, (0.0, 0.0, 0.0), alpha=pixels + 0.75)


def test_halves_begin_at_their_share_of_the_steps(shot: TrainView) -> None:
    assert random_crop(shot, 49, CONFIG) is shot
    assert random_crop(shot, 50, CONFIG) is not shot
    assert random_crop(shot, 99, TrainConfig(steps=100)) is shot
    long = replace(CONFIG, steps=101, coarse=replace(CONFIG.coarse, halves_within=100))
    assert random_crop(shot, 90, long) is shot
    assert random_crop(shot, 90, replace(long, steps=100)) is not shot


def test_what_depends_on_the_place_in_a_photo_and_small_ones_stay_whole(shot: TrainView) -> None:
    grid = replace(CONFIG, exposure=ExposureConfig(grid=True))
    assert random_crop(shot, 80, grid) is shot
    small = replace(shot, camera=shot.camera.resized(WIDTH, 127), target=shot.target[:127])
    assert random_crop(small, 80, CONFIG) is small


def test_photos_are_whole_again_in_the_end(shot: TrainView) -> None:
    config = replace(CONFIG, coarse=CoarseConfig(halves_from=0.5, halves_until=0.8))
    assert [random_crop(shot, step, config) is shot for step in (49, 50, 79, 80, 99)] == [
        True,
        False,
        False,
        True,
        True,
    ]


def test_photos_are_whole_until_they_have_their_full_size(shot: TrainView) -> None:
    config = replace(CONFIG, coarse=CoarseConfig(first=4.0, until=0.75, halves_from=0.5))
    assert divisor_at(74, config) > 1.0 and random_crop(shot, 74, config) is shot
    assert divisor_at(75, config) == 1.0 and random_crop(shot, 75, config) is not shot


def test_every_pixel_is_in_about_half_of_the_halves(shot: TrainView) -> None:
    seen = torch.zeros(WIDTH * HEIGHT)
    num, sizes = 400, set()
    config = replace(CONFIG, steps=2 * num)
    for step in range(num):
        half = random_crop(shot, num + step, config)
        height, width = half.target.shape[:2]
        sizes.add((width, height))
        seen[half.target[..., 0].flatten().long()] += 1
        assert (half.camera.width, half.camera.height) == (width, height)
    share = seen / num
    # 400 draws of a half: three standard deviations are 0.075. What is drawn follows from the seed.
    assert float(share.min()) > 0.4 and float(share.max()) < 0.6
    assert {width for width, height in sizes if height < HEIGHT} == {WIDTH}
    assert len(sizes) > 4, "it is not always cut in one place"


def test_a_half_is_what_its_camera_sees_with_all_that_belongs_to_it(shot: TrainView) -> None:
    means = torch.tensor([[-0.5, -0.4, 2.0], [0.6, 0.5, 2.2], [0.1, 0.0, 1.9]])
    gaussians = Gaussians(
        means=means,
        quats=torch.tensor([[1.0, 0, 0, 0]]).repeat(3, 1),
        scales=torch.full((3, 3), -3.5),
        opacities=torch.full((3,), 1.0),
        sh0=torch.tensor([[[1.0, 0, 0]], [[0, 1.0, 0]], [[0, 0, 1.0]]]),
        shN=torch.zeros(3, 0, 3),
    )
    whole = render(gaussians, shot.camera, RenderOptions()).rgb
    for step in (50, 51, 52, 53, 54, 55):
        half = random_crop(shot, step, CONFIG)
        rows, columns = _place(half)
        assert half.mask is not None and shot.mask is not None and half.alpha is not None
        assert torch.equal(half.mask, shot.mask[rows, columns])
        assert torch.equal(half.alpha, shot.alpha[rows, columns])  # type: ignore[index]
        drawn = render(gaussians, half.camera, RenderOptions()).rgb
        torch.testing.assert_close(drawn, whole[rows, columns], rtol=1e-4, atol=1e-4)


def test_halves_repeat_and_differ_by_seed_step_and_photo(shot: TrainView) -> None:
    def place(seed: int, step: int, number: int = 0) -> tuple[slice, slice]:
        return _place(random_crop(shot, step, replace(CONFIG, seed=seed), number))

    first = [place(1, step) for step in range(50, 80)]
    assert first == [place(1, step) for step in range(50, 80)]
    assert first != [place(2, step) for step in range(50, 80)]
    assert first != [place(1, step, 1) for step in range(50, 80)]
    assert len({str(one) for one in first}) > 4


def _place(half: TrainView) -> tuple[slice, slice]:
    """Return the rows and columns of the photo that a half has."""
    first = int(half.target[0, 0, 0])
    top, left = divmod(first, WIDTH)
    height, width = half.target.shape[:2]
    return slice(top, top + height), slice(left, left + width)


def test_a_score_is_not_judged_before_halves_begin() -> None:
    config = TrainConfig(steps=1000, densify=DensifyConfig(enabled=False), sh_degree=0)
    late = replace(config, coarse=CoarseConfig(halves_from=0.7501))
    assert settled_after(config, 50) == 0
    assert settled_after(late, 50) == crops(late).start == 751
    whole_again = replace(late, coarse=CoarseConfig(halves_from=0.2, halves_until=0.7))
    assert settled_after(whole_again, 50) == 700
    for whole in (replace(late, steps=9000), replace(late, exposure=ExposureConfig(grid=True))):
        assert not crops(whole) and settled_after(whole, 50) == 0


def test_a_training_learns_from_whole_photos_and_then_from_halves(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []

    def noted(ranks: Ranks, *args: Any, **options: Any) -> TrainStep:
        ((shot,),) = args[2]
        sizes.append((shot.target.shape[1], shot.target.shape[0]))
        return begin_step(ranks, *args, **options)

    monkeypatch.setattr("splatstudio.training.step.begin_step", noted)
    monkeypatch.setattr("splatstudio.training.data.train_views.SMALLEST_TO_CUT", 32)
    trainer = Trainer(blob_scene, TrainConfig(steps=20, coarse=CoarseConfig(halves_from=0.5)))
    losses = [trainer.train_step().loss for _ in range(20)]
    camera = blob_scene.views[0].camera
    assert set(sizes[:10]) == {(camera.width, camera.height)}
    halves = [width * height / (camera.width * camera.height) for width, height in sizes[10:]]
    assert all(0.2 < half <= 0.8 for half in halves), halves  # tiles of 16 px are large for these photos
    assert len(set(sizes[10:])) > 1
    assert losses[-1] < losses[0]
    trainer.close()
