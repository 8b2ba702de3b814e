"""Keeps the ranks in step: rank 0 tells the others what all of them do next.

A message of fixed size goes round for every step, a second one only for a command that does not fit into it.
The group is of gloo also beside NCCL, so that no step waits for a GPU to hear of a command.
"""

from __future__ import annotations

import logging
import os
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from splatstudio.devices import accelerator
from splatstudio.distributed.process_ranks import ProcessRanks, gpu_group
from splatstudio.distributed.ranks import Ranks
from splatstudio.operating_system import loopback
from splatstudio.rendering.render import fastest_device
from splatstudio.runtime.channel.codec import decode, encode
from splatstudio.runtime.messages import Command

TIMEOUT = timedelta(minutes=30)  # a rank that hangs is found by its heartbeat, long before
RELEASE_SECONDS = 20.0  # for GPUs to let go of each other
HEADER_BYTES = 16  # the step and the length of what follows, int64 each
INLINE_BYTES = 112  # of a command that goes with the header: that of a step needs 17

log = logging.getLogger("splatstudio.runtime")


def meet(rank: int, num_ranks: int, folder: Path | None) -> None:
    """Make the default group of gloo with the other ranks, see `Broadcast`."""
    if folder is None:
        dist.init_process_group("gloo", rank=rank, world_size=num_ranks, timeout=TIMEOUT)
        return
    # A file, not a port: the ranks of one attempt can never meet those of an earlier one.
    store = FileStore(str(folder / "store"), num_ranks)
    # Of this machine alone: neither a firewall nor a network that comes and goes is in their way.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback())
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=TIMEOUT)


class Broadcast:
    """The ranks' common line; each rank makes one.

    They meet in `folder`, which is new and which all of them see; None: where the launcher's variables say.
    """

    def __init__(self, rank: int, num_ranks: int, folder: Path | None):
        meet(rank, num_ranks, folder)
        group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        self._group = group
        self._gpus = gpu_group(ProcessRanks(), fastest_device(), TIMEOUT)
        self.ranks: Ranks = ProcessRanks(self._gpus, dist.group.WORLD)  # as the training sees them
        self._message = torch.zeros(HEADER_BYTES + INLINE_BYTES, dtype=torch.uint8)
        self._header = self._message[:HEADER_BYTES].view(torch.int64)

    def send(self, command: Command, step: int) -> None:
        """Tell the other ranks what all do next, after `step` steps; for rank 0."""
        body = torch.frombuffer(bytearray(encode(command)), dtype=torch.uint8)
        self._header[0], self._header[1] = step, len(body)
        if len(body) <= INLINE_BYTES:
            self._message[HEADER_BYTES : HEADER_BYTES + len(body)] = body
        dist.broadcast(self._message, 0, group=self._group)
        if len(body) > INLINE_BYTES:
            dist.broadcast(body, 0, group=self._group)

    def receive(self, step: int) -> Command:
        """Wait for rank 0's word, after `step` steps, and return it; for the other ranks."""
        dist.broadcast(self._message, 0, group=self._group)
        their_step, length = self._header.tolist()
        assert their_step == step, f"rank 0 is at step {their_step}, this rank at step {step}"
        body = self._message[HEADER_BYTES : HEADER_BYTES + length]
        if length > INLINE_BYTES:
            body = torch.zeros(length, dtype=torch.uint8)
            dist.broadcast(body, 0, group=self._group)
        return decode(body.numpy().tobytes(), Command)

    def close(self) -> None:
        """Let GPUs let go of each other, before the process ends; all ranks call it when all is done.

        What NCCL still holds at the end of a process can keep it from ending. Not waited for for long.
        """
        if self._gpus is None:
            return
        leaving = threading.Thread(target=_release, args=(self._gpus, fastest_device()), daemon=True)
        leaving.start()
        leaving.join(RELEASE_SECONDS)
        if leaving.is_alive():
            log.warning("the GPUs did not let go of each other within %.0f s", RELEASE_SECONDS)


def _release(group: dist.ProcessGroup, device: torch.device) -> None:
    accelerator.choose(device)
    dist.destroy_process_group(group)
