"""A training elsewhere in the place of one's own: orders, events and pictures over the socket."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import CameraPath, Keyframe
from splatstudio.rendering.modes import Legend
from splatstudio.runtime import messages
from splatstudio.runtime.channel.hub import MAX_VIEWS, Hub
from splatstudio.runtime.channel.remote_server import RemoteServer, RunCard
from splatstudio.runtime.remote_run import RemoteLine, RemotePlan, dial
from splatstudio.runtime.supervisor import WorkerClient

TIMEOUT = 120.0
E = TypeVar("E", bound=messages.Event)
CAMERA = Camera(np.eye(4), np.array([[50.0, 0, 32], [0, 50.0, 24], [0, 0, 1]]), 64, 48)
PATH = CameraPath((Keyframe(np.eye(4), 1.0, None, "a"), Keyframe(np.eye(4), 0.9, 2.0)), loop=True, fps=24.0)


class Training:
    """A training as its launcher's rank 0 knows it: a hub, a server, and the orders that have come."""

    def __init__(self, run_dir: Path, port: int = 0, token: str | None = None):
        self.orders: queue.Queue[messages.Command] = queue.Queue()
        card = RunCard(Path("scene"), run_dir, "{}", 2)
        self.hub = Hub(self.orders.put)
        self.server = RemoteServer("127.0.0.1", port, self.hub, lambda: card, token)

    def next(self) -> messages.Command:
        return self.orders.get(timeout=TIMEOUT)

    def show(self, wanted: messages.Command, value: int) -> None:
        assert isinstance(wanted, messages.SetView)
        camera = wanted.camera
        frame = messages.Frame(
            wanted.view, wanted.seq, 1, camera.width, camera.height, 7, 0.1, Legend(0, 1, "x", "gray")
        )
        self.hub.take_frame(frame, np.full((camera.height, camera.width, 3), value, np.uint8))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path)
    yield made
    made.server.close()


@pytest.fixture
def attach(training: Training, tmp_path: Path) -> Iterator[Callable[[], WorkerClient]]:
    clients: list[WorkerClient] = []

    def connect() -> WorkerClient:
        address, token = f"127.0.0.1:{training.server.port}", training.server.token
        plan = RemotePlan(dial(address, token, frames=True), lambda: dial(address, token, frames=True))
        clients.append(WorkerClient(messages.TrainJob(Path("scene"), tmp_path), plan).start())
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
        assert not client.alive


def wait_for(client: WorkerClient, kind: type[E]) -> E:
    """Return the next event of a kind; those behind it are kept for the next call."""
    deadline = time.monotonic() + TIMEOUT
    waiting = vars(client).setdefault("_waiting", [])  # several may come at once
    while time.monotonic() < deadline:
        waiting += client.poll(0.0 if waiting else 0.1)
        while waiting:
            event = waiting.pop(0)
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} came")


def test_a_view_of_a_training_elsewhere(
    training: Training, attach: Callable[[], WorkerClient], tmp_path: Path
) -> None:
    first, second = attach(), attach()
    for client, value in ((first, 40), (second, 200)):
        client.send(messages.SetView(5, 1, CAMERA))
        wanted = training.next()
        training.show(wanted, value)
        received = client.wait_for_frame(5, 1, TIMEOUT)
        assert received is not None and received.frame.legend == Legend(0, 1, "x", "gray")
        assert received.image.shape == (48, 64, 3) and np.abs(received.image.astype(int) - value).max() <= 2
    # Both count their views from the same number, and neither sees what the other looks at.
    assert first.wait_for_frame(5, 1, 0) is not None
    first.drop_view(5)
    assert isinstance(training.next(), messages.DropView)
    second.close()
    left = training.next()
    assert isinstance(left, messages.DropView), "nothing is drawn for one who has gone"


def test_who_does_not_take_its_pictures_has_no_more_drawn(training: Training) -> None:
    line = dial(f"127.0.0.1:{training.server.port}", training.server.token, frames=True)
    with closing(line):
        for seq in range(1, 6):
            line.send(messages.SetView(1, seq, CAMERA))
        wanted = training.next()
        line.send(messages.Pause())
        assert training.next() == messages.Pause(), "the other views wait for the first picture"
        training.show(wanted, 1)
        newest = training.next()
        assert isinstance(newest, messages.SetView) and newest.seq == 5, "those in between are not drawn"


def test_a_picture_is_unpacked_only_where_it_has_the_size_that_is_said(
    training: Training, attach: Callable[[], WorkerClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[bytes] = []
    monkeypatch.setattr("simplejpeg.decode_jpeg", lambda jpeg, **_: unpacked.append(jpeg))
    client = attach()
    client.send(messages.SetView(5, 1, CAMERA))
    wanted = training.next()
    assert isinstance(wanted, messages.SetView)
    training.hub.take_frame(
        messages.Frame(wanted.view, 1, 1, 64, 48, 7, 0.1), np.zeros((3000, 3000, 3), np.uint8)
    )
    assert wait_for(client, messages.StateChanged).state == "disconnected", "who sends this is left"
    assert training.next() == messages.DropView(wanted.view) and unpacked == []


def test_orders_from_outside_are_noted_in_words(
    training: Training, attach: Callable[[], WorkerClient], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "splatstudio.runtime")
    orders = {
        messages.Pause(): "pause",
        messages.Step(): "train one step",
        messages.Step(1500): "train 1,500 steps",
        messages.SetCap(90_000): "add no splats above 90,000",
        messages.UpdateSettings(
            (("steps", 9), ("ssim_weight", 0.4))
        ): "change settings: steps to 9, ssim_weight to 0.4",
        messages.Export(Path("exports/a\x1b[2J.ply"), job=1): "export to exports/a [2J.ply",
    }
    client = attach()
    client.send(messages.SetView(5, 1, CAMERA))
    client.drop_view(5)
    for order in orders:
        client.send(order)
    while not isinstance(training.next(), messages.Export):
        pass
    told = [text for text in caplog.messages if text.startswith("told from outside: ")]
    assert told == [f"told from outside: {words}" for words in orders.values()]


def test_tasks_of_two_who_watch_are_told_apart(
    training: Training, attach: Callable[[], WorkerClient], tmp_path: Path
) -> None:
    first, second = attach(), attach()
    numbers: list[int] = []
    for client in (first, second):
        client.send(messages.Export(Path("exports/a.ply"), job=1))
        asked = training.next()
        assert isinstance(asked, messages.Export) and asked.path == tmp_path / "exports" / "a.ply"
        numbers.append(asked.job)
    second.send(messages.CancelJob(1))
    assert training.next() == messages.CancelJob(numbers[1])
    training.hub.receive(messages.JobProgress(numbers[1], 1, 2, None))
    training.hub.receive(messages.JobDone(numbers[0], tmp_path / "exports" / "a.ply", 9))
    assert wait_for(first, messages.JobDone) == messages.JobDone(1, tmp_path / "exports" / "a.ply", 9)
    assert wait_for(second, messages.JobProgress) == messages.JobProgress(1, 1, 2, None)
    training.server.close()
    assert isinstance(wait_for(second, messages.JobFailed), messages.JobFailed), (
        "its end is not known any more"
    )
    assert not [event for event in first.poll() if isinstance(event, messages.JobFailed)], "it was complete"


def test_who_comes_later_hears_how_it_stands(training: Training, attach: Callable[[], WorkerClient]) -> None:
    for event in (
        messages.StateChanged("training"),
        messages.Receipt(1, True),
        messages.SettingChanged(1, "steps", 9),
    ):
        training.hub.receive(event)
    training.hub.receive(messages.SettingChanged(2, "ssim_weight", 0.5))
    training.hub.receive(messages.SettingChanged(3, "steps", 10))
    training.hub.receive(messages.Warned("last"))
    client, heard = attach(), []
    while not heard or not isinstance(heard[-1], messages.Warned):
        heard += client.poll(TIMEOUT)
    assert heard == [
        messages.StateChanged("training"),
        messages.SettingChanged(2, "ssim_weight", 0.5),
        messages.SettingChanged(3, "steps", 10),
        messages.Warned("last"),
    ]


def test_a_training_that_is_started_again_is_found_again(
    training: Training, attach: Callable[[], WorkerClient], tmp_path: Path
) -> None:
    client = attach()
    training.hub.receive(messages.Saved(7, tmp_path / "ckpts" / "step_00000007"))
    client.send(messages.SetView(1, 1, CAMERA))
    training.next()
    training.server.close()
    told: list[str] = []
    while client.state != "disconnected" or not told:
        events = client.poll(0.05)
        told += [event.reason for event in events if isinstance(event, messages.StateChanged) if event.reason]
    assert re.search(
        r"tried again until \d\d:\d\d\. The training may have ended\. It last saved step 7\.$", told[0]
    )
    client.send(messages.Pause())
    warned: list[str] = []
    while not any("not told to pause: there is no connection" in sentence for sentence in warned):
        warned += [event.sentence for event in client.poll(TIMEOUT) if isinstance(event, messages.Warned)]
    again = Training(tmp_path, training.server.port, training.server.token)
    try:
        again.hub.receive(messages.StateChanged("training"))
        wanted = again.next()
        assert isinstance(wanted, messages.SetView), "what it looked at is asked for again"
        again.show(wanted, 9)
        assert client.wait_for_frame(1, 1, TIMEOUT) is not None
        client.send(messages.Pause())
        assert again.next() == messages.Pause() and client.state == "training"
        again.hub.receive(messages.StateChanged("finished"))
        again.hub.receive(messages.Finished(9, True, None))
    finally:
        again.server.close()
    while client.state != "ended":
        client.poll(0.05)


def test_to_leave_is_not_to_end_the_training(
    training: Training, attach: Callable[[], WorkerClient], tmp_path: Path
) -> None:
    client = attach()
    client.send(messages.Pause())
    assert training.next() == messages.Pause()
    client.close()
    assert client.state == "ended" and not client.alive and training.orders.empty()
    attach().send(messages.Pause())
    assert training.next() == messages.Pause()


def test_a_training_that_does_not_read_keeps_no_page_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splatstudio.runtime.channel.remote_server.SEND_SECONDS", 1.0)
    stopped = threading.Event()
    card = RunCard(Path("scene"), tmp_path, "{}", 2)

    def obey(_: messages.Command) -> None:
        stopped.wait(TIMEOUT)

    server = RemoteServer("127.0.0.1", 0, Hub(obey), lambda: card)
    address = f"127.0.0.1:{server.port}"

    def dialed() -> RemoteLine:
        return dial(address, server.token, frames=True)

    client = WorkerClient(messages.TrainJob(Path("scene"), tmp_path), RemotePlan(dialed(), dialed)).start()
    try:
        for _ in range(120):  # more than the sockets hold, of which some systems let one grow to 32 MB
            client.send(messages.UpdateSettings((("a", "x" * 1_000_000),)))
        while "there is no connection" not in wait_for(client, messages.Warned).sentence:
            pass
    finally:
        client.close()
        stopped.set()
        server.close()
    assert not client.alive


class Client:
    """Who notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[messages.Event] = []
        self.frames: list[messages.Frame] = []

    def receive(self, event: messages.Event) -> None:
        self.heard.append(event)

    def take_frame(self, frame: messages.Frame, image: np.ndarray) -> None:
        self.frames.append(frame)


def test_of_too_many_views_of_one_client_the_oldest_is_dropped() -> None:
    obeyed: list[messages.Command] = []
    hub, client = Hub(obeyed.append), Client()
    place = hub.connect(client)
    for view in range(MAX_VIEWS):
        place.send(messages.SetView(view, 1, CAMERA))
    in_use, first = obeyed[0], obeyed[1]
    assert isinstance(in_use, messages.SetView) and isinstance(first, messages.SetView)
    place.send(messages.SetView(0, 2, CAMERA))
    place.send(messages.SetView(MAX_VIEWS, 1, CAMERA))
    assert obeyed[-2] == messages.DropView(first.view), "not the one that was asked for just now"
    hub.take_frame(messages.Frame(in_use.view, 2, 0, 64, 48, 7, 0.1), np.zeros((48, 64, 3), np.uint8))
    assert [frame.view for frame in client.frames] == [0]
    client.frames.clear()
    hub.take_frame(messages.Frame(first.view, 1, 0, 64, 48, 7, 0.1), np.zeros((48, 64, 3), np.uint8))
    assert client.frames == [], "nobody looks there any more"
    place.close()
    assert len([each for each in obeyed if isinstance(each, messages.DropView)]) == MAX_VIEWS + 1


def test_a_plateau_that_was_left_is_not_told_to_who_comes_later() -> None:
    hub, late = Hub(lambda _: None), Client()
    hub.receive(messages.PlateauReached(4800, 9000, 2000, 27.0, False, True, 0.3))
    hub.receive(messages.PlateauLeft(5400))
    hub.connect(late)
    assert late.heard == [messages.PlateauLeft(5400)]


def test_who_comes_later_drops_no_steps_that_are_done_by_then() -> None:
    hub, late = Hub(lambda _: None), Client()
    hub.receive(messages.Started(0, 100, 10, 4, 1))
    hub.receive(messages.Progress(40, 120, 0.1, None, 55, 10.0, None))
    hub.connect(late)
    assert late.heard[0] == messages.Started(40, 120, 55, 4, 1)
