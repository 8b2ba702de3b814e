"""The group over which the GPUs of a training send each other rows: NCCL, tried before it is needed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from splatstudio.distributed.ranks import Ranks

PATIENCE_SECONDS = 60.0  # for the first messages, once all ranks have met
# Numbers to each rank: NCCL connects, and takes memory, at the first short message and at the first long one.
LENGTHS = (1, 1 << 20)


def gpu_group(
    ranks: Ranks, device: torch.device, timeout: timedelta, patience: float = PATIENCE_SECONDS
) -> dist.ProcessGroup | None:
    """Return the group by which ranks on GPUs exchange rows; None where they are on the CPU.

    Called by all `ranks` of the default group, each with its own `device`, before there is a model: NCCL
    takes some hundred megabytes of its own, and that it works is known when this returns. Raises ValueError
    on all ranks where two share a GPU or some have none, and where nothing comes within `patience` seconds.
    """
    cards = [card.decode() for card in ranks.all_gather_bytes(_card(device).encode())]
    if (problem := unfit(cards)) is not None:
        raise ValueError(problem)
    if device.type == "cpu":
        return None
    # With a device it connects now and not in the first step. The heartbeats find a rank that hangs long
    # before `timeout`, at which NCCL would end the processes that wait for it.
    group = dist.new_group(backend="nccl", timeout=timeout, device_id=device)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member"
    wake(group, device, patience)
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


def _card(device: torch.device) -> str:
    """Return what tells a GPU from all others, also those of other machines; "" for the CPU."""
    return "" if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)


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
    if not _done(device, patience):
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


def _done(device: torch.device, patience: float) -> bool:
    """Wait for what was queued on a GPU; return whether it was done in time."""
    if device.type != "cuda":
        return True
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(device))
    deadline = time.monotonic() + patience
    while not done.query():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


class GpuSeconds:
    """How long a GPU is in exchanges, the waiting for others included: the host does not wait for them."""

    def __init__(self) -> None:
        self._begun: torch.cuda.Event | None = None
        self._spans: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

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


def _now_on(device: torch.device) -> torch.cuda.Event | None:
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event
