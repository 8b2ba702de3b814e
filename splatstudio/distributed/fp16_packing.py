"""Rows of numbers of which some columns travel in 16 bits: fewer bytes between ranks, for fewer digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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

    It takes no memory: what has come from other ranks shall not get lost for want of it.
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
