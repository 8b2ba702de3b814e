"""The socket by which a training is steered, against what anybody may send: nothing of it ends a thread."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splatstudio.config import TrainConfig, changed
from splatstudio.worker import steering
from splatstudio.worker.messages import Command, Warned
from splatstudio.worker.steering import ORDERS, SteeringServer

DEEP = b"[" * 60_000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SteeringServer]:
    """Start a server; a thread that ends by an error, which would end a training, fails the test."""
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: errors.append(arguments.exc_value))
    made = SteeringServer("127.0.0.1", 0, lambda _: None)
    yield made
    made.close()
    assert errors == []


def answer(server: SteeringServer, *lines: bytes) -> bytes:
    """Send lines and return all that the server says until it lets go."""
    with socket.create_connection(("127.0.0.1", server.port), 10.0) as client:
        try:
            client.sendall(b"".join(line + b"\n" for line in lines))
            heard = b""
            while part := client.recv(1 << 16):
                heard += part
        except ConnectionResetError:
            return b""
    return heard


@pytest.mark.parametrize(
    "line", [b"[]", b"1", b"null", b'"token"', DEEP, b"{" * 900, b"\xff\xfe", b'{"token": "\\ud800"}', b""]
)
def test_a_strangers_line_ends_nothing_but_itself(server: SteeringServer, line: bytes) -> None:
    assert answer(server, line) == b""
    time.sleep(0.05)  # for the thread to end


@pytest.mark.parametrize(
    "line",
    [
        b'{"order": []}',
        b'{"order": {}}',
        b"{}",
        DEEP,
        b'{"order": "UpdateSettings", "values": ' + DEEP,
        b'{"order": "UpdateSettings", "values": 7}',
        b'{"order": "UpdateSettings", "values": [[1]]}',
        b'{"order": "SetCap", "max_gaussians": 1' + b"0" * 400 + b"}",
        b'{"order": "SetCap", "max_gaussians": true}',
        b'{"order": "Pause", "number": {}}',
        b'{"order": "UpdateSettings", "values": [["ssim_weight", Infinity]]}',
    ],
)
def test_one_with_the_token_is_let_go_for_what_is_no_order(server: SteeringServer, line: bytes) -> None:
    assert answer(server, json.dumps({"token": server.token}).encode(), line) == b""
    time.sleep(0.05)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*ORDERS, "Close", "", "Start"])
fields = st.dictionaries(st.sampled_from(["count", "max_gaussians", "values", "number", "x"]), json_values)
orders = st.builds(lambda name, rest: {**rest, "order": name}, names | json_values, fields)
lines = st.binary(max_size=60) | (orders | json_values).map(lambda value: json.dumps(value).encode() + b"\n")


@pytest.fixture(scope="module")
def obedient() -> Iterator[tuple[SteeringServer, list[Command]]]:
    obeyed: list[Command] = []
    made = SteeringServer("127.0.0.1", 0, obeyed.append)
    yield made, obeyed
    made.close()


@settings(max_examples=300, deadline=None)
@given(line=lines)
def test_a_line_is_an_order_or_a_value_error(
    obedient: tuple[SteeringServer, list[Command]], line: bytes
) -> None:
    made, obeyed = obedient
    obeyed.clear()
    try:
        made._take(line)
    except ValueError:
        assert obeyed == []
    else:
        assert type(obeyed[0]) in ORDERS.values()


@pytest.mark.parametrize("path", ["strategy.x.y", "eval_steps.a.b", "steps.x.y", "", ".", "optim..a"])
def test_a_setting_that_is_none_is_a_value_error(path: str) -> None:
    with pytest.raises(ValueError, match="unknown setting"):
        changed(TrainConfig(), path, 1)


def test_who_sends_slowly_or_comes_in_crowds_takes_no_place_for_ever(
    server: SteeringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "HELLO_SECONDS", 0.5)
    crowd = [socket.create_connection(("127.0.0.1", server.port), 10.0) for _ in range(40)]
    try:
        crowd[0].sendall(b"{")
        began = time.monotonic()
        for client in crowd:  # each is let go: the first 32 after their time, the others at once
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert time.monotonic() - began < 5.0
    finally:
        for client in crowd:
            client.close()
    server.tell(Warned("here"))
    with socket.create_connection(("127.0.0.1", server.port), 10.0) as client:
        client.sendall(json.dumps({"token": server.token}).encode() + b"\n")
        assert b"here" in client.recv(1 << 16)


def test_one_who_does_not_read_is_let_go_and_the_others_are_heard(
    server: SteeringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "SEND_SECONDS", 1.0)
    with socket.create_connection(("127.0.0.1", server.port), 10.0) as deaf:
        deaf.sendall(json.dumps({"token": server.token}).encode() + b"\n")
        deadline = time.monotonic() + 20.0
        while not server._clients and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server._clients
        while server._clients and time.monotonic() < deadline:
            server.tell(Warned("x" * 1_000_000))
        assert not server._clients, "it was let go"


class _Flaky:
    """A listening socket of which the first connection fails."""

    def __init__(self, real: socket.socket):
        self._real, self.failed = real, False

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if not self.failed:
            self.failed = True
            raise OSError(24, "Too many open files")
        return self._real.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


def test_a_connection_that_fails_does_not_end_the_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda address: _Flaky(create(address)))
    monkeypatch.setattr(steering, "ACCEPT_SECONDS", 0.01)
    made = SteeringServer("127.0.0.1", 0, lambda _: None)
    made.tell(Warned("here"))
    with socket.create_connection(("127.0.0.1", made.port), 10.0) as client:
        client.sendall(json.dumps({"token": made.token}).encode() + b"\n")
        assert b"here" in client.recv(1 << 16)
    made.close()
