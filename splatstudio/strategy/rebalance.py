"""Ranks that hold the more Gaussians give some to those that hold fewer."""

from __future__ import annotations

import torch
from torch import Tensor

from splatstudio.gaussians import Gaussians
from splatstudio.strategy.population import Population, trainable

TOLERANCE = 0.1  # of the mean: how far the largest and the smallest share may be apart


@torch.no_grad()
def rebalance(population: Population) -> bool:
    """Let all ranks share their Gaussians evenly where they are too far apart; return whether that was so.

    Moments and counts move with the rows, and the order of all ranks' rows together stays: the model is the
    same as before to the last bit, whoever draws it. Called by all ranks.
    """
    ranks = population.ranks
    if ranks.num_ranks == 1:
        return False
    sizes = [int(part) for part in ranks.gather(torch.tensor([len(population)], device="cpu"))]
    total = sum(sizes)
    if max(sizes) - min(sizes) <= max(1.0, TOLERANCE * total / len(sizes)):
        return False
    sent, received = _moves(sizes, ranks.rank)
    optimizer = population.optimizer
    optimizer.settle(population.gaussians)

    def moved(tensor: Tensor) -> Tensor:
        return ranks.swap_rows(tensor, sent, received)

    # Tensor by tensor, so that but one of them is in memory twice.
    gaussians = {name: moved(tensor) for name, tensor in population.gaussians.detach().tensors().items()}
    population.gaussians = trainable(Gaussians(**gaussians))
    optimizer.exp_avg = optimizer.exp_avg.map(moved)
    optimizer.exp_avg_sq = optimizer.exp_avg_sq.map(moved)
    population.counts = {name: moved(count) for name, count in population.counts.items()}
    return True


def _moves(sizes: list[int], rank: int) -> tuple[list[int], list[int]]:
    """Return how many rows a rank sends to each and gets from each, so that all have equally many."""
    num, total = len(sizes), sum(sizes)
    held = [(sum(sizes[:r]), sum(sizes[: r + 1])) for r in range(num)]
    wanted = [(total * r // num, total * (r + 1) // num) for r in range(num)]
    sent = [_overlap(held[rank], wanted[other]) for other in range(num)]
    return sent, [_overlap(held[other], wanted[rank]) for other in range(num)]


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
