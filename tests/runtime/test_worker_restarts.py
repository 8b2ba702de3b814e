"""Orders given while the background process dies: none is lost, and what was asked for last holds."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from blob_models import blobs
from worker_faults import FAULTY, plan_fault
from worker_watcher import MANY, Launch, alive, states, train

from splatstudio.checkpoints.checkpoint import config_of_checkpoint, remove_checkpoint
from splatstudio.models.model import Model, load_model
from splatstudio.runtime import messages
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.command_replay import LIMIT, CommandReplay
from splatstudio.runtime.root_cause import MEMORY, Cause, RankEnd, read_report, root_cause, write_report
from splatstudio.runtime.tasks import Tasks
from splatstudio.runtime.training import Training
from splatstudio.settings.config import TrainConfig


def test_orders_that_a_dying_process_did_not_hear_are_obeyed_by_the_next(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    step, client, since = worker.of(messages.Saved)[-1].step, worker.client, len(worker.events)
    os.kill(client.pid, signal.SIGSTOP)
    for order in (
        messages.UpdateSettings((("optim.means_lr", 1e-5),)),
        messages.Export(tmp_path / "a.ply", job=1),
        messages.Export(tmp_path / "b.ply", job=2),
        messages.Save(),
        messages.CancelJob(2),
        messages.Pause(),
    ):
        client.send(order)
    os.kill(client.pid, signal.SIGKILL)
    worker.reach("paused")
    assert states(worker, since)[-2:] == ["training", "paused"], "Pause did not hold"
    worker.wait(messages.JobDone)
    assert worker.of(messages.SettingChanged)[-1].value == 1e-5
    assert load_model(tmp_path / "a.ply").gaussians.means.isfinite().all()
    assert [event.job for event in worker.of(messages.JobCancelled)] == [2] and not (
        tmp_path / "b.ply"
    ).exists()
    said = [event.sentence for event in worker.of(messages.Warned)]
    assert "killed (SIGKILL" in said[0] and said[0].endswith(f"waits from the checkpoint of step {step:,}.")
    assert said[1].startswith("Not saved") and len(said) == 2
    assert not worker.of(messages.JobFailed) and not worker.of(messages.Failed)


def test_a_step_order_is_kept_to_when_the_process_dies_in_it(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    worker.pause()
    first = worker.of(messages.Progress)[-1].step
    worker.send(messages.Step(300))
    worker.wait(messages.Progress, lambda event: event.step > first + 5)
    os.kill(worker.client.pid, signal.SIGKILL)
    assert worker.wait(messages.Started).step <= first
    worker.reach("paused")
    assert worker.of(messages.Progress)[-1].step == first + 300


def test_stop_holds_over_a_restart(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    os.kill(worker.client.pid, signal.SIGSTOP)
    worker.send(messages.Stop())
    os.kill(worker.client.pid, signal.SIGKILL)
    finished = worker.wait(messages.Finished)
    assert not finished.completed and finished.step == worker.of(messages.Saved)[0].step
    assert worker.client.state == "finished" and worker.client.alive


def test_the_end_of_the_fork_server_costs_no_step(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    worker.save()
    pid, step, since = worker.client.pid, worker.of(messages.Progress)[-1].step, len(worker.events)
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGKILL)
    warned = worker.wait(messages.Warned).sentence
    assert "was cut off: the process that had started it was killed" in warned
    assert worker.wait(messages.Started).step >= step, "the old worker saved before it left"
    worker.wait(messages.Progress, lambda event: event.step > step + 20)
    assert worker.client.pid != pid and not alive(pid)
    assert not worker.of(messages.Failed) and len(worker.events) > since


def test_another_checkpoint_serves_where_the_chosen_one_has_gone(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    worker = train(launch, messages.TrainJob(blob_folder, run, MANY))
    worker.pause()
    older = worker.save()
    worker.send(messages.Step(5))
    worker.reach("paused")
    newer = worker.save()
    worker.client.close()
    remove_checkpoint(newer.path)
    again = launch(messages.TrainJob(blob_folder, run, MANY, checkpoint=newer.path)).start()
    assert f"from the checkpoint of step {older.step:,}" in again.wait(messages.Warned).sentence
    assert again.wait(messages.Started).step == older.step and not again.of(messages.Failed)


def test_a_job_given_after_the_end_has_an_end_too(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = train(launch, messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    worker.client.close()
    worker.send(messages.Export(tmp_path / "a.ply", job=7))
    failed = worker.wait(messages.JobFailed)
    assert failed.job == 7 and failed.sentence == "The background process has ended."


def test_a_job_cancelled_before_it_begins_does_not_begin(tmp_path: Path) -> None:
    events: list[messages.Event] = []
    jobs = Tasks(events.append, lambda: False)
    jobs.cancel(3)
    jobs.start(messages.Export(tmp_path / "a.ply", job=3), lambda: Model(blobs()))
    assert events == [messages.JobCancelled(3)] and not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_too_little_memory_is_a_cause_of_its_own(tmp_path: Path, error: Exception) -> None:
    write_report(tmp_path, 1, 42, error, "The memory was not enough.")
    assert root_cause([RankEnd(1, 42, 1, read_report(tmp_path, 1))], 2).kind == MEMORY
    write_report(tmp_path, 1, 42, RuntimeError("bad"), "Bad.")
    assert root_cause([RankEnd(1, 42, 1, read_report(tmp_path, 1))], 2).kind != MEMORY


def test_the_next_process_may_have_fewer_gaussians(tmp_path: Path) -> None:
    orders, job = CommandReplay(), messages.TrainJob(tmp_path, tmp_path / "run", MANY)
    killed, short = Cause(0, 7, "SIGKILL", ""), Cause(0, 9, MEMORY, "")
    job_again = orders.job_again(job, None, killed)
    assert isinstance(job_again, messages.TrainJob) and job_again.settings == ()
    orders.heard(messages.SettingChanged(3, LIMIT, 5000))
    orders.heard(messages.Progress(8, 100, 0.1, None, 1000, 1.0, None))
    job_again = orders.job_again(job, None, short)
    assert isinstance(job_again, messages.TrainJob) and job_again.settings == ((LIMIT, 800),)
    assert orders.again()[1] == [messages.SettingChanged(9, LIMIT, 800)] and orders.again()[1] == []


def test_a_restart_for_memory_lowers_the_limit_and_says_so(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    plan_fault(run, "no memory", step=12, times=1)
    worker = launch(messages.TrainJob(blob_folder, run, replace(MANY, steps=20)), FAULTY).start()
    num = worker.wait(messages.Started).num_gaussians
    limit = int(num * 0.8)
    sentence = worker.wait(messages.Warned).sentence
    assert "The memory was not enough." in sentence and f"above {limit:,} from now on" in sentence
    assert worker.of(messages.Saved)[-1].step == 12, "it costs no step"
    assert worker.wait(messages.Started).step == 12
    assert worker.of(messages.SettingChanged)[-1].value == limit
    checkpoint = worker.wait(messages.Finished).checkpoint
    assert checkpoint is not None
    assert config_of_checkpoint(checkpoint).densify.max_gaussians == limit


class StoodStill:
    """The step was told at which it stands."""


class Rested(messages.Event, frozen=True):
    """The time of the training stands still."""


def full_disk() -> Path:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def told() -> list[messages.Event]:
    return []


@pytest.fixture
def training(told: list[messages.Event], tmp_path: Path) -> Training:
    made = Training(
        messages.TrainJob(tmp_path, tmp_path / "run", TrainConfig()), WorkerContext(emit=told.append)
    )
    trainer = SimpleNamespace(close=lambda: None, step=0)
    session = SimpleNamespace(save_if_needed=full_disk, close=lambda: None, trainer=trainer, finished=False)
    session.rest = lambda: told.append(Rested())
    made._session, made._trainer = cast(Any, session), cast(Any, trainer)
    made._news = cast(Any, SimpleNamespace(tell=lambda trainer: told.append(cast(Any, StoodStill()))))
    made._state = "training"
    return made


def sentences(told: list[messages.Event]) -> list[str]:
    return [event.sentence for event in told if isinstance(event, messages.Warned)]


def test_a_closed_training_promises_no_second_try(training: Training, told: list[messages.Event]) -> None:
    training.close()
    (sentence,) = sentences(told)
    assert "No space left" in sentence
    assert sentence.endswith("; the steps since the last checkpoint are lost.")
    assert "kept" not in sentence


def test_a_stopped_training_keeps_its_model(training: Training, told: list[messages.Event]) -> None:
    training.execute(messages.Stop())
    assert isinstance(told[0], Rested), "it may go on later"
    assert isinstance(told[2], StoodStill) and told[3] == messages.StateChanged("paused", unsaved=True)
    assert sentences(told)[0].endswith("The model is kept: make room on the disk, then save again.")
