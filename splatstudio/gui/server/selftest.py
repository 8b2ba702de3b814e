"""Trying the lock as a stranger and as a friend, so that a change in viser cannot open it unnoticed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import msgspec
import viser

_ANSWER_SECONDS = 60.0  # for an answer to a request, on a machine that is at work
_PATIENCE_SECONDS = 60.0  # for a message to be looked at


class Prober:
    """Opens WebSockets to a server by hand, with whatever headers are to be tried."""

    def __init__(self, address: tuple[str, int], host: str, token: str):
        self._address = address
        self._host = host
        self._token = token

    def check(self, num_refused: Callable[[], int]) -> None:
        """Check that strangers stay outside, that the token opens, and that messages are looked at.

        `num_refused` returns how many messages have been refused so far. Raises RuntimeError where that does
        not hold.
        """
        strangers = {
            "without the token": self._status(token=None),
            "with a wrong token": self._status(token="x" + self._token),
            "from a foreign web page": self._status(origin="http://foreign.example"),
            "under a foreign name": self._status(host=f"foreign.example:{self._address[1]}"),
        }
        for stranger, status in strangers.items():
            if status not in {403, 421}:
                raise RuntimeError(f"a browser {stranger} was answered with {status}")
        connection, status = self._open()
        try:
            if status != 101:
                raise RuntimeError(f"a browser with the token was answered with {status}")
            self._check_messages(connection, num_refused)
        finally:
            connection.close()

    def _check_messages(self, connection: socket.socket, num_refused: Callable[[], int]) -> None:
        messages = [
            {"type": "ShareUrlRequest"},
            {"type": "GuiUpdateMessage", "uuid": "none", "updates": {"value": 1}},
            {"type": "CommandTriggerMessage", "uuid": "none"},
        ]
        wanted = num_refused() + len(messages)
        for message in messages:
            connection.sendall(_frame(msgspec.msgpack.encode(message)))
        if not self.wait(lambda: num_refused() >= wanted):
            raise RuntimeError("a request for a public tunnel was not stopped")

    def wait(self, reached: Callable[[], bool]) -> bool:
        """Wait until something holds; tell whether it did in time."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.002)
        return reached()

    def _status(self, *, host: str | None = None, origin: str | None = None, token: str | None = "") -> int:
        connection, status = self._open(host=host, origin=origin, token=token)
        connection.close()
        return status

    def _open(
        self, *, host: str | None = None, origin: str | None = None, token: str | None = ""
    ) -> tuple[socket.socket, int]:
        """Ask for a WebSocket and return the connection and the HTTP status; 0 when there was no answer."""
        lines = [
            "GET / HTTP/1.1",
            f"Host: {host or self._host}",
            f"Origin: {origin or 'http://' + self._host}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            f"Sec-WebSocket-Protocol: viser-v{viser.__version__}",
        ]
        if token is not None:
            lines.append(f"Authorization: Bearer {token or self._token}")
        connection = socket.create_connection(self._address, timeout=_ANSWER_SECONDS)
        try:
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            answer = connection.recv(4096).split(b" ", 2)
        except OSError:
            return connection, 0
        return connection, int(answer[1]) if len(answer) == 3 and answer[1].isdigit() else 0


def _frame(payload: bytes) -> bytes:
    """Wrap less than 126 bytes as a binary WebSocket frame, masked with zeros."""
    assert len(payload) < 126
    return bytes([0x82, 0x80 | len(payload), 0, 0, 0, 0]) + payload
