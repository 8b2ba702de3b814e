"""A training elsewhere in the place of one's own: orders, events and pictures over the socket."""

from __future__ import annotations

import queue
import stat
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
from splatstudio.runtime.channel.hub import MAX_VIEWS, Hub
from splatstudio.runtime.channel.remote_server import RemoteServer, RunCard
from splatstudio.runtime.headless_controller import keep_token, kept_token
from splatstudio.runtime.messages import (
    CancelJob,
    Command,
    DropView,
    Event,
    Export,
    Finished,
    Frame,
    JobDone,
    JobFailed,
    JobProgress,
    Pause,
    PlateauLeft,
    PlateauReached,
    Progress,
    Receipt,
    SettingChanged,
    SetView,
    Started,
    StateChanged,
    TrainJob,
    UpdateSettings,
    Warned,
)
from splatstudio.runtime.remote_run import RemoteLine, RemotePlan, dial
from splatstudio.runtime.supervisor import WorkerClient

TIMEOUT = 120.0
E = TypeVar("E", bound=Event)
CAMERA = Camera(np.eye(4), np.array([[50.0, 0, 32], [0, 50.0, 24], [0, 0, 1]]), 64, 48)
PATH = CameraPath((Keyframe(np.eye(4), 1.0, None, "a"), Keyframe(np.eye(4), 0.9, 2.0)), loop=True, fps=24.0)


class Training:
    """A training as its launcher's rank 0 knows it: a hub, a server, and the orders that have come."""

    def __init__(self, run_dir: Path, port: int = 0, token: str | None = None):
        self.orders: queue.Queue[Command] = queue.Queue()
        card = RunCard(Path("scene"), run_dir, "{}", 2)
        self.hub = Hub(self.orders.put)
        self.server = RemoteServer("127.0.0.1", port, self.hub, lambda: card, token)

    def next(self) -> Command:
        return self.orders.get(timeout=TIMEOUT)

    def show(self, wanted: Command, value: int) -> None:
        assert isinstance(wanted, SetView)
        camera = wanted.camera
        frame = Frame(
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
        clients.append(WorkerClient(TrainJob(Path("scene"), tmp_path), plan).start())
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
        client.send(SetView(5, 1, CAMERA))
        wanted = training.next()
        training.show(wanted, value)
        received = client.wait_for_frame(5, 1, TIMEOUT)
        assert received is not None and received.frame.legend == Legend(0, 1, "x", "gray")
        assert received.image.shape == (48, 64, 3) and np.abs(received.image.astype(int) - value).max() <= 2
    # Both count their views from the same number, and neither sees what the other looks at.
    assert first.wait_for_frame(5, 1, 0) is not None
    first.drop_view(5)
    assert isinstance(training.next(), DropView)
    second.close()
    left = training.next()
    assert isinstance(left, DropView), "nothing is drawn for one who has gone"


def test_who_does_not_take_its_pictures_has_no_more_drawn(training: Training) -> None:
    line = dial(f"127.0.0.1:{training.server.port}", training.server.token, frames=True)
    with closing(line):
        for seq in range(1, 6):
            line.send(SetView(1, seq, CAMERA))
        wanted = training.next()
        line.send(Pause())
        assert training.next() == Pause(), "the other views wait for the first picture"
        training.show(wanted, 1)
        newest = training.next()
        assert isinstance(newest, SetView) and newest.seq == 5, "those in between are not drawn"


def test_a_picture_is_unpacked_only_where_it_has_the_size_that_is_said(
    training: Training, attach: Callable[[], WorkerClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[bytes] = []
    monkeypatch.setattr("simplejpeg.decode_jpeg", lambda jpeg, **_: unpacked.append(jpeg))
    client = attach()
    client.send(SetView(5, 1, CAMERA))
    wanted = training.next()
    assert isinstance(wanted, SetView)
    training.hub.take_frame(Frame(wanted.view, 1, 1, 64, 48, 7, 0.1), np.zeros((3000, 3000, 3), np.uint8))
    assert wait_for(client, StateChanged).state == "restarting", "who sends this is left"
    assert training.next() == DropView(wanted.view) and unpacked == []


def test_tasks_of_two_who_watch_are_told_apart(
    training: Training, attach: Callable[[], WorkerClient], tmp_path: Path
) -> None:
    first, second = attach(), attach()
    numbers: list[int] = []
    for client in (first, second):
        client.send(Export(Path("exports/a.ply"), job=1))
        asked = training.next()
        assert isinstance(asked, Export) and asked.path == tmp_path / "exports" / "a.ply"
        numbers.append(asked.job)
    second.send(CancelJob(1))
    assert training.next() == CancelJob(numbers[1])
    training.hub.receive(JobProgress(numbers[1], 1, 2, None))
    training.hub.receive(JobDone(numbers[0], tmp_path / "exports" / "a.ply", 9))
    assert wait_for(first, JobDone) == JobDone(1, tmp_path / "exports" / "a.ply", 9)
    assert wait_for(second, JobProgress) == JobProgress(1, 1, 2, None)
    training.server.close()
    assert isinstance(wait_for(second, JobFailed), JobFailed), "its end is not known any more"
    assert not [event for event in first.poll() if isinstance(event, JobFailed)], "it was complete"


def test_who_comes_later_hears_how_it_stands(training: Training, attach: Callable[[], WorkerClient]) -> None:
    for event in (StateChanged("training"), Receipt(1, True), SettingChanged(1, "steps", 9)):
        training.hub.receive(event)
    training.hub.receive(SettingChanged(2, "ssim_weight", 0.5))
    training.hub.receive(SettingChanged(3, "steps", 10))
    training.hub.receive(Warned("last"))
    client, heard = attach(), []
    while not heard or not isinstance(heard[-1], Warned):
        heard += client.poll(TIMEOUT)
    assert heard == [
        StateChanged("training"),
        SettingChanged(2, "ssim_weight", 0.5),
        SettingChanged(3, "steps", 10),
        Warned("last"),
    ]


def test_a_training_that_is_started_again_is_found_again(
    training: Training, attach: Callable[[], WorkerClient], tmp_path: Path
) -> None:
    client = attach()
    client.send(SetView(1, 1, CAMERA))
    training.next()
    training.server.close()
    while client.state != "restarting":
        client.poll(0.05)
    client.send(Pause())
    warned: list[str] = []
    while not any("Pause: there is no connection" in sentence for sentence in warned):
        warned += [event.sentence for event in client.poll(TIMEOUT) if isinstance(event, Warned)]
    again = Training(tmp_path, training.server.port, training.server.token)
    try:
        again.hub.receive(StateChanged("training"))
        wanted = again.next()
        assert isinstance(wanted, SetView), "what it looked at is asked for again"
        again.show(wanted, 9)
        assert client.wait_for_frame(1, 1, TIMEOUT) is not None
        client.send(Pause())
        assert again.next() == Pause() and client.state == "training"
        again.hub.receive(StateChanged("finished"))
        again.hub.receive(Finished(9, True, None))
    finally:
        again.server.close()
    while client.state != "ended":
        client.poll(0.05)


def test_to_leave_is_not_to_end_the_training(
    training: Training, attach: Callable[[], WorkerClient], tmp_path: Path
) -> None:
    client = attach()
    client.send(Pause())
    assert training.next() == Pause()
    client.close()
    assert client.state == "ended" and not client.alive and training.orders.empty()
    attach().send(Pause())
    assert training.next() == Pause()


def test_a_training_that_does_not_read_keeps_no_page_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splatstudio.runtime.channel.remote_server.SEND_SECONDS", 1.0)
    stopped = threading.Event()
    card = RunCard(Path("scene"), tmp_path, "{}", 2)

    def obey(_: Command) -> None:
        stopped.wait(TIMEOUT)

    server = RemoteServer("127.0.0.1", 0, Hub(obey), lambda: card)
    address = f"127.0.0.1:{server.port}"

    def dialled() -> RemoteLine:
        return dial(address, server.token, frames=True)

    client = WorkerClient(TrainJob(Path("scene"), tmp_path), RemotePlan(dialled(), dialled)).start()
    try:
        for _ in range(40):  # more than the socket holds
            client.send(UpdateSettings((("a", "x" * 1_000_000),)))
        while "there is no connection" not in wait_for(client, Warned).sentence:
            pass
    finally:
        client.close()
        stopped.set()
        server.close()
    assert not client.alive


def test_a_restart_keeps_the_token_which_nobody_else_can_read(tmp_path: Path) -> None:
    assert kept_token(tmp_path) is None
    keep_token(tmp_path, "a secret of some length")
    assert kept_token(tmp_path) == "a secret of some length"
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text('{"token": "short"}')
    assert kept_token(tmp_path) is None


class Client:
    """Who notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.frames: list[Frame] = []

    def receive(self, event: Event) -> None:
        self.heard.append(event)

    def take_frame(self, frame: Frame, image: np.ndarray) -> None:
        self.frames.append(frame)


def test_of_too_many_views_of_one_client_the_oldest_is_dropped() -> None:
    obeyed: list[Command] = []
    hub, client = Hub(obeyed.append), Client()
    place = hub.connect(client)
    for view in range(MAX_VIEWS + 1):
        place.send(SetView(view, 1, CAMERA))
    first = obeyed[0]
    assert isinstance(first, SetView) and obeyed[-2] == DropView(first.view)
    hub.take_frame(Frame(first.view, 1, 0, 64, 48, 7, 0.1), np.zeros((48, 64, 3), np.uint8))
    assert client.frames == [], "nobody looks there any more"
    place.close()
    assert len([each for each in obeyed if isinstance(each, DropView)]) == MAX_VIEWS + 1


def test_a_plateau_that_was_left_is_not_told_to_who_comes_later() -> None:
    hub, late = Hub(lambda _: None), Client()
    hub.receive(PlateauReached(4800, 9000, 2000, 27.0, False, True, 0.3))
    hub.receive(PlateauLeft(5400))
    hub.connect(late)
    assert late.heard == [PlateauLeft(5400)]


def test_who_comes_later_drops_no_steps_that_are_done_by_then() -> None:
    hub, late = Hub(lambda _: None), Client()
    hub.receive(Started(0, 100, 10, 4, 1))
    hub.receive(Progress(40, 120, 0.1, None, 55, 10.0, None, 4.0))
    hub.connect(late)
    assert late.heard[0] == Started(40, 120, 55, 4, 1)
