"""Samples of mcmc: as many as are wanted, by masses, and each Gaussian's by chance of its own."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from sharded_training_tasks import config_of
from strategy_settings import COMMON, MCMC
from test_mcmc import STEP, population, strategy

from splatstudio.distributed.ranks import ALONE
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.reference_training import normal_noise
from splatstudio.scene.scene import Scene
from splatstudio.settings.strategy_config import McmcConfig
from splatstudio.strategy import sampling as births
from splatstudio.strategy.global_order import number_rows
from splatstudio.strategy.population import PERSISTENT_ID
from splatstudio.strategy.sampling import chances_of, dealt, keys_of_parts, sample_parents
from splatstudio.training.trainer import Trainer

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
    # Of a number that is one of two neighbours, the mean of so many; five times its standard error at most.
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
    monkeypatch.setattr(births, "_BLOCK", 1 << 15)  # little beside a list
    num = 4_000_000
    ours, keys = torch.rand(num), torch.arange(num)
    FORGET_PEAK.write_text("5")
    before = kilobytes("VmRSS")
    assert int(dealt(ALONE, ours, chances_of(keys, 1), 1000)[0].sum()) == 1000
    assert 1024 * (kilobytes("VmHWM") - before) < (2 * 8 + 6) * num


def test_who_is_born_is_the_same_however_sums_are_rounded(blob_scene: Scene) -> None:
    found = []
    # The same sums over three photographs, in another order: as on several ranks.
    for batch_size, accumulate in ((3, 1), (1, 3)):
        settings = {"batch_size": batch_size, "accumulate": accumulate, "mcmc.every": 10}
        trainer = Trainer(blob_scene, config_of({**COMMON, **MCMC, **settings}, 60))
        changes = [trainer.train_step().change for _ in range(60)]
        found.append(set(trainer.parts.population.counts[PERSISTENT_ID].tolist()))
        trainer.close()
        assert sum(change is not None for change in changes) >= 3
    assert len(found[0]) == len(found[1]) == 130 and len(found[0] & found[1]) > 115
