"""A browser that has not shown a picture yet is sent no other one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import viser
from gui_parts import fake_camera

from splatstudio.cameras.camera import Camera
from splatstudio.gui.state.stream import FrameSource, ModelState, Stream, ViewSettings
from splatstudio.runtime.messages import Frame, ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame

pytestmark = pytest.mark.usefixtures("own_folder")


class OneModel(FrameSource):
    """Draws at once whatever is asked for, and counts it."""

    num_drawn = 0

    def model_state(self) -> ModelState:
        return ModelState(7, training=False)

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        self.num_drawn += 1
        frame = Frame(view, 1, 0, camera.width, camera.height, 7, 0.001)
        return ReceivedFrame(frame, np.zeros((camera.height, camera.width, 3), np.uint8))

    def forget(self, view: int) -> None:
        pass


def test_the_next_picture_waits_for_the_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(
        "splatstudio.gui.state.stream.push_background_jpeg", lambda _, jpeg: sent.append(jpeg)
    )
    shown = threading.Event()
    storage = SimpleNamespace(get_item=lambda _: shown.wait(60.0))
    client = SimpleNamespace(camera=fake_camera(), client_id=7, local_storage=storage)
    source = OneModel()
    stream = Stream(cast(viser.ClientHandle, client), source, ViewSettings())
    try:
        _wait_until(lambda: bool(sent))
        stream.invalidate()
        _wait_until(lambda: source.num_drawn > 1)
        time.sleep(0.3)
        assert len(sent) == 1
        shown.set()
        _wait_until(lambda: len(sent) > 1)
    finally:
        shown.set()
        stream.close()


def _wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
