"""The socket by which a training is steered, against what anybody may send: nothing of it ends a thread."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splatstudio.runtime import handshake
from splatstudio.runtime import remote_server as steering
from splatstudio.runtime.channel.handshake import RunCard, proof
from splatstudio.runtime.channel.remote_server import RemoteClient, RemoteServer, within_run
from splatstudio.runtime.messages import Command, Export, Warned
from splatstudio.runtime.remote_client import ORDERS, order_line
from splatstudio.runtime.remote_run import RemoteLine, dial
from splatstudio.settings.config import TrainConfig, changed

DEEP = b"[" * 60_000
CARD = RunCard(Path("scene"), Path("run"), "{}", 2)
NONCE = b"0" * 32
GREETED = b'{"splatstudio": 3, "nonce": "' + NONCE + b'"}\n'
GREETING = re.compile(rb'\{"splatstudio": 3, "nonce": "[0-9a-f]{32}"\}\n(\{"refused": "[^"]*"\}\n)?')


def camera_text(**changes: Any) -> bytes:
    """Return the JSON of a camera, with something wrong in it."""
    camera = {"viewmat": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]}
    camera |= {"K": [[9, 0, 4], [0, 9, 4], [0, 0, 1]], "width": 9, "height": 9, "model": "pinhole"}
    return json.dumps({**camera, **changes}).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteServer]:
    """Start a server; a thread that ends by an error, which would end a training, fails the test."""
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: errors.append(arguments.exc_value))
    made = RemoteServer("127.0.0.1", 0, lambda _: None, lambda: CARD)
    yield made
    made.close()
    assert errors == []


def answer(server: RemoteServer, *lines: bytes) -> bytes:
    """Send lines and return all that the server says until it lets go."""
    with socket.create_connection(("127.0.0.1", server.port), 60.0) as client:
        return told(client, *lines)


def told(client: socket.socket, *lines: bytes) -> bytes:
    try:
        client.sendall(b"".join(line + b"\n" for line in lines))
        heard = b""
        while part := client.recv(1 << 16):
            heard += part
    except (ConnectionResetError, BrokenPipeError):
        return b""
    return heard


def connected(server: RemoteServer) -> RemoteLine:
    return dial(f"127.0.0.1:{server.port}", server.token, frames=True)


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"1",
        b'"token"',
        DEEP,
        b"{" * 900,
        b"\xff\xfe",
        b'{"token": "\\ud800"}',
        b'{"version": 3, "nonce": "\\u00e9", "proof": ""}',
        b'{"version": 3, "nonce": "' + NONCE + b'", "proof": "\\u00e9"}',
        b'{"version": 3, "nonce": "' + NONCE + b'", "proof": null}',
        b"",
    ],
)
def test_a_strangers_line_ends_nothing_but_itself(server: RemoteServer, line: bytes) -> None:
    server.tell(Warned("secret"))
    heard = answer(server, line)
    assert not heard or GREETING.fullmatch(heard), heard


def test_a_proof_is_of_one_conversation_only(server: RemoteServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 60.0) as client:
        nonce = json.loads(client.makefile("rb").readline())["nonce"]
    own = NONCE.decode()
    hello = {"version": 3, "nonce": own, "proof": proof(server.token, "caller", nonce, own)}
    heard = answer(server, json.dumps(hello).encode())
    assert b"refused" in heard and GREETING.fullmatch(heard)


@pytest.mark.parametrize(
    ("greets", "sentence"),
    [
        (b"SSH-2.0-OpenSSH\n", "no training of splatstudio"),
        (b'{"splatstudio": 9, "nonce": "1"}\n', "speaks version 9, this program version 3"),
        (b'{"splatstudio": 3, "nonce": "1 2"}\n', "no training of splatstudio"),
        (GREETED + b'{"proof": "00"}\n{}\n', "does not know the token"),
        (GREETED + b'{"proof": "' + b"0" * 2000 + b'"}\n', "no whole line, or too long"),
        (GREETED + b'{"refused": "\\u001b[2Jgo away"}\n', r": {1,3}\[2Jgo away"),
        (b"", "has ended"),
    ],
)
def test_who_answers_in_the_place_of_the_training_is_left(greets: bytes, sentence: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as false:

        def greet() -> None:
            client, _ = false.accept()
            with client:
                client.sendall(greets)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(ValueError, match=sentence):
            dial(f"127.0.0.1:{false.getsockname()[1]}", "token", frames=True)


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
        b'{"order": "UpdateSettings", "values": [["ssim_weight", 1e999]]}',
        b'{"order": "SetView", "view": 1, "seq": 1}',
        b'{"order": "SetView", "view": 1, "seq": 1, "camera": {"viewmat": [], "K": [], "width": 9}}',
        b'{"order": "SetView", "view": 1, "seq": 1, "camera": ' + camera_text(width=99_999) + b"}",
        b'{"order": "SetView", "view": 1, "seq": 1, "camera": '
        + camera_text(width=9_000, height=9_000)
        + b"}",
        b'{"order": "SetView", "view": 1, "seq": 1, "camera": ' + camera_text(model="cube") + b"}",
        b'{"order": "SetView", "view": 1, "seq": 1, "camera": ' + camera_text(viewmat=[[1.0] * 9] * 9) + b"}",
        b'{"order": "Export", "path": 7}',
        b'{"order": "RenderPath", "output": "a.mp4", "path": {"keyframes": [], "width": -1}}',
    ],
)
def test_one_with_the_token_is_let_go_for_what_is_no_order(server: RemoteServer, line: bytes) -> None:
    client = connected(server)
    with client.socket:
        assert told(client.socket, line) == b""


@pytest.mark.parametrize(
    "path", ["/etc/passwd.ply", "../a.ply", "ckpts/a.ply", "exports/../../a.ply", "a.ply"]
)
def test_from_outside_nothing_is_written_but_into_two_folders(
    server: RemoteServer, tmp_path: Path, path: str
) -> None:
    with pytest.raises(ValueError, match="is not written: from outside"):
        within_run(Export(Path(path)), tmp_path)
    client = connected(server)
    with client.socket, client.answers:
        client.socket.sendall(order_line(Export(Path(path), job=3)))
        heard = json.loads(client.answers.readline())
    assert (heard["event"], heard["job"]) == ("JobFailed", 3) and "is not written" in heard["sentence"]


def test_what_is_written_from_outside_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "a.ply").touch()
    assert within_run(Export(Path("exports/a.ply")), tmp_path) == Export(tmp_path / "exports" / "a-2.ply")
    (tmp_path / "renders").symlink_to("/tmp")
    with pytest.raises(ValueError, match="is not written"):
        within_run(Export(tmp_path / "renders" / "a.ply"), tmp_path)


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
def obedient() -> Iterator[tuple[RemoteServer, list[Command]]]:
    obeyed: list[Command] = []
    made = RemoteServer("127.0.0.1", 0, obeyed.append, lambda: CARD)
    yield made, obeyed
    made.close()


@settings(max_examples=max(200, settings().max_examples))  # each takes a millisecond
@given(line=lines)
def test_a_line_is_an_order_or_a_value_error(
    obedient: tuple[RemoteServer, list[Command]], line: bytes
) -> None:
    made, obeyed = obedient
    obeyed.clear()
    ours, theirs = socket.socketpair()
    spectator = RemoteClient(ours, False, obeyed.append)
    try:
        made._take(line, spectator)
    except ValueError:
        assert obeyed == []
    else:
        assert all(type(order) in ORDERS.values() for order in obeyed)
    finally:
        spectator.drop()
        ours.close()
        theirs.close()


@pytest.mark.parametrize("path", ["strategy.x.y", "eval_steps.a.b", "steps.x.y", "", ".", "optim..a"])
def test_a_setting_that_is_none_is_a_value_error(path: str) -> None:
    with pytest.raises(ValueError, match="unknown setting"):
        changed(TrainConfig(), path, 1)


def test_who_sends_slowly_or_comes_in_crowds_takes_no_place_for_ever(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "HELLO_SECONDS", 0.5)
    crowd = [socket.create_connection(("127.0.0.1", server.port), 60.0) for _ in range(40)]
    try:
        crowd[0].sendall(b"{")
        for client in crowd:  # each is let go: the first 32 after their time, the others at once
            client.settimeout(60.0)
            heard = told(client)
            assert not heard or GREETING.fullmatch(heard), heard
    finally:
        for client in crowd:
            client.close()
    monkeypatch.setattr(steering, "HELLO_SECONDS", 60.0)
    server.tell(Warned("here"))
    client = connected(server)
    with client.socket:
        assert b"here" in client.answers.readline()


def test_one_who_does_not_read_is_let_go_and_the_others_are_heard(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "SEND_SECONDS", 1.0)
    long = Warned("x" * 1_000_000)
    deaf, good = connected(server), connected(server)
    with deaf.socket, good.socket:
        deadline = time.monotonic() + 60.0
        while server.num_spectators < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in range(40):  # more than the socket holds, where nobody reads
            server.tell(long)
            assert json.loads(good.answers.readline())["sentence"] == long.sentence
        while server.num_spectators == 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.num_spectators == 1, "it was let go"
        server.tell(Warned("here"))
        assert b"here" in good.answers.readline()


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


def test_a_machine_without_threads_left_goes_on_training(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, left = threading.Thread.start, 40

    def scarce(thread: threading.Thread) -> None:
        nonlocal left
        if left > 0 and threading.current_thread().name.startswith("steering"):
            left -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    while left > 0:  # more than there are places
        assert not GREETING.fullmatch(answer(server))
    server.tell(Warned("here"))
    client = connected(server)
    with client.socket:
        assert b"here" in client.answers.readline()


def test_a_connection_that_fails_does_not_end_the_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda address: _Flaky(create(address)))
    monkeypatch.setattr(steering, "ACCEPT_SECONDS", 0.01)
    made = RemoteServer("127.0.0.1", 0, lambda _: None, lambda: CARD)
    made.tell(Warned("here"))
    client = connected(made)
    with client.socket:
        assert b"here" in client.answers.readline()
    made.close()
