"""Ranks of the tests that decide on one model and the same statistics; functions of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sharded_tasks import model
from sharded_training_tasks import config_of
from torch import Tensor

from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.change import Change
from splatstudio.optimization.gradients import Observation
from splatstudio.optimization.optim import SplatAdam
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy import Strategy
from splatstudio.strategy.after_step import rebalance
from splatstudio.strategy.default import DefaultStrategy
from splatstudio.strategy.fast import FastStrategy
from splatstudio.strategy.global_order import number_rows
from splatstudio.strategy.make_strategy import AbsgradStrategy
from splatstudio.strategy.mcmc import McmcStrategy
from splatstudio.strategy.population import ROW_INDEX, Population, trainable

NUM, MOST, STEPS = 120, 600, (10, 20, 30)  # Gaussians, more than there ever are, steps with decisions
EXTENT = 10.0  # by which about half are large


def numbers_of(*seeds: int) -> Tensor:
    """Return numbers for as many places as are ever needed, from 0 to 1, [MOST, 3]."""
    seed = sum(1000**power * each for power, each in enumerate(seeds))
    return torch.rand(MOST, 3, generator=torch.Generator().manual_seed(seed))


def places_of(population: Population) -> Tensor:
    return population.counts.get(ROW_INDEX, torch.arange(len(population)))


def dealt_model(ranks: Ranks, sizes: tuple[int, ...]) -> Population:
    """Return a rank's rows of a model that ranks hold in parts of `sizes`."""
    whole = model(NUM)
    whole.opacities[::9] = -8.0  # so faint that they go
    first = sum(sizes[: ranks.rank])
    own = trainable(whole[slice(first, first + sizes[ranks.rank])].map(Tensor.clone))
    adam = SplatAdam(own.detach().map(lambda t: t + 1.0), own.detach().map(lambda t: t.abs() + 2.0), 3)
    return Population(own, adam, {}, ranks)


def strategy_of(config: TrainConfig, population: Population) -> Strategy:
    """Return a strategy to which photos show the same of a Gaussian, whatever rank holds it."""

    def survey(step: int) -> Iterator[Tensor]:
        for view in range(10):
            yield 0.2 * numbers_of(step, view, 7)[places_of(population)][:, 0]

    generator = torch.Generator().manual_seed(4)
    if config.strategy == "fast":
        return FastStrategy(config, extent=EXTENT, detail=6000.0, survey=survey)
    if config.strategy == "mcmc":
        return McmcStrategy(config, extent=EXTENT, detail=1.0)
    rules = AbsgradStrategy if config.strategy == "absgrad" else DefaultStrategy
    strategy = rules(config.densify, extent=EXTENT, steps=config.steps, generator=generator)
    strategy.follow(config, 0)
    return strategy


def decide(
    ranks: Ranks, settings: dict[str, Any], sizes: tuple[int, ...]
) -> tuple[list[Change], dict[str, Tensor]]:
    """Let a strategy change a model three times; return the changes, and the model in the order of places."""
    config = config_of({**settings, "batch_size": 6 // ranks.num_ranks}, 1000)
    population = dealt_model(ranks, sizes)
    strategy = strategy_of(config, population)
    population.counts = strategy.new_counts(population.gaussians.detach())
    number_rows(population)
    changes = []
    for step in STEPS:
        numbers = numbers_of(step)[places_of(population)]
        gradients = 4e-5 * numbers[:, :2]  # of a picture of 20 pixels: of 4e-4 at most
        radii = (numbers[:, 2:] > 0.2).int().expand(-1, 2) * 3
        change = strategy.after_step(population, (Observation(gradients, radii, 20, 20),), step)
        assert change is not None
        changes.append(change)
        rebalance(population)
    return changes, _gathered(population)


def _gathered(population: Population) -> dict[str, Tensor]:
    groups = {
        "": population.gaussians.detach().tensors(),
        "exp_avg.": population.optimizer.exp_avg.tensors(),
        "counts.": {name: count for name, count in population.counts.items() if name != ROW_INDEX},
    }
    order = torch.cat(population.ranks.all_gather(places_of(population))).argsort()
    return {
        prefix + name: torch.cat(population.ranks.all_gather(tensor))[order]
        for prefix, group in groups.items()
        for name, tensor in group.items()
    }


def numbered(ranks: Ranks, places: list[list[int]] | None) -> tuple[int, list[int] | None]:
    """Number the rows of a model of which a checkpoint knows `places`; return how many all have, these."""
    population = dealt_model(ranks, (2, 1, 3))
    if places is not None:
        population.counts = {ROW_INDEX: torch.tensor(places[ranks.rank])}
    num = number_rows(population)
    known = population.counts.get(ROW_INDEX)
    return num, None if known is None else known.tolist()
