"""Long tasks in the background process: beside the training, of one moment's model, whole or not there."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from command_line import CommandLine
from worker_watcher import MANY, Launch, Watcher, wait_until

from splatstudio.cameras.camera_path import CameraPath, keyframe_of, orbit_of
from splatstudio.cameras.path_file import write_camera_path
from splatstudio.models.model import load_model
from splatstudio.rendering.mode_pictures import draw_mode
from splatstudio.rendering.render import render_image
from splatstudio.runtime import messages
from splatstudio.scene.scene import Scene


@pytest.fixture
def training(launch: Launch, blob_folder: Path, tmp_path: Path) -> Watcher:
    """A worker that trains without end."""
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", MANY)).start()
    worker.wait(messages.Progress)
    return worker


@pytest.fixture
def path(blob_scene: Scene) -> CameraPath:
    """An orbit of 24 frames of 64 x 48 pixels."""
    return replace(orbit_of(blob_scene.cameras, seconds=1.0), width=64, height=48, fps=24)


def endless(path: CameraPath) -> CameraPath:
    """Return a path that takes minutes to render."""
    return replace(path, width=640, height=480, default_seconds=10.0)


def files(folder: Path) -> list[str]:
    """Return all names in a folder, hidden ones too."""
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def test_a_path_is_rendered_while_the_training_goes_on(
    training: Watcher, path: CameraPath, tmp_path: Path
) -> None:
    output = tmp_path / "run" / "renders" / "orbit.mp4"
    training.send(messages.RenderPath(path, output, job=7))
    done = training.wait(messages.JobDone)
    assert (done.job, done.path, done.num_bytes) == (7, output, output.stat().st_size)
    told = [(event.done, event.total) for event in training.of(messages.JobProgress) if event.total]
    assert (
        told == sorted(told)
        and told[-1] == (24, 24)
        and {event.job for event in training.of(messages.JobProgress)} == {7}
    )
    # A step follows every round of frames; they may all have been made before the next word of progress.
    step = training.of(messages.Progress)[0].step
    training.wait(messages.Progress, lambda event: event.step >= step + 24)
    frames = iio.imread(output, plugin="pyav")
    assert frames.shape == (24, 48, 64, 3) and min(frame.std() for frame in frames) > 5
    assert files(output.parent) == ["orbit.mp4"]


def test_a_job_works_on_the_model_of_one_moment(training: Watcher, blob_scene: Scene, tmp_path: Path) -> None:
    # A camera that stands still for 100 frames, while the model is trained.
    key = keyframe_of(blob_scene.cameras[1])
    path = CameraPath((key, key), default_seconds=4.0, width=96, height=72, fps=25)
    training.send(messages.RenderPath(path, tmp_path / "frames", job=1))
    training.send(messages.RenderPath(path, tmp_path / "later", job=2))
    training.wait(messages.JobDone)
    training.wait(messages.JobDone)
    frames = [iio.imread(file) for file in sorted((tmp_path / "frames").iterdir())]
    assert len(frames) == 101
    assert all(np.array_equal(frame, frames[0]) for frame in frames)
    wait_until(lambda: training.client.step > 300, "the training goes on")
    training.send(messages.Snapshot(path.cameras()[0], tmp_path / "now.png", job=3))
    training.wait(messages.JobDone, lambda event: event.job == 3)
    assert not np.array_equal(iio.imread(tmp_path / "now.png"), frames[0]), "nothing was trained meanwhile"


def test_the_command_line_renders_the_same_frames(
    training: Watcher, path: CameraPath, blob_scene: Scene, tmp_path: Path, command: CommandLine
) -> None:
    training.send(messages.Pause())
    training.save()
    write_camera_path(tmp_path / "path.json", path, blob_scene.transform)
    for name in ("frames", "video.mp4"):
        training.send(messages.RenderPath(path, tmp_path / "worker" / name, job=1))
        training.wait(messages.JobDone)
        options = ("--path", tmp_path / "path.json", "-o", tmp_path / "command" / name)
        assert command("render", tmp_path / "run", *options)[0] == 0
    frames = files(tmp_path / "worker" / "frames")
    assert len(frames) == 24 and frames == files(tmp_path / "command" / "frames")
    for name in frames:
        pair = [iio.imread(tmp_path / side / "frames" / name) for side in ("worker", "command")]
        # The file has the path in other coordinates: a pixel in a thousand is rounded the other way.
        assert np.abs(pair[0].astype(int) - pair[1]).max() <= 1
        assert np.mean(pair[0] != pair[1]) < 1e-3
    # The encoder does not give the same bytes twice; both show these frames.
    stack = np.stack([iio.imread(tmp_path / "command" / "frames" / name) for name in frames])
    for side in ("worker", "command"):
        video = iio.imread(tmp_path / side / "video.mp4", plugin="pyav")
        assert video.shape == (24, 48, 64, 3)
        assert np.mean((video / 255.0 - stack / 255.0) ** 2) < 1e-3, "less than 30 dB"


def test_a_picture_is_what_the_camera_sees(
    launch: Launch, training: Watcher, blob_scene: Scene, tmp_path: Path
) -> None:
    training.send(messages.Pause())
    checkpoint = training.save().path
    camera = blob_scene.cameras[1].resized(1200, 1000)
    options = messages.ViewOptions(background=(0.0, 0.5, 1.0))
    training.send(messages.Snapshot(camera, tmp_path / "a" / "b.png", options, job=1))
    training.wait(messages.JobDone)
    model = load_model(checkpoint)
    expected = render_image(model.gaussians, camera, replace(model.options, background=options.background))
    assert np.array_equal(iio.imread(tmp_path / "a" / "b.png"), expected)
    # As the view shows it: in any mode.
    depth = messages.ViewOptions(mode="depth")
    training.send(messages.Snapshot(camera, tmp_path / "depth.png", depth, job=2))
    training.wait(messages.JobDone)
    drawn = draw_mode("depth", model.gaussians, camera, replace(model.options, background=depth.background))
    assert np.array_equal(iio.imread(tmp_path / "depth.png"), drawn.image)
    # A finished model can do the same.
    viewer = launch(messages.ViewJob(checkpoint))
    viewer.wait(messages.ModelLoaded)
    viewer.send(messages.Snapshot(camera, tmp_path / "c.png", options, job=1))
    viewer.wait(messages.JobDone)
    assert (tmp_path / "c.png").read_bytes() == (tmp_path / "a" / "b.png").read_bytes()


@pytest.mark.parametrize("name", ["endless.mp4", "frames"])
def test_a_cancelled_job_leaves_nothing(
    training: Watcher, path: CameraPath, tmp_path: Path, name: str
) -> None:
    output = tmp_path / "out" / name
    training.send(messages.RenderPath(endless(path), output, job=5))
    training.wait(messages.JobProgress, lambda event: event.done > 1)
    assert len(files(output.parent)) == 1 and not output.exists()
    training.send(messages.CancelJob(5))
    assert training.wait(messages.JobCancelled).job == 5
    assert files(output.parent) == []
    step = training.client.step
    training.wait(messages.Progress, lambda event: event.step > step)
    training.send(messages.CancelJob(5))  # in vain, and harmless


def test_a_paused_training_renders_on_and_leaving_cancels(
    training: Watcher, path: CameraPath, tmp_path: Path
) -> None:
    training.send(messages.RenderPath(endless(path), tmp_path / "out" / "a.mp4", job=1))
    training.wait(messages.JobProgress, lambda event: event.done > 1)
    training.pause()
    list(training.take())
    training.wait(messages.JobProgress)
    start = time.monotonic()
    training.client.close()
    assert time.monotonic() - start < 100 and training.client.state == "ended"
    list(training.take())
    assert [event.job for event in training.of(messages.JobCancelled)] == [1] and training.of(messages.Saved)
    assert files(tmp_path / "out") == []


def test_what_cannot_be_done_is_said_and_the_training_goes_on(
    training: Watcher, launch: Launch, path: CameraPath, blob_folder: Path, tmp_path: Path
) -> None:
    send = training.client.send
    send(messages.RenderPath(endless(path), tmp_path / "a.mp4", job=1))
    send(messages.RenderPath(path, tmp_path / "a.mp4", job=2))
    assert "being written already" in training.wait(messages.JobFailed, lambda event: event.job == 2).sentence
    send(messages.RenderPath(path, tmp_path / "a.avi", job=3))
    assert "known endings" in training.wait(messages.JobFailed, lambda event: event.job == 3).sentence
    send(messages.Snapshot(path.cameras()[0], Path("/proc/nothing/a.png"), job=4))
    assert "/proc/nothing/a.png" in training.wait(messages.JobFailed, lambda event: event.job == 4).sentence
    send(messages.Export(tmp_path / "model.docx", job=5))
    assert "must end in" in training.wait(messages.JobFailed, lambda event: event.job == 5).sentence
    for job in range(6, 10):
        send(messages.RenderPath(endless(path), tmp_path / f"{job}.mp4", job=job))
    assert "4 tasks are running" in training.wait(messages.JobFailed, lambda event: event.job == 9).sentence
    for job in range(1, 9):
        send(messages.CancelJob(job))
    wait_until(lambda: files(tmp_path) == ["run"], "all is removed")
    step = training.client.step
    training.wait(messages.Progress, lambda event: event.step > step)
    idle = launch(messages.TrainJob(blob_folder, tmp_path / "other", MANY))
    idle.send(messages.Export(tmp_path / "model.ply", job=1))
    assert "press Start" in idle.wait(messages.JobFailed).sentence


def test_memory_that_is_not_there_ends_the_job_alone(
    training: Watcher, blob_scene: Scene, tmp_path: Path
) -> None:
    huge = replace(blob_scene.cameras[0], K=np.diag([1e5, 1e5, 1.0]), width=1_000_000, height=1_000_000)
    training.send(messages.Snapshot(huge, tmp_path / "huge.png", job=1))
    assert "huge.png" in training.wait(messages.JobFailed).sentence
    step = training.client.step
    training.wait(messages.Progress, lambda event: event.step > step)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_ended_fails_its_jobs_and_leaves_nothing(
    training: Watcher, path: CameraPath, tmp_path: Path, number: int
) -> None:
    output = tmp_path / "out"
    training.send(messages.RenderPath(endless(path), output / "a.mp4", job=1))
    training.send(messages.RenderPath(endless(path), output / "a.mp4.webm", job=2))
    wait_until(lambda: len(files(output)) == 2, "both are being written")
    os.kill(training.client.pid, number)
    for job in (1, 2):
        failed = training.wait(messages.JobFailed)
        assert failed.job == job and "ended before" in failed.sentence and str(output) in failed.sentence
    assert files(output) == []
