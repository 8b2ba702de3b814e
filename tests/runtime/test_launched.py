"""Which rank torchrun or Slurm has started this process as, and what that needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from splatstudio.runtime.launched import (
    LaunchedRank,
    cores_for_rank,
    first_node,
    launched_rank,
    restart_problem,
    tasks_per_node,
)

BIN = Path(sys.executable).parent
TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "RANK": "3", "WORLD_SIZE": "4"}
TORCHRUN |= {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
# As Slurm 22.05 sets them; the job is sbatch --nodes 2 --ntasks-per-node 2.
BATCH_SCRIPT = {"SLURM_JOB_ID": "6", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
BATCH_SCRIPT |= {"SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NODELIST": "node[1-2]"}
IN_STEP = {"SLURM_STEPID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[1-2]"}
IN_STEP |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
SLURM = {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "12", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
SLURM |= {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "8,4", "SLURM_JOB_ID": "120345"}


@pytest.fixture
def environment() -> Iterator[None]:
    """Put the variables of this process back after the test."""
    before = dict(os.environ)
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment")
def test_a_rank_knows_its_place_from_the_launchers_variables() -> None:
    assert launched_rank({}) is None
    assert launched_rank(BATCH_SCRIPT) is None, "the script itself, not what it starts with srun"
    assert launched_rank({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) is None, "a shell inside of a job"
    assert launched_rank(TORCHRUN) == LaunchedRank(3, 4, 1, 2)
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        launched_rank(SLURM)
    assert launched_rank({**SLURM, "SLURM_STEP_NODELIST": "node[07-08]"}) == LaunchedRank(9, 12, 1, 4)
    meeting = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
    assert meeting == {"MASTER_ADDR": "node07", "MASTER_PORT": "29845", "RANK": "9", "WORLD_SIZE": "12"}


@pytest.mark.usefixtures("environment")
def test_two_tasks_on_each_of_slurms_two_machines_are_four_ranks() -> None:
    places = ((0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1))
    for rank, node, local in places:
        task = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        assert launched_rank({**BATCH_SCRIPT, **IN_STEP, **task}) == LaunchedRank(rank, 4, local, 2)
        assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("node1", "29506")
    third = {"SLURM_PROCID": "2", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}
    uneven = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1", **third}
    assert launched_rank({**BATCH_SCRIPT, **IN_STEP, **uneven}) == LaunchedRank(2, 3, 0, 1)


def test_a_rank_keeps_no_more_cores_busy_than_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    rank = LaunchedRank(0, 4, 0, 2)
    assert cores_for_rank(rank, {}) == 4
    assert cores_for_rank(rank, {**IN_STEP, "SLURM_CPUS_PER_TASK": "6"}) == 6
    assert cores_for_rank(LaunchedRank(0, 32, 0, 16), {}) == 1


@pytest.mark.usefixtures("environment")
def test_a_chosen_meeting_place_wins_over_the_first_node() -> None:
    launched_rank({**SLURM, "SLURM_STEP_NODELIST": "a,b", "MASTER_ADDR": "other", "SLURM_STEP_ID": "1"})
    assert os.environ["MASTER_ADDR"] == "other"
    assert os.environ["MASTER_PORT"] == "29882", "two steps of one job do not meet"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node[01-04,07],login", "node01"),
        ("rack[2-3]n[10,12-14]", "rack2n10"),
        ("gpu-3,gpu-9", "gpu-3"),
        ("n[5]", "n5"),
        ("", ""),
    ],
)
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_slurms_ranks_of_each_node() -> None:
    assert tasks_per_node("8(x2),4") == [8, 8, 4]
    assert tasks_per_node("3") == [3]


def test_a_torchrun_whose_restarts_fail_is_told_of() -> None:
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"}
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in (restart_problem(shared) or "")
    assert restart_problem({**shared, "TORCHELASTIC_USE_AGENT_STORE": "False"}) is None
    assert restart_problem({**shared, "TORCHELASTIC_MAX_RESTARTS": "0"}) is None
    assert restart_problem({}) is None


def test_the_ranks_of_a_launcher_need_a_common_folder(blob_folder: Path) -> None:
    command = [BIN / "splatstudio", "train", blob_folder]
    done = subprocess.run(command, env={**os.environ, **TORCHRUN}, capture_output=True, text=True)
    assert done.returncode == 2 and "need --run" in done.stderr
