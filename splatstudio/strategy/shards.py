"""Parts of a population, as ranks and files have them, and the whole of parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from splatstudio.gaussians.gaussians import concatenated
from splatstudio.optimization.optim import SplatAdam
from splatstudio.strategy.population import Population


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
