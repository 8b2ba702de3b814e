"""Photos are assigned so that no rank has much more to do than another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import RankPool
from sharded_training_tasks import Plan, train

from splatstudio.training.data.photo_queue import assign_views

CALM: dict[str, Any] = {"sh_degree": 1, "densify.enabled": False}


def rounds_of(
    order: tuple[int, ...], num_ranks: int, size: int, costs: dict[int, float]
) -> list[list[float]]:
    """Return what each rank has to do, by round."""
    sums = [sum(costs[index] for index in order[i : i + size]) for i in range(0, len(order), size)]
    return [sums[i : i + num_ranks] for i in range(0, len(sums), num_ranks)]


def waiting(rounds: list[list[float]]) -> float:
    """Return the share of the ranks' time in which they wait for the slowest of the round."""
    return 1.0 - sum(map(sum, rounds)) / sum(max(one) * len(one) for one in rounds)


@pytest.mark.parametrize(("num_ranks", "size", "num_rounds"), [(2, 4, 1), (4, 2, 1), (4, 1, 4), (3, 2, 2)])
def test_no_rank_waits_long(num_ranks: int, size: int, num_rounds: int) -> None:
    generator = torch.Generator().manual_seed(0)
    indices = list(range(num_ranks * size * num_rounds))
    before, after = [], []
    for _ in range(20):
        costs = dict(enumerate((0.2 + torch.rand(len(indices), generator=generator) ** 2).tolist()))
        order = assign_views(indices, costs, num_ranks=num_ranks, batch_size=size)
        assert sorted(order) == indices
        before.append(waiting(rounds_of(tuple(indices), num_ranks, size, costs)))
        after.append(waiting(rounds_of(order, num_ranks, size, costs)))
    assert sum(after) < 0.6 * sum(before)


def test_what_is_not_known_stays_in_order() -> None:
    assert assign_views([4, 2, 4, 1], {4: 1.0, 2: 9.0}, num_ranks=2, batch_size=2) == (0, 1, 2, 3)
    assert assign_views([4, 2], {4: 1.0, 2: 9.0}, num_ranks=1, batch_size=2) == (0, 1)
    # A photo that comes twice counts twice.
    assert assign_views([4, 2, 4, 1], {4: 5.0, 2: 9.0, 1: 0.5}, num_ranks=2, batch_size=2) == (1, 3, 0, 2)


def test_a_training_that_deals_goes_on_bit_for_bit(pool: RankPool, blob_folder: Path, tmp_path: Path) -> None:
    settings = {**CALM, "batch_size": 2, "accumulate": 2}
    first = pool.run(2, train, Plan(blob_folder, settings, 5, save=tmp_path))
    rest = pool.run(2, train, Plan(blob_folder, {}, 5, resume=first[0].saved))
    whole = pool.run(2, train, Plan(blob_folder, settings, 10))
    assert rest[0].losses == whole[0].losses[5:]
    one = pool.run(1, train, Plan(blob_folder, {**CALM, "batch_size": 8}, 10))
    assert one[0].losses == pytest.approx(whole[0].losses, rel=1e-3)
