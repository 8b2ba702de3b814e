"""Random numbers of the strategies: the same when repeated, others for each seed and step."""

from __future__ import annotations

import torch

from splatstudio.strategy.chance import generator_of, seeds_of


def first_numbers(seed: int, step: int) -> tuple[float, ...]:
    return tuple(torch.randn(4, generator=generator_of(seed, step)).tolist())


def test_random_numbers_are_of_a_seed_and_a_step_and_of_no_other() -> None:
    steps = (0, 1, 2, 4096, 4097, 8192, 2**32, 2**32 + 1)  # powers of two: torch reads 32 bits of a seed
    drawn = {first_numbers(seed, step) for seed in (0, 1, 42, 2**32) for step in steps}
    assert len(drawn) == 4 * len(steps)
    assert first_numbers(42, 4096) == first_numbers(42, 4096)


def test_the_seeds_of_a_step_are_its_own() -> None:
    seeds = [*seeds_of(1, 5, 3), *seeds_of(1, 6, 3), *seeds_of(2, 5, 3)]
    assert len(set(seeds)) == 9 and all(0 <= seed < 2**62 for seed in seeds)
    assert seeds_of(1, 5, 2) == seeds[:2]
