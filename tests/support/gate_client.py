"""Browsers and strangers as the gate of the studio's page sees them, made by hand."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import viser
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.typing import Origin, Subprotocol

from splatstudio.gui.server.gate import GatedServer

TOKEN = "a-token-for-tests"
stamps = itertools.count(100)  # numbers that nothing else uses

CAMERA: dict[str, Any] = {
    "type": "ViewerCameraMessage",
    "wxyz": [1, 0, 0, 0],
    "position": [0.5, 0, 3],
    "fov": 1.3,
    "near": 0.01,
    "far": 1000,
    "image_height": 720,
    "image_width": 1280,
    "look_at": [0, 0, 0],
    "up_direction": [0, 0, 1],
}


def get(port: int, path: str = "/", **headers: str) -> tuple[int, dict[str, str], str]:
    """Send a GET request as it stands; return status (0: no answer), headers (lower case) and body."""
    lines = [f"GET {path} HTTP/1.1", *(f"{key.replace('_', '-')}: {value}" for key, value in headers.items())]
    if "Host" not in headers:
        lines.insert(1, f"Host: localhost:{port}")
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        data = b""
        while chunk := connection.recv(65536):
            data += chunk
    if not data:
        return 0, {}, ""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in rest)
    return (
        int(first.split()[1]),
        {key.lower(): value for key, value in pairs},
        body.decode("utf-8", "replace"),
    )


def websocket(
    port: int,
    *,
    host: str = "localhost",
    origin: str | None = None,
    token: str | None = TOKEN,
    headers: dict[str, str] | None = None,
    **settings: Any,
) -> Connection:
    """Open a WebSocket under any Host and Origin.

    Raises:
        websockets.exceptions.InvalidStatus: the server refused it.
    """
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    return connect(
        f"ws://{host}:{port}/",
        sock=socket.create_connection(("127.0.0.1", port), timeout=60),
        origin=None if origin is None else Origin(origin),
        additional_headers=sent,
        subprotocols=[Subprotocol(f"viser-v{viser.__version__}")],
        compression=None,
        proxy=None,
        max_size=None,
        **settings,
    )


def send(connection: Connection, message: object) -> None:
    """Send one message as the page would."""
    connection.send(msgspec.msgpack.encode(message))


@contextlib.contextmanager
def client(gated: GatedServer) -> Iterator[Connection]:
    """A browser that has sent its first camera."""
    before = set(gated.server.get_clients())
    with websocket(gated.port) as connection:
        send(connection, CAMERA)
        wait(lambda: set(gated.server.get_clients()) - before)
        yield connection
    wait(lambda: gated.gate.num_clients == 0)


def wait(reached: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until something holds, and fail when it does not."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def refused_for(gated: GatedServer, connection: Connection, message: object) -> str | None:
    """Send a message and return the reason for which it was refused, None when it was passed on.

    The camera behind it tells when it has been handled: messages are handled in turn.
    """
    before = gated.gate.refused.copy()
    (handle,) = gated.server.get_clients().values()
    stamp = next(stamps)
    if isinstance(message, (bytes, str)):
        connection.send(message)
    else:
        send(connection, message)
    send(connection, {**CAMERA, "position": [stamp, 0, 0]})
    wait(lambda: handle.camera.position[0] == stamp)
    reasons = list((gated.gate.refused - before).elements())
    assert len(reasons) <= 1, reasons
    return reasons[0] if reasons else None
