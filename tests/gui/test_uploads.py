"""Files that browsers send, and how fast they may talk."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
import viser
from gate_client import CAMERA, TOKEN, client, refused_for, send, stamps, wait, websocket
from websockets.exceptions import ConnectionClosed
from websockets.sync.connection import Connection

from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.allowed_messages import GateLimits
from splatstudio.gui.server.gate import GatedServer, open_server


@pytest.fixture(scope="module")
def gated() -> Iterator[GatedServer]:
    server = open_server(Listen(port=0), token=TOKEN)
    yield server
    server.stop()


@pytest.fixture
def browser(gated: GatedServer) -> Iterator[Connection]:
    gated.server.gui.reset()
    with client(gated) as connection:
        yield connection


def upload_messages(handle: Any, name: str, parts: list[bytes], **changes: object) -> list[dict[str, Any]]:
    ids = {"source_component_uuid": handle._impl.uuid, "transfer_uuid": f"transfer-{next(stamps)}"}
    size = sum(map(len, parts))
    about = {"filename": name, "mime_type": "", "size_bytes": size, "part_count": len(parts)}
    start = {"type": "FileTransferStartUpload", **ids, **about, **changes}
    rest = [{"type": "FileTransferPart", **ids, "part_index": i, "content": p} for i, p in enumerate(parts)]
    return [start, *rest]


def test_uploads_arrive_whole(gated: GatedServer, browser: Connection) -> None:
    upload = gated.server.gui.add_upload_button("Load")
    for name, parts in (("path one.json", [b"abc" * 1000, b"de"]), ("empty.json", [])):
        for message in upload_messages(upload, name, parts):
            assert refused_for(gated, browser, message) is None
        assert (upload.value.name, upload.value.content) == (name, b"".join(parts))


@pytest.mark.parametrize(
    "changes",
    [
        {"filename": "../../../etc/cron.d/x"},
        {"filename": "..\\x"},
        {"filename": ".."},
        {"filename": "c:x"},
        {"filename": "a\x00b"},
        {"filename": ""},
        {"size_bytes": 17 * 2**20},
        {"size_bytes": 0},
        {"part_count": 0},
        {"part_count": 99_999},
    ],
    ids=str,
)
def test_hostile_uploads_are_refused(gated: GatedServer, browser: Connection, changes: dict) -> None:
    upload = gated.server.gui.add_upload_button("Load")
    start, part = upload_messages(upload, "a.json", [b"abcd"], **changes)
    assert refused_for(gated, browser, start) == "upload"
    assert refused_for(gated, browser, part) == "upload"
    assert upload.value.name == ""


def test_an_upload_sends_no_more_than_announced(gated: GatedServer, browser: Connection) -> None:
    upload = gated.server.gui.add_upload_button("Load")
    start, first, second = upload_messages(upload, "a.json", [b"abcd", b"efgh"])
    assert refused_for(gated, browser, start) is None
    assert refused_for(gated, browser, start) == "upload"  # twice
    assert refused_for(gated, browser, {**first, "content": b"x" * 1_000_000}) == "upload"
    assert refused_for(gated, browser, {**first, "part_index": 2}) == "upload"
    assert refused_for(gated, browser, {**first, "source_component_uuid": "other"}) == "upload"
    with websocket(gated.port) as other:  # nor can another browser add to it
        send(other, CAMERA)
        before = gated.gate.refused["upload"]
        send(other, second)
        wait(lambda: gated.gate.refused["upload"] == before + 1)
    wait(lambda: gated.gate.num_clients == 1)
    assert refused_for(gated, browser, first) is None
    assert refused_for(gated, browser, first) == "upload"  # the same part again
    assert refused_for(gated, browser, second) is None
    assert upload.value.content == b"abcdefgh"
    button = gated.server.gui.add_button("not for files")
    assert refused_for(gated, browser, upload_messages(button, "a", [b"x"])[0]) == "upload"
    for _ in range(GateLimits().max_uploads):
        assert refused_for(gated, browser, upload_messages(upload, "a", [b"x"])[0]) is None
    assert refused_for(gated, browser, upload_messages(upload, "a", [b"x"])[0]) == "upload"


def test_a_large_message_closes_only_its_own_connection(gated: GatedServer, browser: Connection) -> None:
    with websocket(gated.port) as hostile:
        before = gated.gate.refused["large"]
        with pytest.raises(ConnectionClosed) as closed, contextlib.redirect_stderr(io.StringIO()):
            hostile.send(b"x" * (4 * 2**20 + 1))
            while True:
                hostile.recv(timeout=60)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    wait(lambda: gated.gate.refused["large"] == before + 1)
    assert refused_for(gated, browser, CAMERA) is None


class Clock:
    """The module asyncio, noting how long the gate lets messages wait."""

    def __init__(self) -> None:
        self.waited = 0.0

    async def sleep(self, seconds: float) -> None:
        self.waited += seconds
        await asyncio.sleep(seconds)


def test_a_flood_is_slowed_to_the_limit_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("splatstudio.gui.server.gate.asyncio", clock)
    gated = open_server(Listen(port=0), token=TOKEN, limits=GateLimits(messages_per_second=50.0))
    try:
        cameras: list[float] = []
        with client(gated) as connection:
            (handle,) = gated.server.get_clients().values()

            @handle.camera.on_update
            async def _(camera: viser.CameraHandle) -> None:
                cameras.append(camera.position[0])

            start = time.monotonic()
            for step in range(120):
                send(connection, {**CAMERA, "position": [step, 0, 0]})
            wait(lambda: len(cameras) == 120)
            seconds = time.monotonic() - start
        assert cameras == list(range(120))
        # 50 at once, then 50 a second; what a busy machine takes beyond that is not the gate's doing. After
        # a sleep that it draws out the next messages need not wait: how many do is left open.
        assert seconds > 1.3 and clock.waited < 2.0
        assert gated.gate.refused["fast"] > 0
    finally:
        gated.stop()
