"""Which rank draws which photograph of a step, so that none waits long for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def dealt(
    indices: Sequence[int], costs: Mapping[int, float], *, num_ranks: int, batch_size: int
) -> tuple[int, ...]:
    """Return the places of a step's photographs, `indices` of views, as rounds and ranks take them.

    Of each round rank 0 takes the first `batch_size`, then rank 1. Photographs of like cost come into one
    round; within it the dearest go one by one to the rank with the least to do. `costs` are by view, in any
    unit; while one of them is not known yet, the order stays as it is. The same on all ranks.
    """
    per_round = num_ranks * batch_size
    assert len(indices) % per_round == 0, "whole rounds"
    if num_ranks == 1 or any(index not in costs for index in indices):
        return tuple(range(len(indices)))
    cost = [costs[index] for index in indices]
    dearest_first = sorted(range(len(indices)), key=lambda place: -cost[place])
    order: list[int] = []
    for start in range(0, len(indices), per_round):
        hands: list[list[int]] = [[] for _ in range(num_ranks)]
        for place in dearest_first[start : start + per_round]:
            free = [hand for hand in hands if len(hand) < batch_size]
            min(free, key=lambda hand: sum(cost[held] for held in hand)).append(place)
        order += [place for hand in hands for place in hand]
    return tuple(order)
