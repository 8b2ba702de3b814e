"""Random choices among Gaussians that may lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def drawn(masses: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Return `num` rows, int64, each drawn with a probability in proportion to `masses` [N], 0 or more.

    A row may be drawn several times. To draw any, some mass must be above 0.
    """
    if num == 0:
        return torch.zeros(0, dtype=torch.int64, device=masses.device)
    ends = masses.double().cumsum(0)
    assert bool(ends[-1] > 0), "there is something to draw from"
    points = torch.rand(num, generator=generator, dtype=torch.float64).to(ends) * ends[-1]
    # What rounding puts at the very end belongs to the last row that has a mass.
    last = int((masses > 0).nonzero()[-1])
    return torch.searchsorted(ends, points, right=True).clamp_max(last)


def share_out(total: int, masses: Sequence[float]) -> list[int]:
    """Share `total` things out in proportion to `masses`, as evenly as whole numbers allow.

    The largest remainders get one more, of equal ones the first. Without any mass nobody gets anything.
    """
    whole = sum(masses)
    if not whole > 0:
        return [0] * len(masses)
    exact = [total * mass / whole for mass in masses]
    shares = [int(share) for share in exact]
    order = sorted(range(len(masses)), key=lambda i: shares[i] - exact[i])
    for i in order[: total - sum(shares)]:
        shares[i] += 1
    return shares
