"""Orders given while the background process dies: none is lost, and what was asked for last holds."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from blob_models import blobs
from test_worker_faults import states, train
from worker_watcher import MANY, Launch

from splatstudio.models.model import Model, load_model
from splatstudio.runtime.messages import (
    CancelJob,
    Event,
    Export,
    Failed,
    Finished,
    JobCancelled,
    JobDone,
    JobFailed,
    Pause,
    Progress,
    Save,
    Saved,
    SettingChanged,
    Started,
    StateChanged,
    Step,
    Stop,
    TrainJob,
    UpdateSettings,
    Warned,
)
from splatstudio.runtime.tasks import Tasks


def test_orders_that_a_dying_process_did_not_hear_are_obeyed_by_the_next(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    worker = train(launch, TrainJob(blob_folder, tmp_path / "run", MANY))
    step, client, since = worker.of(Saved)[-1].step, worker.client, len(worker.events)
    os.kill(client.pid, signal.SIGSTOP)
    for order in (
        UpdateSettings((("optim.means_lr", 1e-5),)),
        Export(tmp_path / "a.ply", job=1),
        Export(tmp_path / "b.ply", job=2),
        Save(),
        CancelJob(2),
        Pause(),
    ):
        client.send(order)
    os.kill(client.pid, signal.SIGKILL)
    worker.wait(StateChanged, lambda event: event.state == "paused")
    assert states(worker, since)[-2:] == ["training", "paused"], "Pause did not hold"
    worker.wait(JobDone)
    assert worker.of(SettingChanged)[-1].value == 1e-5
    assert load_model(tmp_path / "a.ply").gaussians.means.isfinite().all()
    assert [event.job for event in worker.of(JobCancelled)] == [2] and not (tmp_path / "b.ply").exists()
    said = [event.sentence for event in worker.of(Warned)]
    assert "killed (SIGKILL" in said[0] and said[0].endswith(f"waits from the checkpoint of step {step:,}.")
    assert said[1].startswith("Not saved") and len(said) == 2
    assert not worker.of(JobFailed) and not worker.of(Failed)


def test_a_step_order_is_kept_to_when_the_process_dies_in_it(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    worker = train(launch, TrainJob(blob_folder, tmp_path / "run", MANY))
    worker.client.send(Pause())
    worker.wait(StateChanged, lambda event: event.state == "paused")
    first = worker.of(Progress)[-1].step
    worker.client.send(Step(300))
    worker.wait(Progress, lambda event: event.step > first + 5)
    os.kill(worker.client.pid, signal.SIGKILL)
    assert worker.wait(Started).step <= first
    worker.wait(StateChanged, lambda event: event.state == "paused")
    assert worker.of(Progress)[-1].step == first + 300


def test_stop_holds_over_a_restart(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = train(launch, TrainJob(blob_folder, tmp_path / "run", MANY))
    os.kill(worker.client.pid, signal.SIGSTOP)
    worker.client.send(Stop())
    os.kill(worker.client.pid, signal.SIGKILL)
    finished = worker.wait(Finished)
    assert not finished.completed and finished.step == worker.of(Saved)[0].step
    assert worker.client.state == "finished" and worker.client.alive


def test_a_job_given_after_the_end_has_an_end_too(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = train(launch, TrainJob(blob_folder, tmp_path / "run", MANY))
    worker.client.close()
    worker.client.send(Export(tmp_path / "a.ply", job=7))
    failed = worker.wait(JobFailed)
    assert failed.job == 7 and failed.sentence == "The background process has ended."


def test_a_job_cancelled_before_it_begins_does_not_begin(tmp_path: Path) -> None:
    events: list[Event] = []
    jobs = Tasks(events.append, lambda: False)
    jobs.cancel(3)
    jobs.start(Export(tmp_path / "a.ply", job=3), lambda: Model(blobs()))
    assert events == [JobCancelled(3)] and not list(tmp_path.iterdir())
