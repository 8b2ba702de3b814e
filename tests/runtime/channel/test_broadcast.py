"""What rank 0 tells the others, over a line that is a list."""

from __future__ import annotations

from collections import deque

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from splatstudio.runtime.channel.broadcast import HEADER_BYTES, INLINE_BYTES, Broadcast
from splatstudio.runtime.messages import Command, NextStep, UpdateSettings


def member() -> Broadcast:
    """Return a rank's end of a line that needs no processes."""
    line = Broadcast.__new__(Broadcast)
    line._group = None  # type: ignore[assignment]
    line._message = torch.zeros(HEADER_BYTES + INLINE_BYTES, dtype=torch.uint8)
    line._header = line._message[:HEADER_BYTES].view(torch.int64)
    return line


@pytest.mark.parametrize("length", [1, INLINE_BYTES, 10_000])
def test_a_command_of_any_length_arrives_and_the_next_one_after_it(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    under_way: deque[Tensor] = deque()
    commands: list[Command] = [UpdateSettings((("scene", "x" * length),)), NextStep()]
    monkeypatch.setattr(dist, "broadcast", lambda tensor, *_, **__: under_way.append(tensor.clone()))
    for step, command in enumerate(commands):
        member().send(command, step)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, *_, **__: tensor.copy_(under_way.popleft()))
    other = member()
    assert [other.receive(step) for step in range(2)] == commands and not under_way
