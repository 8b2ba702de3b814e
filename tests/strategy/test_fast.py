"""The effect of each rule of fast: who grows, who goes, when all are thinned out."""

from __future__ import annotations

from typing import Any

import torch
from strategy_settings import HIGH, population, seen
from torch import Tensor

from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig
from splatstudio.strategy.fast import FastStrategy
from splatstudio.training.trainer import Trainer

STEP = 600
LAST = 900  # step of the last growth of 2000


class Asked:
    """A survey that answers what it was told to, and notes what it was asked."""

    def __init__(self, *views: Tensor):
        self.views = list(views)
        self.calls: list[tuple[int, int | None]] = []

    def __call__(self, step: int, num_views: int | None) -> list[Tensor]:
        self.calls.append((step, num_views))
        return self.views


def view(wrong: list[float], needed: list[float]) -> Tensor:
    return torch.tensor([wrong, [0.0] * len(wrong), needed]).T


def strategy(
    survey: Asked, *, steps: int = 2000, enabled: bool = True, detail: float = 1e6, **fast: Any
) -> FastStrategy:
    rules = {"min_views": 2, "min_error_weight": 1.0, "min_weight": 0.5, "grow_until": 0.5, **fast}
    settings = FastConfig(**rules)
    config = TrainConfig(steps=steps, strategy="fast", fast=settings, densify=DensifyConfig(enabled=enabled))
    return FastStrategy(
        config, extent=1.0, detail=detail, generator=torch.Generator().manual_seed(1), survey=survey
    )


def test_only_those_grow_on_which_several_photos_agree() -> None:
    group = population(scales=[0.005] * 3)
    asked = Asked(view([2.0, 2.0, 0.0], [9.0] * 3), view([2.0, 0.0, 2.0], [9.0] * 3))
    change = strategy(asked, views=5).after_step(group, seen([10 * HIGH] * 3), STEP)
    assert change is not None and (change.cloned, change.pruned) == (1, 0)
    assert group.gaussians.means.detach()[:, 0].tolist() == [1.0, 2.0, 3.0, 1.0]
    assert asked.calls == [(STEP, 5)]


def test_an_error_counts_from_its_weight_on_and_all_photos_agree_where_fewer_are_asked() -> None:
    for views, min_views, grown in [(2, 2, [2.0]), (2, 3, [2.0]), (3, 4, []), (3, 2, [2.0])]:
        group = population(scales=[0.005] * 2)
        errors = [view([0.9, 1.1], [9.0] * 2)] * 2 + [view([0.9, 0.9], [9.0] * 2)]
        asked = Asked(*errors[:views])
        strategy(asked, min_views=min_views).after_step(group, seen([10 * HIGH] * 2), STEP)
        assert group.gaussians.means.detach()[2:, 0].tolist() == grown, (views, min_views)


def test_fewer_must_agree_where_fewer_show_it() -> None:
    group = population(scales=[0.005] * 4)
    # Shown by one photo, by both, by one with another error, and by one with next to no weight.
    first, second = view([2.0, 2.0, 0.9, 2.0], [9.0, 9.0, 9.0, 9.0]), view([0.0] * 4, [0.0, 9.0, 0.0, 0.1])
    strategy(Asked(first, second)).after_step(group, seen([10 * HIGH] * 4), STEP)
    assert group.gaussians.means.detach()[4:, 0].tolist() == [1.0, 4.0]


def test_an_error_without_a_gradient_grows_nobody() -> None:
    group = population(scales=[0.005] * 2)
    asked = Asked(*[view([5.0, 5.0], [9.0, 9.0])] * 2)
    strategy(asked).after_step(group, seen([1e-6, 1e-6]), STEP)
    assert len(group) == 2


def test_what_few_photos_were_asked_about_stays() -> None:
    group = population(scales=[0.005] * 3)
    asked = Asked(view([0.0] * 3, [0.4, 0.0, 0.3]), view([0.0] * 3, [0.2, 0.0, 0.6]))
    change = strategy(asked).after_step(group, seen([0.0] * 3), STEP)
    assert change is not None and change.pruned == 0 and len(group) == 3


def test_what_no_photo_of_all_needs_goes_when_all_are_asked() -> None:
    group = population(scales=[0.005] * 3)
    asked = Asked(view([0.0] * 3, [0.4, 0.0, 0.3]), view([0.0] * 3, [0.2, 0.0, 0.6]))
    change = strategy(asked, thin_at=(0.3,), thin_share=0.0).after_step(group, (), STEP)
    assert change is not None and change.pruned == 2 and asked.calls[-1] == (STEP, None)
    assert group.gaussians.means.detach()[:, 0].tolist() == [3.0]


def test_the_least_needed_are_thinned_out_at_their_steps_alone() -> None:
    for step, left in [(1299, 10), (1300, 8), (1301, 10)]:
        group = population(scales=[0.005] * 10)
        weights = [float(i) + 1.0 for i in range(10)]
        asked = Asked(view([0.0] * 10, weights), view([0.0] * 10, [0.0] * 10))
        rule = strategy(asked, thin_at=(0.65,), thin_share=0.2)
        change = rule.after_step(group, (), step)
        assert len(group) == left, step
        if left == 8:
            assert change is not None and change.pruned == 2 and asked.calls == [(1300, None)]
            assert group.gaussians.means.detach()[:, 0].tolist() == [float(i) for i in range(3, 11)]


def test_thinning_spares_what_a_single_photo_of_many_shows(blob_scene: Scene) -> None:
    config = TrainConfig(steps=10, strategy="fast", fast=FastConfig(views=1, thin_at=(0.5,), thin_share=0.1))
    trainer = Trainer(blob_scene, config)
    group, cameras = (
        trainer.parts.population,
        [blob_scene.cameras[index] for index in blob_scene.train_indices],
    )
    # A speck close before each camera, where no other sees it.
    with torch.no_grad():
        for row, camera in enumerate(cameras):
            group.gaussians.means[row] = torch.tensor(camera.position + 0.3 * camera.viewmat[2, :3])
            group.gaussians.scales[row] = -5.0
            group.gaussians.opacities[row] = 3.0
        kept = group.gaussians.means[: len(cameras)].clone()
        trainer.parts.strategy.after_step(group, (), 5)
    left = group.gaussians.means.detach()
    assert all(bool((left == mean).all(dim=1).any()) for mean in kept)
    trainer.close()


def test_opacities_are_never_reset_and_growth_ends_by_its_share_of_the_steps() -> None:
    asked = Asked(*[view([5.0], [9.0])] * 2)
    group = population(scales=[0.005])
    rule = strategy(asked, steps=30_000, thin_at=())
    change = rule.after_step(group, seen([10 * HIGH]), 3000)
    assert change is not None and not change.opacities_reset and change.cloned == 1
    assert (rule.start_step, rule.stop_step) == (500, 15_000)
    assert not rule.observes_at(15_000) and rule.observes_at(14_999)


def test_the_limit_follows_what_the_photos_show() -> None:
    group = population(scales=[0.005] * 4)
    asked = Asked(*[view([5.0] * 4, [9.0] * 4)] * 2)
    rule = strategy(asked, detail=20.0, density=0.3)
    change = rule.after_step(group, seen([1e-2, 9e-2, 5e-2, 2e-2]), LAST)
    assert change is not None and (change.cloned, change.capped) == (2, 2)
    assert group.gaussians.means.detach()[4:, 0].tolist() == [2.0, 3.0]


def test_the_limit_grows_until_growth_ends() -> None:
    born = []
    for step in (300, LAST):
        group = population(scales=[0.005] * 4)
        rule = strategy(Asked(*[view([5.0] * 4, [9.0] * 4)] * 2), detail=100.0, density=0.1)
        change = rule.after_step(group, seen([10 * HIGH] * 4), step)
        assert change is not None
        born.append((change.cloned, change.capped))
    assert born == [(2, 2), (4, 0)]  # 0.4 of the growth done: of 10 may be sqrt(0.4) 10, 6


def test_the_limit_grows_with_the_steps_of_a_long_training_up_to_an_end() -> None:
    def limit(steps: int, **fast: Any) -> int:
        return strategy(Asked(), steps=steps, detail=1e4, density=0.1, **fast).limit_at(steps)

    assert [limit(steps, long_growth=1.0) for steps in (100, 2000, 4000, 7000)] == [1000, 1000, 2000, 3500]
    assert limit(8000, long_growth=0.5) == 2000
    assert limit(30_000, long_growth=1.0) == limit(10**6, long_growth=1.0) == 15_000
    assert limit(30_000, long_growth=0.0) == 1000


def test_few_steps_have_a_lower_limit_for_large_photos() -> None:
    def limit(pixels: float, steps: int) -> int:
        config = TrainConfig(steps=steps, fast=FastConfig(density=0.1, long_growth=0.0))
        sizes = {"extent": 1.0, "detail": pixels, "pixels": pixels}
        rule = FastStrategy(config, generator=torch.Generator(), survey=Asked(), **sizes)
        return rule.limit_at(steps)

    assert limit(10_000, 2000) == 1000 and limit(40_000, 2000) == 4000
    assert limit(160_000, 2000) == int(4000 * 4**0.4) and limit(640_000, 2000) == int(4000 * 16**0.4)
    assert limit(160_000, 7000) == 16_000


def test_steps_added_to_a_training_raise_its_limit() -> None:
    rule = strategy(Asked(), detail=1e4, density=0.1, long_growth=1.0)
    rule.follow(TrainConfig(steps=6000, strategy="fast", fast=rule.fast))
    assert rule.limit_at(3000) == 3000
    rule.follow(TrainConfig(steps=6000, fast=rule.fast, densify=DensifyConfig(max_gaussians=2500)))
    assert rule.limit_at(3000) == 2500


def test_the_limit_of_all_strategies_holds_at_every_step() -> None:
    rule = strategy(Asked(), detail=100.0, density=1.0)
    rule.follow(TrainConfig(steps=2000, strategy="fast", densify=DensifyConfig(max_gaussians=3)))
    assert [rule.limit_at(step) for step in (300, 600, LAST, 5000)] == [2, 2, 3, 3]


def test_disabled_it_asks_nobody_and_changes_nothing() -> None:
    asked, group = Asked(), population(scales=[0.005])
    rule = strategy(asked, enabled=False, thin_at=(0.3,))
    assert rule.after_step(group, seen([10 * HIGH]), STEP) is None and not asked.calls and len(group) == 1
