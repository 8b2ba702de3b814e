"""A rank that torchrun or Slurm has started, on this machine or another: the same training, without a studio.

The launcher starts the processes and, where one dies, all of them again; they go on from the newest
checkpoint. Rank 0 prints what it tells. The run's folder must be one that all machines see.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from splatstudio import ops
from splatstudio.checkpoint import newest_checkpoint
from splatstudio.rank_devices import settle_device
from splatstudio.worker.blame import read_report
from splatstudio.worker.channel import FrameSlots
from splatstudio.worker.group import Place, Studio
from splatstudio.worker.heartbeat import Heartbeats
from splatstudio.worker.messages import (
    Close,
    Command,
    Event,
    Finished,
    Resume,
    Start,
    StateChanged,
    TrainJob,
    Warned,
)
from splatstudio.worker.process import activity_of, worker_main
from splatstudio.worker.steering import SteeringServer

SLURM_PORT = 29_500  # the first of a thousand, of which a job takes one by its number
LAST_WORDS_SECONDS = 2.0
RETRY_SECONDS, MAX_RETRIES = 10.0, 60  # to save again where the disk was full at the end


@dataclass(frozen=True)
class LaunchedRank:
    """What a launcher says in the environment of each process."""

    rank: int
    num_ranks: int
    local_rank: int
    num_local: int  # ranks on this machine


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return which rank of a torchrun or of a Slurm step this process is, None where it is neither.

    For Slurm the variables by which ranks meet, those of torchrun, are added to the process's own. Raises
    ValueError with one sentence where one that is needed is missing.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return LaunchedRank(*(int(environment[name]) for name in names))
    if int(environment.get("SLURM_NTASKS", "1")) < 2 or "SLURM_PROCID" not in environment:
        return None
    address = environment.get("MASTER_ADDR") or environment.get("SLURM_LAUNCH_NODE_IPADDR")
    if address is None:
        raise ValueError("Slurm does not say where rank 0 runs: set MASTER_ADDR to the first node's name")
    rank, num_ranks = environment["SLURM_PROCID"], environment["SLURM_NTASKS"]
    os.environ.setdefault("MASTER_ADDR", address)
    os.environ.setdefault("MASTER_PORT", str(SLURM_PORT + int(environment.get("SLURM_JOB_ID", "0")) % 1000))
    os.environ.update(RANK=rank, WORLD_SIZE=num_ranks)
    num_local = int(environment.get("SLURM_NTASKS_PER_NODE", "1").partition("(")[0])
    return LaunchedRank(int(rank), int(num_ranks), int(environment.get("SLURM_LOCALID", "0")), num_local)


def train_launched(
    launched: LaunchedRank, job: TrainJob, tell: Callable[[Event], None], attach_at: tuple[str, int] | None
) -> int:
    """Train as one rank of several that a launcher has started, and return the exit code.

    A run that is there already goes on from its newest good checkpoint, which is what a restart of the
    launcher needs: how often it has done so differs between its machines when one of them was replaced.
    `tell` gets what rank 0 has to say, on a thread of its own; the others say nothing. At `attach_at`, host
    and port of rank 0's machine, `splatstudio attach` finds it. Raises OSError when that cannot be had.
    """
    if (job.run_dir / "run.json").exists():
        # Nobody writes before all ranks have met: each finds the same.
        job = replace(job, checkpoint=newest_checkpoint(job.run_dir), attempt=1)
    usable = torch.cuda.device_count() if ops.has_cuda_kernels() else 0
    gpu = launched.local_rank % usable if usable else None
    settle_device(gpu, None if usable else max(1, (os.cpu_count() or 1) // launched.num_local))
    with tempfile.TemporaryDirectory(prefix="splatstudio-rank-") as folder:
        place = Place(
            launched.rank,
            launched.num_ranks,
            Path(folder),
            Heartbeats(multiprocessing.get_context("spawn"), launched.num_ranks),
            log_path=None,
            launched=True,
        )
        studio, slots, ours = None, None, None
        if launched.rank == 0:
            ours, theirs = multiprocessing.Pipe()
            slots = FrameSlots.create(num_slots=1, slot_bytes=3)  # nobody looks
            studio = Studio(theirs, slots.file)
            wire = _Wire(ours, tell, attach_at)
            threading.Thread(target=wire.follow, name="teller", daemon=True).start()
        try:
            worker_main(place, job, studio, activity_of)
        except SystemExit:
            report = read_report(place.folder, launched.rank)
            sentence = "it ended without a word" if report is None else report.sentence
            raise ValueError(f"rank {launched.rank}: {sentence}") from None
        finally:
            if slots is not None:
                slots.unlink()
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while ours is not None and ours.poll() and time.monotonic() < deadline:
            time.sleep(0.01)  # what was sent is being told
    return 0


class _Wire:
    """What stands in the place of a studio: starts the training, tells of it, lets in who has the token."""

    def __init__(
        self, connection: Connection, tell: Callable[[Event], None], attach_at: tuple[str, int] | None
    ):
        self._connection = connection
        self._tell = tell
        self._sending = threading.Lock()
        self._server: SteeringServer | None = None
        if attach_at is not None:
            self._server = SteeringServer(*attach_at, self._send)
            address = f"{attach_at[0]}:{self._server.port}"
            tell(
                Warned(f"Watch and steer it with: splatstudio attach {address} --token {self._server.token}")
            )

    def follow(self) -> None:
        """Start the training, hand on what is told of it, and let all ranks leave at its end."""
        self._send(Start())
        retries, unsaved = 0, False
        while True:
            try:
                event = self._connection.recv()
            except (EOFError, OSError):
                return
            self._tell(event)
            if self._server is not None:
                self._server.tell(event)
            if isinstance(event, Finished):
                self._send(Close())
            elif event == StateChanged("paused") and unsaved:
                retries += 1
                time.sleep(RETRY_SECONDS)
                self._send(Resume() if retries < MAX_RETRIES else Close())
            unsaved = isinstance(event, Warned) and event.sentence.startswith("Not saved")

    def _send(self, command: Command) -> None:
        with self._sending:
            self._connection.send(command)
