"""The one place where the number of Gaussians changes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.distributed import ALONE, Ranks
from splatstudio.gaussians import Gaussians, with_rows
from splatstudio.optim import SplatAdam


@dataclass(eq=False)
class Population:
    """Everything that has one row for each Gaussian: the model, Adam's moments, the strategy's counts.

    `gaussians` holds leaf tensors that require gradients; it is replaced as a whole, so that another thread
    that takes it once always has six tensors of one length. `counts` is the strategy's state, [N] tensors by
    name. With several `ranks` these are the rows of one of them; rules hold for all ranks' rows together.
    """

    gaussians: Gaussians
    optimizer: SplatAdam
    counts: dict[str, Tensor]
    ranks: Ranks = ALONE

    def __len__(self) -> int:
        return len(self.gaussians)

    def num_all(self) -> int:
        """Return the number of rows of all ranks; called by all of them."""
        if self.ranks.num_ranks == 1:
            return len(self)
        return int(self.ranks.sum(torch.tensor([len(self)], device="cpu")))

    def to(self, device: torch.device | str) -> Population:
        """Return the population on `device`."""
        optimizer = self.optimizer
        moments = optimizer.exp_avg.to(device), optimizer.exp_avg_sq.to(device)
        return Population(
            self.gaussians.to(device),
            SplatAdam(*moments, optimizer.num_steps),
            {name: count.to(device) for name, count in self.counts.items()},
            self.ranks,
        )


def largest(ranks: Ranks, values: Tensor, num: int) -> Tensor:
    """Return which of `values` [n] are among the `num` largest of all ranks, [n] bool.

    Of equal ones the first count, rank 0's before rank 1's. Called by all ranks with the same `num`.
    """
    parts = ranks.gather(values)
    order = torch.cat(parts).sort(descending=True, stable=True).indices
    first = sum(len(part) for part in parts[: ranks.rank])
    chosen = torch.zeros(len(order), dtype=torch.bool, device=values.device)
    chosen[order[:num]] = True
    return chosen[first : first + len(values)]


@torch.no_grad()
def edit(population: Population, *, keep: Tensor, newborn: Gaussians, parents: Tensor) -> None:
    """Drop the rows outside `keep` and add `newborn` behind the rest.

    `keep` [N] bool; `newborn` has M rows, `parents` [M] int64 names each one's parent among the N rows before
    the edit. Survivors keep their moments, newborns start with zero moments and their parent's counts.
    """
    assert keep.shape == (len(population),), "one flag for each Gaussian"
    assert parents.shape == (len(newborn),), "one parent for each newborn"
    population.optimizer.settle(population.gaussians)
    rows = keep.nonzero().squeeze(1)
    old, new = population.gaussians.detach().tensors(), newborn.detach().tensors()
    merged = Gaussians(**{name: with_rows(tensor, rows, new[name]) for name, tensor in old.items()})
    population.gaussians = trainable(merged)
    del old  # together, the two models and the moments are the most that a training holds
    population.optimizer.edit(rows, len(newborn))
    population.counts = {
        name: with_rows(count, rows, count[parents]) for name, count in population.counts.items()
    }


def trainable(gaussians: Gaussians) -> Gaussians:
    """Return the same values as contiguous leaf tensors that require gradients."""
    return gaussians.map(lambda tensor: tensor.detach().contiguous().requires_grad_())
