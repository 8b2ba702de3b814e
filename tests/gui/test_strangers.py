"""Browsers that go away, hang or mean harm, beside a training: what one sees of them, and that it goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import viser
import zstandard
from gate_client import CAMERA, get, send, websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.connection import Connection
from worker_watcher import MANY, TIMEOUT

from splatstudio.cameras.camera import Camera
from splatstudio.gui.app import Studio
from splatstudio.gui.server.access import Listen
from splatstudio.gui.state import controller as controller_module
from splatstudio.runtime.channel.frame_slots import NUM_SLOTS
from splatstudio.runtime.heartbeat import Limits
from splatstudio.runtime.messages import Save, ViewOptions
from splatstudio.runtime.rank import activity_of, rank_main
from splatstudio.runtime.supervisor import Plan, ReceivedFrame

QUICK = Plan(rank_main, activity_of, limits=Limits(frozen=1.5))
SMALL = CAMERA | {"image_width": 320, "image_height": 180}


@dataclass
class Training:
    """A studio that trains, and what it has told."""

    studio: Studio
    token: str
    forgiven: int = 0  # of what went wrong, in earlier tests

    @property
    def step(self) -> int:
        return self.studio.controller.status.step

    @property
    def bad_news(self) -> list[str]:
        return [item.notice.text for item in self.studio._news.items if item.notice.bad]

    @property
    def told(self) -> list[str]:
        """Return what went wrong in this test, as the user was told."""
        return self.bad_news[self.forgiven :]

    def goes_on(self) -> None:
        """Assert that it trains, without a pause, a failure or a restart."""
        pids, before = self.studio.controller.pids, self.step
        wait(lambda: self.step > before + 30, "the training goes on")
        assert self.studio.controller.status.state == "training"
        assert self.studio.controller.pids == pids and not self.told

    def connect(self, **settings: str) -> Connection:
        return websocket(self.studio.port, token=self.token, **settings)  # type: ignore[arg-type]


def wait(reached: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not reached():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def studio_of_all(blob_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("strangers"))
        patch.setattr(controller_module, "plan_for", lambda *_: QUICK)
        studio = Studio(blob_folder, network=Listen(port=0), config=MANY)
        made = Training(studio, parse_qs(urlsplit(studio.url).query)["token"][0])
        wait(lambda: studio.controller.status.state == "ready", "the process is there")
        studio.start_training()
        wait(lambda: made.step > 5, "it trains")
        yield made
        studio.close()


@pytest.fixture
def training(studio_of_all: Training, caplog: pytest.LogCaptureFixture) -> Iterator[Training]:
    """A studio that trains, for all tests here: none of them leaves a trace."""
    wait(lambda: studio_of_all.studio._viewport.num_viewers == 0, "nobody looks")
    studio_of_all.forgiven = len(studio_of_all.bad_news)
    yield studio_of_all
    assert not [record for record in caplog.records if record.exc_info], "an error went to the log"


def answering(connection: Connection) -> None:
    """Take what comes and answer each picture as a page does, until the connection ends."""

    def receive() -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            for data in connection:
                assert isinstance(data, bytes)
                size = int.from_bytes(data[8:16], "little")
                inner = zstandard.ZstdDecompressor().decompress(data[16 : 16 + size])
                for message in msgspec.msgpack.decode(inner)["messages"]:
                    if message["type"] == "LocalStorageGetItemRequestMessage":
                        answer = {"value": None, "error": None, "request_uuid": message["request_uuid"]}
                        send(connection, {"type": "LocalStorageGetItemResponseMessage", **answer})

    threading.Thread(target=receive, daemon=True).start()


def raw_browser(training: Training) -> socket.socket:
    """Return the socket of a browser that has sent its first camera, and of which nobody reads."""
    lines = [
        "GET / HTTP/1.1",
        f"Host: localhost:{training.studio.port}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Sec-WebSocket-Protocol: viser-v{viser.__version__}",
        f"Authorization: Bearer {training.token}",
    ]
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", training.studio.port))
    body = msgspec.msgpack.encode(SMALL)
    assert 126 <= len(body) < 65536
    # One binary frame under a mask of zeros.
    frame = b"\x82\xfe" + struct.pack(">HI", len(body), 0) + body
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + frame)
    return connection


def reset(connection: socket.socket) -> None:
    """Break a connection off without a farewell, as a crashed browser's machine does (RST)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_a_browser_that_breaks_off_in_the_midst_of_a_picture_costs_nothing(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = training.studio
    rendering, gone = threading.Event(), threading.Event()
    render = studio.controller.render
    answers: list[ReceivedFrame | None] = []

    def held(view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        rendering.set()
        gone.wait(TIMEOUT)
        answers.append(render(view, camera, options))
        return answers[-1]

    monkeypatch.setattr(studio.controller, "render", held)
    for _ in range(NUM_SLOTS + 2):  # a slot that is not given back would be missed
        rendering.clear()
        gone.clear()
        browser = raw_browser(training)
        assert rendering.wait(TIMEOUT)
        wait(lambda: studio._viewport.num_viewers == 1, "it is counted")
        reset(browser)
        gone.set()
        wait(lambda: studio._viewport.num_viewers == 0, "it is not counted any more")
    training.goes_on()
    before = len(answers)
    with training.connect() as browser:
        answering(browser)
        send(browser, SMALL)
        wait(lambda: any(answers[before:]), "the next browser gets its picture")
    training.goes_on()


def test_one_browser_too_many_and_a_foreign_page_are_told_and_change_nothing(training: Training) -> None:
    studio = training.studio
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            stack.enter_context(training.connect())
        with pytest.raises(InvalidStatus) as refused:
            training.connect()
        assert refused.value.response.status_code == 503
        code, _, body = get(studio.port, "/", Authorization=f"Bearer {training.token}")
        assert code == 503 and "32 browsers" in body
        training.goes_on()
    with pytest.raises(InvalidStatus) as refused:
        training.connect(origin="https://evil.example")
    assert refused.value.response.status_code == 403
    assert studio._viewport.num_viewers == 0
    training.goes_on()


def test_a_browser_that_never_reads_keeps_no_other_waiting(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = training.studio
    seen: set[int] = set()
    render = studio.controller.render

    def noted(view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        received = render(view, camera, options)
        if received is not None and view == max(studio._viewport._streams, default=-1):
            seen.add(received.frame.step)
        return received

    monkeypatch.setattr(studio.controller, "render", noted)
    silent = raw_browser(training)
    wait(lambda: studio._viewport.num_viewers == 1, "the first browser is there")
    with training.connect() as browser:
        answering(browser)
        send(browser, SMALL)
        wait(lambda: studio._viewport.num_viewers == 2, "the second one too")
        for number in range(5):
            before = len(seen)
            send(browser, SMALL | {"position": [0.5, 0.1 * number, 3]})
            wait(lambda before=before: len(seen) > before, "it gets its pictures")
        training.goes_on()
    reset(silent)
    wait(lambda: studio._viewport.num_viewers == 0, "both are gone")


def test_a_hostile_client_changes_nothing(training: Training) -> None:
    studio = training.studio
    with training.connect() as stranger:
        answering(stranger)
        send(stranger, SMALL)
        wait(lambda: studio._viewport.num_viewers == 1, "it is in")
        before = studio._gated.gate.refused.total()
        for message in (
            {"type": "ShareUrlRequest"},
            {"type": "GuiUpdateMessage", "uuid": "no-such", "updates": {"removed": True}},
            SMALL | {"image_width": 10**9, "image_height": 10**9},
            SMALL | {"fov": float("nan")},
            {"type": "no such message"},
            ["no", "message"],
        ):
            send(stranger, message)
        stranger.send(b"\xff" * 1000)
        wait(lambda: studio._gated.gate.refused.total() >= before + 7, "all of it is refused")
        training.goes_on()
    status = studio.controller.status
    assert status.total_steps == MANY.steps and status.has_model


def test_a_rank_that_is_stopped_is_woken_told_of_and_loses_nothing(training: Training) -> None:
    studio, step = training.studio, training.step
    (pid,) = studio.controller.pids
    os.kill(pid, signal.SIGSTOP)
    wait(lambda: training.told, "the user is told")
    wait(lambda: training.step > step + 20, "it goes on")
    (sentence,) = training.told
    assert "was stopped from outside (SIGSTOP) and is woken" in sentence and "Nothing is lost" in sentence
    assert studio.controller.pids == (pid,)


def test_a_rank_that_dies_is_told_and_the_page_goes_on_with_training(training: Training) -> None:
    studio = training.studio
    before = studio.controller.last_saved
    studio.controller.send(Save())
    wait(lambda: studio.controller.last_saved != before, "there is a new checkpoint")
    saved = studio.controller.last_saved
    assert saved is not None
    (pid,) = studio.controller.pids
    states: list[str] = []
    studio.controller.listen(lambda _: states.append(studio.controller.status.state))
    os.kill(pid, signal.SIGKILL)
    wait(lambda: training.told, "the user is told")
    wait(lambda: studio.controller.status.state == "training", "it trains again")
    (sentence,) = training.told
    assert "was killed" in sentence and sentence.endswith(f"from the checkpoint of step {saved.step:,}.")
    assert "restarting" in states and "failed" not in states and studio.controller.pids != (pid,)
    wait(lambda: training.step > saved.step + 20, "and goes on")
