"""Ranks of the tests without memory for a change of the population; functions of a module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from sharded_tasks import model
from sharded_training_tasks import config_of
from shortage_tasks import no_memory, replaced
from torch import Tensor

from splatstudio.distributed.failures import OutOfMemory
from splatstudio.distributed.ranks import Ranks
from splatstudio.optimization.optim import SplatAdam
from splatstudio.scene.load import load_scene
from splatstudio.strategy import after_step as growth
from splatstudio.strategy import population as populations
from splatstudio.strategy.population import Population, trainable
from splatstudio.training.trainer import Trainer


@dataclass(frozen=True)
class Shortage:
    """A function that one rank has no memory for when it calls it for the `nth` time in a change."""

    module: str
    name: str
    nth: int
    rank: int


@dataclass(frozen=True, eq=False)
class Left:
    """What is left of a change that there was no memory for."""

    short: tuple[int, ...]  # of whom is told
    unchanged: bool
    problem: str
    max_gaussians: int
    num_before: int  # Gaussians of all ranks
    num_later: int  # changes that were made in the steps that follow
    losses: list[float]


def state_of(population: Population, generator: torch.Generator | None = None) -> list[Tensor]:
    """Return copies of everything that a change of the population may touch."""
    optimizer = population.optimizer
    tensors = [population.gaussians.detach(), optimizer.exp_avg, optimizer.exp_avg_sq]
    state = [tensor.clone() for part in tensors for tensor in part.tensors().values()]
    state += [count.clone() for _, count in sorted(population.counts.items())]
    return state if generator is None else [*state, generator.get_state()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def failing_at(function: Callable[..., Any], nth: int) -> Callable[..., Any]:
    """Return `function`, for which there is no memory the `nth` time (from 1)."""
    calls = [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return no_memory() if calls[0] == nth else function(*args, **kwargs)

    return counted


def grow_short(ranks: Ranks, folder: Path, settings: dict[str, Any], shortage: Shortage) -> Left:
    """Train up to the first change, for which a rank has no memory, and five steps further."""
    trainer = Trainer(load_scene(folder), config_of(settings, 200), ranks=ranks)
    made, seen, later = populations.attempt, [], []

    def watched(population: Population, work: Callable[[], Any]) -> Any:
        before, owner = state_of(population, trainer.parts.generator), import_module(shortage.module)
        function = getattr(owner, shortage.name)
        try:
            with ExitStack() as stack:
                if ranks.rank == shortage.rank and not seen:
                    other = failing_at(function, shortage.nth)
                    stack.enter_context(replaced(owner, shortage.name, other))
                result = made(population, work)
            later.append(result)
            return result
        except OutOfMemory as error:
            seen.append((error.ranks, same(before, state_of(population, trainer.parts.generator))))
            raise

    num, stats = trainer.num_gaussians, None
    with replaced(populations, "attempt", watched):
        while not seen:
            stats = trainer.train_step()
            assert trainer.step < 40, "there is a change"
        assert stats is not None and stats.change is not None and stats.change.short == seen[0][0]
        limit, losses = trainer.config.densify.max_gaussians, []
        trainer.update_setting("densify.max_gaussians", 500)
        for _ in range(12):
            losses.append(trainer.train_step().loss)
    trainer.close()
    short, unchanged = seen[0]
    return Left(short, unchanged, str(stats.problem), limit, num, len(later), losses)


def balance_short(ranks: Ranks, sizes: tuple[int, ...], nth: int, failing: int) -> tuple[Any, ...]:
    """Even out shards where a rank has no memory for its `nth` tensor; return who is told of, and the effect.

    nth 0: there is memory for all.
    """
    first = sum(sizes[: ranks.rank])
    own = trainable(model(sum(sizes))[slice(first, first + sizes[ranks.rank])].map(Tensor.clone))
    optimizer = SplatAdam(own.detach().map(lambda t: t + 1.0), own.detach().map(lambda t: t + 2.0), 3)
    population = Population(own, optimizer, {"visible": own.detach().opacities + 3.0}, ranks)
    before, short = state_of(population), ()
    with ExitStack() as stack:
        if nth and ranks.rank == failing:
            stack.enter_context(replaced(Tensor, "new_empty", failing_at(Tensor.new_empty, nth)))
        try:
            growth.rebalance(population)
        except OutOfMemory as error:
            short = error.ranks
    return short, same(before, state_of(population)), len(population)
