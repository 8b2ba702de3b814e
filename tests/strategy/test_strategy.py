"""The effect of each rule of the default strategy: clone, split, prune, reset, the limit, what is counted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from strategy_settings import HIGH, LOW, population, rows, seen, strategy

from splatstudio.optimization.gradients import Observation
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import CoarseConfig, DensifyConfig
from splatstudio.strategy.population import edit, trainable
from splatstudio.strategy.sampling import generator_of, seeds_of
from splatstudio.training.data.resolution import divisor_at, sh_degree_at
from splatstudio.training.trainer import Trainer

STEP = 600  # the first step at which the default settings densify


def test_a_small_gaussian_with_a_large_gradient_gets_an_identical_twin() -> None:
    group = population(scales=[0.005, 0.005, 0.005])
    before = rows(group.gaussians)
    change = strategy().after_step(group, seen([LOW, HIGH, LOW]), STEP)
    assert change is not None and (change.cloned, change.split, change.pruned) == (1, 0, 0)
    assert torch.equal(rows(group.gaussians), before[[0, 1, 2, 1]])


def test_a_large_gaussian_is_replaced_by_two_smaller_ones_inside_it() -> None:
    group = population(scales=[0.05, 0.05])
    parent = group.gaussians.detach()[1:2]
    untouched = rows(group.gaussians)[0]
    change = strategy().after_step(group, seen([LOW, HIGH]), STEP)
    assert change is not None and (change.cloned, change.split, change.pruned) == (0, 1, 0)
    assert len(group) == 3 and torch.equal(rows(group.gaussians)[0], untouched)
    halves = group.gaussians.detach()[1:]
    torch.testing.assert_close(halves.scales.exp() * 1.6, parent.scales.exp().expand(2, 3))
    for name in ("quats", "opacities", "sh0", "shN"):
        ours, theirs = halves.tensors()[name], parent.tensors()[name]
        assert torch.equal(ours, theirs.expand_as(ours)), name
    offsets = halves.means - parent.means
    assert not torch.equal(halves.means[0], halves.means[1])
    assert (offsets.norm(dim=1) < 4.0 * 0.05).all() and (offsets.norm(dim=1) > 0).all()


def test_halves_are_drawn_from_the_parents_own_ellipsoid() -> None:
    many = 4000
    group = population(scales=[0.05] * many)
    gaussians = group.gaussians.detach()
    turn = math.sqrt(0.5)  # by 90 degrees about z: the longest axis, x, points along y
    group.gaussians = trainable(
        replace(
            gaussians,
            means=torch.zeros(many, 3),
            quats=torch.tensor([turn, 0.0, 0.0, turn]).expand(many, 4),
        )
    )
    strategy().after_step(group, seen([HIGH] * many), STEP)
    spread = group.gaussians.means.detach().std(dim=0)
    expected = torch.tensor([0.05 * math.exp(-1), 0.05, 0.05 * math.exp(-2)])
    torch.testing.assert_close(spread, expected, rtol=0.05, atol=0.0)


def test_sizes_are_judged_by_the_extent_of_the_scene() -> None:
    for extent, cloned in [(1.0, 0), (2.0, 1)]:
        group = population(scales=[0.015])
        change = strategy(extent=extent).after_step(group, seen([HIGH]), STEP)
        assert change is not None and (change.cloned, change.split) == (cloned, 1 - cloned)
    for extent, survivors in [(1.0, 1), (2.0, 2)]:
        group = population(scales=[0.05, 0.15])
        strategy(extent=extent).after_step(group, seen([LOW, LOW]), 3100)
        assert len(group) == survivors, extent


def test_prune_removes_exactly_the_transparent() -> None:
    group = population(scales=[0.005] * 4, opacities=[0.004, 0.006, 0.5, 0.0049])
    before = rows(group.gaussians)
    change = strategy().after_step(group, seen([LOW] * 4), STEP)
    assert change is not None and change.pruned == 2
    assert torch.equal(rows(group.gaussians), before[[1, 2]])


def test_the_twin_of_what_is_removed_goes_with_it() -> None:
    group = population(scales=[0.005] * 2, opacities=[0.5, 0.004])
    change = strategy().after_step(group, seen([LOW, HIGH]), STEP)
    assert change is not None and (change.cloned, change.pruned, len(group)) == (1, 2, 1)


@pytest.mark.parametrize("name", ["means", "quats", "scales", "opacities", "sh0", "shN"])
def test_prune_removes_what_is_not_a_number(name: str) -> None:
    group = population(scales=[0.005] * 3)
    group.gaussians.tensors()[name].detach()[1] = math.nan
    before = rows(group.gaussians)
    strategy().after_step(group, seen([LOW] * 3), STEP)
    assert torch.equal(rows(group.gaussians), before[[0, 2]])


def test_oversized_ones_are_removed_only_after_the_first_reset() -> None:
    for step, survivors in [(2900, 2), (3000, 2), (3100, 1)]:
        group = population(scales=[0.05, 0.2])
        strategy().after_step(group, seen([LOW, LOW]), step)
        assert len(group) == survivors, step


def test_the_reset_lowers_opacities_at_step_3000_and_not_before() -> None:
    for step, expected in [(0, 0.5), (2999, 0.5), (3000, 0.01), (3001, 0.5), (6000, 0.01)]:
        group = population(scales=[0.005] * 2, opacities=[0.5, 0.008])
        strategy().after_step(group, seen([LOW] * 2), step)
        opacities = torch.sigmoid(group.gaussians.opacities.detach())
        torch.testing.assert_close(opacities, torch.tensor([expected, 0.008]), msg=f"step {step}")
        is_reset = expected < 0.5
        assert bool(group.optimizer.exp_avg.opacities.any()) != is_reset
        assert bool(group.optimizer.exp_avg_sq.opacities.any()) != is_reset
        assert group.optimizer.exp_avg.means.all()


def test_the_reset_lowers_to_twice_the_opacity_below_which_one_is_removed() -> None:
    group = population(scales=[0.005] * 2, opacities=[0.5, 0.03])
    strategy(DensifyConfig(prune_opacity=0.02)).after_step(group, seen([LOW] * 2), 3000)
    torch.testing.assert_close(torch.sigmoid(group.gaussians.opacities.detach()), torch.tensor([0.04, 0.03]))


def test_survivors_keep_their_moments_and_newborns_have_none() -> None:
    group = population(scales=[0.005, 0.05, 0.005], opacities=[0.5, 0.5, 0.001])
    strategy().after_step(group, seen([HIGH, HIGH, LOW]), STEP)
    assert len(group) == 4  # the first, its twin, the halves of the second
    for moment, expected in ((group.optimizer.exp_avg, 1.0), (group.optimizer.exp_avg_sq, 1.0)):
        for name, tensor in moment.tensors().items():
            assert (tensor[0] == expected).all(), name
            assert not tensor[1:].any(), name


def test_nothing_grows_when_the_mean_gradient_is_small_or_the_step_is_not_due() -> None:
    for step in (500, 550, 601, 15_000):
        group = population(scales=[0.005, 0.05])
        strategy().after_step(group, seen([HIGH, HIGH]), step)
        assert len(group) == 2, step
    group = population(scales=[0.005, 0.05])
    strategy().after_step(group, seen([LOW, LOW]), STEP)
    assert len(group) == 2


def test_the_gradient_is_averaged_over_the_views_that_see_the_gaussian() -> None:
    group = population(scales=[0.005, 0.005])
    rule = strategy()
    # The first is seen once in ten steps, with a large gradient; the second always, with the same sum.
    for step in range(STEP - 9, STEP):
        rule.after_step(group, seen([5.0, LOW], visible=[False, True]), step)
    rule.after_step(group, seen([3e-4, 3e-4]), STEP)
    assert torch.equal(group.gaussians.means.detach()[:, 0], torch.tensor([1.0, 2.0, 1.0]))


def test_gradients_are_scaled_by_half_the_image_on_each_axis() -> None:
    group = population(scales=[0.005] * 2)
    rule = strategy(DensifyConfig(start_step=STEP))
    radii = torch.full((2, 2), 3, dtype=torch.int32)
    gradients = torch.tensor([[3e-6, 0.0], [0.0, 3e-6]])
    rule.after_step(group, (Observation(gradients, radii, width=200, height=100),), STEP)
    torch.testing.assert_close(group.counts["grad2d"], torch.tensor([3e-4, 1.5e-4]))


def test_counts_start_anew_after_a_densification() -> None:
    group = population(scales=[0.005, 0.05])
    strategy().after_step(group, seen([HIGH, HIGH]), STEP)
    for count in group.counts.values():
        assert count.shape == (len(group),) and not count.any()


def test_the_limit_lets_the_largest_gradients_grow_first() -> None:
    group = population(scales=[0.005] * 4)
    config = DensifyConfig(max_gaussians=6)
    change = strategy(config).after_step(group, seen([2e-3, 9e-3, 1e-3, 5e-3]), STEP)
    assert change is not None and (change.cloned, change.capped) == (2, 2)
    assert group.gaussians.means.detach()[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 2.0, 4.0]
    over = population(scales=[0.005] * 4)
    strategy(DensifyConfig(max_gaussians=2)).after_step(over, seen([HIGH] * 4), STEP)
    assert len(over) == 4


def test_short_trainings_stop_at_half_of_their_steps() -> None:
    for step, num in [(600, 2), (700, 1)]:
        group = population(scales=[0.005])
        strategy(steps=1400).after_step(group, seen([HIGH]), step)
        assert len(group) == num, step
    assert not strategy(steps=1400).observes_at(700) and strategy(steps=1400).observes_at(699)


def test_short_trainings_start_after_a_sixth_of_their_steps() -> None:
    for step, num in [(100, 1), (200, 2)]:
        group = population(scales=[0.005])
        strategy(steps=1000).after_step(group, seen([HIGH]), step)
        assert len(group) == num, step


def test_a_pause_after_the_reset_is_kept() -> None:
    config = DensifyConfig(pause_after_reset=200)
    for step, num in [(3000, 1), (3100, 1), (3200, 2)]:
        group = population(scales=[0.005])
        strategy(config).after_step(group, seen([HIGH]), step)
        assert len(group) == num, step


def test_disabled_densification_changes_nothing() -> None:
    group = population(scales=[0.005, 0.05], opacities=[0.001, 0.5])
    before = rows(group.gaussians)
    rule = strategy(DensifyConfig(enabled=False))
    assert rule.after_step(group, seen([HIGH, HIGH]), 3000) is None
    assert torch.equal(rows(group.gaussians), before)


def test_screen_size_rules_hold_until_their_step() -> None:
    config = DensifyConfig(stop_scale2d_step=10_000)
    large = (Observation(torch.zeros(2, 2), torch.tensor([[3, 3], [8, 2]], dtype=torch.int32), 100, 80),)
    group = population(scales=[0.005, 0.005])
    change = strategy(config).after_step(group, large, STEP)
    assert change is not None and change.split == 1  # 8 of 100 pixels is above 0.05
    huge = (Observation(torch.zeros(2, 2), torch.tensor([[3, 3], [20, 2]], dtype=torch.int32), 100, 80),)
    group = population(scales=[0.005, 0.005])
    change = strategy(replace(config, max_gaussians=1)).after_step(group, huge, 3100)
    assert change is not None and (change.split, change.pruned, len(group)) == (0, 1, 1)
    group = population(scales=[0.005, 0.005])
    strategy(config).after_step(group, huge, 10_000)
    assert len(group) == 2


def test_the_same_seed_splits_alike_and_another_one_does_not() -> None:
    means = []
    for seed in (1, 1, 2):
        group = population(scales=[0.05])
        rule = strategy()
        rule.generator.manual_seed(seed)
        rule.after_step(group, seen([HIGH]), STEP)
        means.append(group.gaussians.means.detach())
    assert torch.equal(means[0], means[1]) and not torch.equal(means[0], means[2])


def test_edit_publishes_six_tensors_at_once_that_require_gradients() -> None:
    group = population(scales=[0.005] * 3)
    before = group.gaussians
    keep = torch.tensor([True, False, True])
    edit(group, keep=keep, newborn=before.detach()[:1], parents=torch.tensor([0]))
    assert group.gaussians is not before and len(before) == 3
    for tensor in group.gaussians.tensors().values():
        assert tensor.shape[0] == 3 and tensor.requires_grad and tensor.is_leaf and tensor.is_contiguous()


def test_photos_grow_to_their_size_by_the_share_of_the_steps() -> None:
    config = TrainConfig(steps=1000, coarse=CoarseConfig(first=4.0, until=0.6))
    assert [divisor_at(step, config) for step in (0, 300, 600, 999)] == pytest.approx([4.0, 2.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("num_photos", "degree"), [(3, 0), (11, 0), (12, 1), (26, 1), (27, 2), (48, 3), (999, 3)]
)
def test_a_degree_needs_photos_for_its_coefficients(num_photos: int, degree: int) -> None:
    config = TrainConfig(sh_degree_every=10, sh_photos=3.0)
    assert sh_degree_at(500, config, num_photos) == degree
    assert sh_degree_at(5, config, num_photos) == 0
    assert sh_degree_at(500, replace(config, sh_photos=0.0), num_photos) == 3
    # A model to start from keeps what it has learned.
    assert sh_degree_at(500, replace(config, init="a.ply"), num_photos) == 3


def test_with_too_few_photos_the_color_does_not_depend_on_the_view(blob_scene: Scene) -> None:
    num = len(blob_scene.train_indices)
    for sh_photos, learned in ((num / 4.0, True), (num / 3.9, False)):
        config = TrainConfig(steps=10, sh_degree=1, sh_degree_every=2, sh_photos=sh_photos)
        trainer = Trainer(blob_scene, config)
        degrees = [trainer.train_step().sh_degree for _ in range(4)]
        assert bool((trainer.gaussians.shN != 0).any()) == learned
        assert degrees == ([0, 0, 1, 1] if learned else [0] * 4)
        trainer.close()


def first_numbers(seed: int, step: int) -> tuple[float, ...]:
    return tuple(torch.randn(4, generator=generator_of(seed, step)).tolist())


def test_random_numbers_are_of_a_seed_and_a_step_and_of_no_other() -> None:
    steps = (0, 1, 2, 4096, 4097, 8192, 2**32, 2**32 + 1)  # powers of two: torch reads 32 bits of a seed
    drawn = {first_numbers(seed, step) for seed in (0, 1, 42, 2**32) for step in steps}
    assert len(drawn) == 4 * len(steps)
    assert first_numbers(42, 4096) == first_numbers(42, 4096)


def test_the_seeds_of_a_step_are_its_own() -> None:
    seeds = [*seeds_of(1, 5, 3), *seeds_of(1, 6, 3), *seeds_of(2, 5, 3)]
    assert len(set(seeds)) == 9 and all(0 <= seed < 2**62 for seed in seeds)
    assert seeds_of(1, 5, 2) == seeds[:2]
