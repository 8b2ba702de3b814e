"""A training that a launcher started, watched and steered over a socket: lines of JSON, after a token.

Nothing that comes over the line is ever run or unpickled: an order is one of `ORDERS`, with plain numbers.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any, BinaryIO

from splatstudio.worker.messages import (
    Command,
    Evaluate,
    Event,
    Pause,
    Resume,
    Save,
    SetCap,
    Step,
    Stop,
    UpdateSettings,
)

ORDERS: dict[str, type[Command]] = {
    order.__name__: order for order in (Pause, Resume, Step, Stop, Save, Evaluate, SetCap, UpdateSettings)
}
MAX_LINE = 1 << 16  # bytes
MAX_CLIENTS = 8
HELLO_SECONDS = 10.0  # for the token to come
SEND_SECONDS = 5.0  # for a client that does not read: then it is let go

log = logging.getLogger("splatstudio.worker")


class SteeringServer:
    """Hands events on to who has the token, and orders from them to `obey`, on threads of its own."""

    def __init__(self, host: str, port: int, obey: Callable[[Command], None]):
        """Listen; OSError when the address cannot be had. `port` 0: any free one."""
        self.token = secrets.token_urlsafe(16)
        self._obey = obey
        self._clients: dict[socket.socket, threading.Lock] = {}
        self._last: dict[str, bytes] = {}  # the newest event of each kind, for who comes later
        self._lock = threading.Lock()
        self._socket = socket.create_server((host, port))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="steering", daemon=True).start()

    def tell(self, event: Event) -> None:
        """Hand an event on; one without a plain form is left out."""
        if not is_dataclass(event):
            return
        values = {"event": type(event).__name__, **asdict(event)}  # type: ignore[call-overload]
        line = json.dumps(values, default=str).encode() + b"\n"
        with self._lock:
            self._last[type(event).__name__] = line
            clients = list(self._clients)
        for client in clients:
            self._send(client, line)

    def close(self) -> None:
        """Let everybody go."""
        self._socket.close()
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            self._drop(client)

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._socket.accept()
            except OSError:
                return  # closed
            name = f"steering-{address[0]}"
            threading.Thread(target=self._serve, args=(client,), name=name, daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            client.settimeout(HELLO_SECONDS)
            with client.makefile("rb") as lines:
                if not self._is_known(lines) or len(self._clients) >= MAX_CLIENTS:
                    return  # without a word: who has no token learns nothing
                client.settimeout(None)
                with self._lock:
                    self._clients[client] = threading.Lock()
                    last = list(self._last.values())
                for line in last:
                    self._send(client, line)
                while line := lines.readline(MAX_LINE):
                    self._take(line)
        except (OSError, ValueError) as error:
            log.info("who watched is let go: %s", error)
        finally:
            self._drop(client)

    def _is_known(self, lines: BinaryIO) -> bool:
        token = json.loads(lines.readline(MAX_LINE)).get("token")
        return isinstance(token, str) and hmac.compare_digest(token.encode(), self.token.encode())

    def _take(self, line: bytes) -> None:
        """Obey a line; ValueError when it is no order."""
        values = json.loads(line)
        kind = ORDERS.get(values.pop("order", "")) if isinstance(values, dict) else None
        if kind is None:
            raise ValueError("this is no order")
        try:
            command = kind(**_plain(values))
        except TypeError as error:
            raise ValueError(f"this is no {kind.__name__}: {error}") from error
        log.info("told from outside: %s", command)
        self._obey(command)

    def _send(self, client: socket.socket, line: bytes) -> None:
        with self._lock:
            lock = self._clients.get(client)
        if lock is None:
            return
        try:
            with lock:
                client.settimeout(SEND_SECONDS)
                client.sendall(line)
                client.settimeout(None)
        except OSError:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        with self._lock:
            self._clients.pop(client, None)
        client.close()


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an order; ValueError for a number of steps or splats that is none."""
    for name in ("count", "max_gaussians"):
        if name in values and type(values[name]) is not int:
            raise ValueError(f"{name} must be a whole number")
    if "values" in values:
        values["values"] = tuple((str(path), value) for path, value in values["values"])
    return values
