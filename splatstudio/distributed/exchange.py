"""What ranks show each other: each sends what it projected to the ranks whose pictures show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.distributed.failures import together
from splatstudio.distributed.ranks import Ranks, Transfer

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


@dataclass(frozen=True)
class Splits:
    """How many rows a rank sends to each rank in one message, and how many it gets from each."""

    sent: Sequence[int]
    received: Sequence[int]


@dataclass(frozen=True, eq=False)
class ExchangeRoute:
    """Who gets how many rows of whom, and in how many messages their gradients come back.

    The gradients of a message lie behind those of the one before, on both sides. With `packing` some columns
    travel in 16 bits, those of a rank's own rows too: a picture does not depend on which rank draws it.
    """

    ranks: Ranks
    there: Splits
    back: Sequence[Splits]  # as of the way there: what was sent of the rows whose gradients come back
    packing: Fp16Packing | None = None

    def spans_back(self) -> list[tuple[slice, slice]]:
        """Return for each message back its rows among those that were sent, and among those that came."""
        spans, first_sent, first_received = [], 0, 0
        for each in self.back:
            end_sent, end_received = first_sent + sum(each.sent), first_received + sum(each.received)
            spans.append((slice(first_sent, end_sent), slice(first_received, end_received)))
            first_sent, first_received = end_sent, end_received
        return spans


@dataclass(frozen=True, eq=False)
class ReturnBuffers:
    """Memory for the gradients of rows, on both sides; with `ExchangeRoute.packing` also for packed ones."""

    given: Tensor  # [K, D] of the rows that came, to be filled by whoever finds them
    values: Tensor  # [M, D] of the rows that were sent; `given` itself where nothing is sent
    packed: tuple[Tensor, Tensor] | None  # the rows that are sent, and those that come


@dataclass(frozen=True, eq=False)
class Arrived:
    """What all ranks have for this one, by rank, without gradients."""

    columns: tuple[Tensor, ...]  # of the rows, [K, c] each
    radii: Tensor  # [K, 2] int32
    back: ReturnBuffers  # for the gradients of the rows


@dataclass(frozen=True, eq=False)
class _Buffers:
    """Memory for what comes."""

    words: Tensor  # [K, W] as it travels
    rows: Tensor | None  # [K, C] unpacked, with `ExchangeRoute.packing`
    columns: tuple[Tensor, ...]
    radii: Tensor


@torch.no_grad()
def exchange(record: Tensor, columns: Sequence[int], route: ExchangeRoute, num_back: int = 0) -> Arrived:
    """Return the rows and the radii that all ranks have for this one.

    `record` [M, C + 2] are the rows, of `columns` that have C numbers together, and the bits of both int32
    radii. What is found of the rows' gradients, of which each has `num_back` numbers, goes the other way, by
    `Return`. Raises OutOfMemory on all ranks where any has no memory for what comes, both ways, before
    anything is sent.
    """
    num_columns = sum(columns)
    if route.ranks.num_ranks == 1:
        rows, radii = record[:, :num_columns], record[:, num_columns:].contiguous().view(torch.int32)
        parts = tuple(part.contiguous() for part in rows.split(list(columns), dim=1))
        return Arrived(parts, radii, return_buffers(record, route, num_back))
    words, got, back = together(
        route.ranks,
        lambda: (
            _words(record, num_columns, route.packing),
            _buffers(record, columns, route),
            return_buffers(record, route, num_back),
        ),
    )
    route.ranks.all_to_all(words, route.there.sent, route.there.received, into=got.words)
    _take_apart(got, columns, route.packing)
    return Arrived(got.columns, got.radii, back)


def _words(record: Tensor, num_columns: int, packing: Fp16Packing | None) -> Tensor:
    """Return what is sent of each row: the record itself where all travels in 32 bits."""
    if packing is None:
        return record
    num_words = packing.rows.num_words(num_columns)
    words = record.new_empty((len(record), num_words + RADII_WORDS))
    pack(record[:, :num_columns], packing.rows, words[:, :num_words])
    radii = record[:, num_columns:].view(torch.int32)
    words[:, num_words:].view(torch.int16).copy_(radii.clamp_max(MOST_RADIUS))
    return words


def _buffers(record: Tensor, columns: Sequence[int], route: ExchangeRoute) -> _Buffers:
    num, packing, width, rows = sum(route.there.received), route.packing, record.shape[1], None
    if packing is not None:
        width = packing.rows.num_words(sum(columns)) + RADII_WORDS
        rows = record.new_empty((num, sum(columns)))
    parts = tuple(record.new_empty((num, each)) for each in columns)
    return _Buffers(
        record.new_empty((num, width)), rows, parts, record.new_empty((num, 2), dtype=torch.int32)
    )


def _take_apart(got: _Buffers, columns: Sequence[int], packing: Fp16Packing | None) -> None:
    """Put what has come into columns; it takes no memory, as that could be short on one rank."""
    words = rows = got.words
    if packing is None:
        got.radii.view(words.dtype).copy_(words[:, sum(columns) :])
    else:
        assert got.rows is not None
        num_words, rows = words.shape[1] - RADII_WORDS, got.rows
        unpack(words[:, :num_words], packing.rows, rows)
        got.radii.copy_(words[:, num_words:].view(torch.int16))
    place = 0
    for part, num in zip(got.columns, columns, strict=True):
        part.copy_(rows[:, place : place + num])
        place += num


def return_buffers(record: Tensor, route: ExchangeRoute, num_back: int) -> ReturnBuffers:
    """Return memory for the gradients of the rows that come, of so many numbers each, and for `Return`."""
    num_came, num_sent = sum(route.there.received), sum(route.there.sent)
    given = record.new_empty((num_came, num_back))
    if route.ranks.num_ranks == 1:
        return ReturnBuffers(given, given, None)
    values = record.new_empty((num_sent, num_back))
    if route.packing is None:
        return ReturnBuffers(given, values, None)
    num_words = route.packing.gradients.num_words(num_back)
    packed = record.new_empty((num_came, num_words)), record.new_empty((num_sent, num_words))
    return ReturnBuffers(given, values, packed)


class Return:
    """What all ranks have found of the rows that this one had sent, on its way back."""

    def __init__(self, back: ReturnBuffers, route: ExchangeRoute) -> None:
        """Begin it: `ReturnBuffers.given` has what this rank has found; all ranks do this together."""
        self.values = back.values  # [M, D]; what belongs to a message is there after its `wait`
        self.spans = [
            sent for sent, _ in route.spans_back()
        ]  # of each message, among the rows that were sent
        self._under_way: list[Transfer | None] = [None for _ in self.spans]
        self._packed: tuple[Tensor, Packing] | None = None
        if route.ranks.num_ranks == 1:
            return
        given, into = back.given, back.values
        if back.packed is not None and route.packing is not None:
            given, into = back.packed
            pack(back.given, route.packing.gradients, given)
            self._packed = into, route.packing.gradients
        self._under_way = [
            route.ranks.begin_all_to_all(given[received], splits.received, splits.sent, into[sent])
            for splits, (sent, received) in zip(route.back, route.spans_back(), strict=True)
        ]

    def wait(self, message: int) -> None:
        """Let what this thread does next find what a message brings."""
        transfer, self._under_way[message] = self._under_way[message], None
        if transfer is None:
            return
        transfer.wait()
        if self._packed is not None:
            (words, packing), span = self._packed, self.spans[message]
            unpack(words[span], packing, self.values[span])

    def wait_for_all(self) -> Tensor:
        """Return `values`, all of which are there."""
        for message in range(len(self.spans)):
            self.wait(message)
        return self.values
