"""What goes wrong on some rank and is known on all: work in exchanges that all ranks finish or none."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from splatstudio.devices import accelerator
from splatstudio.distributed.ranks import Ranks

T = TypeVar("T")

_WELL, _SHORT, _WRONG = 0, 1, 2  # how a rank's work goes, or ended

# How torch tells of memory by a plain RuntimeError: of the machine's, and of what CUDA itself takes, as for
# pinned memory. (NCCL's own words are not among them: the other ranks are in the midst of that exchange.)
_SHORT_OF_MEMORY = ("can't allocate memory", "not enough memory", "CUDA error: out of memory")


FAULT_VARIABLE = "SPLATSTUDIO_FAULT"
_FAULT = r"(oom|nan)@step=(\d+),rank=(\d+)(?:,times=(\d+))?(?:,site=(step|growth|evaluation))?"


class OutOfMemory(MemoryError):
    """Some ranks had no memory for a step, which all ranks left out; nothing was changed."""

    def __init__(self, ranks: Sequence[int]):
        super().__init__(f"out of memory on rank {', '.join(map(str, ranks))}")
        self.ranks = tuple(ranks)


class FailedTogether(ValueError):
    """What a rank could not do, as its user has to know; all ranks raise it in the same place.

    What failed has changed nothing: they can still do together what comes before the end.
    """


def unless_out_of_memory(work: Callable[[], T]) -> T | None:
    """Return what `work` returns, or None where there was no memory for it.

    What it had made until then is free again when this returns. OutOfMemory, on which all ranks have agreed,
    is raised on.
    """
    try:
        return work()
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
    # Only here, behind the except block, nothing holds the tensors of the traceback any more.
    accelerator.free_cached_memory()
    return None


def together(ranks: Ranks, work: Callable[[], T]) -> T:
    """Return what `work` returns, where it has succeeded on all ranks, which call this together.

    `work` talks to no other rank. Raises OutOfMemory on all ranks alike where any had no memory, and
    FailedTogether where any raised ValueError; one process raises that itself.
    """
    if ranks.num_ranks == 1:
        return _alone(work)
    done, wrong = _tried(work)
    ends = torch.zeros(ranks.num_ranks, dtype=torch.int64, device="cpu")
    ends[ranks.rank] = _end(done, wrong)
    return _unless_failed(ranks, done, wrong, ranks.all_reduce(ends).tolist())


def told_together(ranks: Ranks, work: Callable[[], T], tell: Callable[[T], Tensor]) -> tuple[T, list[Tensor]]:
    """Return what `work` returns, as `together` does, and what `tell` makes of it on each rank.

    That is float64 on the CPU, [n, ...] of any n, rank 0's first. How the work went and what is told of it
    are one message.
    """
    if ranks.num_ranks == 1:
        alone = _alone(work)
        return alone, [tell(alone)]
    done, wrong = _tried(work)
    end = torch.tensor([_end(done, wrong)], dtype=torch.float64, device="cpu")
    told = end[:0] if done is None else tell(done[0])
    words = ranks.all_gather(torch.cat([end, told.reshape(-1)]))
    result = _unless_failed(ranks, done, wrong, [int(each[0]) for each in words])
    return result, [each[1:].view(-1, *told.shape[1:]) for each in words]


def _alone(work: Callable[[], T]) -> T:
    done = unless_out_of_memory(lambda: (work(),))
    if done is None:
        raise OutOfMemory([0])
    return done[0]


def _tried(work: Callable[[], T]) -> tuple[tuple[T] | None, str]:
    """Return what `work` returns, None where it failed, and what its user has to know of that."""
    try:
        return unless_out_of_memory(lambda: (work(),)), ""
    except ValueError as error:
        return None, str(error) or type(error).__name__


def _end(done: tuple[T] | None, wrong: str) -> int:
    return _WRONG if wrong else _SHORT if done is None else _WELL


def _unless_failed(ranks: Ranks, done: tuple[T] | None, wrong: str, ends: Sequence[int]) -> T:
    """Return what was done, where all ranks' work ended well; `ends` says how."""
    if _WRONG in ends:
        raise failed_together(ranks, wrong)
    failed = [rank for rank, end in enumerate(ends) if end != _WELL]
    if failed or done is None:
        raise OutOfMemory(failed)
    return done[0]


def failed_together(ranks: Ranks, wrong: str) -> FailedTogether:
    """Return what all ranks, which call this together, raise: the first sentence of any; `wrong` is ours."""
    # The name of a file may be no text: half a character would leave the other ranks waiting for this one.
    messages = ranks.all_gather_bytes(wrong.encode(errors="surrogatepass"))
    return FailedTogether(next(filter(None, messages)).decode(errors="surrogatepass"))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory, of the machine or of a GPU, was short."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or any(sentence in str(error) for sentence in _SHORT_OF_MEMORY)


@dataclass
class Fault:
    """A failure that a test asks for, on a rank in a step."""

    kind: str  # "oom" or "nan"
    step: int  # 1 is the first
    rank: int
    times: int  # how often it is yet to happen
    site: str = "step"  # where in it

    @classmethod
    def from_environment(cls) -> Fault | None:
        """Return the fault that SPLATSTUDIO_FAULT asks for, as "oom@step=3,rank=1" or "nan@step=3,rank=0".

        With ",times=2" it happens again when the step is repeated. With ",site=growth" memory is short when
        Gaussians are added, removed or moved between ranks after the step, with ",site=evaluation" in an
        evaluation after it. None without the variable; ValueError where it makes no sense.
        """
        text = os.environ.get(FAULT_VARIABLE, "")
        if not text:
            return None
        match = re.fullmatch(_FAULT, text)
        if match is None:
            raise ValueError(f"{FAULT_VARIABLE} is {text!r}, but must be like oom@step=3,rank=1")
        kind, step, rank, times, site = match.groups()
        return cls(kind, int(step), int(rank), int(times or 1), site or "step")

    def strike(self, step: int, rank: int, site: str = "step") -> float:
        """Return what a loss of `step` on `rank` is multiplied with: 1, or NaN where that is the fault.

        Raises torch.OutOfMemoryError where that is, at `site`.
        """
        if (step, rank, site) != (self.step, self.rank, self.site) or self.times < 1:
            return 1.0
        self.times -= 1
        if self.kind == "oom":
            raise torch.OutOfMemoryError(f"out of memory, as {FAULT_VARIABLE} asks for")
        return float("nan")


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
    guarded = GuardedRanks(ranks)
    result, short, wrong = None, (), ""
    words = None
    try:
        result = unless_out_of_memory(lambda: (work(guarded),))
        words = guarded.words(_SHORT if result is None else _WELL)
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
        words = guarded.words(_WRONG)
    if words is not None and not words.any():
        assert result is not None, "this rank is one of them"
        return result[0]
    undo()  # behind the except blocks: nothing holds what the work had made until then
    if words is None:
        raise OutOfMemory(short)
    if (words == _WRONG).any():
        raise failed_together(ranks, wrong)
    raise OutOfMemory(words.nonzero().squeeze(1).tolist())
