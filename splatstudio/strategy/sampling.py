"""Random numbers that all ranks draw alike, and what MCMC draws: which Gaussians are moved or added."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.distributed.ranks import Ranks
from splatstudio.kernels.reference_training import random_bits
from splatstudio.strategy.global_order import in_order, listed
from splatstudio.strategy.population import PERSISTENT_ID, ROW_INDEX, Population

_BLOCK = 1 << 18  # rows that are looked at together: what is made of each takes 200 bytes for a moment
_LEVELS = 4  # of a bisection that are decided at once: one message to the other ranks for all of them
# From a part to the next of one Gaussian: odd, so that none comes twice, and far from small numbers.
_STEP = 0x1E3779B97F4A7C15
_LARGEST_KEY = 2**63 - 1


def generator_of(seed: int, step: int) -> torch.Generator:
    """Return a generator for a step's random numbers, on the CPU: the same on all ranks and when repeated."""
    # A hash of four bytes: torch's generators for the CPU look at 32 bits of a seed and at no more. The zero
    # stands for the first rank, whose numbers are those of all of them.
    number = int.from_bytes(hashlib.blake2b(f"{seed} {step} 0".encode(), digest_size=4).digest(), "little")
    return torch.Generator().manual_seed(number)


def seeds_of(seed: int, step: int, num: int) -> list[int]:
    """Return `num` seeds of a step for what is made by counting, 0 to below 2^62, the same on all ranks."""
    return torch.randint(2**62, (num,), generator=generator_of(seed, step), device="cpu").tolist()


@dataclass(frozen=True, eq=False)
class Samples:
    """Of which there are to be more: births of all ranks, of which this one knows those from its rows."""

    parents: Tensor  # [M] int64 rows of this rank, that of each birth
    numbers: Tensor  # [M] int64, of each birth among those of all ranks
    keys: Tensor  # [M] int64, those of the born
    num_all: int  # births of all ranks


def sample_parents(population: Population, masses: Tensor, num: int, seed: int) -> Samples:
    """Return `num` births of all ranks, each Gaussian's in proportion to `masses` [N], 0 or more.

    No births where nobody has a mass. Called by all ranks with the same `num` and `seed` (0 to below 2^63).
    """
    keys = population.counts[PERSISTENT_ID]
    fewest, tied, num_fewest = dealt(population.ranks, masses, chances_of(keys, seed), num)
    if num_fewest < num:
        behind, num_tied = in_order(population, tied)
        fewest[tied] += behind < num - num_fewest
        num = min(num, num_fewest + num_tied)  # fewer where nobody is there to be parted
    rows = fewest.nonzero().squeeze(1)
    times = fewest[rows]
    parents = rows.repeat_interleave(times)
    ends = times.cumsum(0)
    part = torch.arange(len(parents), device=rows.device) - (ends - times).repeat_interleave(times)
    if ROW_INDEX in population.counts:
        everybody, own = listed(population, rows, times)
        before = (everybody.cumsum(0) - everybody)[own.to(everybody.device)].to(times)
    else:
        before = ends - times
    numbers = before.repeat_interleave(times) + part
    return Samples(parents, numbers, keys_of_parts(keys[parents], part, seed), num)


def dealt(ranks: Ranks, masses: Tensor, chances: Tensor, num: int) -> tuple[Tensor, Tensor, int]:
    """Return how many of `num` each row gets, [N] int64: its share by `masses` [N], rounded up or down.

    That is floor(rate * mass + chance), with the rate at which all rows of all ranks get `num` together and
    `chances` [N] float64, 0 to below 1: sequential Poisson sampling (Ohlsson 1998), with repetition. Where
    rows come in at one rate together that is too few: then the rows (indices) that get one more each at the
    next rate are the second result. The third is how many all rows of all ranks got until then.
    Called by all ranks. Without any mass nobody gets any.
    """
    sizes = [float(masses.sum(dtype=torch.float64)), float(len(masses))]
    total, size = ranks.all_reduce(torch.tensor(sizes, dtype=torch.float64, device="cpu")).tolist()
    low = high = 0.0
    if num > 0 and total > 0:
        # At which each row gets more than its share less one. A power of two: the rates that are tried do not
        # follow from how the sum was rounded.
        high = 2.0 ** math.ceil(math.log2((num + size) / total))
    undecided, num_low = _Undecided(masses, chances), 0
    while low < high and (rates := _midpoints(low, high, _LEVELS)):
        got = dict(zip(rates, ranks.all_reduce(undecided.counts(rates)).tolist(), strict=True))
        while low < high and (found := got.pop(rate := 0.5 * (low + high), None)) is not None:
            num_low = found if found <= num else num_low
            low, high = (rate if found <= num else low), (rate if found >= num else high)
        undecided.narrow(low, high)
    few = torch.empty(len(masses), dtype=torch.int64, device=masses.device)
    tied = [few.new_zeros(0)]
    for first, block_masses, block_chances in _blocks(masses, chances):
        got_low = _got(low, block_masses, block_chances)
        few[first : first + len(got_low)] = got_low
        if low < high:
            tied.append(first + (_got(high, block_masses, block_chances) > got_low).nonzero().squeeze(1))
    return few, torch.cat(tied), num_low


def _midpoints(low: float, high: float, levels: int) -> list[float]:
    """Return all rates that so many bisections of `low` to `high` may come to, rising."""
    rate = 0.5 * (low + high)
    if levels == 0 or rate in (low, high):
        return []
    return [*_midpoints(low, rate, levels - 1), rate, *_midpoints(rate, high, levels - 1)]


class _Undecided:
    """The rows that get more at the higher of two rates than at the lower, and how many the others get.

    The nearer the rates, the fewer they are: to find the rate, most rows are looked at a few times only.
    """

    def __init__(self, masses: Tensor, chances: Tensor) -> None:
        self._masses, self._chances = masses, chances
        self._others = 0  # how many all other rows get

    def counts(self, rates: list[float]) -> Tensor:
        """Return how many all rows get at each rate between the two, [R] int64 on the CPU."""
        totals = self._masses.new_zeros(len(rates), dtype=torch.int64)
        for _, masses, chances in _blocks(self._masses, self._chances):
            totals += torch.stack([_got(rate, masses, chances).sum() for rate in rates])
        return totals.cpu() + self._others

    def narrow(self, low: float, high: float) -> None:
        """Go on with the rates from `low` to `high`."""
        kept, others = [], self._masses.new_zeros((), dtype=torch.int64)
        for _, masses, chances in _blocks(self._masses, self._chances):
            got = _got(low, masses, chances)
            open_still = _got(high, masses, chances) > got
            others += (got * ~open_still).sum()
            kept.append((masses[open_still], chances[open_still]))
        self._others += int(others)
        if kept:
            self._masses, self._chances = (torch.cat(parts) for parts in zip(*kept, strict=True))


def _blocks(masses: Tensor, chances: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the rows in parts, in float64, with each part's first index: there may be tens of millions."""
    for first in range(0, len(masses), _BLOCK):
        yield first, masses[first : first + _BLOCK].double(), chances[first : first + _BLOCK]


def _got(rate: float, masses: Tensor, chances: Tensor) -> Tensor:
    """Return how many rows get at a rate, which is the more the higher that is, [n] int64."""
    return torch.floor(rate * masses + chances).long()


def chances_of(keys: Tensor, seed: int) -> Tensor:
    """Return a number of each of `keys` [N] int64, 0 to below 1, [N] float64."""
    chances = torch.empty(len(keys), dtype=torch.float64, device=keys.device)
    for first in range(0, len(keys), _BLOCK):
        block = slice(first, first + _BLOCK)
        bits = random_bits(keys[block], seed)
        chances[block] = ((bits[:, 0] << 21) + (bits[:, 1] >> 11)).double() / 2.0**53
    return chances


def keys_of_parts(keys: Tensor, parts: Tensor, seed: int) -> Tensor:
    """Return keys for what is parted from Gaussians of the given `keys` [M], [M] int64, 0 or more.

    `parts` [M] int64 tells those of one Gaussian apart. That two get one key is as likely as that two of as
    many numbers of 63 bits are the same.
    """
    bits = random_bits(keys ^ (parts + 1) * _STEP & _LARGEST_KEY, seed)
    return (bits[:, 0] << 31) + (bits[:, 1] >> 1)
