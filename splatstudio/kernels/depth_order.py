"""In which order the Gaussians of a picture are drawn: the definition, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from splatstudio.kernels.stages import Projected

LONGEST_TIE = 32  # Gaussians of one depth that are put in an order of their own


@torch.no_grad()
def in_order_of_depth(projected: Projected) -> Tensor:
    """Return the visible rows, [M] int64, the nearest first; those of one depth by their y, then x in px.

    So that a picture does not follow from how the rows lie. Only where more than LONGEST_TIE rows are of one
    depth, as those of a wall that is seen squarely, they stay as they lie.
    """
    visible = (projected.radii > 0).all(dim=-1).nonzero()[:, 0]
    order = visible[torch.argsort(projected.depths[visible], stable=True)]
    _, tie, sizes = torch.unique_consecutive(projected.depths[order], return_inverse=True, return_counts=True)
    places = projected.means2d[order].masked_fill((sizes[tie] > LONGEST_TIE)[:, None], 0.0)
    by = torch.arange(len(order), device=order.device)
    for key in (places[:, 0], places[:, 1], tie):  # the last one counts most
        by = by[torch.argsort(key[by], stable=True)]
    return order[by]
