"""The order of all ranks' Gaussians, that in which one process would hold them, and parts of a population.

With it, what is drawn at random is drawn for all Gaussians as one list, alike on every rank, and each rank
takes what belongs to its rows. So a training makes the same random choices on however many ranks. (The chance
of mcmc is each Gaussian's own, see `sample_parents`.)
A row's place is its population's count ROW_INDEX, int64. A population of one process has none, as
its rows lie in this order, unless `reorder` has moved them or it goes on from a checkpoint of several ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import concatenated
from splatstudio.optimization.optim import SplatAdam
from splatstudio.strategy.population import PERSISTENT_ID, ROW_INDEX, Population, standing


def number_rows(population: Population) -> int:
    """Give the rows their places and keys before the first step; return how many rows all ranks have.

    Called by all ranks. Places are of several ranks; those of a checkpoint stay where each of them is there
    once. Otherwise the rows of rank 0 come first. Keys are of strategies that count them, see
    `sample_parents`; those of a checkpoint stay.
    """
    ranks, known, keys = (
        population.ranks,
        population.counts.get(ROW_INDEX),
        population.counts.get(PERSISTENT_ID),
    )
    num = len(population)
    if ranks.num_ranks > 1 or known is not None:
        sizes = torch.cat(ranks.all_gather(torch.tensor([len(population)], device="cpu")))
        num, first = int(sizes.sum()), int(sizes[: ranks.rank].sum())
        if not _is_order(ranks, known, num):
            own = torch.arange(first, first + len(population), device=population.gaussians.device)
            population.counts[ROW_INDEX] = own
    if keys is not None and not ranks.any(bool(keys.any())):
        rows = torch.arange(len(population), device=keys.device)
        population.counts[PERSISTENT_ID] = 1 + population.counts.get(ROW_INDEX, rows)
    return num


def in_order(population: Population, rows: Tensor) -> tuple[Tensor, int]:
    """Return where each of `rows` (indices) stands among those that all ranks name, and how many these are.

    [n] int64, 0 for the first. Called by all ranks. The rows of one process must rise.
    """
    if ROW_INDEX in population.counts:
        return standing(population.ranks, population.counts[ROW_INDEX][rows])
    return torch.arange(len(rows), device=rows.device), len(rows)


def listed(population: Population, rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the `values` [n] of the rows that all ranks name as one list, and where in it these are, [n].

    Called by all ranks. The list of several lies on the CPU: it may be more than a GPU has room for.
    """
    numbers, num = in_order(population, rows)
    if ROW_INDEX not in population.counts:
        return values, numbers
    everybody = torch.zeros(num, dtype=values.dtype, device="cpu")
    everybody[numbers.cpu()] = values.cpu()
    return population.ranks.all_reduce(everybody), numbers


def largest(population: Population, rows: Tensor, values: Tensor, num: int) -> Tensor:
    """Return which of `rows` (indices) have one of the `num` largest `values` [n] of all ranks', [n] bool.

    Of equal ones the first in order count. Called by all ranks with the same `num`.
    """
    everybody, numbers = listed(population, rows, values)
    order = everybody.sort(descending=True, stable=True).indices
    chosen = torch.zeros(len(everybody), dtype=torch.bool, device=everybody.device)
    chosen[order[:num]] = True
    return chosen[numbers.to(chosen.device)].to(values.device)


def normal_numbers(numbers: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Return those of `num` normal numbers, three each, that have the given `numbers` [n], [n, 3] float32.

    `generator`, on the CPU, must be in the same state on all ranks, and is afterward.
    """
    noise = torch.randn((num, 3), generator=generator, dtype=torch.float32, device="cpu")
    return noise[numbers.cpu()]


def _is_order(ranks: Ranks, places: Tensor | None, num: int) -> bool:
    """Return whether all ranks' `places` together are 0 to `num` - 1, each once."""
    own = torch.full((1,), -1, device="cpu") if places is None else places.cpu()
    if ranks.any(own.dtype != torch.int64 or not bool(((own >= 0) & (own < num)).all())):
        return False
    once = torch.zeros(num, dtype=torch.uint8, device="cpu")
    once[own] = 1
    return bool((ranks.all_reduce(once) == 1).all())


def shard_rows(population: Population, rank: int, num_ranks: int) -> Population:
    """Return the share of a rank when the rows are split evenly, in order, as views."""
    num = len(population)
    return rows_of(population, slice(num * rank // num_ranks, num * (rank + 1) // num_ranks))


def rows_of(population: Population, rows: slice) -> Population:
    """Return some rows of a population, as views."""
    optimizer = population.optimizer
    return Population(
        population.gaussians[rows],
        SplatAdam(optimizer.exp_avg[rows], optimizer.exp_avg_sq[rows], optimizer.num_steps),
        {name: count[rows] for name, count in population.counts.items()},
    )


@torch.no_grad()
def copied(population: Population) -> Population:
    """Return the same population with tensors of its own, on the CPU."""

    def copy(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", copy=True)

    optimizer = population.optimizer
    moments = optimizer.exp_avg.map(copy), optimizer.exp_avg_sq.map(copy)
    return Population(
        population.gaussians.map(copy),
        SplatAdam(*moments, optimizer.num_steps),
        {name: copy(count) for name, count in population.counts.items()},
    )


def joined(parts: Sequence[Population], num_steps: int) -> Population:
    """Return the rows of all `parts`, in order, as one population whose optimizer made `num_steps` updates.

    Raises ValueError when `num_steps` is no whole number.
    """
    if type(num_steps) is not int:
        raise ValueError(f"the optimizer's num_steps is {num_steps!r}")
    return Population(
        concatenated([part.gaussians for part in parts]),
        SplatAdam(
            concatenated([part.optimizer.exp_avg for part in parts]),
            concatenated([part.optimizer.exp_avg_sq for part in parts]),
            num_steps,
        ),
        {name: torch.cat([part.counts[name] for part in parts]) for name in parts[0].counts},
    )
