"""What comes after a step's descent: Gaussians are added, removed, held in shape and shared out evenly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.distributed.failures import OutOfMemory, together
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import morton_order
from splatstudio.optimization.gradients import Observation
from splatstudio.settings.config import Order, TrainConfig, changed
from splatstudio.strategy import Strategy
from splatstudio.strategy.population import ROW_INDEX, Population, attempt, trainable
from splatstudio.strategy.shapes import ShapeLimits, hold_shapes

TOLERANCE = 0.1  # of the mean: how far the largest and the smallest share may be apart

ROOM_LEFT = 0.9  # of the Gaussians that were too many: the limit on their number afterward


def reorder(population: Population) -> None:
    """Put each rank's own rows in the order of a Morton curve through their positions.

    Moments and counts move with the rows, which keep their places or, in one process, get them: the model is
    the same as before, and so are the choices by chance that follow. Called by all ranks. Where any has no
    memory for it all keep the order that they had, and raise OutOfMemory.
    """
    attempt(population, lambda: _reorder(population))


@torch.no_grad()
def _reorder(population: Population) -> None:
    means = population.gaussians.means.detach()
    if not bool(means.isfinite().all()):
        return  # what is nowhere has no neighbors; the next loss tells of it
    rows = torch.from_numpy(morton_order(means.cpu().numpy())).to(means.device)
    optimizer, num_moved = population.optimizer, 0
    assert population.steps_back is not None, "in an attempt"
    optimizer.flush_lazy_rows(population.gaussians)

    def moved(tensor: Tensor) -> Tensor:
        nonlocal num_moved
        result = tensor.index_select(0, rows)
        num_moved += 1
        return result

    def moved_back(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor).index_copy_(0, rows, tensor)

    def model_back() -> None:
        population.gaussians = trainable(population.gaussians.detach().map(moved_back))

    def moments_back() -> None:
        optimizer.replace(moved_back, reversed(range(num_moved)))

    population.gaussians = trainable(population.gaussians.detach().map(moved))
    num_moved = 0
    population.steps_back += [model_back, moments_back]
    # Tensor by tensor, so that but one of them is in memory twice.
    optimizer.replace(moved)
    population.amid_edit()
    # The rows of one process have lain in the order of their places until now: with these chance goes on as
    # if they still did.
    places = {} if ROW_INDEX in population.counts else {ROW_INDEX: rows}
    population.counts = {name: count.index_select(0, rows) for name, count in population.counts.items()}
    population.counts |= places


@torch.no_grad()
def rebalance(population: Population) -> bool:
    """Let all ranks share their Gaussians evenly where they are too far apart; return whether that was so.

    Moments and counts move with the rows, and the order of all ranks' rows together stays: the model is the
    same as before to the last bit, whoever draws it. Called by all ranks. Where any has no memory for it all
    keep what they had, and raise OutOfMemory.
    """
    ranks = population.ranks
    if ranks.num_ranks == 1:
        return False
    sizes = [int(part) for part in ranks.all_gather(torch.tensor([len(population)], device="cpu"))]
    total = sum(sizes)
    if max(sizes) - min(sizes) <= max(1.0, TOLERANCE * total / len(sizes)):
        return False
    sent, received = _moves(sizes, ranks.rank)
    attempt(population, lambda: _move(population, sent, received))
    return True


def _move(population: Population, sent: list[int], received: list[int]) -> None:
    """Send `sent[0]` rows of everything to rank 0, the next to rank 1, and so on; get `received` of them."""
    ranks, optimizer, num_moved = population.ranks, population.optimizer, 0
    assert population.steps_back is not None, "in an attempt"
    optimizer.flush_lazy_rows(population.gaussians)

    def moved(tensor: Tensor) -> Tensor:
        # Room for what comes before the others are asked whether they have it too.
        into = tensor.new_empty((sum(received), *tensor.shape[1:]))
        return ranks.all_to_all(tensor, sent, received, into=into)

    def moved_and_counted(tensor: Tensor) -> Tensor:
        nonlocal num_moved
        result = moved(tensor)
        num_moved += 1
        return result

    def model_back() -> None:
        population.gaussians = trainable(population.gaussians.detach().map(moved_back))

    def moments_back() -> None:
        optimizer.replace(moved_back, reversed(range(num_moved)))

    def moved_back(tensor: Tensor) -> Tensor:
        plain = population.ranks  # nobody gives up any more
        into = together(plain, lambda: tensor.new_empty((sum(sent), *tensor.shape[1:])))
        return plain.all_to_all(tensor, received, sent, into=into)

    population.gaussians = trainable(population.gaussians.detach().map(moved))
    population.steps_back += [model_back, moments_back]
    # Tensor by tensor, so that but one of them is in memory twice.
    optimizer.replace(moved_and_counted)
    population.amid_edit()
    population.counts = {name: moved(count) for name, count in population.counts.items()}


def _moves(sizes: list[int], rank: int) -> tuple[list[int], list[int]]:
    """Return how many rows a rank sends to each and gets from each, so that all have equally many."""
    num, total = len(sizes), sum(sizes)
    held = [(sum(sizes[:r]), sum(sizes[: r + 1])) for r in range(num)]
    wanted = [(total * r // num, total * (r + 1) // num) for r in range(num)]
    sent = [_overlap(held[rank], wanted[other]) for other in range(num)]
    return sent, [_overlap(held[other], wanted[rank]) for other in range(num)]


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


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
    them, as `Change.short` and `left_out` say. Raises ValueError, on all ranks, where a photo that is
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
