"""A training elsewhere in the place of one's own: orders, events and pictures over the socket."""

from __future__ import annotations

import queue
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import CameraPath, Keyframe
from splatstudio.rendering.modes import Legend
from splatstudio.runtime import handshake
from splatstudio.runtime.attached import EVENTS
from splatstudio.runtime.channel.handshake import RunCard
from splatstudio.runtime.channel.remote_server import RemoteServer
from splatstudio.runtime.client import WorkerClient
from splatstudio.runtime.headless_controller import keep_token, kept_token
from splatstudio.runtime.messages import (
    CancelJob,
    Command,
    Densified,
    DropView,
    Evaluated,
    Event,
    Export,
    Finished,
    Frame,
    JobDone,
    JobFailed,
    JobProgress,
    Pause,
    PausesAt,
    PhotoErrors,
    RankFigures,
    RanksReport,
    Receipt,
    RenderPath,
    SettingChanged,
    SetView,
    Snapshot,
    StateChanged,
    TrainJob,
    UpdateSettings,
    ViewOptions,
    Warned,
)
from splatstudio.runtime.plain_form import from_plain, plain
from splatstudio.runtime.remote_client import order_in, order_line
from splatstudio.runtime.remote_run import RemoteLine, RemotePlan, dial
from splatstudio.strategy import Change

TIMEOUT = 120.0
E = TypeVar("E", bound=Event)
CAMERA = Camera(np.eye(4), np.array([[50.0, 0, 32], [0, 50.0, 24], [0, 0, 1]]), 64, 48)
PATH = CameraPath((Keyframe(np.eye(4), 1.0, None, "a"), Keyframe(np.eye(4), 0.9, 2.0)), loop=True, fps=24.0)


class Training:
    """A training as its launcher's rank 0 knows it: a server, and the orders that have come."""

    def __init__(self, run_dir: Path, port: int = 0, token: str | None = None):
        self.orders: queue.Queue[Command] = queue.Queue()
        card = RunCard(Path("scene"), run_dir, "{}", 2)
        self.server = RemoteServer("127.0.0.1", port, self.orders.put, lambda: card, token)

    def next(self) -> Command:
        return self.orders.get(timeout=TIMEOUT)

    def show(self, wanted: Command, value: int) -> None:
        assert isinstance(wanted, SetView)
        camera = wanted.camera
        frame = Frame(
            wanted.view, wanted.seq, 1, camera.width, camera.height, 7, 0.1, Legend(0, 1, "x", "gray")
        )
        self.server.show(frame, np.full((camera.height, camera.width, 3), value, np.uint8))


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


@pytest.mark.parametrize(
    "message",
    [
        Densified(3, 9, Change(cloned=2, opacities_reset=True)),
        PhotoErrors(3, (("a.png", 20.5), ("b.png", 30.0))),
        SettingChanged(3, "optim.means_lr", 1e-5),
        SettingChanged(3, "background", (0.0, 1.0, 0.5)),
        Evaluated(3, 20.0, 0.9, 2, Path("/run/eval")),
        Evaluated(3, 20.0, 0.9, 2, None),
        RanksReport(3, (RankFigures(0, 10, 0.1, 0.01), RankFigures(1, 9, 0.1, 0.02))),
        Finished(3, False, Path("/run/ckpts/step_3")),
    ],
)
def test_events_come_through_as_they_are(message: Event) -> None:
    kind = EVENTS[type(message).__name__]
    assert from_plain(kind, plain(message)) == message


def test_all_that_a_training_tells_can_be_heard_elsewhere() -> None:
    ours = {kind for kind in Event.__subclasses__() if kind.__module__.startswith("splatstudio.")}
    told = ours - {Receipt, PausesAt, Frame}  # for the training's own process; a picture has its own way
    assert told and told <= set(EVENTS.values()), "an unknown event breaks the line, again and again"


@pytest.mark.parametrize(
    "order",
    [
        SetView(3, 9, CAMERA, ViewOptions((0.1, 0.2, 0.3), False, "depth", 0.5, 0.01, None, 2, True, 1)),
        Export(
            Path("exports/a.ply"), upright=True, cameras=(("a", CAMERA),), first=CAMERA, eyes=((1, 2, 3),)
        ),
        RenderPath(PATH, Path("renders/a.mp4"), "small", ViewOptions(), job=4),
        Snapshot(CAMERA, Path("renders/a.png"), job=5),
        UpdateSettings((("optim.means_lr", 1e-5), ("densify.absgrad", True))),
    ],
)
def test_orders_come_through_as_they_are(order: Command) -> None:
    again = order_in(order_line(order))
    assert type(again) is type(order) and plain(again) == plain(order)


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


def test_who_does_not_take_its_pictures_has_no_more_drawn(tmp_path: Path, training: Training) -> None:
    line = dial(f"127.0.0.1:{training.server.port}", training.server.token, frames=True)
    with line.socket, line.answers:
        for seq in range(1, 6):
            line.socket.sendall(order_line(SetView(1, seq, CAMERA)))
        wanted = training.next()
        line.socket.sendall(order_line(Pause()))
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
    training.server.show(Frame(wanted.view, 1, 1, 64, 48, 7, 0.1), np.zeros((3000, 3000, 3), np.uint8))
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
    training.server.tell(JobProgress(numbers[1], 1, 2, None))
    training.server.tell(JobDone(numbers[0], tmp_path / "exports" / "a.ply", 9))
    assert wait_for(first, JobDone) == JobDone(1, tmp_path / "exports" / "a.ply", 9)
    assert wait_for(second, JobProgress) == JobProgress(1, 1, 2, None)
    training.server.close()
    assert isinstance(wait_for(second, JobFailed), JobFailed), "its end is not known any more"
    assert not [event for event in first.poll() if isinstance(event, JobFailed)], "it was complete"


def test_who_comes_later_hears_how_it_stands(training: Training, attach: Callable[[], WorkerClient]) -> None:
    for event in (StateChanged("training"), Receipt(1, True), SettingChanged(1, "steps", 9)):
        training.server.tell(event)
    training.server.tell(SettingChanged(2, "ssim_weight", 0.5))
    training.server.tell(SettingChanged(3, "steps", 10))
    training.server.tell(Warned("last"))
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
        again.server.tell(StateChanged("training"))
        wanted = again.next()
        assert isinstance(wanted, SetView), "what it looked at is asked for again"
        again.show(wanted, 9)
        assert client.wait_for_frame(1, 1, TIMEOUT) is not None
        client.send(Pause())
        assert again.next() == Pause() and client.state == "training"
        again.server.tell(StateChanged("finished"))
        again.server.tell(Finished(9, True, None))
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
    monkeypatch.setattr(handshake, "SEND_SECONDS", 1.0)
    stopped = threading.Event()
    card = RunCard(Path("scene"), tmp_path, "{}", 2)

    def obey(_: Command) -> None:
        stopped.wait(TIMEOUT)

    server = RemoteServer("127.0.0.1", 0, obey, lambda: card)
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
