"""The processes that train one model together, each of which holds a part of its Gaussians."""

from __future__ import annotations

from torch import Tensor


class Ranks:
    """A training of one process, which has nobody to ask; what several do, subclasses say.

    Every method is called by all ranks, in the same order.
    """

    rank = 0
    num_ranks = 1

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of `values`, which have the same shape on each."""
        return values

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is set on any rank."""
        return flag

    def gather(self, rows: Tensor) -> list[Tensor]:
        """Return every rank's `rows` [N_r, ...], rank 0's first; ranks may have different numbers of rows."""
        return [rows]


ALONE = Ranks()
