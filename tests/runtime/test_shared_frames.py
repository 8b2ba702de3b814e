"""The frames of a camera path on several ranks: those of one process, in order, beside the training."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from frame_tasks import OPTIONS, draw_seen, draw_short
from rank_pool import RankPool
from sharded_tasks import camera_of, model
from worker_watcher import MANY, Watcher

from splatstudio.cameras.camera_path import CameraPath, keyframe_of
from splatstudio.distributed.rank_devices import choose_devices
from splatstudio.models.model import load_model
from splatstudio.rendering.render import render, render_image
from splatstudio.runtime import messages
from splatstudio.runtime.supervisor import WorkerClient, plan_for
from splatstudio.runtime.view_renderer import asked_for
from splatstudio.scene.scene import Scene

SIZES = (0, 150, 330)


@pytest.mark.parametrize(
    "wanted", [messages.ViewOptions(), messages.ViewOptions((0.9, 0.1, 0.0), splat_scale=1.0, sh_degree=1)]
)
@pytest.mark.parametrize("views", [(0, 1, 2), (3, 100), ()])
def test_each_rank_draws_what_one_process_would(
    pool: RankPool, views: tuple[int, ...], wanted: messages.ViewOptions
) -> None:
    pictures = pool.run(3, draw_seen, SIZES, views, wanted)
    for view, picture in zip(views, pictures, strict=False):
        expected = render(model(sum(SIZES)), camera_of(view), asked_for(OPTIONS, wanted)).rgb
        torch.testing.assert_close(picture, expected, rtol=0, atol=1e-6)
    assert all(picture is None for picture in pictures[len(views) :])


@pytest.mark.parametrize("failing", [0, 1])
def test_a_picture_without_memory_is_told_of_and_the_copy_stays_as_it_was(
    pool: RankPool, blob_folder: Path, failing: int
) -> None:
    first, second = pool.run(2, draw_short, blob_folder, failing)
    assert [told for told, _ in first] == [told for told, _ in second] == [(failing,), (), (), ()]
    assert [len(pictures) for _, pictures in first] == [0, 2, 2, 2]
    assert all(not pictures for _, pictures in second), "rank 0 has them all"
    _, before, after, anew = [pictures for _, pictures in first]
    assert np.array_equal(before[0], after[0]) and np.array_equal(before[0], before[1])
    assert not np.array_equal(anew[0], before[0]), "it was trained meanwhile"


@pytest.fixture(scope="module")
def training(blob_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watcher]:
    """A training on two ranks that has begun to look like something; each test leaves it training."""
    job = messages.TrainJob(blob_folder, tmp_path_factory.mktemp("frames") / "run", MANY)
    worker = Watcher(WorkerClient(job, plan_for(job, choose_devices(ranks=2))).start())
    worker.send(messages.Start())
    worker.wait(messages.Progress, lambda event: event.step > 20)
    yield worker
    if worker.client.alive:
        worker.client.kill()


def still(scene: Scene, frames: int) -> CameraPath:
    """Return a path whose camera stands still for so many frames and one."""
    key = keyframe_of(scene.cameras[1])
    return CameraPath((key, key), default_seconds=frames / 25, width=64, height=48, fps=25)


def assert_a_cancelled_path_leaves_nothing(training: Watcher, scene: Scene, tmp_path: Path) -> None:
    """Cancel a path, and render a short one to see that the ranks still draw and train."""
    endless = replace(still(scene, 1), default_seconds=400.0)
    training.send(messages.RenderPath(endless, tmp_path / "out" / "frames", job=3))
    training.wait(messages.JobProgress, lambda event: event.job == 3 and event.done > 3)
    training.send(messages.CancelJob(3))
    assert training.wait(messages.JobCancelled).job == 3
    assert list((tmp_path / "out").iterdir()) == []
    training.send(messages.RenderPath(still(scene, 3), tmp_path / "out" / "short.mp4", job=4))
    assert training.wait(messages.JobDone).job == 4
    assert iio.imread(tmp_path / "out" / "short.mp4", plugin="pyav").shape == (4, 48, 64, 3)
    step = training.client.step
    training.wait(messages.Progress, lambda event: event.step > step)
    assert not training.of(messages.JobFailed)


def test_frames_are_of_one_moment_beside_the_training_and_can_be_cancelled(
    training: Watcher, blob_scene: Scene, tmp_path: Path
) -> None:
    training.send(messages.RenderPath(still(blob_scene, 14), tmp_path / "frames", job=1))
    training.wait(messages.JobDone, lambda event: event.job == 1)
    frames = [iio.imread(file) for file in sorted((tmp_path / "frames").iterdir())]
    assert len(frames) == 15 and all(np.array_equal(frame, frames[0]) for frame in frames)
    told = [
        (event.done, event.total)
        for event in training.of(messages.JobProgress)
        if event.job == 1 and event.total
    ]
    assert told == sorted(told) and told[-1] == (15, 15)
    step = training.client.step
    training.wait(messages.Progress, lambda event: event.step > step + 20)
    training.send(messages.Snapshot(still(blob_scene, 1).cameras()[0], tmp_path / "now.png", job=2))
    training.wait(messages.JobDone, lambda event: event.job == 2)
    assert not np.array_equal(iio.imread(tmp_path / "now.png"), frames[0])
    assert_a_cancelled_path_leaves_nothing(training, blob_scene, tmp_path)


def test_frames_are_those_of_the_merged_model_and_lie_in_order(
    training: Watcher, blob_scene: Scene, tmp_path: Path
) -> None:
    training.pause()
    keys = [keyframe_of(camera) for camera in blob_scene.cameras[:3]]
    path = CameraPath(tuple(keys), default_seconds=0.25, width=66, height=50, fps=14)
    step = training.client.step
    training.send(messages.RenderPath(path, tmp_path / "frames", job=5))
    training.wait(messages.JobDone, lambda event: event.job == 5)
    training.send(
        messages.RenderPath(path, tmp_path / "depth", options=messages.ViewOptions(mode="depth"), job=6)
    )
    training.wait(messages.JobDone, lambda event: event.job == 6)
    saved = training.save()
    assert saved.step == step, "nothing was trained for them"
    whole, cameras = load_model(saved.path), path.cameras()
    files = sorted((tmp_path / "frames").iterdir())
    assert len(files) == len(cameras) == 8
    for file, camera in zip(files, cameras, strict=True):
        expected = render_image(whole.gaussians, camera, whole.options).astype(int)
        ours = iio.imread(file)
        # Colors that differ by 1e-7 may be rounded the other way.
        assert np.abs(ours - expected).max() <= 1 and np.mean(ours != expected) < 1e-3
    depths = [iio.imread(file) for file in sorted((tmp_path / "depth").iterdir())]
    assert len(depths) == 8 and not np.array_equal(depths[0], iio.imread(files[0]))
    training.send(messages.Resume())
    training.wait(messages.Progress, lambda event: event.step > step)


def test_a_path_ends_with_a_rank_that_is_killed_and_the_next_ranks_draw_another(
    training: Watcher, blob_scene: Scene, tmp_path: Path
) -> None:
    endless = replace(still(blob_scene, 1), default_seconds=400.0)
    training.send(messages.RenderPath(endless, tmp_path / "out" / "frames", job=7))
    training.wait(messages.JobProgress, lambda event: event.job == 7 and event.done > 3)
    os.kill(training.client.pids[1], signal.SIGKILL)
    failed = training.wait(messages.JobFailed)
    assert failed.job == 7 and "ended before" in failed.sentence
    assert list((tmp_path / "out").iterdir()) == []
    training.wait(messages.Started)
    training.send(messages.Snapshot(still(blob_scene, 1).cameras()[0], tmp_path / "now.png", job=8))
    assert training.wait(messages.JobDone).job == 8
    assert iio.imread(tmp_path / "now.png").shape == (48, 64, 3)
    step = training.client.step
    training.wait(messages.Progress, lambda event: event.step > step)
