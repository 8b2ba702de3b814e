"""Whether two processes of this machine can work on one model: they meet, agree, and exchange numbers."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from splatstudio.devices import accelerator
from splatstudio.distributed.process_ranks import ProcessRanks, gpu_group
from splatstudio.error_text import essence
from splatstudio.operating_system import loopback
from splatstudio.runtime.fork_server import process_context

PATIENCE_SECONDS = 90.0  # two processes load torch from a slow disk, and a GPU's driver wakes up
NUM_CALLS = 50
EXCHANGED_BYTES = 8 << 20  # of each rank to the other: a million visible splats of 14 half floats are 28 MB

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class RankTest:
    """What two ranks measured of the line between them."""

    start_seconds: float  # from nothing to both having met
    broadcast_seconds: float  # median of a header of 32 bytes
    bytes_per_second: float  # of an exchange both ways, counted once


def try_two_ranks(backend: Backend = "gloo") -> RankTest:
    """Start two processes, let them compute sums together and exchange data, and return what it took.

    "nccl" takes the first two GPUs. Raises RuntimeError with one sentence when they do not meet, disagree or
    hang.
    """
    context = process_context()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="splatstudio-test-") as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(2)]
        processes = [
            context.Process(  # type: ignore[attr-defined]
                target=_rank_main, args=(rank, Path(folder), backend, started, pipe[1]), daemon=True
            )
            for rank, pipe in enumerate(pipes)
        ]
        try:
            for process in processes:
                process.start()
            for _, child_end in pipes:
                child_end.close()
            answers = [_answer(rank, connection, started) for rank, (connection, _) in enumerate(pipes)]
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
    return answers[0]


def _answer(rank: int, connection: Connection, started: float) -> RankTest:
    left = max(0.0, PATIENCE_SECONDS - (time.monotonic() - started))
    if not wait([connection], left):
        raise RuntimeError(f"rank {rank} did not answer within {PATIENCE_SECONDS:.0f} s")
    try:
        answer = connection.recv()
    except (EOFError, OSError):
        raise RuntimeError(f"rank {rank} ended without an answer") from None
    if isinstance(answer, str):
        raise RuntimeError(f"rank {rank}: {answer}")
    return answer


def _rank_main(rank: int, folder: Path, backend: Backend, started: float, connection: Connection) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if backend == "nccl":
        device = accelerator.choose(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback())
    try:
        store = FileStore(str(folder / "store"), 2)
        timeout = timedelta(seconds=PATIENCE_SECONDS)
        # As in a training: GPUs have a group of their own beside that of the processors.
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
        group = gpu_group(ProcessRanks(), device, timeout)
        _agree(rank, device, group)
        met = time.monotonic() - started
        answer = RankTest(met, _broadcast_seconds(device, group), _bytes_per_second(device, group))
    except (RuntimeError, ValueError, OSError) as error:
        connection.send(essence(error))
        return
    connection.send(answer)
    _wait_for_the_end()


def _wait_for_the_end() -> None:
    """Stay until the parent ends this rank: one that leaves early fails the other's last call."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()


def _agree(rank: int, device: torch.device, group: dist.ProcessGroup | None) -> None:
    """Check a sum and an exchange of parts of different sizes, of which one is empty."""
    total = torch.tensor([rank + 1.0], device=device)
    dist.all_reduce(total, group=group)
    sizes = [[0, 3], [2, 1]]  # [from][to], rows
    sent = torch.full((sum(sizes[rank]),), float(rank), device=device)
    theirs = [sizes[source][rank] for source in range(2)]
    got = torch.full((sum(theirs),), -1.0, device=device)
    dist.all_to_all_single(got, sent, theirs, sizes[rank], group=group)
    expected = [0.0] * theirs[0] + [1.0] * theirs[1]
    if float(total) != 3.0 or got.tolist() != expected:
        raise RuntimeError("the two ranks do not agree on a sum or on what they exchanged")


def _broadcast_seconds(device: torch.device, group: dist.ProcessGroup | None) -> float:
    header = torch.zeros(4, dtype=torch.int64, device=device)
    times: list[float] = []
    for _ in range(NUM_CALLS):
        begin = time.perf_counter()
        dist.broadcast(header, 0, group=group)
        float(header[0])  # waits for a GPU
        times.append(time.perf_counter() - begin)
    return sorted(times)[NUM_CALLS // 2]


def _bytes_per_second(device: torch.device, group: dist.ProcessGroup | None) -> float:
    num = 2 * EXCHANGED_BYTES // 4
    sent, got = torch.zeros(num, device=device), torch.empty(num, device=device)
    times: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        dist.all_to_all_single(got, sent, group=group)
        float(got[0])
        times.append(time.perf_counter() - begin)
    return EXCHANGED_BYTES / sorted(times)[2]
