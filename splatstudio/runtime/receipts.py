"""What the worker tells its supervisor alone, which must know where each order stands when a process dies."""

from __future__ import annotations

from dataclasses import dataclass

from splatstudio.runtime.messages import Event


@dataclass(frozen=True)
class Receipt(Event):
    """Rank 0 has begun with the order of this number, and so with all before it, or is `done` with it."""

    number: int
    done: bool


@dataclass(frozen=True)
class PausesAt(Event):
    """The training will stand still after `step`; None: it goes on to its end."""

    step: int | None
