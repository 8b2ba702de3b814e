"""Ranks that hold the more Gaussians give some to those that hold fewer."""

from __future__ import annotations

import torch
from torch import Tensor

from splatstudio.distributed.failures import together
from splatstudio.strategy.attempt import attempt
from splatstudio.strategy.population import Population, trainable

TOLERANCE = 0.1  # of the mean: how far the largest and the smallest share may be apart


@torch.no_grad()
def rebalance(population: Population) -> bool:
    """Let all ranks share their Gaussians evenly where they are too far apart; return whether that was so.

    Moments and counts move with the rows, and the order of all ranks' rows together stays: the model is the
    same as before to the last bit, whoever draws it. Called by all ranks. Where any has no memory for it all
    keep what they had, and raise OutOfMemory.
    """
    ranks = population.ranks
    if ranks.num_ranks == 1:
        return False
    sizes = [int(part) for part in ranks.all_gather(torch.tensor([len(population)], device="cpu"))]
    total = sum(sizes)
    if max(sizes) - min(sizes) <= max(1.0, TOLERANCE * total / len(sizes)):
        return False
    sent, received = _moves(sizes, ranks.rank)
    attempt(population, lambda: _move(population, sent, received))
    return True


def _move(population: Population, sent: list[int], received: list[int]) -> None:
    """Send `sent[0]` rows of everything to rank 0, the next to rank 1, and so on; get `received` of them."""
    ranks, optimizer, num_moved = population.ranks, population.optimizer, 0
    assert population.steps_back is not None, "in an attempt"
    optimizer.flush_lazy_rows(population.gaussians)

    def moved(tensor: Tensor) -> Tensor:
        # Room for what comes before the others are asked whether they have it too.
        into = tensor.new_empty((sum(received), *tensor.shape[1:]))
        return ranks.all_to_all(tensor, sent, received, into=into)

    def moved_and_counted(tensor: Tensor) -> Tensor:
        nonlocal num_moved
        result = moved(tensor)
        num_moved += 1
        return result

    def model_back() -> None:
        population.gaussians = trainable(population.gaussians.detach().map(moved_back))

    def moments_back() -> None:
        optimizer.replace(moved_back, reversed(range(num_moved)))

    def moved_back(tensor: Tensor) -> Tensor:
        plain = population.ranks  # nobody gives up any more
        into = together(plain, lambda: tensor.new_empty((sum(sent), *tensor.shape[1:])))
        return plain.all_to_all(tensor, received, sent, into=into)

    population.gaussians = trainable(population.gaussians.detach().map(moved))
    population.steps_back += [model_back, moments_back]
    # Tensor by tensor, so that but one of them is in memory twice.
    optimizer.replace(moved_and_counted)
    population.amid_edit()
    population.counts = {name: moved(count) for name, count in population.counts.items()}


def _moves(sizes: list[int], rank: int) -> tuple[list[int], list[int]]:
    """Return how many rows a rank sends to each and gets from each, so that all have equally many."""
    num, total = len(sizes), sum(sizes)
    held = [(sum(sizes[:r]), sum(sizes[: r + 1])) for r in range(num)]
    wanted = [(total * r // num, total * (r + 1) // num) for r in range(num)]
    sent = [_overlap(held[rank], wanted[other]) for other in range(num)]
    return sent, [_overlap(held[other], wanted[rank]) for other in range(num)]


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
