"""A training that memory ended goes on with fewer Gaussians, and no older limit comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_worker_faults import FAULTY
from worker_faults import plan_fault
from worker_watcher import MANY, Launch

from splatstudio.checkpoints.checkpoint import config_of_checkpoint
from splatstudio.runtime.command_replay import LIMIT, CommandReplay
from splatstudio.runtime.messages import (
    Finished,
    Progress,
    SettingChanged,
    Start,
    Started,
    TrainJob,
    Warned,
)
from splatstudio.runtime.root_cause import MEMORY, Cause, RankEnd, read_report, root_cause, write_report


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_too_little_memory_is_a_cause_of_its_own(tmp_path: Path, error: Exception) -> None:
    write_report(tmp_path, 1, 42, error, "The memory was not enough.")
    assert root_cause([RankEnd(1, 42, 1, read_report(tmp_path, 1))], 2).kind == MEMORY
    write_report(tmp_path, 1, 42, RuntimeError("bad"), "Bad.")
    assert root_cause([RankEnd(1, 42, 1, read_report(tmp_path, 1))], 2).kind != MEMORY


def test_the_next_process_may_have_fewer_gaussians(tmp_path: Path) -> None:
    orders, job = CommandReplay(), TrainJob(tmp_path, tmp_path / "run", MANY)
    killed, short = Cause(0, 7, "SIGKILL", ""), Cause(0, 9, MEMORY, "")
    job_again = orders.job_again(job, None, killed)
    assert isinstance(job_again, TrainJob) and job_again.settings == ()
    orders.heard(SettingChanged(3, LIMIT, 5000))
    orders.heard(Progress(8, 100, 0.1, None, 1000, 1.0, None, 1.0))
    job_again = orders.job_again(job, None, short)
    assert isinstance(job_again, TrainJob) and job_again.settings == ((LIMIT, 800),)
    assert orders.again()[1] == [SettingChanged(9, LIMIT, 800)] and orders.again()[1] == []


def test_a_restart_for_memory_lowers_the_limit_and_says_so(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan_fault(run, "no memory", step=12, times=1)
    worker = launch(TrainJob(blob_folder, run, replace(MANY, steps=20)), FAULTY)
    worker.client.send(Start())
    num = worker.wait(Started).num_gaussians
    limit = int(num * 0.8)
    sentence = worker.wait(Warned).sentence
    assert "The memory was not enough." in sentence and f"above {limit:,} from now on" in sentence
    assert worker.wait(SettingChanged).value == limit
    checkpoint = worker.wait(Finished).checkpoint
    assert checkpoint is not None
    assert config_of_checkpoint(checkpoint).densify.max_gaussians == limit


def test_a_limit_that_memory_has_set_is_made_known(
    launch: Launch, blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPLATSTUDIO_FAULT", "oom@step=4,rank=0")
    worker = launch(TrainJob(blob_folder, tmp_path / "run", replace(MANY, steps=12)))
    worker.client.send(Start())
    num = worker.wait(Started).num_gaussians
    assert worker.wait(SettingChanged).value == int(num * 0.9)
