"""What is random: generators that follow from a seed and a step, and a draw by masses."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_BLOCK = 1 << 20  # rows that are looked through at once


def generator_of(seed: int, step: int) -> torch.Generator:
    """Return a generator for a step's random numbers, on the CPU: the same on all ranks and when repeated."""
    # A hash of four bytes: torch's generators for the CPU look at 32 bits of a seed and at no more. The zero
    # stands for the first rank, whose numbers are those of all of them.
    number = int.from_bytes(hashlib.blake2b(f"{seed} {step} 0".encode(), digest_size=4).digest(), "little")
    return torch.Generator().manual_seed(number)


def drawn(masses: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Return `num` rows, int64, each drawn with a probability in proportion to `masses` [N], 0 or more.

    A row may be drawn several times. To draw any, some mass must be above 0.
    """
    if num == 0:
        return torch.zeros(0, dtype=torch.int64, device=masses.device)
    # In place: there may be tens of millions.
    ends = masses.to(torch.float64, copy=True).cumsum_(0)
    assert bool(ends[-1] > 0), "there is something to draw from"
    points = torch.rand(num, generator=generator, dtype=torch.float64).to(ends) * ends[-1]
    # What rounding puts at the very end belongs to the last row that has a mass.
    return torch.searchsorted(ends, points, right=True).clamp_max(_last_above_zero(masses))


def _last_above_zero(masses: Tensor) -> int:
    """Return the last row of `masses` [N] that is above 0; there is one."""
    end = len(masses)
    while not bool((masses[max(end - _BLOCK, 0) : end] > 0).any()):
        assert end > 0, "some mass is above 0"
        end = max(end - _BLOCK, 0)
    start = max(end - _BLOCK, 0)
    return start + int((masses[start:end] > 0).nonzero()[-1])
