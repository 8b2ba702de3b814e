"""The effect of each rule of mcmc: parting, moving, adding up to the cap, and the noise."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blob_models import ring_of_cameras
from sharded_training_tasks import config_of
from strategy_settings import COMMON, MCMC, rows, seen
from strategy_settings import population as population_of

from splatstudio.distributed.ranks import ALONE
from splatstudio.gaussians.gaussians import Gaussians, concatenated
from splatstudio.kernels.reference_training import normal_noise
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import render
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, McmcConfig
from splatstudio.strategy import sampling
from splatstudio.strategy.global_order import number_rows
from splatstudio.strategy.mcmc import McmcStrategy, beside, compute_relocation, inject_noise, part
from splatstudio.strategy.population import PERSISTENT_ID, Population, trainable
from splatstudio.strategy.sampling import Samples, chances_of, dealt, keys_of_parts, sample_parents
from splatstudio.training.trainer import Trainer

STEP = 600
QUIET = McmcConfig(noise=0.0, grow_factor=1.0)
PAPER = {"guided": False, "spread": 0.0, "noise": 0.0}  # as the paper has it, but without noise


def strategy(mcmc: McmcConfig = QUIET, *, steps: int = 30_000, **settings: object) -> McmcStrategy:
    config = TrainConfig(steps=steps, strategy="mcmc", mcmc=mcmc, **settings)  # type: ignore[arg-type]
    return McmcStrategy(config, extent=1.0, detail=10_000.0)


def population(*, scales: list[float], opacities: list[float] | None = None) -> Population:
    """Return what the tests of the default strategy know by this name, with the counts of this one."""
    group = population_of(scales=scales, opacities=opacities)
    group.counts = strategy().new_counts(group.gaussians.detach())
    assert number_rows(group) == len(scales)
    return group


def births(parents: torch.Tensor) -> Samples:
    keys = keys_of_parts(parents, torch.arange(len(parents)), 5)
    return Samples(parents, torch.arange(len(parents)), keys, len(parents))


@pytest.mark.parametrize(("opacity", "copies"), [(0.5, 2), (0.9, 3), (0.1, 51), (0.999999, 51), (0.3, 1)])
def test_parts_follow_the_equation_of_the_paper(opacity: float, copies: int) -> None:
    each, factor = compute_relocation(torch.tensor([opacity]), torch.tensor([copies]))
    whole = float(torch.tensor(opacity))
    new = 1.0 - (1.0 - whole) ** (1.0 / copies)
    total = 0.0
    for i in range(1, copies + 1):
        total += sum(math.comb(i - 1, k) * (-1) ** k * new ** (k + 1) / math.sqrt(k + 1) for k in range(i))
    assert float(each) == pytest.approx(new, rel=1e-9)
    assert float(factor) == pytest.approx(whole / total, rel=1e-6)


def test_a_parted_gaussian_looks_as_before() -> None:
    blob = Gaussians(
        means=torch.zeros(1, 3),
        quats=torch.tensor([[1.0, 0.3, 0.2, 0.1]]),
        scales=torch.tensor([[0.5, 0.3, 0.4]]).log(),
        opacities=torch.logit(torch.tensor([0.8])),
        sh0=torch.full((1, 1, 3), 1.5),
        shN=torch.zeros(1, 0, 3),
    )
    camera = ring_of_cameras()[0]
    before = render(blob, camera).rgb
    model = trainable(blob.map(torch.clone))
    group = Population(model, SplatAdam.zeros(model), {})
    parents = torch.tensor([0, 0])
    born = part(group, births(parents), McmcConfig(spread=0.0), 1)
    three = concatenated([group.gaussians.detach(), born])
    doubled = blob[torch.tensor([0, 0, 0])]
    error = (render(three, camera).rgb - before).abs().max()
    assert error < 0.06 < 0.2 < (render(doubled, camera).rgb - before).abs().max()
    assert before.max() > 0.5


def test_the_dead_move_to_the_living_and_nobody_else_does() -> None:
    group = population(scales=[0.01] * 4, opacities=[0.9, 0.004, 0.9, 0.001])
    before = group.gaussians.detach()
    change = strategy(McmcConfig(**PAPER, max_gaussians=4)).after_step(group, (), STEP)
    assert change is not None and (change.relocated, change.cloned, len(group)) == (2, 0, 4)
    after = group.gaussians.detach()
    assert torch.equal(after.means[:2], before.means[[0, 2]])
    assert all(any(torch.equal(row, old) for old in before.means[[0, 2]]) for row in after.means[2:])
    assert (torch.sigmoid(after.opacities) > 0.3).all()
    assert not group.optimizer.exp_avg.means[2:].any() and not group.optimizer.exp_avg_sq.sh0[2:].any()


def test_what_is_not_a_number_is_dead() -> None:
    group = population(scales=[0.01] * 3, opacities=[0.9] * 3)
    group.gaussians.scales.detach()[1, 0] = math.nan
    change = strategy(McmcConfig(**PAPER, max_gaussians=3)).after_step(group, (), STEP)
    assert change is not None and (change.relocated, len(group)) == (1, 3)
    assert bool(group.gaussians.detach().finite_rows().all())


def test_without_guidance_births_go_where_opacities_are_large() -> None:
    group = population(scales=[0.01] * 400, opacities=[0.9] * 200 + [0.03] * 200)
    strategy(McmcConfig(**PAPER, grow_factor=1.5, max_gaussians=600)).after_step(group, (), STEP)
    parents = group.gaussians.means.detach()[400:, 0]  # as `population` numbers them
    of_the_faint = int((parents > 200).sum())
    assert len(parents) == 200 and 0 < of_the_faint < 20


def test_no_part_is_so_faint_that_it_is_dead_at_once() -> None:
    group = population(scales=[0.01] * 2, opacities=[0.006, 0.001])
    strategy(McmcConfig(**PAPER, max_gaussians=2)).after_step(group, (), STEP)
    torch.testing.assert_close(torch.sigmoid(group.gaussians.opacities.detach()), torch.full((2,), 0.005))


def test_parent_and_child_are_smaller_and_fainter_than_the_parent_was() -> None:
    group = population(scales=[0.01] * 2, opacities=[0.9, 0.0])
    old = group.gaussians.detach()[torch.tensor([0])]
    strategy(McmcConfig(**PAPER, max_gaussians=2)).after_step(group, (), STEP)
    new = group.gaussians.detach()
    expected, factor = compute_relocation(torch.tensor([0.9]), torch.tensor([2]))
    torch.testing.assert_close(torch.sigmoid(new.opacities), expected.float().expand(2))
    torch.testing.assert_close(new.scales.exp(), (old.scales.exp() * factor).float().expand(2, 3))
    assert torch.equal(new.means, old.means.expand(2, 3)) and not group.optimizer.exp_avg.means[1].any()


def test_numbers_grow_to_the_cap_and_stay_there() -> None:
    group = population(scales=[0.01] * 100)
    rule = strategy(McmcConfig(**PAPER, grow_factor=1.05, max_gaussians=200, every=10), steps=3000)
    sizes = []
    for step in range(500, 2600, 10):
        rule.after_step(group, (), step)
        sizes.append(len(group))
    assert sizes[0] == 100 and sizes[1] == 105, "the first step after the start, by the factor"
    assert sizes[-1] == 200 and sorted(sizes) == sizes
    below = population(scales=[0.01] * 100)
    assert strategy(McmcConfig(**PAPER, max_gaussians=50)).after_step(below, (), STEP) is not None
    assert len(below) == 100, "none is taken away"


def test_short_trainings_come_to_the_cap_by_the_middle() -> None:
    group = population(scales=[0.01] * 10)
    rule = strategy(McmcConfig(**PAPER, max_gaussians=1000), steps=2000)
    for step in range(0, 1000):
        rule.after_step(group, (), step)
    assert len(group) == 1000
    assert rule.start_step == 333 and rule.stop_step == 1666


def test_without_a_number_the_pixels_and_the_common_limit_say_how_many() -> None:
    assert strategy(McmcConfig(density=0.2)).cap == 2000
    assert strategy(McmcConfig(), densify=DensifyConfig(max_gaussians=700)).cap == 700


def test_above_the_common_limit_the_dead_go_and_it_is_said_who_was_not_born() -> None:
    group = population(scales=[0.01] * 10, opacities=[0.9] * 6 + [0.001] * 4)
    limited = strategy(McmcConfig(**PAPER, max_gaussians=20), densify=DensifyConfig(max_gaussians=8))
    change = limited.after_step(group, (), STEP)
    assert change is not None and (len(group), change.relocated, change.pruned) == (8, 2, 2)
    assert change.capped > 0 and "the limit is reached" in str(change)
    few = strategy(McmcConfig(**PAPER, max_gaussians=20), densify=DensifyConfig(max_gaussians=3))
    few.after_step(group, (), STEP)
    assert len(group) == 8, "none of the living goes"
    within = strategy(McmcConfig(**PAPER, max_gaussians=8)).after_step(group, (), STEP)
    assert within is not None and within.capped == 0


def test_a_gradient_that_is_no_number_stops_no_birth() -> None:
    group = population(scales=[0.01] * 3, opacities=[0.9, 0.3, 0.001])
    rule = strategy(McmcConfig(noise=0.0, spread=0.0, max_gaussians=3))
    rule.after_step(group, seen([math.nan, 1.0, 0.0]), STEP)
    assert group.gaussians.means.detach()[:, 0].tolist() == [1.0, 2.0, 2.0]


def test_without_any_gradient_births_follow_the_opacities() -> None:
    group = population(scales=[0.01] * 3, opacities=[0.9, 0.006, 0.001])
    rule = strategy(McmcConfig(noise=0.0, spread=0.0, max_gaussians=3))
    change = rule.after_step(group, seen([0.0, 0.0, 0.0]), STEP)
    assert change is not None and change.relocated == 1 and len(group) == 3


def test_the_noise_grows_with_the_photos_of_a_step_as_the_step_does() -> None:
    moved = []
    for batch_size in (1, 4):
        group = population(scales=[0.1] * 3, opacities=[0.01] * 3)
        before = group.gaussians.means.detach().clone()
        rule = strategy(McmcConfig(grow_factor=1.0, max_gaussians=1, guided=False), batch_size=batch_size)
        rule.after_step(group, (), STEP + 1)
        moved.append(group.gaussians.means.detach() - before)
    torch.testing.assert_close(moved[1], 2.0 * moved[0], rtol=1e-2, atol=1e-6)
    assert moved[0].abs().max() > 1e-4


def test_the_faint_inject_noise_along_their_axes_and_the_opaque_stay() -> None:
    many = 4000
    group = population(scales=[0.1] * many, opacities=[0.001] * (many - 1) + [0.9])
    turn = math.sqrt(0.5)  # by 90 degrees about z: the longest axis, x, points along y
    quats = torch.tensor([turn, 0.0, 0.0, turn]).expand(many, 4)
    gaussians = replace(group.gaussians.detach(), means=torch.zeros(many, 3), quats=quats.contiguous())
    group.gaussians = gaussians
    inject_noise(group, 2.0, 0.005, 1)
    assert not gaussians.means[-1].any()
    share = 1.0 / (1.0 + math.exp(-100.0 * (0.005 - 0.001)))
    spread = 2.0 * share * torch.tensor([0.1 * math.exp(-1), 0.1, 0.1 * math.exp(-2)]) ** 2
    torch.testing.assert_close(gaussians.means[:-1].std(dim=0), spread, rtol=0.05, atol=0.0)


def test_the_noise_follows_the_step_and_the_rate_of_the_means() -> None:
    moved = []
    for step, lr in ((STEP, 1.6e-4), (STEP, 1.6e-4), (STEP + 1, 1.6e-4), (STEP, 0.0)):
        group = population(scales=[0.1] * 3, opacities=[0.01] * 3)
        before = group.gaussians.means.detach().clone()
        rule = strategy(McmcConfig(grow_factor=1.0, max_gaussians=1, guided=False))
        rule.follow(replace(rule.config, optim=replace(rule.config.optim, means_lr=lr)), step)
        rule.after_step(group, (), step)
        moved.append(group.gaussians.means.detach() - before)
    assert torch.equal(moved[0], moved[1]) and not torch.equal(moved[0], moved[2])
    assert moved[0].abs().min() > 0 and not moved[3].any()


def test_guided_births_go_where_gradients_are_large() -> None:
    group = population(scales=[0.01] * 3, opacities=[0.9, 0.3, 0.001])
    rule = strategy(McmcConfig(noise=0.0, spread=0.0, max_gaussians=3))
    assert rule.observes_at(STEP) and not strategy(McmcConfig(guided=False)).observes_at(STEP)
    rule.after_step(group, seen([0.0, 1.0, 0.0]), STEP)
    assert group.gaussians.means.detach()[:, 0].tolist() == [1.0, 2.0, 2.0]
    assert not group.counts["grad2d"].any() and not group.counts["visible"].any()


def test_a_gradient_is_the_mean_of_the_photos_that_show_the_gaussian() -> None:
    group = population(scales=[0.01] * 3, opacities=[0.9, 0.9, 0.001])
    group.counts["grad2d"][:2] = 1.0
    group.counts["visible"][:2] = torch.tensor([1e5, 1.0])
    strategy(McmcConfig(noise=0.0, spread=0.0, max_gaussians=3)).after_step(group, (), STEP)
    assert group.gaussians.means.detach()[:, 0].tolist() == [1.0, 2.0, 2.0]


def test_parts_lie_in_the_whole_by_its_own_axes_and_cover_what_it_did() -> None:
    many = 4000
    wholes = population(scales=[0.1] * many).gaussians.detach()
    turn = math.sqrt(0.5)
    quats = torch.tensor([turn, 0.0, 0.0, turn]).expand(many, 4).contiguous()
    wholes = replace(wholes, means=torch.zeros(many, 3), quats=quats)
    parts = beside(wholes, 0.5, torch.randn(many, 3, generator=torch.Generator().manual_seed(1)))
    sizes = torch.tensor([0.1 * math.exp(-1), 0.1, 0.1 * math.exp(-2)])  # along the axes of the world
    torch.testing.assert_close(parts.means.std(dim=0), 0.5 * sizes, rtol=0.05, atol=0.0)
    own = parts.scales[:, [1, 0, 2]].exp()
    torch.testing.assert_close((own[0] ** 2 + parts.means.var(dim=0)).sqrt(), sizes, rtol=0.05, atol=0.0)
    assert torch.equal(beside(wholes, 0.0, torch.ones(many, 3)).means, wholes.means)


def test_a_birth_moves_and_shrinks_parent_and_child_alike() -> None:
    many = 500
    group = population(scales=[0.01] * many, opacities=[0.5] * many)
    old = group.gaussians.detach().map(torch.clone)
    chosen = births(torch.arange(0, many, 2))
    born = part(group, chosen, McmcConfig(spread=0.6), 1)
    parents, others = (group.gaussians.detach()[first::2] for first in (0, 1))
    factor = (
        compute_relocation(torch.tensor([0.5]), torch.tensor([2]))[1].float() * 0.8
    )  # 0.6 and 0.8: together the whole
    for parts in (parents, born):
        torch.testing.assert_close(parts.scales.exp(), old.scales[::2].exp() * factor)
        moved = (parts.means - old.means[::2]).square().sum() / many * 2
        size = (parts.scales.detach()[0] - math.log(0.8)).exp().square().sum()
        assert float(moved / size) ** 0.5 == pytest.approx(0.6, rel=0.1)
    assert not torch.equal(parents.means, born.means)
    for name, tensor in others.tensors().items():
        assert torch.equal(tensor, old.tensors()[name][1::2]), "nobody else is touched"


def test_disabled_it_changes_nothing() -> None:
    group = population(scales=[0.01] * 3, opacities=[0.001, 0.5, 0.01])
    before = rows(group.gaussians)
    rule = strategy(McmcConfig(), densify=DensifyConfig(enabled=False))
    assert rule.after_step(group, (), STEP) is None and torch.equal(rows(group.gaussians), before)


STATUS, FORGET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
NUM = 400
KEYS = torch.arange(1, NUM + 1)


def masses(seed: int = 1) -> torch.Tensor:
    return torch.rand(NUM, generator=torch.Generator().manual_seed(seed)) ** 3


@pytest.mark.parametrize("num", [0, 1, 37, 400, 5000])
def test_as_many_are_dealt_as_there_are_and_each_gets_its_share_up_or_down(num: int) -> None:
    shares = num * masses().double() / masses().double().sum()
    got, tied, num_got = dealt(ALONE, masses(), chances_of(KEYS, 3), num)
    assert int(got.sum()) == num_got == num and not len(tied)
    # The rate is not quite that of the shares: what all are rounded by is not quite nothing.
    assert ((got - shares).abs() < 1.0 + 0.06 * shares).all()


def test_over_many_steps_each_gets_its_share() -> None:
    wanted = 200 * masses().double() / masses().double().sum()
    steps = 300
    total = sum(dealt(ALONE, masses(), chances_of(KEYS, seed), 200)[0] for seed in range(steps))
    # Of a number that is one of two neighbors, the mean of so many; five times its standard error at most.
    error = 5.0 * ((wanted % 1) * (1 - wanted % 1) / steps).sqrt() + 0.01 * wanted + 0.002
    assert isinstance(total, torch.Tensor) and ((total / steps - wanted).abs() < error).all()


def test_one_more_or_a_mass_that_is_rounded_otherwise_changes_no_more_than_that() -> None:
    got = dealt(ALONE, masses(), chances_of(KEYS, 3), 200)[0]
    more = dealt(ALONE, masses(), chances_of(KEYS, 3), 201)[0]
    assert (more - got).min() == 0 and (more - got).sum() == 1
    rounded = masses() * (1.0 + 1e-5 * masses(2))
    assert (dealt(ALONE, rounded, chances_of(KEYS, 3), 200)[0] - got).abs().sum() <= 2
    dead = masses()
    dead[7] = 0.0
    others = (dealt(ALONE, dead, chances_of(KEYS, 3), 200)[0] - got).abs()
    assert others.sum() - others[7] <= got[7]


def test_those_who_come_in_together_are_taken_by_their_order() -> None:
    group = population(scales=[0.01] * 5)
    group.counts[PERSISTENT_ID][:] = 9  # so that chance makes no difference
    found = sample_parents(group, torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0]), 6, seed=2)
    assert found.parents.tolist() == [0, 0, 2, 2, 3, 4] and found.numbers.tolist() == list(range(6))


def test_nobody_is_born_of_the_dead() -> None:
    group = population(scales=[0.01] * 3)
    found = sample_parents(group, torch.zeros(3), 6, seed=2)
    assert len(found.parents) == found.num_all == 0
    born = sample_parents(group, torch.tensor([0.0, 1e-30, 0.0]), 6, seed=2)
    assert born.parents.tolist() == [1] * 6 and len(born.keys.unique()) == 6


def test_chances_are_even_and_keys_of_parts_their_own() -> None:
    many = torch.arange(1, 10_001)
    chances = chances_of(many, 5)
    assert chances.min() >= 0 and chances.max() < 1
    assert chances.histc(20, 0.0, 1.0).sub(500).abs().max() < 5.0 * math.sqrt(500)
    assert abs(float(torch.corrcoef(torch.stack([chances, chances_of(many, 6)]))[0, 1])) < 0.04
    assert torch.equal(chances_of(many.flip(0), 5), chances.flip(0)), "of the key, wherever it stands"
    keys = torch.cat([keys_of_parts(many, torch.full_like(many, part), 5) for part in range(3)])
    assert len(keys.unique()) == 30_000 and keys.min() >= 0
    noise = normal_noise(keys, 4, chances)
    torch.testing.assert_close(noise.std(dim=0), torch.ones(3, dtype=torch.float64), rtol=0.03, atol=0)


def test_keys_are_given_once_and_go_through_births() -> None:
    group = population(scales=[0.01] * 4, opacities=[0.9, 0.001, 0.9, 0.001])
    assert group.counts[PERSISTENT_ID].tolist() == [1, 2, 3, 4], "an older checkpoint's are zeros too"
    strategy(McmcConfig(max_gaussians=5)).after_step(group, (), STEP)
    keys = group.counts[PERSISTENT_ID].clone()
    assert keys[:2].tolist() == [1, 3] and len(keys.unique()) == 5 and keys[2:].min() > 1000
    number_rows(group)
    assert torch.equal(group.counts[PERSISTENT_ID], keys), "as a checkpoint holds them"


def test_one_dead_more_turns_nobody_elses_chance() -> None:
    def grown(opacities: list[float]) -> tuple[Gaussians, torch.Tensor]:
        group = population(scales=[0.01] * NUM, opacities=opacities)
        rule = strategy(McmcConfig(max_gaussians=NUM, guided=False))
        change = rule.after_step(group, (), STEP)
        assert change is not None and len(group) == NUM
        rule.after_step(group, (), STEP + 1)
        return group.gaussians.detach(), group.counts[PERSISTENT_ID]

    opacities = [0.01 if row % 3 else 0.001 for row in range(NUM)]
    (ours, keys), (theirs, others) = grown(opacities), grown([0.001, 0.001, *opacities[2:]])
    mine, other = (keys[:, None] == others[None, :]).nonzero(as_tuple=True)
    assert NUM - 8 <= len(mine) < NUM
    # Bit for bit, those who were and those who were born, after births and two steps of noise; but for the
    # few of which there is one part more or less.
    assert (ours.means[mine] != theirs.means[other]).any(dim=1).sum() <= 12


def kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.skipif(not FORGET_PEAK.exists(), reason="Linux alone tells the most memory that was taken")
def test_dealing_to_millions_takes_two_lists_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_BLOCK", 1 << 15)  # little beside a list
    num = 4_000_000
    ours, keys = torch.rand(num), torch.arange(num)
    FORGET_PEAK.write_text("5")
    before = kilobytes("VmRSS")
    assert int(dealt(ALONE, ours, chances_of(keys, 1), 1000)[0].sum()) == 1000
    assert 1024 * (kilobytes("VmHWM") - before) < (2 * 8 + 6) * num


def test_who_is_born_is_the_same_however_sums_are_rounded(blob_scene: Scene) -> None:
    found = []
    # The same sums over three photos, in another order: as on several ranks.
    for batch_size, accumulate in ((3, 1), (1, 3)):
        settings = {"batch_size": batch_size, "accumulate": accumulate, "mcmc.every": 10}
        trainer = Trainer(blob_scene, config_of({**COMMON, **MCMC, **settings}, 60))
        changes = [trainer.train_step().change for _ in range(60)]
        found.append(set(trainer.parts.population.counts[PERSISTENT_ID].tolist()))
        trainer.close()
        assert sum(change is not None for change in changes) >= 3
    assert len(found[0]) == len(found[1]) == 130 and len(found[0] & found[1]) > 115
