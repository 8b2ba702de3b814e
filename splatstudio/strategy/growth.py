"""What comes after a step's descent: Gaussians are added, removed, held in shape and shared out evenly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from splatstudio.cameras.camera import Camera
from splatstudio.distributed import Ranks
from splatstudio.distributed.failures import OutOfMemory
from splatstudio.optimization.gradients import Observation
from splatstudio.settings.config import Order, TrainConfig, changed
from splatstudio.strategy import Change, Population, Strategy
from splatstudio.strategy.rebalance import rebalance
from splatstudio.strategy.reorder import reorder
from splatstudio.strategy.shapes import ShapeLimits, hold_shapes

ROOM_LEFT = 0.9  # of the Gaussians that were too many: the limit on their number afterwards


def grow(
    population: Population,
    strategy: Strategy,
    limits: ShapeLimits,
    cameras: Callable[[], Sequence[Camera]],
    seen: tuple[Observation, ...],
    step: int,
    order: Order = "insertion",
) -> Change | None:
    """Change the population as the rules say after `step` other steps; None where none was due.

    Called by all ranks with the same, but for `seen`. What a rank has no memory for is left out on all of
    them, as `Change.short` and `left_out` say. Raises ValueError, on all ranks, where a photograph that is
    asked cannot be read.
    """
    change = strategy.after_step(population, seen, step)
    change = hold_shapes(population, limits, cameras, change, step)
    if change is None:
        return None
    left_out = "sharing them out evenly over the ranks was left out"
    try:
        rebalance(population)
        left_out = "putting them in the order of space was left out"
        if order == "morton" and change.num_changed:
            reorder(population)
    except OutOfMemory as error:
        return change if change.short else replace(change, short=error.ranks, left_out=left_out)
    return change


def with_lower_limit(
    config: TrainConfig, num_gaussians: int, ranks: Ranks, short: Sequence[int], left_out: str
) -> tuple[TrainConfig, str]:
    """Return the settings with which no more Gaussians are born than there is room for, and what to tell.

    The ranks `short` had no memory with `num_gaussians` on all of them; `left_out` says what was left out.
    """
    limit = max(1, min(config.densify.max_gaussians, int(num_gaussians * ROOM_LEFT)))
    where = "" if ranks.num_ranks == 1 else f" on rank {', '.join(map(str, short))}"
    return changed(config, "densify.max_gaussians", limit), (
        f"Memory ran out{where} with {num_gaussians:,} splats: {left_out}, and none are added above"
        f" {limit:,} from now on."
    )
