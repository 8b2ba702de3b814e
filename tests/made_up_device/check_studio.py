"""The studio's own processes on devices that no machine has: what a user does with one, to the CPU's bits."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest
import torch
from training_options import short_training
from worker_watcher import TIMEOUT, Launch, Watcher, front_camera

from splatstudio.checkpoints.checkpoint import load_checkpoint, newest_checkpoint
from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.formats.ply import read_ply
from splatstudio.models.model import load_model
from splatstudio.models.scoring import EvaluationTask
from splatstudio.rendering.render import fastest_device, render_image
from splatstudio.runtime import messages
from splatstudio.runtime.activity import Activity, WorkerContext
from splatstudio.runtime.file_tasks import FileTask, FileWorker, TaskEnd
from splatstudio.runtime.rank import activity_of, rank_main
from splatstudio.runtime.supervisor import Plan
from splatstudio.scene.scene import Scene
from splatstudio.surfaces.mesh_options import MeshOptions, MeshTask
from splatstudio.training.trainer import Trainer

STEPS = 60
CONFIG = replace(short_training({"densify.start_step": 2, "densify.every": 8}, STEPS), save_steps=(20,))


@pytest.fixture(autouse=True, scope="module")
def processes_know_the_devices() -> Iterator[None]:
    """Let the fork server, and so every rank, know the made-up devices."""
    real = BaseContext.set_forkserver_preload

    def with_devices(self: BaseContext, names: list[str]) -> None:
        real(self, ["made_up_device", *names])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseContext, "set_forkserver_preload", with_devices)
        yield


def noted_activity(job: messages.Job, context: WorkerContext) -> Activity:
    """Do a job, and leave word of the device on which this rank does it."""
    run = job.run_dir if isinstance(job, messages.TrainJob) else job.model_path.parents[1]
    (run.parent / f"device-{context.rank}").write_text(str(fastest_device()))
    return activity_of(job, context)


def started(launch: Launch, job: messages.Job, *devices: int) -> Watcher:
    """Return the worker of a job with a rank on each of the devices."""
    plan = Plan(rank_main, noted_activity, len(devices), devices=RankDevices(devices))
    return launch(job, plan)


def noted(folder: Path) -> list[str]:
    """Return the devices of the ranks that ran last, by rank."""
    return [file.read_text() for file in sorted(folder.glob("device-*"))]


def done(task: FileTask) -> TaskEnd:
    """Return how a task on files ended, which is done in a process of its own."""
    ends: queue.SimpleQueue[TaskEnd] = queue.SimpleQueue()
    worker = FileWorker(lambda _, end: ends.put(end))
    assert worker.start(task)
    end = ends.get(timeout=TIMEOUT)
    worker.close()
    assert end.error is None
    return end


def trained_on_the_cpu(scene: Scene, steps: int = STEPS) -> dict[str, torch.Tensor]:
    """Return what so many steps on the CPU learn."""
    trainer = Trainer(scene, CONFIG, device=torch.device("cpu"))
    while trainer.step < steps:
        trainer.train_step()
    tensors = trainer.gaussians.tensors()
    trainer.close()
    return tensors


def same_as_on_the_cpu(checkpoint: Path, scene: Scene) -> bool:
    """Return whether a checkpoint holds what the steps of the CPU would have made."""
    found = load_checkpoint(checkpoint)
    expected = trained_on_the_cpu(scene, found.step)
    model = load_model(checkpoint).gaussians.tensors()
    return all(torch.equal(model[name].cpu(), tensor) for name, tensor in expected.items())


def test_what_a_user_does_in_the_studio(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    worker = started(launch, messages.TrainJob(blob_folder, run, CONFIG), 1).start()
    worker.wait(messages.Progress, lambda event: event.step > 3)
    worker.pause()
    saved = worker.save().path
    assert same_as_on_the_cpu(saved, blob_scene)
    model, camera = load_model(saved), front_camera(blob_scene)

    worker.send(messages.SetView(3, 1, camera))
    received = worker.client.wait_for_frame(3, 1, TIMEOUT)
    assert received is not None
    assert (received.image == render_image(model.gaussians, camera, model.options)).all()
    worker.send(messages.Evaluate())
    scores = evaluate(model.gaussians, blob_scene, options=model.options)
    assert worker.wait(messages.Evaluated).psnr == scores.psnr
    worker.send(messages.Export(tmp_path / "model.ply", job=7))
    assert worker.wait(messages.JobDone).job == 7
    assert len(read_ply(tmp_path / "model.ply")) == len(model)

    os.kill(worker.client.pid, signal.SIGKILL)
    worker.reach("paused")
    worker.send(messages.Resume())
    assert worker.wait(messages.Finished).completed
    newest = newest_checkpoint(run)
    assert newest is not None and same_as_on_the_cpu(newest, blob_scene)
    worker.client.close()
    assert noted(tmp_path) == ["madeup:1"]


def test_a_finished_run_is_opened_and_trained_on(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = started(launch, messages.TrainJob(blob_folder, run, replace(CONFIG, steps=20)), 0).start()
    assert first.wait(messages.Finished).completed
    first.client.close()
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    viewer = started(launch, messages.ViewJob(checkpoint), 2)
    viewer.wait(messages.ModelLoaded)
    viewer.send(messages.SetView(1, 1, front_camera(blob_scene)))
    frame = viewer.client.wait_for_frame(1, 1, TIMEOUT)
    assert frame is not None and frame.image.std() > 5
    viewer.client.close()
    assert noted(tmp_path) == ["madeup:2"]
    rest = started(launch, messages.TrainJob(blob_folder, run, CONFIG, checkpoint), 2).start()
    assert rest.wait(messages.Finished).completed
    rest.client.close()
    newest = newest_checkpoint(run)
    assert newest is not None and load_checkpoint(newest).step == STEPS


def test_two_devices_train_one_model_that_is_merged_and_exported(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    worker = started(launch, messages.TrainJob(blob_folder, tmp_path / "run", CONFIG), 0, 1).start()
    worker.wait(messages.Progress, lambda event: event.step > 3)
    worker.pause()
    model = load_model(worker.save().path)
    worker.send(messages.SetView(3, 1, front_camera(blob_scene)))
    received = worker.client.wait_for_frame(3, 1, TIMEOUT)
    assert received is not None
    whole = render_image(model.gaussians, front_camera(blob_scene), model.options)
    assert abs(received.image.astype(int) - whole.astype(int)).max() <= 1
    worker.send(messages.Export(tmp_path / "model.ply", job=1))
    worker.wait(messages.JobDone)
    assert len(read_ply(tmp_path / "model.ply")) == len(model)
    assert noted(tmp_path) == ["madeup:0", "madeup:1"]
    worker.send(messages.Resume())
    assert worker.wait(messages.Finished).completed
    worker.client.close()
    newest = newest_checkpoint(tmp_path / "run")
    assert newest is not None
    merged = done(FileTask("Merging", (newest,), tmp_path / "merged.ply", EvaluationTask(newest)))
    assert merged.num_gaussians == len(read_ply(tmp_path / "merged.ply")) and merged.scored is not None
    model = load_model(newest)
    assert merged.scored.evaluation.psnr == evaluate(model.gaussians, blob_scene, options=model.options).psnr
    mesh = MeshTask(newest, tmp_path / "model.glb", MeshOptions(resolution=40))
    assert done(FileTask("Meshing", mesh=mesh)).output == mesh.output
