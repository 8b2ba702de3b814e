"""What the studio does where something beside it fails, or is not what it was."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import viser
from gui_parts import Steered, fake_camera
from path_builder import random_keys

from splatstudio.gui.app import Studio
from splatstudio.gui.panel import Page
from splatstudio.gui.state.camera_paths import PathEditor
from splatstudio.gui.state.controller import Notice
from splatstudio.gui.state.scene_overlay import PathScene
from splatstudio.gui.state.stream import ModelState, Stream, ViewSettings
from splatstudio.gui.tabs.render_output import OutputSection
from splatstudio.runtime.client import WorkerClient
from splatstudio.runtime.messages import (
    Frame,
    ModelLoaded,
    SetView,
    StateChanged,
    TrainJob,
    ViewJob,
    ViewOptions,
)
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

LOADED = ModelLoaded(7, 100, (0.0, 0.0, 0.0), 1.0)


def test_a_second_model_of_the_same_step_is_drawn_and_a_bad_panel_stops_nothing() -> None:
    told: list[str] = []

    class Bad:
        def follow(self, event: Any) -> None:
            raise KeyError("gone")

    studio = SimpleNamespace(
        controller=SimpleNamespace(project=SimpleNamespace(scene=object())),
        _tasks=SimpleNamespace(follow=lambda _: None),
        _refresher=SimpleNamespace(
            panels=[Bad(), SimpleNamespace(follow=lambda _: told.append("second panel"))],
            changed=lambda: told.append("refreshed"),
        ),
        _viewport=SimpleNamespace(
            invalidate=lambda: told.append("drawn again"), model_changed=lambda: told.append("looked")
        ),
        _tell_of=lambda panel, error: told.append(type(error).__name__),
    )
    Studio._follow(cast(Studio, studio), LOADED)
    assert told == ["KeyError", "second panel", "drawn again", "refreshed"]
    told.clear()
    Studio._follow(cast(Studio, studio), StateChanged("viewing"))
    assert told[-2:] == ["looked", "refreshed"]


def test_a_listener_that_fails_keeps_no_event_from_the_others(
    blob_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = WorkerClient(TrainJob(blob_folder, tmp_path / "run", TrainConfig()))
    heard: list[object] = []

    def fail(event: object) -> None:
        raise IndexError(event)

    client.subscribe(fail)
    client.subscribe(heard.append)
    client.receive(LOADED)
    client.receive(LOADED)
    assert heard == [LOADED, LOADED]
    assert "IndexError" in caplog.text and "ModelLoaded" in caplog.text


def test_frames_that_nobody_waits_for_are_not_kept(
    blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    client = WorkerClient(TrainJob(blob_folder, tmp_path / "run", TrainConfig()))
    image = np.zeros((4, 4, 3), np.uint8)
    frame = cast(Frame, SimpleNamespace(view=5, seq=1))
    client.send(SetView(5, 1, blob_scene.cameras[0], ViewOptions()))
    client.take_frame(frame, image)
    assert client.wait_for_frame(5, 1, 0.0) is not None
    client.drop_view(5)
    client.take_frame(frame, image)
    assert client.wait_for_frame(5, 1, 0.0) is None


def test_a_picture_in_progress_when_a_browser_leaves_is_forgotten_too() -> None:
    order: list[str] = []
    asked, go_on = threading.Event(), threading.Event()

    class Slow:
        def model_state(self) -> ModelState:
            return ModelState(1, training=False)

        def render(self, view: int, camera: Any, options: Any) -> None:
            asked.set()
            go_on.wait(60.0)
            order.append("rendered")

        def forget(self, view: int) -> None:
            order.append("forgotten")

    client = cast(viser.ClientHandle, type("Client", (), {"camera": fake_camera(), "client_id": 7})())
    stream = Stream(client, Slow(), ViewSettings())
    assert asked.wait(60.0)
    stream.close()
    go_on.set()
    stream._thread.join(60.0)
    assert order[-2:] == ["rendered", "forgotten"]


def test_more_steps_are_offered_for_the_runs_own_model_only(idle: Steered, tmp_path: Path) -> None:
    controller = idle.controller
    assert controller.project.run_dir is not None
    own = controller.project.run_dir / "ckpts" / "step_00000007"
    for path, offered in ((own, True), (tmp_path / "other" / "ckpts" / own.name, False)):
        worker = controller._worker = controller._new_worker(ViewJob(path))
        worker.receive(LOADED)
        worker.receive(StateChanged("viewing"))
        assert controller.status.step == 7 and controller.can_train_more is offered


def test_a_worker_that_cannot_be_started_is_told_and_can_be_tried_again(
    idle: Steered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, notices = idle.controller, idle.notices
    controller._worker.receive(StateChanged("failed"))

    def no_space(self: WorkerClient) -> WorkerClient:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(WorkerClient, "start", no_space)
        controller.press_primary()
        assert controller.status.state == "failed" and "No space left" in controller.status.message
        assert notices[-1].bad and controller.choice().enabled
        controller.view(tmp_path / "some.ply")
        assert controller.status.state == "failed"
    sent: list[object] = []
    monkeypatch.setattr(WorkerClient, "start", lambda self: self)
    monkeypatch.setattr(WorkerClient, "send", lambda self, command: sent.append(type(command).__name__))
    controller.press_primary()
    assert controller.status.state == "loading" and "Start" in sent


class FakeServer:
    """Takes nodes, and says who leaves."""

    def __init__(self) -> None:
        self.scene = self
        self.left: Callable[[Any], Any] | None = None
        self.update: Callable[[Any], Any] | None = None

    def add_frame(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace()

    def add_transform_controls(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(on_update=lambda do: setattr(self, "update", do))

    def on_client_disconnect(self, do: Callable[[Any], Any]) -> None:
        self.left = do


def test_handles_are_free_again_when_who_drags_them_leaves() -> None:
    import asyncio

    server, editor = FakeServer(), PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    drawn = PathScene(cast(viser.ViserServer, server), editor, 1.0)
    drawn.show_handles(True)
    assert server.update is not None and server.left is not None and drawn._handles is not None
    target = SimpleNamespace(wxyz=np.array([1.0, 0, 0, 0]), position=np.ones(3))
    asyncio.run(server.update(SimpleNamespace(client_id=3, phase="start", target=target)))

    def place_of(selected: int) -> bool:
        assert drawn._handles is not None
        editor.select(selected)
        drawn._place_handles()
        return np.allclose(drawn._handles.position, editor.path.keyframes[selected].camera_to_world[:3, 3])

    assert not place_of(0), "they stay where they are held"
    asyncio.run(server.left(SimpleNamespace(client_id=4)))
    assert not place_of(0), "somebody else has left"
    asyncio.run(server.left(SimpleNamespace(client_id=3)))
    assert place_of(0) and place_of(1)


def test_a_video_takes_no_other_ones_place(
    page: Page, notices: list[Notice], sent: list[Any], tmp_path: Path
) -> None:
    editor = PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    (tmp_path / "mine.mp4").write_bytes(b"an older video")
    section = OutputSection(page, editor)
    section._file.value = str(tmp_path / "mine.mp4")
    section._start(cast(viser.ClientHandle, object()))
    assert sent[0].output == tmp_path / "mine-2.mp4"
    assert "mine-2.mp4" in notices[0].title and "mine.mp4 exists and stays" in notices[0].text
