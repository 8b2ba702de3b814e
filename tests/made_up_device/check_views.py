"""Frames beside a training: drawn when the model has been written, and before the steps that come after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import made_up_device
import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.render import RenderOptions, render_image
from splatstudio.runtime import view_renderer
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.messages import Event, Frame, SetView, ViewOptions
from splatstudio.runtime.view_renderer import ShownModel, ViewRenderer

CAMERA = ring_of_cameras()[2]
DEVICE = made_up_device.DEVICES[1]


@contextmanager
def renderer(slots: FrameSlots) -> Iterator[tuple[ViewRenderer, list[Event], threading.Event]]:
    """Yield frames' thread, what it sends, and what is set when it has sent something."""
    sent: list[Event] = []
    arrived = threading.Event()

    def send(event: Event) -> None:
        sent.append(event)
        arrived.set()

    frames = ViewRenderer(slots, send, lambda: True)
    yield frames, sent, arrived
    frames.close()


def picture(model: Gaussians) -> np.ndarray:
    """Return the frame of a view of a model that is published."""
    slots = FrameSlots.create(num_slots=1, slot_bytes=3 * CAMERA.width * CAMERA.height)
    with renderer(slots) as (frames, sent, arrived):
        frames.publish(ShownModel(model, RenderOptions(), 1))
        frames.request(SetView(0, 1, CAMERA, ViewOptions()))
        assert arrived.wait(60)
    (frame,) = sent
    assert isinstance(frame, Frame), frame
    image = slots.view(frame.slot, frame.height, frame.width).copy()
    slots.close()
    return image


def on_its_way(model: Gaussians) -> Gaussians:
    """Return a model whose tensors a device gets behind the work that it has."""
    return model.map(lambda tensor: tensor.pin_memory().to(DEVICE, non_blocking=True))


def test_a_frame_shows_what_was_still_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = render_image(blobs(), CAMERA, RenderOptions())
    assert expected.std() > 5 and np.array_equal(picture(on_its_way(blobs())), expected)

    def without_waiting(self: ShownModel, before: Any) -> ShownModel:
        queue = torch.Stream(DEVICE)
        return view_renderer.replace(self, written=view_renderer.recorded_event(queue))

    monkeypatch.setattr(ShownModel, "with_event", without_waiting)
    assert not np.array_equal(picture(on_its_way(blobs())), expected), "drawn before it was there"


def test_a_frame_waits_for_no_step() -> None:
    model = blobs().to(DEVICE)
    slots = FrameSlots.create(num_slots=1, slot_bytes=3 * CAMERA.width * CAMERA.height)
    with renderer(slots) as (frames, sent, arrived):
        frames.publish(ShownModel(model, RenderOptions(), 1))
        queued = made_up_device.num_late_copies()
        step = torch.ones(5).pin_memory().to(DEVICE, non_blocking=True)
        assert made_up_device.num_late_copies() == queued + 1
        done = view_renderer.recorded_event(view_renderer.current_stream(DEVICE))
        frames.publish(ShownModel(model.detach(), RenderOptions(), 2))  # the same tensors, moved by a step
        frames.request(SetView(0, 1, CAMERA, ViewOptions()))
        assert arrived.wait(60)
        assert not done.query(), "the frame has waited for what was queued after the model"
    assert isinstance(sent[0], Frame) and sent[0].step == 2 and step.sum() == 5
    slots.close()
