"""Processes that stand for ranks, started once for all tests, each group size in its own gloo group."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.runtime.fork_server import process_context

MOST_RANKS = 4
PATIENCE = 120.0  # seconds until a task that hangs is given up

Task = Callable[..., Any]


class RankPool:
    """Processes that have met; a task runs on the first so many of them at once."""

    def __init__(self, folder: Path, size: int = MOST_RANKS) -> None:
        context = process_context()  # one server is of all tests of a process: those of workers want more
        self._wires: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            place = (theirs, rank, size, str(folder / "store"))
            process: BaseProcess = context.Process(  # type: ignore[attr-defined]
                target=_serve, args=place, daemon=True
            )
            process.start()
            theirs.close()
            self._wires.append(ours)
            self._processes.append(process)

    def run(self, num_ranks: int, task: Task, *args: Any) -> list[Any]:
        """Return what `task(ranks, *args)`, a function of a module, returns on each of `num_ranks` ranks."""
        # torch's own pickling passes tensors in shared memory, whose files a finished task would close.
        message = pickle.dumps((num_ranks, task, args))
        for wire in self._wires[:num_ranks]:
            wire.send_bytes(message)
        answers = []
        for rank, wire in enumerate(self._wires[:num_ranks]):
            assert wire.poll(PATIENCE), f"rank {rank} did not answer"
            answers.append(pickle.loads(wire.recv_bytes()))
        errors = [f"rank {rank}:\n{answer[1]}" for rank, answer in enumerate(answers) if not answer[0]]
        assert not errors, "\n".join(errors)
        return [answer[1] for answer in answers]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def _serve(wire: Connection, rank: int, world_size: int, store: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    dist.init_process_group(
        "gloo", store=FileStore(store, world_size), rank=rank, world_size=world_size, timeout=patience
    )
    groups: dict[int, Ranks] = {1: ALONE}
    for size in range(2, world_size + 1):
        group = dist.new_group(list(range(size)))
        if rank < size:
            assert isinstance(group, dist.ProcessGroup)
            groups[size] = ProcessRanks(group)
    while True:
        try:
            num_ranks, task, args = pickle.loads(wire.recv_bytes())
        except EOFError:
            return
        try:
            answer = (True, task(groups[num_ranks], *args))
        except BaseException:
            answer = (False, traceback.format_exc())
        wire.send_bytes(pickle.dumps(answer))


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """The processes of all tests on ranks."""
    ranks = RankPool(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()
