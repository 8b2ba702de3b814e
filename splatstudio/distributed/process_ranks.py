"""Ranks that are processes, over torch.distributed: NCCL or gloo for rows, gloo for what is small."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from splatstudio.distributed.ranks import Ranks


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

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of `values`, which have the same shape on each."""
        total = values.detach().clone(memory_format=torch.contiguous_format)
        with self._counted(2 * total.nbytes * (self.num_ranks - 1) // self.num_ranks):
            dist.all_reduce(total, group=self._group_for(total))
        return total

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is set on any rank."""
        return bool(self.sum(torch.tensor([int(flag)], device="cpu")).item())

    def gather(self, rows: Tensor) -> list[Tensor]:
        """Return every rank's `rows` [N_r, ...], rank 0's first; ranks may have different numbers of rows."""
        rows = rows.detach()
        if rows.dtype == torch.bool:
            return [part.view(torch.bool) for part in self.gather(rows.contiguous().view(torch.uint8))]
        counts = self._lengths(rows)
        # Every rank sends as many rows as the longest: uneven gathers work neither on gloo nor on NCCL.
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        with self._counted(padded.nbytes * (self.num_ranks - 1)):
            dist.all_gather(parts, padded, group=self._group_for(padded))
        return [part[:count] for part, count in zip(parts, counts, strict=True)]

    def gather_bytes(self, message: bytes) -> list[bytes]:
        """Return every rank's `message`, of any length, rank 0's first."""
        numbers = torch.frombuffer(bytearray(message or b"\0"), dtype=torch.uint8)[: len(message)]
        return [bytes(part.numpy()) for part in self.gather(numbers)]

    def swap_counts(self, counts: Tensor) -> Tensor:
        """Give each rank its row of `counts` [num_ranks, C] int64; return what all ranks gave to this one."""
        assert counts.device.type == "cpu" and len(counts) == self.num_ranks
        got = torch.empty_like(counts)
        with self._counted(counts.nbytes):
            dist.all_to_all_single(got, counts.contiguous(), group=self._control)
        return got

    def swap_rows(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor | None = None
    ) -> Tensor:
        """Send the first sent[0] of `rows` [N, ...] to rank 0, the next to rank 1, and so on.

        `received` is how many rows each rank sends to this one; they are returned by rank, in `into` where
        that is given, which is contiguous.
        """
        assert sum(sent) == len(rows), "every row goes to a rank"
        rows = rows.detach().contiguous()
        got = rows.new_empty((sum(received), *rows.shape[1:])) if into is None else into
        with self._counted(rows.nbytes):
            dist.all_to_all_single(got, rows, list(received), list(sent), group=self._group_for(rows))
        return got

    def _lengths(self, rows: Tensor) -> list[int]:
        counts = torch.zeros(self.num_ranks, dtype=torch.int64, device="cpu")
        counts[self.rank] = len(rows)
        return self.sum(counts).tolist()

    def _group_for(self, tensor: Tensor) -> dist.ProcessGroup | None:
        return self._control if tensor.device.type == "cpu" else self._group

    @contextmanager
    def _counted(self, num_bytes: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started
        self.num_bytes += num_bytes
