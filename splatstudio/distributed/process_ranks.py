"""Ranks that are processes, over torch.distributed: NCCL or gloo for rows, gloo for what is small."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from splatstudio.distributed.gpu_group import GpuSeconds
from splatstudio.distributed.ranks import Ranks

SHORT = 1024  # bytes of a message that is sent to all ranks at once
COUNT_BYTES = 8  # of it, which say how many rows it is about
EXACT = (torch.int64, torch.float64)  # of which sums do not depend on who adds them, as they are used here


class ProcessRanks(Ranks):
    """The processes of a group of torch.distributed.

    `group` (None: the default group) carries rows on the device that they are on; `control` is a gloo group
    of the same ranks for small messages on the CPU (None: `group` itself, which must be gloo then).
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, control: dist.ProcessGroup | None = None
    ) -> None:
        self._group = group
        self._control = group if control is None else control
        self.rank = dist.get_rank(group)
        self.num_ranks = dist.get_world_size(group)
        self.seconds = 0.0
        self.num_bytes = 0
        self._on_gpu = GpuSeconds()

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of `values`, which have the same shape on each."""
        if values.device.type == "cpu" and values.nbytes <= SHORT and values.dtype in EXACT:
            return self._told_by_all(values.detach()).sum(dim=0, dtype=values.dtype)
        total = values.detach().clone(memory_format=torch.contiguous_format)
        with self._counted(total, 2 * total.nbytes * (self.num_ranks - 1) // self.num_ranks):
            dist.all_reduce(total, group=self._group_for(total))
        return total

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is set on any rank."""
        return bool(self.all_reduce(torch.tensor([int(flag)], device="cpu")).item())

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """Return every rank's `rows` [N_r, ...], rank 0's first; ranks may have different numbers of rows."""
        rows = rows.detach()
        if rows.dtype == torch.bool:
            return [part.view(torch.bool) for part in self.all_gather(rows.contiguous().view(torch.uint8))]
        messages = self._told_by_all(_message(rows))
        counts = messages[:, :COUNT_BYTES].contiguous().view(torch.int64)[:, 0].tolist()
        if _fit(rows, max(counts)):
            parts = zip(messages[:, COUNT_BYTES:], counts, strict=True)
            return [_first_rows(part, count, rows) for part, count in parts]
        # Every rank sends as many rows as the longest: uneven gathers work neither on gloo nor on NCCL.
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        with self._counted(padded, padded.nbytes * (self.num_ranks - 1)):
            dist.all_gather(parts, padded, group=self._group_for(padded))
        return [part[:count] for part, count in zip(parts, counts, strict=True)]

    def all_gather_bytes(self, message: bytes) -> list[bytes]:
        """Return every rank's `message`, of any length, rank 0's first."""
        numbers = torch.frombuffer(bytearray(message or b"\0"), dtype=torch.uint8)[: len(message)]
        return [bytes(part.numpy()) for part in self.all_gather(numbers)]

    def all_to_all_counts(self, counts: Tensor) -> Tensor:
        """Give each rank its row of `counts` [num_ranks, C] int64; return what all ranks gave to this one."""
        assert counts.device.type == "cpu" and len(counts) == self.num_ranks
        got = torch.empty_like(counts)
        with self._counted(counts, counts.nbytes):
            dist.all_to_all_single(got, counts.contiguous(), group=self._control)
        return got

    def all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor | None = None
    ) -> Tensor:
        """Send the first sent[0] of `rows` [N, ...] to rank 0, the next to rank 1, and so on.

        `received` is how many rows each rank sends to this one; they are returned by rank, in `into` where
        that is given, which is contiguous.
        """
        assert sum(sent) == len(rows), "every row goes to a rank"
        rows = rows.detach().contiguous()
        got = rows.new_empty((sum(received), *rows.shape[1:])) if into is None else into
        with self._counted(rows, rows.nbytes):
            dist.all_to_all_single(got, rows, list(received), list(sent), group=self._group_for(rows))
        return got

    def _told_by_all(self, values: Tensor) -> Tensor:
        """Return every rank's `values`, of the same shape on each and on the CPU, as rows, rank 0's first.

        Each is sent to all at once: a ring, which sends fewer bytes, waits as often as there are ranks.
        """
        told = values.expand(self.num_ranks, *values.shape).contiguous()
        got = torch.empty_like(told)
        with self._counted(told, told.nbytes):
            dist.all_to_all_single(got, told, group=self._control)
        return got

    def _group_for(self, tensor: Tensor) -> dist.ProcessGroup | None:
        return self._control if tensor.device.type == "cpu" else self._group

    @contextmanager
    def _counted(self, tensor: Tensor, num_bytes: int) -> Iterator[None]:
        started = time.perf_counter()
        self._on_gpu.begin(tensor)
        yield
        self._on_gpu.end(tensor)
        self.seconds += time.perf_counter() - started + self._on_gpu.take()
        self.num_bytes += num_bytes


def _row_bytes(rows: Tensor) -> int:
    return rows.element_size() * math.prod(rows.shape[1:])


def _fit(rows: Tensor, count: int) -> bool:
    """Return whether so many rows like these go with their number into a short message."""
    return rows.device.type == "cpu" and COUNT_BYTES + count * _row_bytes(rows) <= SHORT


def _message(rows: Tensor) -> Tensor:
    """Return a short message, [SHORT] uint8: how many rows there are, and they themselves where they fit."""
    message = torch.zeros(SHORT, dtype=torch.uint8, device="cpu")
    message[:COUNT_BYTES].view(torch.int64)[0] = len(rows)
    if _fit(rows, len(rows)):
        message[COUNT_BYTES : COUNT_BYTES + rows.nbytes] = rows.reshape(-1).view(torch.uint8)
    return message


def _first_rows(message: Tensor, count: int, like: Tensor) -> Tensor:
    """Return the rows, of the kind and shape of those of `like`, at the beginning of a message."""
    data = message[: count * _row_bytes(like)].clone()  # which lies where numbers of its kind can lie
    return data.view(like.dtype).view(count, *like.shape[1:])
