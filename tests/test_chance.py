"""Random numbers of the strategies: the same when repeated, others for each seed, step and rank."""

from __future__ import annotations

import torch

from splatstudio.distributed import Ranks


class Second(Ranks):
    """What knows of itself only that it is rank 1."""

    rank = 1


def first_numbers(ranks: Ranks, seed: int, step: int) -> tuple[float, ...]:
    return tuple(torch.randn(4, generator=ranks.generator(seed, step)).tolist())


def test_random_numbers_are_of_a_seed_a_step_and_a_rank_and_of_no_other() -> None:
    steps = (0, 1, 2, 4096, 4097, 8192, 2**32, 2**32 + 1)  # powers of two: torch reads 32 bits of a seed
    drawn = {
        first_numbers(ranks, seed, step)
        for ranks in (Ranks(), Second())
        for seed in (0, 1, 42, 2**32)
        for step in steps
    }
    assert len(drawn) == 2 * 4 * len(steps)
    assert first_numbers(Second(), 42, 4096) == first_numbers(Second(), 42, 4096)
