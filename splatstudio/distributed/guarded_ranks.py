"""Work with exchanges in it that is done on all ranks or on none: whoever fails, no other waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from splatstudio.distributed.failures import (
    FailedTogether,
    OutOfMemory,
    failed_together,
    unless_out_of_memory,
)
from splatstudio.distributed.ranks import Ranks

T = TypeVar("T")

_WELL, _SHORT, _WRONG = 0, 1, 2  # how a rank's work goes


class _GivenUp(Exception):
    """Another rank could not do its part of the work; `words` says of each how it went."""

    def __init__(self, words: Tensor):
        super().__init__("another rank has given up")
        self.words = words


class GuardedRanks(Ranks):
    """The same ranks in work that each of them may have to give up.

    Before every exchange they ask each other whether all are still at it. Who is not answers once, and all
    leave the work in the same place. What is exchanged lies in memory before that question, as far as it is
    up to the caller.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.rank, self.num_ranks = ranks.rank, ranks.num_ranks

    def words(self, own: int) -> Tensor:
        """Return how the work goes on each rank, of which this one says `own`."""
        words = torch.zeros(self.num_ranks, dtype=torch.int64, device="cpu")
        words[self.rank] = own
        return self._ranks.all_reduce(words)

    def _ask(self) -> None:
        words = self.words(_WELL)
        if words.any():
            raise _GivenUp(words)

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return what `Ranks.all_reduce` does."""
        self._ask()
        return self._ranks.all_reduce(values)

    def any(self, flag: bool) -> bool:
        """Return what `Ranks.any` does."""
        self._ask()
        return self._ranks.any(flag)

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """Return what `Ranks.all_gather` does."""
        self._ask()
        return self._ranks.all_gather(rows)

    def all_gather_bytes(self, message: bytes) -> list[bytes]:
        """Return what `Ranks.all_gather_bytes` does."""
        self._ask()
        return self._ranks.all_gather_bytes(message)

    def all_to_all_counts(self, counts: Tensor) -> Tensor:
        """Return what `Ranks.all_to_all_counts` does."""
        self._ask()
        return self._ranks.all_to_all_counts(counts)

    def all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor | None = None
    ) -> Tensor:
        """Return what `Ranks.all_to_all` does."""
        self._ask()
        return self._ranks.all_to_all(rows, sent, received, into=into)


def all_or_none(ranks: Ranks, work: Callable[[Ranks], T], undo: Callable[[], None]) -> T:
    """Return what `work` returns, where it succeeds on all ranks, which call this together.

    `work` gets the ranks to exchange with. Where any has no memory for its part, all call `undo` and raise
    OutOfMemory alike; where any raises ValueError, all call `undo` and raise FailedTogether. One process
    raises its ValueError itself.
    """
    wary = GuardedRanks(ranks)
    result, short, wrong = None, (), ""
    words = None
    try:
        result = unless_out_of_memory(lambda: (work(wary),))
        words = wary.words(_SHORT if result is None else _WELL)
    except OutOfMemory as error:  # which all ranks raise in the same place
        short = error.ranks
    except _GivenUp as others:
        words = others.words
    except FailedTogether:
        undo()
        raise
    except ValueError as error:
        if ranks.num_ranks == 1:
            undo()
            raise
        wrong = str(error) or type(error).__name__
        words = wary.words(_WRONG)
    if words is not None and not words.any():
        assert result is not None, "this rank is one of them"
        return result[0]
    undo()  # behind the except blocks: nothing holds what the work had made until then
    if words is None:
        raise OutOfMemory(short)
    if (words == _WRONG).any():
        raise failed_together(ranks, wrong)
    raise OutOfMemory(words.nonzero().squeeze(1).tolist())
