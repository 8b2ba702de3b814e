"""The effect of each rule of fast: how many there are to be, who goes, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from strategy_settings import HIGH, population, seen
from torch import Tensor

from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig, McmcConfig
from splatstudio.strategy.fast import FastStrategy
from splatstudio.strategy.population import Population
from splatstudio.training.trainer import Trainer

THINS = 1200  # step after which the least needed of 2000 go


class Asked:
    """A survey that answers what it was told to, and notes when it was asked."""

    def __init__(self, *photos: list[float]):
        self.photos = [torch.tensor(weights) for weights in photos]
        self.steps: list[int] = []

    def __call__(self, step: int) -> list[Tensor]:
        self.steps.append(step)
        return self.photos


def strategy(
    survey: Asked, *, steps: int = 2000, detail: float = 1e-3, pixels: float = 0.0, **fast: Any
) -> FastStrategy:
    settings = FastConfig(**{"min_weight": 0.5, **fast})
    config = TrainConfig(steps=steps, strategy="fast", fast=settings, mcmc=McmcConfig(noise=0.0))
    return FastStrategy(config, extent=1.0, detail=detail, pixels=pixels, survey=survey)


def marked(num: int) -> Population:
    """Return a population whose first coordinates are 1, 2, ..., and that has the counts of the strategy."""
    group = population(scales=[0.005] * num)
    group.counts = strategy(Asked()).new_counts(group.gaussians.detach())
    return group


def numbers(group: Population) -> list[float]:
    return group.gaussians.means.detach()[:, 0].tolist()


def test_what_no_photo_of_all_needs_goes_when_all_are_asked() -> None:
    group, asked = marked(3), Asked([0.4, 0.0, 0.3], [0.2, 0.0, 0.6])
    change = strategy(asked, thin_share=0.0).after_step(group, seen([HIGH] * 3), THINS)
    assert change is not None and change.pruned == 2 and asked.steps == [THINS]
    assert numbers(group) == [3.0]


def test_the_least_needed_are_thinned_out_at_one_step_alone() -> None:
    for step, left in [(1299, 10), (1300, 8), (1301, 10)]:
        group, asked = marked(10), Asked([float(i) + 1.0 for i in range(10)], [0.0] * 10)
        change = strategy(asked, thin_at=0.65, thin_share=0.2).after_step(group, seen([HIGH] * 10), step)
        assert len(group) == left, step
        if left == 8:
            assert change is not None and change.pruned == 2 and asked.steps == [1300]
            assert numbers(group) == [float(i) for i in range(3, 11)]


def test_thinning_spares_what_a_single_photo_of_many_shows(blob_scene: Scene) -> None:
    config = TrainConfig(steps=10, strategy="fast", fast=FastConfig(thin_at=0.5, thin_share=0.1))
    trainer = Trainer(blob_scene, config)
    group = trainer.parts.population
    cameras = [blob_scene.cameras[index] for index in blob_scene.train_indices]
    # A speck close before each camera, where no other sees it.
    with torch.no_grad():
        for row, camera in enumerate(cameras):
            group.gaussians.means[row] = torch.tensor(camera.position + 0.3 * camera.viewmat[2, :3])
            group.gaussians.scales[row] = -5.0
            group.gaussians.opacities[row] = 30.0  # opaque: noise moves what is transparent
        kept = group.gaussians.means[: len(cameras)].clone()
        trainer.parts.strategy.after_step(group, (), 5)
    left = group.gaussians.means.detach()
    assert len(left) < 60 and all(bool((left == mean).all(dim=1).any()) for mean in kept)
    trainer.close()


def test_more_grow_than_there_are_to_be_until_they_are_thinned_out() -> None:
    rule = strategy(Asked(), detail=1e4, density=0.1, thin_share=0.2)
    assert [rule.chosen_at(step) for step in (0, THINS, THINS + 1, 1999)] == [1250, 1250, 1000, 1000]
    assert rule.cap == 1250
    never = strategy(Asked(), detail=1e4, density=0.1, thin_share=0.2, thin_at=1.0)
    assert [never.chosen_at(step) for step in (0, 1999)] == [1000, 1000], "none is to go"


def test_they_grow_to_that_number_and_stay_thinned_out(blob_scene: Scene) -> None:
    rules = {"fast": FastConfig(density=0.02, thin_at=0.6, thin_share=0.3), "mcmc": McmcConfig(every=5)}
    trainer = Trainer(blob_scene, TrainConfig(steps=60, strategy="fast", **rules))
    assert isinstance(trainer.parts.strategy, FastStrategy)
    most, left = trainer.parts.strategy.chosen_at(0), trainer.parts.strategy.chosen_at(59)
    sizes = []
    for _ in range(60):
        trainer.train_step()
        sizes.append(trainer.num_gaussians)
    trainer.close()
    assert max(sizes) == sizes[35] == most > 60
    assert left - 5 <= min(sizes[36:]) and max(sizes[36:]) <= left + 1


def sizes_until(trainer: Trainer, steps: int) -> list[int]:
    """Train until so many steps are done and return the numbers of splats after each."""
    sizes = []
    while trainer.step < steps:
        trainer.train_step()
        sizes.append(trainer.num_gaussians)
    return sizes


@pytest.mark.parametrize("resumed", [False, True])
def test_steps_that_become_fewer_pass_no_thinning_over(
    blob_scene: Scene, tmp_path: Path, resumed: bool
) -> None:
    rules = {"fast": FastConfig(density=0.02, thin_at=0.6, thin_share=0.3), "mcmc": McmcConfig(every=5)}
    config = TrainConfig(steps=60, strategy="fast", **rules)
    trainer = Trainer(blob_scene, config)
    grown = sizes_until(trainer, 33)[-1]
    if resumed:
        folder = trainer.save(tmp_path)
        trainer.close()
        trainer = Trainer.resume(blob_scene, folder, steps=50)
    else:
        trainer.update_setting("steps", 50)  # of which it would have been after 30
    left = cast(FastStrategy, trainer.parts.strategy).chosen_at(49)
    sizes = sizes_until(trainer, 40)
    assert left - 5 <= sizes[0] < 0.75 * grown and max(sizes) <= left + 1
    trainer.update_setting("steps", 60)
    again = sizes_until(trainer, 60)
    assert max(again) <= left + 1, "it was to be after 36, and has been"
    trainer.close()


def test_what_is_owed_when_it_is_saved_is_made_up_for_when_it_is_resumed(
    blob_scene: Scene, tmp_path: Path
) -> None:
    rules = {"fast": FastConfig(density=0.02, thin_at=0.6, thin_share=0.3), "mcmc": McmcConfig(every=5)}
    whole = Trainer(blob_scene, TrainConfig(steps=60, strategy="fast", **rules))
    grown = sizes_until(whole, 33)[-1]
    whole.update_setting("steps", 50)  # while it is paused: no step has seen that yet
    resumed = Trainer.resume(blob_scene, whole.save(tmp_path))
    sizes = sizes_until(whole, 50)
    assert sizes[0] < 0.75 * grown and sizes_until(resumed, 50) == sizes
    assert torch.equal(whole.gaussians.means, resumed.gaussians.means)
    again = Trainer.resume(blob_scene, whole.save(tmp_path))
    assert not cast(FastStrategy, again.parts.strategy).owes
    for trainer in (whole, resumed, again):
        trainer.close()


def test_the_number_grows_with_the_steps_of_a_long_training_up_to_an_end() -> None:
    def number(steps: int, **fast: Any) -> int:
        return strategy(Asked(), steps=steps, detail=1e4, density=0.1, **fast).chosen_at(steps)

    assert [number(steps, long_growth=1.0) for steps in (100, 2000, 4000, 7000)] == [1000, 1000, 2000, 3500]
    assert number(8000, long_growth=0.5) == 2000
    assert number(30_000, long_growth=1.0) == number(10**6, long_growth=1.0) == 15_000
    assert number(30_000, long_growth=0.0) == 1000


def test_few_steps_have_fewer_for_large_photos() -> None:
    def number(pixels: float, steps: int) -> int:
        rule = strategy(Asked(), steps=steps, detail=pixels, pixels=pixels, density=0.1, long_growth=0.0)
        return rule.chosen_at(steps)

    assert number(10_000, 2000) == 1000 and number(40_000, 2000) == 4000
    assert number(160_000, 2000) == int(4000 * 4**0.4) and number(640_000, 2000) == int(4000 * 16**0.4)
    assert number(160_000, 7000) == 16_000


def test_steps_added_to_a_training_raise_its_number_up_to_the_limit_of_all_strategies() -> None:
    rule = strategy(Asked(), detail=1e4, density=0.1, long_growth=1.0)
    rule.follow(TrainConfig(steps=6000, strategy="fast", fast=rule.config.fast), 0)
    assert rule.limit_at(6000) == 3000
    limited = DensifyConfig(max_gaussians=2500)
    rule.follow(TrainConfig(steps=6000, fast=rule.config.fast, densify=limited), 0)
    assert rule.limit_at(6000) == rule.cap == 2500


def test_noise_that_comes_every_few_steps_is_as_much_larger() -> None:
    def squares(every: int) -> list[float]:
        """Return the mean squares by which each of eight steps moves the same transparent splats."""
        config, moved = TrainConfig(steps=2000, mcmc=McmcConfig(noise_every=every)), []
        for step in range(8):
            group = marked(2000)
            with torch.no_grad():
                group.gaussians.opacities.fill_(-6.0)
                group.gaussians.scales.fill_(-3.0)
            before = group.gaussians.means.detach().clone()
            rule = FastStrategy(config, extent=1.0, detail=1e-3, survey=Asked())
            rule.after_step(group, seen([HIGH] * 2000), step)
            moved.append(float((group.gaussians.means.detach() - before).square().mean()))
        return moved

    each, fourth = squares(1), squares(4)
    assert all(each) and [mean > 0 for mean in fourth] == [True, False, False, False] * 2
    assert [fourth[0] / each[0], fourth[4] / each[4]] == pytest.approx([4.0, 4.0], rel=0.05)


def test_disabled_it_asks_nobody_and_changes_nothing() -> None:
    asked, group = Asked([9.0]), marked(1)
    rule = strategy(asked)
    rule.follow(TrainConfig(steps=2000, strategy="fast", densify=DensifyConfig(enabled=False)), THINS)
    assert rule.after_step(group, seen([HIGH]), THINS) is None and not asked.steps and len(group) == 1
