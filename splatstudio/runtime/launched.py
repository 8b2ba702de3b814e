"""A rank that torchrun or Slurm has started, on this machine or another: the same training, without a studio.

The launcher starts the processes and, where one dies, all of them again; they go on from the newest
checkpoint. Rank 0 prints what it tells. The run's folder must be one that all machines see.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from splatstudio.distributed.rank_devices import settle_device
from splatstudio.kernels import ops
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.channel import FrameSlots
from splatstudio.runtime.control import Turn
from splatstudio.runtime.group import RankSpec, Studio
from splatstudio.runtime.headless_controller import HeadlessController
from splatstudio.runtime.heartbeat import Heartbeats
from splatstudio.runtime.launched_rank import LaunchedRank, cores_for_rank, meeting_place, restart_problem
from splatstudio.runtime.launched_watch import LaunchedWatch
from splatstudio.runtime.messages import Event, Job, TrainJob, Warned
from splatstudio.runtime.process import activity_of, worker_main
from splatstudio.runtime.root_cause import ErrorReport, read_report
from splatstudio.runtime.training_part import TrainingPart

LAST_WORDS_SECONDS = 2.0
SEEN_SECONDS, SEEN_POLL_SECONDS = 30.0, 0.5  # for what rank 0 wrote to be seen over a network disk
UNSAVED = 2  # the exit code where the model could not be saved


def train_launched(
    launched: LaunchedRank,
    job: TrainJob,
    tell: Callable[[Event], None],
    attach_at: tuple[str, int] | None,
    store_at: tuple[str, int] | None = None,
) -> int:
    """Train as one rank of several that a launcher has started, and return the exit code.

    `tell` gets what rank 0 has to say, on a thread of its own; the others only say where they meet. At
    `attach_at`, host and port of rank 0's machine, `splatstudio attach` finds it, and by what is said in the
    store at `store_at` a studio that holds that. Raises OSError when that
    cannot be had, and ValueError with one sentence for what ended this rank.
    """
    usable = torch.cuda.device_count() if ops.has_cuda_kernels() else 0
    gpu = launched.local_rank % usable if usable else None
    settle_device(gpu, None if usable else cores_for_rank(launched, os.environ))
    # Made where this rank must leave word of an error alone: one that is killed leaves nothing behind.
    folder = Path(tempfile.gettempdir()) / f"splatstudio-rank-{secrets.token_hex(8)}"
    place = RankSpec(
        launched.rank,
        launched.num_ranks,
        folder,
        Heartbeats(multiprocessing.get_context("spawn"), launched.num_ranks),
        log_path=None,
        launched=True,
    )
    if launched.rank > 0:
        if launched.local_rank == 0:
            tell(Warned(meeting_place(launched, os.environ)))
        _run_rank(place, job, None, lambda sentence: tell(Warned(sentence)))
        return 0
    ours, theirs = multiprocessing.Pipe()
    nobody_looks = {"num_slots": 1, "slot_bytes": 3}
    slots = FrameSlots.create(**(nobody_looks if attach_at is store_at is None else {}))
    wire = HeadlessController(ours, slots, job, tell)
    try:
        if (problem := restart_problem(os.environ)) is not None:
            tell(Warned(problem))
        tell(Warned(meeting_place(launched, os.environ)))
        if attach_at is not None or store_at is not None:
            wire.listen(attach_at, store_at, launched.num_ranks)
        threading.Thread(target=wire.follow, name="teller", daemon=True).start()
        _run_rank(place, job, Studio(theirs, slots.file), lambda sentence: wire.tell(Warned(sentence)))
    finally:
        slots.close()
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while ours.poll() and time.monotonic() < deadline:
        time.sleep(0.01)  # what was sent is being told
    wire.close()
    return UNSAVED if wire.unsaved else 0


def _run_rank(place: RankSpec, job: TrainJob, studio: Studio | None, tell: Callable[[str], None]) -> None:
    watch = LaunchedWatch(place.rank, place.num_ranks, place.heartbeats, tell)
    try:
        watch.start()
        worker_main(place, job, studio, activity_of if studio is not None else _part_of)
    except SystemExit:
        report = read_report(place.folder, place.rank)
        raise ValueError(f"rank {place.rank}: {_last_word(report)}") from None
    finally:
        watch.stop()
        shutil.rmtree(place.folder, ignore_errors=True)


def _last_word(report: ErrorReport | None) -> str:
    if report is None:
        return "it ended without a word"
    if report.of_a_peer:
        return (
            "another rank has gone; what that one or the launcher says tells why. Started again, the training"
            " goes on from its newest checkpoint"
        )
    return report.sentence


def _part_of(job: Job, desk: WorkerContext) -> _Part:
    assert isinstance(job, TrainJob), "a launcher trains"
    return _Part(job, desk)


class _Part(TrainingPart):
    """The part of a rank that may be on another machine, which may have other disks."""

    def __init__(self, job: TrainJob, desk: WorkerContext):
        super().__init__(job, desk)
        self._file: Path | None = job.run_dir / "run.json"  # None once it was seen

    def advance(self) -> None:
        """Train one step."""
        self._see_run()
        super().advance()

    def take_part(self, turn: Turn, body: bytes) -> None:
        """Do this rank's part of what rank 0 announced."""
        self._see_run()
        super().take_part(turn, body)

    def _see_run(self) -> None:
        """Look for what rank 0 has made before it announced anything; ValueError where that is not there."""
        file, self._file = self._file, None
        deadline = time.monotonic() + SEEN_SECONDS
        while file is not None and not _is_there(file):
            if time.monotonic() >= deadline:
                raise ValueError(
                    f"the machine {socket.gethostname()} does not see {file.parent}: --run must be on a disk"
                    " that all machines share"
                )
            time.sleep(SEEN_POLL_SECONDS)


def _is_there(file: Path) -> bool:
    # Listing a folder has a network disk look again; asking for a name may be answered from memory.
    return file.parent.is_dir() and file.name in os.listdir(file.parent)
