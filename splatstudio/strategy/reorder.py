"""Gaussians that are neighbours in space become neighbours in memory, where a picture reads them together."""

from __future__ import annotations

import torch
from torch import Tensor

from splatstudio.gaussians.spatial_order import morton_order
from splatstudio.strategy.attempt import attempt
from splatstudio.strategy.population import ROW_INDEX, Population, trainable


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
        return  # what is nowhere has no neighbours; the next loss tells of it
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
