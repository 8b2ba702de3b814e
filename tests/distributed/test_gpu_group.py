"""The group of GPUs: who may be in it, that it is tried before it is needed, and how ranks in it end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool

from splatstudio.devices import accelerator
from splatstudio.distributed import process_ranks
from splatstudio.distributed.process_ranks import GpuSeconds, unfit
from splatstudio.distributed.ranks import Ranks
from splatstudio.error_text import essence
from splatstudio.operating_system import end_within
from splatstudio.runtime.channel import broadcast
from splatstudio.runtime.root_cause import (
    MEMORY,
    ErrorReport,
    RankEnd,
    is_of_a_peer,
    read_report,
    root_cause,
    write_report,
)
from splatstudio.runtime.sentences import error_sentence

CPU = torch.device("cpu")
NCCL = "NCCL error in: /torch/csrc/NCCLUtils.cpp:94, {}, NCCL version 2.27.5\n{}\nLast error:\n{}"
SHARED_MEMORY = "Error while creating shared memory segment /dev/shm/nccl-1 (size 9637888), No space left"


def nccl_error(kind: str, last: str) -> dist.DistBackendError:
    return dist.DistBackendError(NCCL.format(kind, "ncclError: what it is", last))


def test_every_rank_needs_a_gpu_of_its_own_or_none_has_one() -> None:
    assert unfit(["", "", ""]) is None and unfit(["GPU-1", "GPU-2"]) is None
    shared = unfit(["GPU-1", "GPU-2", "GPU-1"])
    assert shared is not None and shared.startswith("ranks 0 and 2 are on the same GPU")
    mixed = unfit(["GPU-1", "", "GPU-3"])
    assert mixed is not None and "rank 1 has no GPU that can be used, but rank 0 has one" in mixed


def meet(ranks: Ranks, cards: tuple[str, ...]) -> str:
    """Say what a rank on one of `cards` is told where the ranks meet."""
    own, accelerator.identity = accelerator.identity, lambda device: cards[ranks.rank]
    try:
        assert process_ranks.gpu_group(ranks, CPU, timedelta(seconds=60)) is None
        return ""
    except ValueError as error:
        return str(error)
    finally:
        accelerator.identity = own


def test_all_ranks_hear_alike_of_a_gpu_that_two_would_share(pool: RankPool) -> None:
    first, second = pool.run(2, meet, ("GPU-1", "GPU-1"))
    assert first == second and "ranks 0 and 1 are on the same GPU" in first
    assert pool.run(2, meet, ("", "")) == ["", ""]


def try_out(ranks: Ranks, what: str) -> str:
    """Let a group wake, and say what was raised; `what` is wrong with it on rank 1."""
    swap, done, lengths = dist.all_to_all_single, accelerator.done_within, process_ranks.LENGTHS
    group = ranks._group  # type: ignore[attr-defined]

    def disturbed(got: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        swap(got, *args, **kwargs)
        if what == "damaged" and ranks.rank == 1:
            got[-1] += 1.0

    dist.all_to_all_single, process_ranks.LENGTHS = disturbed, (1, 5)
    if what == "silent" and ranks.rank == 1:
        accelerator.done_within = lambda device, patience: False
    try:
        process_ranks.wake(group, CPU, 3.0)
        return ""
    except ValueError as error:
        return str(error)
    finally:
        dist.all_to_all_single, accelerator.done_within, process_ranks.LENGTHS = swap, done, lengths


def test_a_group_is_tried_before_it_is_needed(pool: RankPool) -> None:
    assert pool.run(3, try_out, "") == ["", "", ""]
    damaged = pool.run(2, try_out, "damaged")
    assert damaged[0] == "" and "does not arrive as it was: set NCCL_P2P_DISABLE=1" in damaged[1]
    silent = pool.run(2, try_out, "silent")
    assert silent[0] == "" and "did not hear of each other within 3 s: NCCL_P2P_DISABLE=1" in silent[1]


class Clock:
    """A GPU's events: each is reached when the GPU has got as far."""

    def __init__(self) -> None:
        self.now, self.reached = 0.0, 0.0

    def event(self) -> Any:
        at = self.now
        return SimpleNamespace(query=lambda: self.reached >= at, elapsed_time=lambda end: end.at - at, at=at)


def test_the_seconds_of_a_gpu_count_once_it_has_done_what_was_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seconds, rows = Clock(), GpuSeconds(), torch.zeros(1)
    monkeypatch.setattr(process_ranks, "_now_on", lambda device: clock.event())
    for start, end in ((1000.0, 1250.0), (2000.0, 2500.0)):
        clock.now = start
        seconds.begin(rows)
        clock.now = end
        seconds.end(rows)
    assert seconds.take() == 0.0
    clock.reached = 1300.0
    assert seconds.take() == pytest.approx(0.25) and seconds.take() == 0.0
    clock.reached = 9000.0
    assert seconds.take() == pytest.approx(0.5)
    monkeypatch.undo()
    seconds.begin(rows)
    seconds.end(rows)
    assert seconds.take() == 0.0, "the host waits for the CPU's"


def test_what_nccl_says_is_told_with_its_cause_and_whose_it_is() -> None:
    own = nccl_error("unhandled system error", SHARED_MEMORY)
    assert essence(own).startswith("NCCL error in") and essence(own).endswith(SHARED_MEMORY)
    assert SHARED_MEMORY in error_sentence(own) and not is_of_a_peer(own)
    assert is_of_a_peer(nccl_error("remote process exited or there was a network error", "socket closed"))
    assert is_of_a_peer(
        dist.DistBackendError("[1] is setting up NCCL communicator and retrieving ncclUniqueId")
    )
    assert essence(RuntimeError("the first\nand more")) == "the first"


def test_memory_that_nccl_lacks_lowers_the_limit_of_the_next_attempt(tmp_path: Path) -> None:
    lacking = nccl_error("unhandled cuda error", "Failed to CUDA calloc async 536870912 bytes")
    for error, memory in ((lacking, True), (nccl_error("unhandled system error", SHARED_MEMORY), False)):
        write_report(tmp_path, 0, 42, error, error_sentence(error))
        assert (root_cause([RankEnd(0, 42, 1, read_report(tmp_path, 0))], 2).kind == MEMORY) == memory


def test_a_rank_that_nccl_ends_for_another_is_not_blamed() -> None:
    def report(rank: int, text: str) -> ErrorReport:
        return ErrorReport(rank, 7, "RuntimeError", text, f"It said: {text}.", False, 10)

    aborted, peer = RankEnd(0, 7, -signal.SIGABRT), report(2, "Connection closed by peer")
    assert root_cause([aborted, RankEnd(1, 7, 1, report(1, "its own"))], 2).rank == 1
    assert root_cause([aborted, RankEnd(1, 7, -signal.SIGKILL)], 2).kind == "SIGKILL"
    assert root_cause([aborted, RankEnd(2, 7, 1, peer)], 3).kind == "SIGABRT", "nobody says more"
    # It has said why before it could not end by itself.
    assert root_cause([RankEnd(1, 7, -signal.SIGALRM, report(1, "its own"))], 2).sentence.endswith("its own.")


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="there are no alarms here")
def test_a_process_that_cannot_end_ends() -> None:
    child = os.fork()
    if child == 0:
        end_within(1)
        while True:
            signal.pause()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGALRM


@pytest.mark.parametrize("stuck", [False, True])
def test_gpus_let_go_of_each_other_at_the_end_which_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stuck: bool
) -> None:
    released: list[object] = []
    release: Callable[..., Any] = lambda *what: time.sleep(60) if stuck else released.append(what)  # noqa: E731
    monkeypatch.setattr(broadcast, "_release", release)
    monkeypatch.setattr(broadcast, "RELEASE_SECONDS", 0.05 if stuck else 60.0)
    group = broadcast.Broadcast.__new__(broadcast.Broadcast)
    group._gpus = None
    group.close()
    assert not released and not caplog.messages
    group._gpus = gpus = SimpleNamespace()  # type: ignore[assignment]
    group.close()
    assert bool(caplog.messages) == stuck and released == (
        [] if stuck else [(gpus, broadcast.fastest_device())]
    )
