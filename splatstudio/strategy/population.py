"""The one place where the number of Gaussians changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from splatstudio.distributed.failures import OutOfMemory, all_or_none, is_out_of_memory, unless_out_of_memory
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.gaussians.change import Change
from splatstudio.gaussians.gaussians import Gaussians, with_rows
from splatstudio.kernels.ops_training import StepGate
from splatstudio.optimization.optim import SplatAdam, with_zero_rows

ROW_INDEX = "place"  # the count that says where a row stands among those of all ranks, see `places`
# The count that numbers a Gaussian for life; its random numbers follow from it, see `sample_parents`.
PERSISTENT_ID = "key"

T = TypeVar("T")


@dataclass(eq=False)
class Population:
    """Everything that has one row for each Gaussian: the model, Adam's moments, the strategy's counts.

    `gaussians` holds leaf tensors that require gradients; it is replaced as a whole, so that another thread
    that takes it once always has six tensors of one length. `counts` is the strategy's state, [N] tensors by
    name. With several `ranks` these are the rows of one of them; rules hold for all ranks' rows together.
    """

    gaussians: Gaussians
    optimizer: SplatAdam
    counts: dict[str, Tensor]
    ranks: Ranks = ALONE
    # While an `attempt` is made: what takes it back, the last first. None: changes are for good.
    steps_back: list[Callable[[], object]] | None = None
    # Called in the midst of an edit: tests let memory be short there.
    amid_edit: Callable[[], object] = lambda: None
    # Whether this rank left out for want of memory what concerns no other, see `unless_short`.
    short: bool = False
    # While a strategy follows a step of which nobody knows yet whether it is made: what tells the device.
    gate: StepGate | None = None

    def __len__(self) -> int:
        return len(self.gaussians)

    def num_all(self) -> int:
        """Return the number of rows of all ranks; called by all of them."""
        if self.ranks.num_ranks == 1:
            return len(self)
        return int(self.ranks.all_reduce(torch.tensor([len(self)], device="cpu")))

    def to(self, device: torch.device | str) -> Population:
        """Return the population on `device`."""
        optimizer = self.optimizer
        moments = optimizer.exp_avg.to(device), optimizer.exp_avg_sq.to(device)
        return Population(
            self.gaussians.to(device),
            SplatAdam(*moments, optimizer.num_steps),
            {name: count.to(device) for name, count in self.counts.items()},
            self.ranks,
        )


def standing(ranks: Ranks, numbers: Tensor) -> tuple[Tensor, int]:
    """Return how many of all ranks' `numbers` [n] int64 are below each of these, and how many there are.

    They are 0 or more, and all different. Called by all ranks.
    """
    own = numbers.cpu()
    ends = torch.cat(ranks.all_gather(own.max()[None] + 1 if len(own) else own.new_zeros(1)))
    # The lists of all ranks' rows may be long: of small numbers, and none longer than it is needed.
    named = torch.zeros(int(ends.max()), dtype=torch.uint8, device="cpu")
    named[own] = 1
    named = ranks.all_reduce(named)
    until = named.cumsum(0, dtype=torch.int32)
    return (until[own].long() - 1).to(numbers.device), int(until[-1]) if len(until) else 0


@torch.no_grad()
def edit(
    population: Population, *, keep: Tensor, newborn: Gaussians, parents: Tensor, order: Tensor | None = None
) -> None:
    """Drop the rows outside `keep` and add `newborn` behind the rest.

    `keep` [N] bool; `newborn` has M rows, `parents` [M] int64 names each one's parent among the N rows before
    the edit. Survivors keep their moments, newborns start with zero moments and their parent's counts.
    Called by all ranks, where there are several; `order` [M] int64 says then in which order one process would
    have born the newborns of all of them, from low to high, and no number comes twice.
    """
    assert keep.shape == (len(population),), "one flag for each Gaussian"
    assert parents.shape == (len(newborn),), "one parent for each newborn"
    population.optimizer.flush_lazy_rows(population.gaussians)
    rows = keep.nonzero().squeeze(1)
    places = _places_after(population, rows, parents if order is None else order)
    gone = None if population.steps_back is None else (~keep).nonzero().squeeze(1)
    old, new = population.gaussians.detach().tensors(), newborn.detach().tensors()
    lost = {} if gone is None else {name: _apart(tensor, gone) for name, tensor in old.items()}
    merged = Gaussians(**{name: with_rows(tensor, rows, new[name]) for name, tensor in old.items()})
    population.gaussians = trainable(merged)
    if population.steps_back is not None and gone is not None:
        population.steps_back.append(partial(_take_model_back, population, rows, gone, lost))
    del old, merged  # together, the two models and the moments are the most that a training holds
    _edit_moments(population, rows, len(newborn), gone)
    population.amid_edit()
    population.counts = {
        name: with_rows(count, rows, count[parents]) for name, count in population.counts.items()
    }
    if places is not None:
        population.counts[ROW_INDEX] = places


def _places_after(population: Population, rows: Tensor, order: Tensor) -> Tensor | None:
    """Return the places after an edit that keeps `rows` (indices); None for those of one process."""
    if ROW_INDEX not in population.counts:
        assert population.ranks.num_ranks == 1, "the rows of several ranks have their places"
        return None
    kept, num_kept = standing(population.ranks, population.counts[ROW_INDEX][rows])
    born, _ = standing(population.ranks, order)
    return torch.cat([kept, num_kept + born])


def reset_counts(population: Population) -> None:
    """Set what the strategy has counted to zero, in place."""
    for name, count in population.counts.items():
        if name not in (ROW_INDEX, PERSISTENT_ID):
            count.zero_()


# An edit is taken back in the opposite order: each tensor finds the room that it had before. What was dropped
# waits in the machine's memory meanwhile, as it is a GPU's that is short.


def _edit_moments(population: Population, rows: Tensor, num_newborn: int, gone: Tensor | None) -> None:
    optimizer = population.optimizer
    if population.steps_back is None or gone is None:
        optimizer.edit(rows, num_newborn)
        return
    lost: list[Tensor] = []  # of the moments that are replaced

    def edited(tensor: Tensor) -> Tensor:
        dropped = _apart(tensor, gone)
        result = with_zero_rows(tensor, rows, num_newborn)
        lost.append(dropped)
        return result

    def take_back() -> None:
        replaced = reversed(range(len(lost)))
        optimizer.replace(lambda tensor: _as_before(tensor, rows, gone, lost.pop()), replaced)

    population.steps_back.append(take_back)
    optimizer.replace(edited)


def _take_model_back(population: Population, rows: Tensor, gone: Tensor, lost: dict[str, Tensor]) -> None:
    tensors = population.gaussians.detach().tensors()
    before = {name: _as_before(tensor, rows, gone, lost[name]) for name, tensor in tensors.items()}
    population.gaussians = trainable(Gaussians(**before))


def _apart(tensor: Tensor, gone: Tensor) -> Tensor:
    return tensor.index_select(0, gone).cpu()


def _as_before(tensor: Tensor, rows: Tensor, gone: Tensor, lost: Tensor) -> Tensor:
    """Return a tensor as it was before `with_rows` took `rows` of it and left out `gone`, which is `lost`."""
    before = tensor.new_empty((len(rows) + len(gone), *tensor.shape[1:]))
    before.index_copy_(0, rows, tensor[: len(rows)])
    return before.index_copy_(0, gone, lost.to(tensor.device))


def trainable(gaussians: Gaussians) -> Gaussians:
    """Return the same values as contiguous leaf tensors that require gradients."""
    return gaussians.map(lambda tensor: tensor.detach().contiguous().requires_grad_())


def attempt(population: Population, work: Callable[[], T]) -> T:
    """Return what `work` returns, which changes the population; all ranks call it together.

    `work` exchanges by `population.ranks` and changes rows by `edit`, or says in `population.steps_back` how
    a change is taken back; what it makes of a count is a new tensor. Where a rank has no memory for its part
    everything is as it was before, to the last bit, and all raise OutOfMemory; where one raises ValueError,
    all raise FailedTogether (one process: what it was). MemoryError, which is not OutOfMemory: there was none
    to take the change back either.
    """
    own, counts = population.ranks, dict(population.counts)
    back = population.steps_back = []

    def guarded(ranks: Ranks) -> T:
        population.ranks = ranks
        return work()

    def undo() -> None:
        population.ranks = own
        try:
            while back:
                back.pop()()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError("there was no memory to take a change back: the model is torn") from error
        population.counts = counts

    try:
        return all_or_none(own, guarded, undo)
    finally:
        population.ranks, population.steps_back = own, None


def change_or_none(population: Population, work: Callable[[], Change]) -> Change:
    """Return the change that `work` makes, as `attempt` does, or that there was no memory for it."""
    try:
        return attempt(population, work)
    except OutOfMemory as error:
        return Change(short=error.ranks)


def unless_short(population: Population, work: Callable[[], object]) -> None:
    """Do what concerns this rank's rows alone, without exchange, and can be left out where memory is short.

    That it was is noted in `population.short`.
    """
    if unless_out_of_memory(lambda: (work(),)) is None:
        population.short = True
