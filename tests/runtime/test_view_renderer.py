"""What a view is drawn with: what an export omits is hidden, and the sky or the background is behind."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil
import pytest
from blob_models import blobs, ring_of_cameras
from worker_watcher import MANY, TIMEOUT, Launch, finish, front_camera, wait_until

from splatstudio.distributed.rank_devices import choose_devices
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.sky import Sky
from splatstudio.gaussians.trimming import KEEP_ALL, Trim, trimmed
from splatstudio.kernels import ops
from splatstudio.models.model import Model
from splatstudio.rendering.modes import DrawnMode
from splatstudio.rendering.render import RenderOptions, render_image
from splatstudio.runtime.channel.codec import decode, encode
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.messages import (
    Event,
    Progress,
    SetView,
    Snapshot,
    Start,
    TrainJob,
    ViewOptions,
    ViewRequest,
)
from splatstudio.runtime.process_setup import ALONE, WATCHED, TrainingPriority
from splatstudio.runtime.supervisor import plan_for
from splatstudio.runtime.tasks import Tasks
from splatstudio.runtime.view_renderer import Painter, ShownModel, ViewRenderer, threads_beside
from splatstudio.scene.scene import Scene

RED = (1.0, 0.0, 0.0)
OPTIONS = RenderOptions(sky=Sky(((0.3, 0.9, 1.2), (0.1, 0.4, 0.0), (0.0, 0.3, 0.2), (0.2, 0.0, 0.1))))
CAMERA = ring_of_cameras()[2]


@pytest.mark.parametrize("sky", [True, False])
def test_a_view_has_the_sky_until_its_user_wants_the_background(sky: bool) -> None:
    camera = ring_of_cameras()[2]
    painted = Painter().paint(blobs(), camera, OPTIONS, ViewOptions(RED, sky=sky))
    picture, notice = painted.picture, painted.notice
    expected = render_image(blobs(), camera, OPTIONS if sky else RenderOptions(background=RED))
    assert notice is None and np.array_equal(picture.image, expected)


def test_a_model_without_a_sky_is_before_the_background() -> None:
    picture = Painter().paint(blobs(), ring_of_cameras()[2], RenderOptions(), ViewOptions(RED)).picture
    expected = render_image(blobs(), ring_of_cameras()[2], RenderOptions(background=RED))
    assert np.array_equal(picture.image, expected)


def test_other_ranks_are_told_of_the_sky() -> None:
    for sky in (True, False):
        look = decode(encode(ViewRequest(ring_of_cameras()[0], ViewOptions(RED, sky=sky))), ViewRequest)
        assert look.options == ViewOptions(RED, sky=sky)


def test_a_snapshot_is_as_the_view(tmp_path: Path) -> None:
    camera, events = ring_of_cameras()[2], list[Event]()
    jobs, model = Tasks(events.append, lambda: False), Model(blobs(), options=OPTIONS)
    file = tmp_path / "shot.png"
    jobs.start(Snapshot(camera, file, ViewOptions(RED, sky=False)), lambda: model)
    finish(jobs)
    stored = cv2.imread(str(file))
    assert stored is not None
    expected = render_image(blobs(), camera, RenderOptions(background=RED))
    assert np.array_equal(stored[..., ::-1], expected)


def middle_half(gaussians: Gaussians) -> Trim:
    """Return a trim that keeps some of the Gaussians and leaves out some, by their place and by opacity."""
    low, high = gaussians.means.quantile(0.2, dim=0).tolist(), gaussians.means.quantile(0.9, dim=0).tolist()
    return Trim(float(gaussians.opacities.sigmoid().quantile(0.2)), (*low, *high))


@pytest.mark.parametrize("mode", ["color", "points", "ellipsoids", "count"])
def test_a_view_shows_what_the_file_will_hold(mode: DrawnMode) -> None:
    model = blobs()
    trim = middle_half(model)
    kept = trimmed(model, trim)
    assert 0 < len(kept) < len(model)
    painter = Painter()
    everything = painter.paint(model, CAMERA, RenderOptions(), ViewOptions(mode=mode)).picture
    painted = painter.paint(model, CAMERA, RenderOptions(), ViewOptions(mode=mode, trim=trim))
    shown = painted.picture
    assert painted.kept == len(kept)
    expected = painter.paint(kept, CAMERA, RenderOptions(), ViewOptions(mode=mode)).picture
    assert np.array_equal(shown.image, expected.image)
    assert not np.array_equal(shown.image, everything.image)


def test_a_trim_that_leaves_nothing_shows_nothing() -> None:
    far = Trim(0.0, (1e6, 1e6, 1e6, 2e6, 2e6, 2e6))
    painted = Painter().paint(blobs(), CAMERA, RenderOptions(), ViewOptions(trim=far))
    picture, notice = painted.picture, painted.notice
    assert notice is not None and "hides all splats" in notice and not picture.image.any()
    half = middle_half(blobs())
    assert Painter().paint(blobs(), CAMERA, RenderOptions(), ViewOptions(trim=half)).notice is None
    nobody = blobs()[:0]  # what other ranks' cameras see of a model may be none of it
    assert Painter().paint(nobody, CAMERA, RenderOptions(), ViewOptions(trim=far)).notice is None


@pytest.mark.parametrize("trim", [KEEP_ALL, Trim(0.25), Trim(0.0, (-1.0, -2.0, -3.0, 1.0, 2.0, 3.0))])
def test_other_ranks_are_told_so(trim: Trim) -> None:
    look = decode(encode(ViewRequest(CAMERA, ViewOptions(trim=trim))), ViewRequest)
    assert look.options == ViewOptions(trim=trim)


counts_priorities = pytest.mark.skipif(
    sys.platform != "linux" or os.getpriority(os.PRIO_PROCESS, 0) > 13,
    reason="a priority belongs to the whole process, or the tests give way as much as anything can",
)


def niceness(thread: int = 0) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


@counts_priorities
def test_threads_that_yield_do_so_even_more_and_no_others() -> None:
    own = niceness(threading.get_native_id())
    seen: list[tuple[int, int, int]] = []

    def train() -> None:
        priority, me = TrainingPriority(), threading.get_native_id()
        priority.yield_to_others()
        over, started = threading.Event(), threading.Event()
        helper = threading.Thread(target=lambda: (started.set(), over.wait(TIMEOUT)))
        helper.start()
        assert started.wait(TIMEOUT) and helper.native_id is not None
        for _ in range(2):  # the second time nothing is left to do
            seen.append((niceness(me), niceness(helper.native_id), own))
            priority.yield_to_views()
        seen.append((niceness(me), niceness(helper.native_id), own))
        over.set()
        helper.join()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    alone, watched = min(19, own + ALONE), min(19, own + WATCHED)
    assert seen == [(alone, alone, own), (watched, watched, own), (watched, watched, own)]
    assert niceness(threading.get_native_id()) == own


@counts_priorities
def test_a_look_that_comes_first_counts_too() -> None:
    seen: list[int] = []

    def train() -> None:
        priority = TrainingPriority()
        priority.yield_to_views()
        seen.append(niceness(threading.get_native_id()))
        priority.yield_to_others()
        seen.append(niceness(threading.get_native_id()))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    own = niceness(threading.get_native_id())
    assert seen == [own, min(19, own + WATCHED)]


@counts_priorities
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_training_yields_to_pictures_from_the_first_look_on(
    launch: Launch, blob_folder: Path, blob_scene: Scene, tmp_path: Path, num_ranks: int
) -> None:
    job = TrainJob(blob_folder, tmp_path / "run", MANY)
    worker = launch(job, plan_for(job, choose_devices(ranks=num_ranks)))

    def yielding(pid: int) -> set[int]:
        """Return by how much the threads of a rank that give way do so."""
        found: set[int] = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended
                found.add(niceness(int(task.name)) - own)
        return found - {0}

    worker.send(Start())
    worker.wait(Progress)
    pids = worker.client.pids
    assert len(pids) == num_ranks
    # Of what the ranks were forked from: another test may have made this process give way meanwhile.
    own = niceness(psutil.Process(pids[0]).ppid())
    alone, watched = min(19, own + ALONE) - own, min(19, own + WATCHED) - own
    assert [yielding(pid) for pid in pids] == num_ranks * [{alone}]
    worker.send(SetView(1, 1, front_camera(blob_scene)))
    assert worker.client.wait_for_frame(1, 1, TIMEOUT) is not None
    for pid in pids:
        wait_until(lambda pid=pid: yielding(pid) == {watched}, "all that trains yields more")
    step = worker.of(Progress)[-1].step
    worker.wait(Progress, lambda event: event.step > step + 5)


def test_half_of_the_threads_but_two_where_there_are_two() -> None:
    assert [threads_beside(threads) for threads in (1, 2, 3, 4, 8, 64)] == [1, 2, 2, 2, 4, 32]


@pytest.mark.parametrize(("training", "expected"), [(True, 4), (False, 8)])
def test_pictures_are_drawn_with_them(
    monkeypatch: pytest.MonkeyPatch, blob_scene: Scene, training: bool, expected: int
) -> None:
    seen: list[int] = []
    sent, arrived = [], threading.Event()

    def send(event: Event) -> None:
        sent.append(event)
        arrived.set()

    slots = FrameSlots.create(num_slots=1, slot_bytes=3 * 64 * 48)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    frames = ViewRenderer(slots, send, lambda: training)
    paint, model = frames._painter.paint, Model(blobs())

    def noted(*arguments: Any) -> Any:
        seen.append(ops.num_threads())
        return paint(*arguments)

    monkeypatch.setattr(frames._painter, "paint", noted)
    frames.publish(ShownModel(model.gaussians, model.options, 0))
    frames.request(SetView(1, 1, blob_scene.cameras[0].resized(64, 48)))
    assert arrived.wait(60)
    frames.close()
    slots.close()
    assert seen == [expected]
