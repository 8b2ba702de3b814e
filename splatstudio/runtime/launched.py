"""A rank that torchrun or Slurm has started, on this machine or another: the same rank, without a studio.

What they leave in the environment says which rank it is. The launcher starts the processes and, where one
dies, all of them again; they go on from the newest checkpoint. Rank 0 prints what it tells. The run's folder
must be one that all machines see.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from splatstudio.distributed.rank_devices import settle_device
from splatstudio.kernels import ops
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.headless_controller import HeadlessController
from splatstudio.runtime.heartbeat import Heartbeats
from splatstudio.runtime.launched_watch import LaunchedWatch
from splatstudio.runtime.messages import Event, TrainJob, Warned
from splatstudio.runtime.rank import activity_of, rank_main
from splatstudio.runtime.rank_group import RankPipe, RankSpec
from splatstudio.runtime.root_cause import ErrorReport, read_report

LAST_WORDS_SECONDS = 2.0
UNSAVED = 2  # the exit code where the model could not be saved
SLURM_PORT = 29_500  # the first of a thousand, of which a step takes one by its job's number and its own
_STEPS_APART = 37


@dataclass(frozen=True)
class LaunchedRank:
    """What a launcher says in the environment of each process."""

    rank: int
    num_ranks: int
    local_rank: int
    num_local: int  # ranks on this machine


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return which rank of a torchrun or of a Slurm step this process is, None where it is neither.

    A batch script of Slurm is no step: in it a training is one of this machine's own. For Slurm the variables
    by which ranks meet, those of torchrun, are added to the process's own. Raises ValueError with one
    sentence where one that is needed is missing.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return LaunchedRank(*(int(environment[name]) for name in names))
    num_ranks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if "SLURM_STEP_ID" not in environment or "SLURM_PROCID" not in environment or num_ranks < 2:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    address = environment.get("MASTER_ADDR") or first_node(nodes)
    if not address:
        raise ValueError("Slurm does not say where rank 0 runs: set MASTER_ADDR to the first node's name")
    job, step = int(environment.get("SLURM_JOB_ID", "0")), int(environment["SLURM_STEP_ID"])
    os.environ.setdefault("MASTER_ADDR", address)
    os.environ.setdefault("MASTER_PORT", str(SLURM_PORT + (job + _STEPS_APART * step) % 1000))
    os.environ.update(RANK=environment["SLURM_PROCID"], WORLD_SIZE=str(num_ranks))
    tasks = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    node = min(int(environment.get("SLURM_NODEID", "0")), len(tasks) - 1)
    local_rank = int(environment.get("SLURM_LOCALID", "0"))
    return LaunchedRank(int(environment["SLURM_PROCID"]), num_ranks, local_rank, tasks[node])


def first_node(nodes: str) -> str:
    """Return the first name of a list of Slurm's, as "node01" of "node[01-04,9],login"."""
    bracket = r"\[([^\],-]*)[^\]]*\]"
    found = re.match(rf"(?:[^\[,]|{bracket})*", nodes)
    return re.sub(bracket, r"\1", found[0]) if found else ""


def tasks_per_node(text: str) -> list[int]:
    """Return the number of ranks of each node in a list of Slurm's, as [8, 8, 4] of "8(x2),4"."""
    tasks: list[int] = []
    for part in text.split(","):
        number, _, times = part.rstrip(")").partition("(x")
        tasks += [int(number)] * int(times or 1)
    return tasks


def cores_for_rank(launched: LaunchedRank, environment: Mapping[str, str]) -> int:
    """Return how many cores this rank may keep busy: its part of those that the launcher left it."""
    if environment.get("SLURM_CPUS_PER_TASK", "").isdigit() and "SLURM_STEP_ID" in environment:
        return max(1, int(environment["SLURM_CPUS_PER_TASK"]))
    # A job of Slurm, or a container, may run on some of the machine's cores alone.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed // launched.num_local)


def meeting_place(launched: LaunchedRank, environment: Mapping[str, str]) -> str:
    """Return a sentence on where the ranks meet."""
    address, port = environment.get("MASTER_ADDR", "?"), environment.get("MASTER_PORT", "?")
    return f"Rank {launched.rank} is waiting for {launched.num_ranks} ranks at {address}:{port}"


def restart_problem(environment: Mapping[str, str]) -> str | None:
    """Return a sentence where a restart by torchrun is likely to fail, else None.

    Its agents share the store by which they meet with the ranks, unless they are told not to; the ranks of a
    new attempt then read the addresses of the one before (pytorch#135712).
    """
    shares = environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    if not shares or environment.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return None
    return (
        "When a rank dies, torchrun's restart may fail: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all"
        " machines before torchrun"
    )


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
    spec = RankSpec(
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
        _run_rank(spec, job, None, lambda sentence: tell(Warned(sentence)))
        return 0
    ours, theirs = multiprocessing.Pipe()
    nobody_looks = {"num_slots": 1, "slot_bytes": 3}
    slots = FrameSlots.create(**(nobody_looks if attach_at is store_at is None else {}))
    controller = HeadlessController(ours, slots, job, tell)
    try:
        if (problem := restart_problem(os.environ)) is not None:
            tell(Warned(problem))
        tell(Warned(meeting_place(launched, os.environ)))
        if attach_at is not None or store_at is not None:
            controller.listen(attach_at, store_at, launched.num_ranks)
        threading.Thread(target=controller.follow, name="teller", daemon=True).start()
        _run_rank(spec, job, RankPipe(theirs, slots.file), lambda sentence: controller.tell(Warned(sentence)))
    finally:
        slots.close()
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while ours.poll() and time.monotonic() < deadline:
        time.sleep(0.01)  # what was sent is being told
    controller.close()
    return UNSAVED if controller.unsaved else 0


def _run_rank(spec: RankSpec, job: TrainJob, pipe: RankPipe | None, tell: Callable[[str], None]) -> None:
    watch = LaunchedWatch(spec.rank, spec.num_ranks, spec.heartbeats, tell)
    try:
        watch.start()
        rank_main(spec, job, pipe, activity_of)
    except SystemExit:
        report = read_report(spec.folder, spec.rank)
        raise ValueError(f"rank {spec.rank}: {_last_word(report)}") from None
    finally:
        watch.stop()
        shutil.rmtree(spec.folder, ignore_errors=True)


def _last_word(report: ErrorReport | None) -> str:
    if report is None:
        return "it ended without a word"
    if report.of_a_peer:
        return (
            "another rank has gone; what that one or the launcher says tells why. Started again, the training"
            " goes on from its newest checkpoint"
        )
    return report.sentence
