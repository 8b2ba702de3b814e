"""Who is parted into how many, by numbers that are each Gaussian's own.

Trainings that are alike but for the rounding of sums, as on other numbers of ranks, come to differ in who is
dead and by how much somebody is needed. Where chance follows from a Gaussian's own number, which it keeps for
life and from which those of its parts follow, that concerns the few themselves and nobody else; one list of
random numbers for all, or one sum over all by which to draw, would turn every choice after them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.distributed import Ranks
from splatstudio.reference_training import random_bits
from splatstudio.strategy.places import in_order, listed
from splatstudio.strategy.population import KEY, PLACE, Population

_BLOCK = 1 << 18  # rows that are looked at together: what is made of each takes 200 bytes for a moment
# From a part to the next of one Gaussian: odd, so that none comes twice, and far from small numbers.
_STEP = 0x1E3779B97F4A7C15
_LARGEST_KEY = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Births:
    """Of whom more shall be: births of all ranks, of which this one knows those from its rows."""

    parents: Tensor  # [M] int64 rows of this rank, that of each birth
    numbers: Tensor  # [M] int64, of each birth among those of all ranks
    keys: Tensor  # [M] int64, those of the born
    num_all: int  # births of all ranks


def births_of(population: Population, masses: Tensor, num: int, seed: int) -> Births:
    """Return `num` births of all ranks, each Gaussian's in proportion to `masses` [N], 0 or more.

    No births where nobody has a mass. Called by all ranks with the same `num` and `seed` (0 to below 2^63).
    """
    ranks, keys = population.ranks, population.counts[KEY]
    if not ranks.any(bool((masses > 0).any())):
        num = 0  # nobody is there to be parted
    fewest, most = dealt(ranks, masses, chances_of(keys, seed), num)
    tied = (most > fewest).nonzero().squeeze(1)
    behind, _ = in_order(population, tied)
    fewest[tied] += behind < num - int(ranks.sum(fewest.sum().cpu()))
    rows = fewest.nonzero().squeeze(1)
    times = fewest[rows]
    parents = rows.repeat_interleave(times)
    ends = times.cumsum(0)
    part = torch.arange(len(parents), device=rows.device) - (ends - times).repeat_interleave(times)
    if PLACE in population.counts:
        everybody, own = listed(population, rows, times)
        before = (everybody.cumsum(0) - everybody)[own.to(everybody.device)].to(times)
    else:
        before = ends - times
    numbers = before.repeat_interleave(times) + part
    return Births(parents, numbers, keys_of_parts(keys[parents], part, seed), num)


def dealt(ranks: Ranks, masses: Tensor, chances: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Return how many of `num` each row gets, [N] int64: its share by `masses` [N], rounded up or down.

    That is floor(rate * mass + chance), with the rate at which all rows of all ranks get `num` together and
    `chances` [N] float64, 0 to below 1: sequential Poisson sampling (Ohlsson 1998), with repetition. Where
    rows come in at one rate together that is too few; the second tensor has one more for each of them.
    Called by all ranks. To deal any, some mass must be above 0.
    """
    total = float(ranks.sum(masses.sum(dtype=torch.float64).cpu()))
    size = int(ranks.sum(torch.tensor(len(masses), device="cpu")))
    low, high = 0.0, 0.0
    if num > 0:
        assert total > 0, "there is somebody to deal to"
        # At which each row gets more than its share less one. A power of two: the rates that are tried do not
        # follow from how the sum was rounded.
        high = 2.0 ** math.ceil(math.log2((num + size) / total))
    while low < high:
        rate = 0.5 * (low + high)
        if rate in (low, high):
            break
        got = int(ranks.sum(_at(rate, masses, chances).cpu()))
        low, high = (rate if got <= num else low), (rate if got >= num else high)
    few = torch.empty(len(masses), dtype=torch.int64, device=masses.device)
    _at(low, masses, chances, few)
    if low == high:
        return few, few
    more = torch.empty_like(few)
    _at(high, masses, chances, more)
    return few, more


def _at(rate: float, masses: Tensor, chances: Tensor, into: Tensor | None = None) -> Tensor:
    """Return how many all rows get at a rate, int64; how many each does, `into`, where that is given."""
    num = torch.zeros((), dtype=torch.int64, device=masses.device)
    for first in range(0, len(masses), _BLOCK):  # there may be tens of millions
        block = slice(first, first + _BLOCK)
        got = torch.floor(rate * masses[block].double() + chances[block]).long()
        num += got.sum()
        if into is not None:
            into[block] = got
    return num


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
