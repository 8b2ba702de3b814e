"""What ranks show each other: each sends what it projected to the ranks whose pictures show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.distributed.failures import together
from splatstudio.distributed.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Route:
    """How many rows a rank sends to each rank, and how many it gets from each."""

    ranks: Ranks
    sent: Sequence[int]
    received: Sequence[int]


@torch.no_grad()
def exchange(rows: Tensor, radii: Tensor, route: Route) -> tuple[Tensor, Tensor]:
    """Return the rows and the radii that all ranks have for this one, by rank, without gradients.

    `rows` [M, C] and `radii` [M, 2] int32 are sent in one message. What comes of the rows' gradients goes the
    other way, by `sent_back`. Raises OutOfMemory on all ranks where any has no memory for what comes,
    before anything is sent.
    """
    if route.ranks.num_ranks == 1:
        return rows.detach(), radii
    record, got, got_rows, got_radii = together(route.ranks, lambda: _buffers(rows, radii, route))
    route.ranks.swap_rows(record, route.sent, route.received, into=got)
    got_rows.copy_(got[:, : rows.shape[1]])
    got_radii.view(rows.dtype).copy_(got[:, rows.shape[1] :])
    return got_rows, got_radii


def _buffers(rows: Tensor, radii: Tensor, route: Route) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what is sent, and room for what comes, together and apart."""
    # The radii ride along as the bits of floating point numbers.
    record = torch.cat([rows.detach(), radii.contiguous().view(rows.dtype)], dim=1)
    num = sum(route.received)
    got_rows, got_radii = rows.new_empty((num, rows.shape[1])), radii.new_empty((num, radii.shape[1]))
    return record, record.new_empty((num, record.shape[1])), got_rows, got_radii


def room_for_return(values: Tensor, route: Route) -> Tensor | None:
    """Return room for what `sent_back` returns of `values`; None where nothing is sent."""
    if route.ranks.num_ranks == 1:
        return None
    return values.new_empty((sum(route.sent), values.shape[1]))


def sent_back(values: Tensor, route: Route, into: Tensor | None) -> Tensor:
    """Return what all ranks have found of the rows that this one had sent, [M, D], in `into`.

    `values` [K, D] are of the rows that `exchange` returned. All ranks call it, with as many columns, and
    with `into` of `room_for_return`, for which some may have no memory.
    """
    return route.ranks.swap_rows(values, route.received, route.sent, into=into)
