"""Ranks that are processes, over torch.distributed: NCCL or gloo for rows, gloo for what is small."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from splatstudio.devices import accelerator
from splatstudio.distributed.ranks import Ranks, Transfer

PATIENCE_SECONDS = 60.0  # for the first messages, once all ranks have met
# Numbers to each rank: NCCL connects, and takes memory, at the first short message and at the first long one.
LENGTHS = (1, 1 << 20)

SHORT = 1024  # bytes of a message that is sent to all ranks at once
COUNT_BYTES = 8  # of it, which say how many rows it is about
EXACT = (torch.int64, torch.float64)  # of which sums do not depend on who adds them, as they are used here


def gpu_group(ranks: Ranks, device: torch.device, timeout: timedelta) -> dist.ProcessGroup | None:
    """Return the group by which ranks on GPUs exchange rows; None where they are on the CPU.

    Called by all `ranks` of the default group, each with its own `device`, before there is a model: NCCL
    takes some hundred megabytes of its own, and that it works is known when this returns. Raises ValueError
    on all ranks where two share a GPU or some have none, and where nothing comes within PATIENCE_SECONDS.
    """
    cards = [card.decode() for card in ranks.all_gather_bytes(accelerator.identity(device).encode())]
    if (problem := unfit(cards)) is not None:
        raise ValueError(problem)
    if device.type == "cpu":
        return None
    # With a device it connects now and not in the first step. The heartbeats find a rank that hangs long
    # before `timeout`, at which NCCL would end the processes that wait for it.
    group = dist.new_group(backend=accelerator.collectives(), timeout=timeout, device_id=device)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member"
    wake(group, device, PATIENCE_SECONDS)
    return group


def unfit(cards: Sequence[str]) -> str | None:
    """Return a sentence on what keeps ranks from working together; `cards` are their GPUs, "" for the CPU."""
    with_gpu = [rank for rank, card in enumerate(cards) if card]
    if with_gpu and len(with_gpu) < len(cards):
        return (
            f"rank {cards.index('')} has no GPU that can be used, but rank {with_gpu[0]} has one: splatstudio"
            " doctor says why on its machine; CUDA_VISIBLE_DEVICES= on all machines lets their CPUs train"
        )
    for rank in with_gpu:
        first = cards.index(cards[rank])
        if first < rank:
            return (
                f"ranks {first} and {rank} are on the same GPU: start as many on each machine as it has GPUs,"
                " with torchrun by --nproc-per-node"
            )
    return None


def wake(group: dist.ProcessGroup, device: torch.device, patience: float) -> None:
    """Let every rank send to every other what the steps will send, and check that it arrives.

    Raises ValueError, with what helps, where it does not.
    """
    rank, num = dist.get_rank(group), dist.get_world_size(group)
    heard: list[Tensor] = []
    for length in LENGTHS:
        sent = torch.full((num * length,), float(rank), device=device)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, [length] * num, [length] * num, group=group)
        heard += [got.view(num, length).amin(dim=1), got.view(num, length).amax(dim=1)]
    total = torch.full((num,), float(rank), device=device)
    dist.all_reduce(total, group=group)
    expected = torch.arange(num, device=device, dtype=total.dtype)
    wrong = torch.stack([(each != expected).any() for each in heard] + [(total != expected.sum()).any()])
    if not accelerator.done_within(device, patience):
        raise ValueError(
            f"the GPUs did not hear of each other within {patience:.0f} s: NCCL_P2P_DISABLE=1 helps where"
            " they cannot reach each other's memory, NCCL_SOCKET_IFNAME names the network between machines,"
            " and splatstudio doctor tries the GPUs of one"
        )
    if bool(wrong.any()):
        raise ValueError(
            "what the GPUs send each other does not arrive as it was: set NCCL_P2P_DISABLE=1, or switch the"
            " IOMMU (ACS) off, and let splatstudio doctor try them"
        )


class GpuSeconds:
    """How long a GPU is in exchanges, the waiting for others included: the host does not wait for them."""

    def __init__(self) -> None:
        self._begun: torch.Event | None = None
        self._spans: deque[tuple[torch.Event, torch.Event]] = deque()

    def begin(self, tensor: Tensor) -> None:
        """Note that an exchange of `tensor` is queued next."""
        self._begun = _now_on(tensor.device)

    def end(self, tensor: Tensor) -> None:
        """Note that it was."""
        ended = _now_on(tensor.device)
        if self._begun is not None and ended is not None:
            self._spans.append((self._begun, ended))
        self._begun = None

    def take(self) -> float:
        """Return the seconds of the exchanges that were done since the last call."""
        milliseconds = 0.0
        while self._spans and self._spans[0][1].query():
            begun, ended = self._spans.popleft()
            milliseconds += begun.elapsed_time(ended)
        return 1e-3 * milliseconds


def _now_on(device: torch.device) -> torch.Event | None:
    if not accelerator.is_accelerator(device):
        return None
    return accelerator.recorded_event(accelerator.current_stream(device), timing=True)


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

    def begin_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor
    ) -> Transfer:
        """Begin what `all_to_all` does; until `Transfer.wait`, `rows` stay as they are and `into` unread."""
        assert sum(sent) == len(rows), "every row goes to a rank"
        rows, group = rows.detach().contiguous(), self._group_for(rows)
        with self._counted(None, rows.nbytes):
            work = dist.all_to_all_single(into, rows, list(received), list(sent), group=group, async_op=True)
        return _UnderWay(self, work, rows, into)

    def finish(self, work: Any, into: Tensor) -> None:
        """Wait for what `begin_all_to_all` has begun; only what is left of it counts as time spent."""
        with self._counted(into, 0):
            work.wait()

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
    def _counted(self, tensor: Tensor | None, num_bytes: int) -> Iterator[None]:
        """Count what is exchanged: its bytes, and the time that the host and the `tensor`'s GPU are in it."""
        started = time.perf_counter()
        if tensor is not None:
            self._on_gpu.begin(tensor)
        yield
        if tensor is not None:
            self._on_gpu.end(tensor)
        self.seconds += time.perf_counter() - started + self._on_gpu.take()
        self.num_bytes += num_bytes


class _UnderWay(Transfer):
    """Rows on their way; both sides' memory is held until they are there."""

    def __init__(self, ranks: ProcessRanks, work: Any, rows: Tensor, into: Tensor) -> None:
        self._ranks = ranks
        self._held: tuple[Any, Tensor, Tensor] | None = (work, rows, into)

    def wait(self) -> None:
        """Let what this thread does next find the rows."""
        if self._held is not None:
            work, _, into = self._held
            self._ranks.finish(work, into)
            self._held = None


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
