"""Keeps the ranks in step: before each step rank 0 tells the others what all of them do next.

A header of 32 bytes goes round for every step, an order as JSON only when there is one. The control group is
of gloo also beside NCCL, so that no step waits for a GPU to hear of an order.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import timedelta
from enum import IntEnum
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from splatstudio.distributed import Ranks
from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.rendering import fastest_device
from splatstudio.worker import messages
from splatstudio.worker.messages import Command

TIMEOUT = timedelta(minutes=30)  # a rank that hangs is found by its heartbeat, long before


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
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=TIMEOUT)
        group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        self._group = group
        self._ranks = ProcessRanks(_rows_group(), dist.group.WORLD)
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
        """Leave the group; the ranks need not do so at the same time."""
        dist.destroy_process_group()


def _rows_group() -> dist.ProcessGroup | None:
    """Return the group that carries rows between GPUs; None: the default one, of gloo, does."""
    if fastest_device().type != "cuda":
        return None
    rows = dist.new_group(backend="nccl", device_id=fastest_device())
    assert isinstance(rows, dist.ProcessGroup), "every rank is a member"
    return rows


def encoded(order: Command) -> bytes:
    """Return an order as JSON."""
    return json.dumps({"order": type(order).__name__, **asdict(order)}).encode()  # type: ignore[call-overload]


def decoded(body: bytes) -> Command:
    """Return the order that `encoded` wrote."""
    values = json.loads(body)
    kind = getattr(messages, values.pop("order"))
    assert issubclass(kind, Command)
    return kind(**values)
