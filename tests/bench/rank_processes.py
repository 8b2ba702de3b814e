"""Processes of this machine that train as ranks, for the benchmarks."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore


def answers_of(num_ranks: int, train: Callable[..., None], *arguments: Any) -> list[Any]:
    """Run `train(wire, rank, num_ranks, folder, *arguments)` in a process a rank; return what each has sent.

    `train` is a function of a module and sends one answer over its `wire`. Raises EOFError where a process
    dies without one.
    """
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        wires: list[Connection] = []
        processes = []
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=train, args=(theirs, rank, num_ranks, folder, *arguments), daemon=True
            )
            process.start()
            theirs.close()
            wires.append(ours)
            processes.append(process)
        answers = [wire.recv() for wire in wires]
        for process in processes:
            process.join()
    return answers


def meet(rank: int, num_ranks: int, folder: str) -> None:
    """Join the other ranks of `answers_of` over gloo, which is done by all of them or none."""
    store = FileStore(str(Path(folder) / "store"), num_ranks)
    patience = timedelta(minutes=10)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=patience)
