"""Which rank brought the others down, and why.

A rank that ends with an error leaves a report in a file. When one rank dies the others soon end too, with
errors of their own about the connection, so that who told first is not who is to blame.
"""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from splatstudio.distributed.failures import is_out_of_memory
from splatstudio.error_text import essence
from splatstudio.files.inputs import read_input
from splatstudio.operating_system import put_in_place

log = logging.getLogger("splatstudio.runtime")

MEMORY = "memory"  # the kind of a cause that fewer Gaussians may help against

PEER_SIGNS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "timed out waiting",
    # NCCL's and its watchdog's: the other errors of it are a rank's own, as of a GPU or of shared memory.
    "remote process exited",
    "communicator was aborted",
    "collective operation timeout",
    "retrieving nccluniqueid",
)
# What NCCL says of a GPU's memory: its own, which it takes beside what torch has.
NCCL_MEMORY = ("out of memory", "cuda calloc", "cuda malloc")


class ErrorReport(Struct, frozen=True):
    """What a rank wrote of the exception that ended it."""

    rank: int
    step: int
    kind: str  # the exception's class
    text: str  # its first line
    sentence: str  # what to tell the user
    final: bool  # the same would happen again: a restart is of no use
    monotonic_ns: int
    memory: bool = False  # there was not enough

    @property
    def of_a_peer(self) -> bool:
        """Return whether this error only tells that another rank has gone."""
        return _is_of_a_peer(self.kind, self.text)


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended: `exitcode` as multiprocessing counts it (minus the signal), its report if any.

    `silence` says, in words, why the supervisor ended it.
    """

    rank: int
    step: int
    exitcode: int | None
    report: ErrorReport | None = None
    silence: str | None = None


@dataclass(frozen=True)
class Cause:
    """Why a group of ranks ended."""

    rank: int
    step: int
    kind: str  # the same for two ends of the same kind
    sentence: str
    final: bool = False


def is_of_a_peer(error: BaseException) -> bool:
    """Return whether an error only tells that another rank has gone."""
    return _is_of_a_peer(type(error).__name__, essence(error))


def _is_of_a_peer(kind: str, text: str) -> bool:
    lowered = f"{kind}: {text}".lower()
    return any(sign in lowered for sign in PEER_SIGNS)


def _is_memory_of_nccl(error: BaseException) -> bool:
    text = str(error).lower()
    return type(error).__name__ == "DistBackendError" and any(words in text for words in NCCL_MEMORY)


def write_report(folder: Path, rank: int, step: int, error: BaseException, sentence: str) -> None:
    """Leave word in `folder`, made where it is not there, of the exception that ends this rank.

    A disk that is full must not hide the first error.
    """
    report = ErrorReport(
        rank=rank,
        step=step,
        kind=type(error).__name__,
        text=essence(error),
        sentence=sentence,
        # A ValueError says what the user did, or that the training diverged.
        final=isinstance(error, ValueError),
        monotonic_ns=time.monotonic_ns(),
        memory=is_out_of_memory(error) or _is_memory_of_nccl(error),
    )
    partial = folder / f".error-{rank}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        partial.write_bytes(msgspec.json.encode(report))
        put_in_place(partial, folder / f"error-{rank}.json")
    except OSError as problem:
        log.error("no word of this error could be left: %s", problem)


def read_report(folder: Path, rank: int) -> ErrorReport | None:
    """Return what `rank` wrote, None when it could not."""
    try:
        return msgspec.json.decode(read_input(folder / f"error-{rank}.json"), type=ErrorReport)
    except (OSError, msgspec.MsgspecError):
        return None


def root_cause(ends: list[RankEnd], num_ranks: int) -> Cause:
    """Return the cause among the ends of the ranks, of which one at least is not clean.

    A rank that hung or died by a signal, without a word, is to blame; else the one with the earliest error
    that is not about another rank; else the first one. A signal by which NCCL ends a rank because another has
    gone (SIGABRT) says less than any other, and than an error.
    """
    bad = [end for end in ends if end.exitcode != 0 or end.silence is not None]
    for end in bad:
        if end.silence is not None:
            return Cause(end.rank, end.step, "silence", f"{rank_name(end.rank, num_ranks)} {end.silence}.")
    reports = [end.report for end in bad if end.report is not None]
    told = any(not report.of_a_peer for report in reports)
    for end in sorted(bad, key=lambda end: end.exitcode == -signal.SIGABRT):
        aborted = end.exitcode == -signal.SIGABRT
        if end.exitcode is not None and end.exitcode < 0 and end.report is None and not (aborted and told):
            name = _signal_name(-end.exitcode)
            sentence = f"{rank_name(end.rank, num_ranks)} was killed ({name}{_reason(name)})."
            return Cause(end.rank, end.step, name, sentence)
    reports.sort(key=lambda report: (report.of_a_peer, report.monotonic_ns))
    if reports:
        report = reports[0]
        # What the user has to mend ends all ranks alike: its sentence says what there is to say.
        of_all = num_ranks == 1 or report.final
        sentence = report.sentence if of_all else f"Rank {report.rank}: {report.sentence}"
        kind = MEMORY if report.memory else f"{report.kind}: {report.text}"
        return Cause(report.rank, report.step, kind, sentence, report.final)
    end = bad[0] if bad else ends[0]
    how = f"ended unexpectedly (exit code {end.exitcode})" if end.exitcode else "was told to end (SIGTERM)"
    sentence = f"{rank_name(end.rank, num_ranks)} {how}."
    return Cause(end.rank, end.step, f"exit code {end.exitcode}", sentence)


def rank_name(rank: int, num_ranks: int) -> str:
    """Return what a rank is called in sentences."""
    return "The background process" if num_ranks == 1 else f"Rank {rank}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reason(name: str) -> str:
    return ", by the system when memory runs out, or by hand" if name == "SIGKILL" else ""
