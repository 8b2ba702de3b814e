"""The processes that train one model together, each of which holds a part of its Gaussians."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class Transfer:
    """An exchange that is under way; this one is done."""

    def wait(self) -> None:
        """Let what this thread does next find the rows: of a GPU its queue waits, and not the host."""


class Ranks:
    """A training of one process, which has nobody to ask; `ProcessRanks` is the one of several.

    Every method is called by all ranks, in the same order. The Gaussians of all ranks are one model: rank
    0's rows come first.
    """

    rank = 0
    num_ranks = 1
    seconds = 0.0  # spent in these methods until now, waiting for other ranks included
    num_bytes = 0  # given to the exchanges until now, a rank's own part included

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of `values`, which have the same shape on each."""
        return values

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is set on any rank."""
        return flag

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """Return every rank's `rows` [N_r, ...], rank 0's first; ranks may have different numbers of rows."""
        return [rows]

    def all_gather_bytes(self, message: bytes) -> list[bytes]:
        """Return every rank's `message`, of any length, rank 0's first."""
        return [message]

    def all_to_all_counts(self, counts: Tensor) -> Tensor:
        """Give each rank its row of `counts` [num_ranks, C] int64; return what all ranks gave to this one."""
        return counts

    def all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor | None = None
    ) -> Tensor:
        """Send the first sent[0] of `rows` [N, ...] to rank 0, the next to rank 1, and so on.

        `received` is how many rows each rank sends to this one; they are returned by rank, in `into` where
        that is given, which is contiguous.
        """
        return rows if into is None else into.copy_(rows)

    def begin_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor
    ) -> Transfer:
        """Begin what `all_to_all` does; until `Transfer.wait`, `rows` stay as they are and `into` unread."""
        self.all_to_all(rows, sent, received, into=into)
        return Transfer()

    def share(self, num: int) -> slice:
        """Return which of `num` things in order are this rank's when all ranks share them evenly."""
        return slice(num * self.rank // self.num_ranks, num * (self.rank + 1) // self.num_ranks)


ALONE = Ranks()
