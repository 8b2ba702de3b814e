"""What ranks show each other: each sends what it projected to the ranks whose pictures show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.distributed.failures import together
from splatstudio.distributed.ranks import Ranks

MOST_RADIUS = 32767  # px: what 16 bits hold; a larger rectangle is cut down to it
RADII_WORDS = 1  # of 32 bits, both together


@dataclass(frozen=True)
class Packing:
    """Which columns of rows travel as they are, and as what the others do, from the first on.

    `dtype`: float16 keeps 11 binary digits of numbers up to 65504 and is what larger ones become; bfloat16
    keeps 8 and has the range of float32.
    """

    exact: tuple[int, ...]  # rising
    dtype: torch.dtype

    def num_words(self, num_columns: int) -> int:
        """Return how many words of 32 bits a row of so many columns becomes."""
        num_exact = sum(column < num_columns for column in self.exact)
        return num_exact + (num_columns - num_exact + 1) // 2


@dataclass(frozen=True)
class Fp16Packing:
    """How rows of an exchange travel, and how their gradients do on the way back."""

    rows: Packing
    gradients: Packing


def pack(values: Tensor, packing: Packing, into: Tensor) -> None:
    """Put `values` [N, C] float32 into words of 32 bits, `into` [N, W] float32, the exact columns first.

    Numbers are rounded to the nearest; what is infinite or no number stays that.
    """
    exact, others = _runs(packing, values.shape[1])
    place = 0
    for start, end in exact:
        into[:, place : place + end - start] = values[:, start:end]
        place += end - start
    into[:, place:] = 0.0  # of the last word perhaps half is used
    halves, place = into[:, place:].view(packing.dtype), 0
    for start, end in others:
        halves[:, place : place + end - start] = _within(values[:, start:end], packing.dtype)
        place += end - start


def unpack(words: Tensor, packing: Packing, into: Tensor) -> None:
    """Put what `pack` has made `words` [N, W] of into rows again, `into` [N, C] float32.

    It takes no memory: what has come from other ranks must not get lost for want of it.
    """
    exact, others = _runs(packing, into.shape[1])
    place = 0
    for start, end in exact:
        into[:, start:end] = words[:, place : place + end - start]
        place += end - start
    halves, place = words[:, place:].view(packing.dtype), 0
    for start, end in others:
        into[:, start:end] = halves[:, place : place + end - start]
        place += end - start


def _within(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values of which none becomes infinite in `dtype` that was not."""
    if dtype != torch.float16:
        return values
    most = torch.finfo(dtype).max
    return torch.where(values.isinf(), values, values.clamp(-most, most))


def _runs(packing: Packing, num_columns: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the exact columns and the others as ranges: slices are copied faster than single columns."""
    runs: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    start = 0
    for end in range(1, num_columns + 1):
        if end == num_columns or (end in packing.exact) != (start in packing.exact):
            runs[start not in packing.exact].append((start, end))
            start = end
    return runs


@dataclass(frozen=True, eq=False)
class ExchangeRoute:
    """How many rows a rank sends to each rank, and how many it gets from each.

    With `packing` some columns travel in 16 bits, those of a rank's own rows too: a picture does not depend
    on which rank draws it.
    """

    ranks: Ranks
    sent: Sequence[int]
    received: Sequence[int]
    packing: Fp16Packing | None = None


@dataclass(frozen=True, eq=False)
class ReturnBuffers:
    """Memory for the gradients of rows, on both sides; with `ExchangeRoute.packing` also for packed ones."""

    given: Tensor  # [K, D] of the rows that came, zeros until somebody finds them
    values: Tensor  # [M, D] of the rows that were sent; `given` itself where nothing is sent
    packed: tuple[Tensor, Tensor] | None  # the rows that are sent, and those that come


@torch.no_grad()
def exchange(
    rows: Tensor, radii: Tensor, route: ExchangeRoute, num_back: int = 0
) -> tuple[Tensor, Tensor, ReturnBuffers]:
    """Return the rows and the radii that all ranks have for this one, by rank, without gradients.

    `rows` [M, C] and `radii` [M, 2] int32 are sent in one message. What comes of the rows' gradients, of
    which each has `num_back` numbers, goes the other way, by `sent_back`. Raises OutOfMemory on all ranks
    where any has no memory for what comes, both ways, before anything is sent.
    """
    if route.ranks.num_ranks == 1:
        return rows.detach(), radii, return_buffers(rows, route, num_back)
    sent, (got, got_rows, got_radii), back = together(
        route.ranks,
        lambda: (
            _record(rows, radii, route),
            _buffers(rows, radii, route),
            return_buffers(rows, route, num_back),
        ),
    )
    route.ranks.all_to_all(sent, route.sent, route.received, into=got)
    if route.packing is None:
        got_rows.copy_(got[:, : rows.shape[1]])
        got_radii.view(rows.dtype).copy_(got[:, rows.shape[1] :])
    else:
        num_words = got.shape[1] - RADII_WORDS
        unpack(got[:, :num_words], route.packing.rows, got_rows)
        got_radii.copy_(got[:, num_words:].view(torch.int16))
    return got_rows, got_radii, back


def _record(rows: Tensor, radii: Tensor, route: ExchangeRoute) -> Tensor:
    """Return what is sent of each row."""
    # The radii ride along as the bits of floating point numbers.
    if route.packing is None:
        return torch.cat([rows.detach(), radii.contiguous().view(rows.dtype)], dim=1)
    num_words = route.packing.rows.num_words(rows.shape[1])
    record = rows.new_empty((len(rows), num_words + RADII_WORDS))
    pack(rows.detach(), route.packing.rows, record[:, :num_words])
    record[:, num_words:].view(torch.int16).copy_(radii.clamp_max(MOST_RADIUS))
    return record


def _buffers(rows: Tensor, radii: Tensor, route: ExchangeRoute) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for what comes: the records, their rows and their radii."""
    num, packing = sum(route.received), route.packing
    width = rows.shape[1] + radii.shape[1]
    if packing is not None:
        width = packing.rows.num_words(rows.shape[1]) + RADII_WORDS
    return (
        rows.new_empty((num, width)),
        rows.new_empty((num, rows.shape[1])),
        radii.new_empty((num, radii.shape[1])),
    )


def return_buffers(rows: Tensor, route: ExchangeRoute, num_back: int) -> ReturnBuffers:
    """Return memory for the gradients of the rows that come, of so many numbers each, and for `sent_back`."""
    num_came, num_sent = sum(route.received), sum(route.sent)
    given = rows.new_zeros((num_came, num_back))
    if route.ranks.num_ranks == 1:
        return ReturnBuffers(given, given, None)
    values = rows.new_empty((num_sent, num_back))
    if route.packing is None:
        return ReturnBuffers(given, values, None)
    num_words = route.packing.gradients.num_words(num_back)
    packed = rows.new_empty((num_came, num_words)), rows.new_empty((num_sent, num_words))
    return ReturnBuffers(given, values, packed)


def sent_back(back: ReturnBuffers, route: ExchangeRoute) -> Tensor:
    """Return what all ranks have found of the rows that this one had sent, [M, D].

    All ranks call it, each with what it has put into `back.given`, also where that is nothing.
    """
    if route.ranks.num_ranks == 1:
        return back.given
    if back.packed is None or route.packing is None:
        return route.ranks.all_to_all(back.given, route.received, route.sent, into=back.values)
    record, got = back.packed
    pack(back.given, route.packing.gradients, record)
    route.ranks.all_to_all(record, route.received, route.sent, into=got)
    unpack(got, route.packing.gradients, back.values)
    return back.values
