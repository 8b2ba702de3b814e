"""What is told of the ranks of a training, one by one."""

from __future__ import annotations

from dataclasses import dataclass

from splatstudio.runtime.messages import Event, StateChanged


@dataclass(frozen=True)
class RankFigures:
    """What one rank of a training does: means over the last second of training."""

    rank: int
    num_gaussians: int
    step_seconds: float
    wait_seconds: float  # of that, waiting for other ranks and exchanging with them
    host: str = ""  # the name of its machine


@dataclass(frozen=True)
class RanksReport(Event):
    """The figures of all ranks of a training on several, by rank; about once a second while it trains."""

    step: int
    ranks: tuple[RankFigures, ...]


def told_after(event: Event, told: tuple[RankFigures, ...]) -> tuple[RankFigures, ...]:
    """Return the ranks' newest figures once `event` has come, where they were `told` before; empty: none."""
    if isinstance(event, RanksReport):
        return event.ranks
    if isinstance(event, StateChanged) and event.state in ("starting", "restarting", "ended"):
        return ()  # another group of ranks may be another number of them
    return told
