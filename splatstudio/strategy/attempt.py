"""Changes of a population that are made on all ranks or on none, where memory may be short."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from splatstudio.distributed import Ranks
from splatstudio.distributed.failures import OutOfMemory, is_out_of_memory, unless_out_of_memory
from splatstudio.distributed.guarded_ranks import all_or_none
from splatstudio.strategy import Change
from splatstudio.strategy.population import Population

T = TypeVar("T")


def attempt(population: Population, work: Callable[[], T]) -> T:
    """Return what `work` returns, which changes the population; all ranks call it together.

    `work` exchanges by `population.ranks` and changes rows by `edit`, or says in `population.steps_back` how
    a change is taken back; what it makes of a count is a new tensor. Where a rank has no memory for its part
    everything is as it was before, to the last bit, and all raise OutOfMemory; where one raises ValueError,
    all raise FailedTogether (one process: what it was). MemoryError, which is not OutOfMemory: there was none
    to take the change back either.
    """
    ranks, counts = population.ranks, dict(population.counts)
    back = population.steps_back = []

    def careful(wary: Ranks) -> T:
        population.ranks = wary
        return work()

    def undo() -> None:
        population.ranks = ranks
        try:
            while back:
                back.pop()()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError("there was no memory to take a change back: the model is torn") from error
        population.counts = counts

    try:
        return all_or_none(ranks, careful, undo)
    finally:
        population.ranks, population.steps_back = ranks, None


def change_or_none(population: Population, work: Callable[[], Change]) -> Change:
    """Return the change that `work` makes, as `attempt` does, or that there was no memory for it."""
    try:
        return attempt(population, work)
    except OutOfMemory as error:
        return Change(short=error.ranks)


def unless_short(population: Population, work: Callable[[], object]) -> None:
    """Do what concerns this rank's rows alone, without exchange, and can be left out where memory is short.

    That it was is noted in `population.short`.
    """
    if unless_out_of_memory(lambda: (work(),)) is None:
        population.short = True
