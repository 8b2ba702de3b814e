"""Errors beside the training: a task or a view that fails says so, and nothing else ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blob_models import blobs
from worker_watcher import finish

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.models import exporter
from splatstudio.models.model import Model
from splatstudio.runtime import messages
from splatstudio.runtime import tasks as tasks_module
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.tasks import Tasks
from splatstudio.runtime.view_renderer import ShownModel, ViewRenderer
from splatstudio.scene.scene import Scene


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
