"""A training that a launcher started, watched and steered over a socket: lines of JSON, after a token.

Nothing that comes over the line is ever run or unpickled: an order is one of `ORDERS`, with plain numbers.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
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
MAX_HELLO = 1 << 10  # bytes, of who may be anybody
MAX_NUMBER = 1 << 53  # beyond it a step or a number of splats is none, and no float holds it exactly
MAX_CLIENTS = 8
MAX_STRANGERS = 32  # who have not shown the token yet
HELLO_SECONDS = 10.0  # for the token to come
ACCEPT_SECONDS = 1.0  # after a connection that failed
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
        self._strangers = threading.BoundedSemaphore(MAX_STRANGERS)
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
            except OSError as error:
                if self._socket.fileno() < 0:
                    return  # closed
                # Who called has gone again, or too many files are open: that passes.
                log.warning("nobody could be let in: %s", error)
                time.sleep(ACCEPT_SECONDS)
                continue
            if not self._strangers.acquire(blocking=False):
                client.close()
                continue
            name = f"steering-{address[0]}"
            threading.Thread(target=self._serve, args=(client,), name=name, daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client.makefile("rb") as lines:
                if not self._let_in(client, lines):
                    return  # without a word: who has no token learns nothing
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

    def _let_in(self, client: socket.socket, lines: BinaryIO) -> bool:
        """Say whether a client shows the token; OSError or ValueError for what is no answer."""
        # One that sends a byte now and then must not hold a place for ever.
        watch = threading.Timer(HELLO_SECONDS, _shut, (client,))
        watch.daemon = True
        watch.start()
        try:
            token = _object(lines.readline(MAX_HELLO)).get("token")
        finally:
            watch.cancel()
            self._strangers.release()
        # Not a timeout of the socket's: that would hold for the thread that reads, too.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _send_timeout())
        known = isinstance(token, str) and hmac.compare_digest(token.encode(), self.token.encode())
        return known and len(self._clients) < MAX_CLIENTS

    def _take(self, line: bytes) -> None:
        """Obey a line; ValueError when it is no order."""
        values = _object(line)
        name = values.pop("order", None)
        kind = ORDERS.get(name) if isinstance(name, str) else None
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
                client.sendall(line)
        except OSError:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        with self._lock:
            self._clients.pop(client, None)
        _shut(client)
        client.close()


def _shut(client: socket.socket) -> None:
    with suppress(OSError):  # it has gone
        client.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads


def _send_timeout() -> bytes:
    if sys.platform == "win32":
        return struct.pack("@L", int(SEND_SECONDS * 1000))
    return struct.pack("@ll", int(SEND_SECONDS), 0)


def _object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a whole line; ValueError for all else that anybody may have sent."""
    if not line.endswith(b"\n"):
        raise ValueError("this is no whole line, or too long")
    try:
        values = json.loads(line, parse_int=_whole, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError("this is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("this is no JSON object")
    return values


def _whole(digits: str) -> int:
    if len(digits) > len(str(MAX_NUMBER)) or not abs(int(digits)) <= MAX_NUMBER:
        raise ValueError("this number is too large")
    return int(digits)


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an order; ValueError for a number of steps or splats that is none."""
    if "number" in values:
        raise ValueError("orders are numbered by who passes them on")
    for name in ("count", "max_gaussians"):
        if name in values and type(values[name]) is not int:
            raise ValueError(f"{name} must be a whole number")
    if "values" in values:
        values["values"] = tuple((str(path), value) for path, value in values["values"])
    return values
