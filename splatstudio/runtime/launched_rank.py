"""Which rank torchrun or Slurm has started this process as, by what they leave in its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

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
