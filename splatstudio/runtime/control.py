"""Keeps the ranks in step: before each step rank 0 tells the others what all of them do next.

A header of 32 bytes goes round for every step, an order as JSON only when there is one. The control group is
of gloo also beside NCCL, so that no step waits for a GPU to hear of an order.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import asdict
from datetime import timedelta
from enum import IntEnum
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from splatstudio.distributed import Ranks
from splatstudio.distributed.gpu_group import gpu_group
from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.rendering.render import fastest_device
from splatstudio.runtime import messages
from splatstudio.runtime.messages import Command

TIMEOUT = timedelta(minutes=30)  # a rank that hangs is found by its heartbeat, long before
RELEASE_SECONDS = 20.0  # for GPUs to let go of each other

log = logging.getLogger("splatstudio.runtime")


class Turn(IntEnum):
    """What all ranks do next."""

    IDLE = 0  # nothing: rank 0 is waiting for orders and shows that it is there
    STEP = 1
    ORDER = 2
    LEAVE = 3
    COPY = 4  # the model goes to rank 0
    LOOK = 5  # what some cameras see of the model goes to rank 0
    SAVE = 6  # each rank writes its part of a checkpoint
    REPORT = 7  # the figures of all ranks go to rank 0
    EVALUATE = 8
    KEEP = 9  # each rank keeps a copy of its part of the model for a task
    DRAW = 10  # each rank draws a picture of such a copy
    DROP = 11  # such a copy goes


class ControlGroup:
    """The ranks' common line; each rank makes one.

    They meet in `folder`, which is new and which all of them see; None: where the launcher's variables say.
    """

    def __init__(self, rank: int, num_ranks: int, folder: Path | None):
        if folder is None:
            dist.init_process_group("gloo", rank=rank, world_size=num_ranks, timeout=TIMEOUT)
        else:
            # A file, not a port: the ranks of one attempt can never meet those of an earlier one.
            store = FileStore(str(folder / "store"), num_ranks)
            # Of this machine alone: neither a firewall nor a network that comes and goes is in their way.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
            dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=TIMEOUT)
        group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        self._group = group
        self._gpus = gpu_group(ProcessRanks(), fastest_device(), TIMEOUT)
        self._ranks = ProcessRanks(self._gpus, dist.group.WORLD)
        self._header = torch.zeros(4, dtype=torch.int64)

    @property
    def ranks(self) -> Ranks:
        """Return the same processes as the training sees them."""
        return self._ranks

    def lead(self, turn: Turn, step: int, body: bytes = b"") -> None:
        """Tell the other ranks what comes next, after `step` steps, as `body` says; for rank 0."""
        self._header[:] = torch.tensor([int(turn), step, len(body), 0])
        dist.broadcast(self._header, 0, group=self._group)
        if body:
            dist.broadcast(torch.frombuffer(bytearray(body), dtype=torch.uint8), 0, group=self._group)

    def follow(self, step: int) -> tuple[Turn, bytes]:
        """Wait for rank 0's word, after `step` steps, and return it with its body; for the other ranks."""
        dist.broadcast(self._header, 0, group=self._group)
        turn, their_step, length, _ = self._header.tolist()
        assert their_step == step, f"rank 0 is at step {their_step}, this rank at step {step}"
        if not length:
            return Turn(turn), b""
        body = torch.zeros(length, dtype=torch.uint8)
        dist.broadcast(body, 0, group=self._group)
        return Turn(turn), body.numpy().tobytes()

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
    torch.cuda.set_device(device)  # each thread has its own
    dist.destroy_process_group(group)


def encoded(order: Command) -> bytes:
    """Return an order as JSON."""
    return json.dumps({"order": type(order).__name__, **asdict(order)}).encode()  # type: ignore[call-overload]


def decoded(body: bytes) -> Command:
    """Return the order that `encoded` wrote."""
    values = json.loads(body)
    kind = getattr(messages, values.pop("order"))
    assert issubclass(kind, Command)
    return kind(**values)
