"""Ranks of the tests that give work up together; functions of a module, as other processes run them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from growth_tasks import same, state_of
from sharded_training_tasks import config_of
from shortage_tasks import no_memory, replaced
from torch import Tensor

from splatstudio.distributed.failures import FailedTogether, OutOfMemory, all_or_none, together, told_together
from splatstudio.distributed.ranks import Ranks
from splatstudio.scene.load import load_scene
from splatstudio.strategy import population as populations
from splatstudio.training.trainer import Trainer

NUM_EXCHANGES = 7  # of `every_exchange`


@dataclass(frozen=True)
class Ending:
    """How work on a rank has ended."""

    kind: str  # of the error; "" where there was none
    told: Any  # what it says, or the result
    num_undone: int  # how often the work was taken back
    num_all: int  # what the ranks say together afterward: they are in step


def tell_unless(ranks: Ranks, failures: dict[int, str]) -> Any:
    """Tell the others of as many rows as the rank's number, unless it fails; see `fail_at`."""

    def work() -> int:
        why = failures.get(ranks.rank, "")
        if why == "memory":
            no_memory()
        if why:
            raise ValueError(why)
        return ranks.rank

    def rows_of(rank: int) -> Tensor:
        return torch.full((rank, 2), 0.1 + rank, dtype=torch.float64, device="cpu")

    try:
        own, told = told_together(ranks, work, rows_of)
    except OutOfMemory as error:
        return error.ranks
    except FailedTogether as error:
        return str(error)
    return own, [(tuple(each.shape), each.unique().tolist()) for each in told]


def fail_at(ranks: Ranks, failures: dict[int, tuple[int, str]]) -> Ending:
    """Do work of NUM_EXCHANGES exchanges, before the nth of which `failures[rank] = (n, why)` fails.

    `why` is "memory", or the sentence of a ValueError. n = NUM_EXCHANGES: behind the last.
    """
    nth, why = failures.get(ranks.rank, (-1, ""))
    undone: list[int] = []

    def fail_if_due(number: int) -> None:
        if number == nth and why == "memory":
            no_memory()
        if number == nth:
            raise ValueError(why)

    def work(wary: Ranks) -> list[int]:
        own, found = torch.tensor([wary.rank + 1], device="cpu"), []
        fail_if_due(0)
        found.append(int(wary.all_reduce(own)))
        fail_if_due(1)
        found.append(int(wary.any(wary.rank == 1)))
        fail_if_due(2)
        found += [int(part) for part in wary.all_gather(own)]
        fail_if_due(3)
        found += [len(part) for part in wary.all_gather_bytes(b"x" * wary.rank)]
        fail_if_due(4)
        found += wary.all_to_all_counts(own.repeat(wary.num_ranks)[:, None])[:, 0].tolist()
        fail_if_due(5)
        ones = [1] * wary.num_ranks
        found += wary.all_to_all(own.repeat(wary.num_ranks), ones, ones).tolist()
        # Here what fails has failed on all ranks already.
        found.append(together(wary, lambda: fail_if_due(6) or 7))
        fail_if_due(7)
        return found

    kind, told = "", None
    try:
        told = all_or_none(ranks, work, lambda: undone.append(1))
    except (OutOfMemory, FailedTogether, ValueError) as error:
        kind = type(error).__name__
        told = error.ranks if isinstance(error, OutOfMemory) else str(error)
    return Ending(kind, told, len(undone), int(ranks.all_reduce(torch.tensor([1], device="cpu"))))


def grow_unread(ranks: Ranks, folder: Path, settings: dict[str, Any], failing: int) -> tuple[Any, ...]:
    """Train up to the first change, for which a rank cannot read a photo.

    Return the error, whether all was as before it, and the number of changes that a second try makes.
    """
    trainer = Trainer(load_scene(folder), config_of(settings, 200), ranks=ranks)
    made, seen = populations.attempt, []

    def unreadable(index: int) -> Any:
        raise ValueError(f"photo {index} cannot be read")

    def watched(population: Any, work: Any) -> Any:
        before = state_of(population, trainer.parts.generator)
        try:
            with ExitStack() as stack:
                if ranks.rank == failing:
                    stack.enter_context(replaced(trainer.parts.queue, "photo", unreadable))
                made(population, work)
        except ValueError:
            plain = population.ranks is ranks and population.steps_back is None
            seen.append(plain and same(before, state_of(population, trainer.parts.generator)))
            seen.append(made(population, work).num_changed)
            raise

    try:
        with replaced(populations, "attempt", watched):
            for _ in range(40):
                trainer.train_step()
    except ValueError as error:
        return type(error).__name__, "cannot be read" in str(error), *seen, trainer.whole
    finally:
        trainer.close()
    return ("nothing failed",)
