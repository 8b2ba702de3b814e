"""How many threads a picture gets beside a training."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from blob_models import blobs

from splatstudio.kernels import ops
from splatstudio.models.model import Model
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.messages import Event, SetView
from splatstudio.runtime.view_renderer import ShownModel, ViewRenderer, threads_beside
from splatstudio.scene.scene import Scene


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
