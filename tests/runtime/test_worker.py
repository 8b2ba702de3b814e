"""The background process on a real tiny scene: orders, events, frames, and every way it may end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blob_models import blobs
from started_programs import start_program
from worker_watcher import MANY, TIMEOUT, Launch, alive, finish, front_camera, wait_until

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.formats.ply import read_ply
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gui.state.project import open_project
from splatstudio.models import exporter
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import render_image
from splatstudio.runtime import messages
from splatstudio.runtime import tasks as tasks_module
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.tasks import Tasks
from splatstudio.runtime.view_renderer import ShownModel, ViewRenderer
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig


def test_a_training_from_start_to_finish(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(steps=40, eval_steps=(20,), save_steps=(), sh_degree=1)
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", config))
    worker.reach("ready")
    assert not (tmp_path / "run").exists(), "only a training makes a run folder"
    worker.send(messages.Start())
    started = worker.wait(messages.Started)
    assert (started.step, started.total_steps, started.num_train, started.num_test) == (0, 40, 7, 2)
    finished = worker.wait(messages.Finished)
    assert finished.completed and finished.step == 40
    steps = [event.step for event in worker.of(messages.Progress)]
    assert steps == sorted(steps) and steps[-1] == 40
    assert [event.step for event in worker.of(messages.Evaluated)] == [20, 40]
    assert worker.of(messages.Saved)[-1].path == newest_checkpoint(tmp_path / "run")
    worker.client.close()
    assert worker.client.state == "ended" and not worker.of(messages.Failed)
    log = (tmp_path / "run" / "logs" / "worker.log").read_text()
    assert "worker started" in log and "Traceback" not in log


def test_pause_stops_the_steps_and_resume_goes_on(launch: Launch, blob_folder: Path, tmp_path: Path) -> None:
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", MANY)).start()
    worker.wait(messages.Progress, lambda event: event.step > 5)
    worker.pause()
    # A save tells the true step, whatever Progress may have left out.
    first = worker.save().step
    time.sleep(0.5)
    worker.send(messages.Save())
    assert worker.wait(messages.Saved).step == first
    worker.send(messages.Resume())
    assert worker.wait(messages.Progress).step > first
    worker.send(messages.Stop())
    finished = worker.wait(messages.Finished)
    assert not finished.completed and finished.step > first
    assert newest_checkpoint(tmp_path / "run") == worker.of(messages.Saved)[-1].path
    worker.send(messages.Resume())
    assert worker.wait(messages.Progress).step > finished.step, "a stopped training can go on"


def test_a_studio_whose_news_are_late_still_lets_the_training_save(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    worker = launch(messages.TrainJob(blob_folder, tmp_path, MANY))
    worker.reach("ready")
    go_on = threading.Event()

    def dawdle(event: messages.Event) -> None:
        if event == messages.StateChanged("loading"):
            go_on.wait(TIMEOUT)

    worker.client.subscribe(dawdle)
    worker.start()
    wait_until((tmp_path / "metrics.jsonl").exists, "it trains")
    assert worker.client.state == "loading" and worker.client.unsaved
    go_on.set()
    worker.client.close()
    assert newest_checkpoint(tmp_path) is not None and not worker.client.unsaved


def test_a_saved_training_resumes_in_another_process(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    first = launch(messages.TrainJob(blob_folder, tmp_path / "run", MANY)).start()
    first.wait(messages.Progress, lambda event: event.step > 5)
    first.client.close()
    checkpoint = newest_checkpoint(tmp_path / "run")
    assert checkpoint is not None, "leaving saves an unfinished training"
    config = TrainConfig(steps=100_001, eval_steps=(), save_steps=(), sh_degree=1)
    second = launch(messages.TrainJob(blob_folder, tmp_path / "run", config, checkpoint)).start()
    started = second.wait(messages.Started)
    assert started.step == int(checkpoint.name.removeprefix("step_")) > 5
    assert started.total_steps == 100_001
    assert second.wait(messages.Progress).step > started.step


def test_frames_while_training_show_the_model_from_the_camera_asked_for(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", MANY)).start()
    first = worker.wait(messages.Progress, lambda event: event.step > 20).step
    camera = front_camera(blob_scene)
    options = messages.ViewOptions(background=(1.0, 0.0, 1.0))
    worker.send(messages.SetView(view=3, seq=1, camera=camera, options=options))
    received = worker.client.wait_for_frame(3, 1, TIMEOUT)
    assert received is not None and received.frame.step >= first
    assert received.image.shape == (80, 96, 3)
    worker.pause()
    saved = worker.save().path
    for seq in range(2, 12):  # more frames than slots: credits come back
        worker.send(messages.SetView(3, seq, camera, options))
        received = worker.client.wait_for_frame(3, seq, TIMEOUT)
        assert received is not None and received.frame.seq == seq
    model = load_model(saved)
    expected = render_image(model.gaussians, camera, replace(model.options, background=options.background))
    assert np.abs(received.image.astype(int) - expected.astype(int)).max() <= 1
    black = render_image(model.gaussians, camera, model.options)
    assert received.image.mean() > black.mean() + 5, "the background asked for is not to be seen"


def test_save_evaluate_export_and_settings_while_training(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    worker = launch(messages.TrainJob(blob_folder, run, MANY))
    worker.send(messages.Save())
    assert "press Start" in worker.wait(messages.Warned).sentence
    worker.send(messages.Start())
    worker.wait(messages.Progress)
    worker.send(messages.Evaluate())
    evaluated = worker.wait(messages.Evaluated)
    assert evaluated.num_images == 2 and 5 < evaluated.psnr < 60
    ply = tmp_path / "new folder" / "model.ply"
    worker.send(messages.Export(ply))
    exported = worker.wait(messages.Exported)
    assert exported.num_bytes == ply.stat().st_size
    gaussians = read_ply(ply).gaussians
    assert len(gaussians) == exported.num_gaussians
    # In the files' own coordinates the blobs lie around the origin, about half a unit wide.
    assert torch.isfinite(gaussians.means).all() and 0.2 < float(gaussians.means.std()) < 1.5
    worker.send(messages.Export(Path("/proc/nowhere/model.ply")))
    assert "/proc/nowhere/model.ply could not be written" in worker.wait(messages.JobFailed).sentence
    worker.send(messages.UpdateSettings((("optim.means_lr", 1e-5), ("seed", 3), ("steps", 100_002))))
    assert "seed" in worker.wait(messages.Warned).sentence
    worker.wait(messages.Progress, lambda event: event.total_steps == 100_002)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["setting"] for row in rows if "setting" in row] == ["optim.means_lr", "steps"]


def test_an_error_is_told_once_in_a_sentence(launch: Launch, tmp_path: Path) -> None:
    worker = launch(messages.TrainJob(tmp_path / "missing", tmp_path / "run", MANY)).start()
    failed = worker.wait(messages.Failed)
    assert "does not exist" in failed.sentence and "Traceback" not in failed.sentence
    assert failed.log_path is not None and "Traceback" in failed.log_path.read_text()
    wait_until(lambda: not worker.client.alive, "the failed worker leaves")
    list(worker.take())
    assert len(worker.of(messages.Failed)) == 1


def test_a_finished_model_is_viewed_and_exported(
    launch: Launch, blob_scene: Scene, blob_folder: Path, tmp_path: Path
) -> None:
    config = TrainConfig(steps=5, eval_steps=(), save_steps=(), sh_degree=1)
    trained = launch(messages.TrainJob(blob_folder, tmp_path / "run", config)).start()
    trained.wait(messages.Finished)
    viewer = launch(messages.ViewJob(tmp_path / "run"))
    loaded = viewer.wait(messages.ModelLoaded)
    viewer.reach("viewing")
    assert loaded.step == 5 and loaded.num_gaussians == 60
    viewer.send(messages.SetView(1, 1, front_camera(blob_scene)))
    received = viewer.client.wait_for_frame(1, 1, TIMEOUT)
    assert received is not None and received.image.std() > 5, "an empty picture"
    viewer.send(messages.Export(tmp_path / "again.ply"))
    viewer.wait(messages.Exported)
    shown = launch(messages.ViewJob(tmp_path / "again.ply"))
    assert shown.wait(messages.ModelLoaded).num_gaussians == 60
    shown.send(messages.Start())
    assert "not trained" in shown.wait(messages.Warned).sentence
    shown.client.close()
    assert shown.client.state == "ended" and not shown.of(messages.Failed)


def test_the_newest_view_wins(launch: Launch, blob_scene: Scene, blob_folder: Path, tmp_path: Path) -> None:
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", MANY))
    # Before there is a model the requests wait, and replace each other.
    for seq in range(1, 30):
        worker.send(messages.SetView(1, seq, front_camera(blob_scene)))
    worker.send(messages.Start())
    received = worker.client.wait_for_frame(1, 1, TIMEOUT)
    assert received is not None and received.frame.seq == 29


PARENT = """
    import sys, time
    from pathlib import Path
    from splatstudio.settings.config import TrainConfig
    from splatstudio.runtime.supervisor import ONE_RANK, WorkerClient
    from splatstudio.runtime.messages import Progress, Start, TrainJob

    def main():
        config = TrainConfig(steps=100_000, eval_steps=(), save_steps=(), sh_degree=1)
        client = WorkerClient(TrainJob(Path(sys.argv[1]), Path(sys.argv[2]), config)).start()
        client.send(Start())
        while not any(isinstance(e, Progress) and e.step > 5 for e in client.poll(1.0)):
            pass
        print(client.pid, flush=True)
        time.sleep(600)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_the_worker_saves_and_leaves_when_its_parent_dies(
    blob_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    temporary = Path(tempfile.mkdtemp())  # sockets lie in it, whose paths are short
    environment = {**os.environ, "TMPDIR": str(temporary)}
    parent = start_program(
        *(script, blob_folder, tmp_path / "run"), env=environment, stderr=subprocess.DEVNULL
    )
    pid = int(parent.stdout.readline())
    try:
        # A terminal that is closed sends SIGHUP to the whole process group.
        os.kill(parent.pid, number) if number == signal.SIGKILL else os.killpg(parent.pid, number)
        parent.wait(2 * TIMEOUT)  # it waits for the worker's save, which yields to all else on the machine
        wait_until(lambda: not alive(pid), "the orphan leaves")
        wait_until(lambda: newest_checkpoint(tmp_path / "run") is not None, "the orphan saves")
        # Who opens the run next is offered to go on.
        step = open_project(tmp_path / "run", MANY, None).resume_step
        assert step is not None and step > 5
        assert not list(temporary.glob("splatstudio-*")), "the orphan clears up after its studio"
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
        if parent.poll() is None:
            parent.kill()
        shutil.rmtree(temporary, ignore_errors=True)


class ForeignError(Exception):
    """Of a library, with a base class of its own."""


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def thread_errors(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What ended a thread, which ends the worker."""
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    return errors


def test_any_error_of_a_job_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, thread_errors: list[object], blob_scene: Scene, tmp_path: Path
) -> None:
    def refuse(path: Path, image: np.ndarray) -> None:
        raise ForeignError("the encoder is broken\nand more")

    monkeypatch.setattr(tasks_module, "write_picture", refuse)
    events: list[messages.Event] = []
    jobs, model = Tasks(events.append, lambda: False), Model(blobs())
    jobs.start(
        messages.Snapshot(blob_scene.cameras[0].resized(8, 8), tmp_path / "a.png", job=1), lambda: model
    )
    finish(jobs)
    end = events[-1]
    assert isinstance(end, messages.JobFailed) and end.sentence.endswith("the encoder is broken")
    assert not thread_errors and not list(tmp_path.iterdir())


def test_a_copy_without_memory_and_a_refusal_cost_the_job_alone(tmp_path: Path) -> None:
    events: list[messages.Event] = []
    jobs = Tasks(events.append, lambda: False)

    def no_memory() -> Model:
        raise MemoryError

    jobs.start(messages.Export(tmp_path / "a.ply", job=1), no_memory)
    assert isinstance(events[-1], messages.JobFailed) and "could not be copied" in events[-1].sentence
    copied: list[int] = []

    def copy() -> Model:
        copied.append(1)
        return Model(blobs())

    release = threading.Event()

    def held(*_: object) -> Gaussians:
        release.wait(60)
        return blobs()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "trimmed", held)
        jobs.start(messages.Export(tmp_path / "a.ply", job=2), copy)
        jobs.start(messages.Export(tmp_path / "a.ply", job=3), copy)
        refused = [event for event in events if isinstance(event, messages.JobFailed) and event.job == 3]
        assert len(refused) == 1 and "being written already" in refused[0].sentence
        assert len(copied) == 1, "a refused job copied the model"
        release.set()
        finish(jobs)
    assert isinstance(events[-1], messages.JobDone)


def test_cameras_of_two_models_of_one_name_do_not_replace_each_other(
    monkeypatch: pytest.MonkeyPatch, blob_scene: Scene, tmp_path: Path
) -> None:
    cameras = tuple((view.name, view.camera) for view in blob_scene.views)
    events: list[messages.Event] = []
    jobs, model = Tasks(events.append, lambda: False), Model(blobs())
    kept = tmp_path / "scene.ply.cameras.json"
    kept.write_text("somebody's")
    for name in ("scene.ply", "scene.spz"):
        jobs.start(messages.Export(tmp_path / name, cameras=cameras), lambda: model)
        finish(jobs)
    assert kept.read_text() == "somebody's"
    names = sorted(path.name for path in tmp_path.glob("*.json"))
    assert names == ["scene.ply-2.cameras.json", "scene.ply.cameras.json", "scene.spz.cameras.json"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporter, "write_cameras", full)
    jobs.start(messages.Export(tmp_path / "b.ply", cameras=cameras), lambda: model)
    finish(jobs)
    assert isinstance(events[-1], messages.JobDone) and (tmp_path / "b.ply").exists()
    assert any(isinstance(event, messages.Exported) and event.path.name == "b.ply" for event in events)
    (warned,) = [event.sentence for event in events if isinstance(event, messages.Warned)]
    assert "No space left on device" in warned


def test_views_that_cannot_be_drawn_cost_no_slot_and_are_told_once(
    monkeypatch: pytest.MonkeyPatch, thread_errors: list[object], blob_scene: Scene
) -> None:
    sent: list[messages.Event] = []
    slots = FrameSlots.create(num_slots=1, slot_bytes=3 * 64 * 48)
    frames = ViewRenderer(slots, sent.append, lambda: False)
    model, failures = Model(blobs()), [ForeignError("bad"), MemoryError()]
    paint = frames._painter.paint

    def fail_first(*arguments: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return paint(*arguments)

    monkeypatch.setattr(frames._painter, "paint", fail_first)
    frames.publish(ShownModel(model.gaussians, model.options, 0))
    for seq in (1, 2, 3):
        left = len(failures)
        frames.request(messages.SetView(1, seq, blob_scene.cameras[0].resized(64, 48)))
        until(
            lambda left=left: len(failures) < left or any(isinstance(event, messages.Frame) for event in sent)
        )
    until(lambda: any(isinstance(event, messages.Frame) for event in sent))
    frames.close()
    slots.close()
    assert [event.sentence for event in sent if isinstance(event, messages.Warned)] == [
        "A view could not be drawn: bad. Everything else goes on; the log has the details."
    ]
    assert [event.seq for event in sent if isinstance(event, messages.Frame)] == [3] and not thread_errors
