"""The socket by which a training is steered, against what anybody may send: nothing of it ends a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection, serve

from splatstudio.cameras.camera import Camera
from splatstudio.runtime.channel import remote_server
from splatstudio.runtime.channel.codec import concrete, decode, encode
from splatstudio.runtime.channel.hub import Hub
from splatstudio.runtime.channel.remote_server import (
    PROTOCOL,
    REMOTE_COMMANDS,
    Greeting,
    Hello,
    RemoteServer,
    RunCard,
    Welcome,
    checked_remote_command,
    proof,
    within_run,
)
from splatstudio.runtime.messages import (
    Close,
    Command,
    Event,
    Export,
    JobFailed,
    Leave,
    RenderPath,
    SetView,
    Snapshot,
    Start,
    Step,
    UpdateSettings,
    Warned,
    WritePart,
)
from splatstudio.runtime.remote_run import RemoteLine, dial
from splatstudio.settings.config import TrainConfig, changed

CARD = RunCard(Path("scene"), Path("run"), "{}", 2)
NONCE = "0" * 32
CAMERA = Camera(np.eye(4), np.array([[9.0, 0, 4], [0, 9.0, 4], [0, 0, 1]]), 9, 9)
DEEP = b"\x91" * 60_000  # lists in lists


class Remote:
    """A training on the line: its hub, what it was told to do, its server."""

    def __init__(self) -> None:
        self.obeyed: list[Command] = []
        self.hub = Hub(self.obeyed.append)
        self.server = RemoteServer("127.0.0.1", 0, self.hub, lambda: CARD)
        self.address = f"127.0.0.1:{self.server.port}"

    def connected(self) -> RemoteLine:
        return dial(self.address, self.server.token, frames=True)

    def stranger(self) -> ClientConnection:
        return connect(f"ws://{self.address}", compression=None, proxy=None)


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """Start a server; a thread that ends by an error, which would end a training, fails the test."""
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: errors.append(arguments.exc_value))
    made = Remote()
    yield made
    made.server.close()
    assert errors == []


def told(line: ClientConnection, *messages: bytes | str) -> list[bytes]:
    """Send messages and return all that the server says until it lets go."""
    heard: list[bytes] = []
    with suppress(ConnectionClosed):  # what it had said before can still be read
        for message in messages:
            line.send(message)
    try:
        while True:
            heard.append(line.recv(timeout=60.0, decode=False))
    except ConnectionClosed:
        return heard


def raw(message: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(message)


@pytest.mark.parametrize(
    "hello",
    [
        b"",
        b"\xff\xfe",
        DEEP[:900],
        b"x" * 2000,
        "text",
        encode([]),
        raw({"version": PROTOCOL, "nonce": "é", "proof": ""}),
        raw({"version": PROTOCOL, "nonce": NONCE, "proof": "é"}),
        raw({"version": PROTOCOL, "nonce": NONCE, "proof": None}),
        raw({"version": PROTOCOL + 5, "nonce": NONCE, "proof": ""}),
        raw({"version": PROTOCOL, "nonce": NONCE, "proof": "00", "token": 1}),
    ],
)
def test_a_strangers_word_ends_nothing_but_itself(remote: Remote, hello: bytes | str) -> None:
    remote.hub.receive(Warned("secret"))
    heard = told(remote.stranger(), hello)
    if not heard:
        return  # a line that is reset loses what was said before
    assert decode(heard[0], Greeting).splatstudio == PROTOCOL and len(heard) <= 2
    if heard[1:]:
        assert decode(heard[1], Welcome).refused and not decode(heard[1], Welcome).proof


def test_a_proof_is_of_one_conversation_only(remote: Remote) -> None:
    with remote.stranger() as first:
        nonce = decode(first.recv(decode=False), Greeting).nonce
    hello = Hello(PROTOCOL, NONCE, proof(remote.server.token, "caller", nonce, NONCE))
    heard = told(remote.stranger(), encode(hello))
    assert decode(heard[1], Welcome).refused == remote_server.WRONG_TOKEN


def test_a_page_in_a_browser_is_not_let_in(remote: Remote) -> None:
    with pytest.raises(InvalidHandshake):
        connect(f"ws://{remote.address}", origin="http://example.org", proxy=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ([b"\xff"], "no training of splatstudio"),
        ([encode(Greeting(9, NONCE))], f"speaks version 9, this program version {PROTOCOL}"),
        ([encode(Greeting(PROTOCOL, "1 2"))], "no training of splatstudio"),
        ([encode(Greeting(PROTOCOL, NONCE)), encode(Welcome("00"))], "does not know the token"),
        ([encode(Greeting(PROTOCOL, NONCE)), encode(Welcome("0" * 2000))], "has ended|no training"),
        (
            [encode(Greeting(PROTOCOL, NONCE)), encode(Welcome(refused="\x1b[2Jgo away"))],
            r": {1,3}\[2Jgo away",
        ),
        ([], "has ended"),
    ],
)
def test_who_answers_in_the_place_of_the_training_is_left(answers: list[bytes], sentence: str) -> None:
    def greet(line: ServerConnection) -> None:
        for answer in answers:
            line.send(answer)
        if answers:
            told(line)  # type: ignore[arg-type]

    with serve(greet, "127.0.0.1", 0) as false:
        threading.Thread(target=false.serve_forever, daemon=True).start()
        with pytest.raises(ValueError, match=sentence):
            dial(f"127.0.0.1:{false.socket.getsockname()[1]}", "token", frames=True)


def test_another_program_at_the_port_is_no_training() -> None:
    with socket.create_server(("127.0.0.1", 0)) as false:

        def greet() -> None:
            line, _ = false.accept()
            with line:
                line.sendall(b"SSH-2.0-OpenSSH\r\n")
                line.recv(1 << 16)

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(ValueError, match=r"no training of splatstudio|has ended|no training answers"):
            dial(f"127.0.0.1:{false.getsockname()[1]}", "token", frames=True)


def view(**changes: Any) -> bytes:
    """Return a SetView whose camera has something wrong."""
    message = msgspec.msgpack.decode(encode(SetView(1, 1, CAMERA)))
    return raw({**message, "camera": {**message["camera"], **changes}})


@pytest.mark.parametrize(
    "data",
    [
        "Pause",
        b"",
        b"not msgpack",
        DEEP,
        encode([1, 2]),
        raw({"type": []}),
        raw({"type": "UpdateSettings", "values": 7}),
        raw({"type": "UpdateSettings", "values": [[1]]}),
        raw({"type": "SetCap", "max_gaussians": 2**60}),
        raw({"type": "SetCap", "max_gaussians": True}),
        raw({"type": "Pause", "number": {}}),
        raw({"type": "Pause", "x" * 100_000: 1}),
        encode(UpdateSettings((("ssim_weight", float("inf")),))),
        encode(UpdateSettings((("ssim_weight", float("nan")),))),
        raw({"type": "SetView", "view": 1, "seq": 1}),
        view(viewmat=[]),
        view(viewmat=[[1.0] * 9] * 9),
        view(viewmat=[[float("nan")] * 4] * 4),
        view(K=[[-9.0, 0, 4], [0, 9.0, 4], [0, 0, 1]]),
        view(width=99_999),
        view(width=9_000, height=9_000),
        view(model="cube"),
        raw({"type": "Export", "path": 7}),
        raw({"type": "RenderPath", "output": "a.mp4", "path": {"keyframes": [], "width": -1}}),
        encode(Close()),
        encode(Start()),
        encode(Leave()),
        encode(WritePart(Path("/tmp"))),
    ],
)
def test_one_with_the_token_is_let_go_for_what_is_no_command(remote: Remote, data: bytes | str) -> None:
    line = remote.connected()
    with closing(line):
        line._connection.send(data)
        with pytest.raises(ConnectionError):
            line.receive()
    remote.hub.receive(Warned("still there"))
    again = remote.connected()
    with closing(again):
        assert again.receive() == Warned("still there")
    assert remote.obeyed == []


@pytest.mark.parametrize(
    "path", ["/etc/passwd.ply", "../a.ply", "ckpts/a.ply", "exports/../../a.ply", "a.ply"]
)
def test_from_outside_nothing_is_written_but_into_two_folders(
    remote: Remote, tmp_path: Path, path: str
) -> None:
    for command in (Export(Path(path)), Snapshot(CAMERA, Path(path))):
        with pytest.raises(ValueError, match="is not written: from outside"):
            within_run(command, tmp_path)
    line = remote.connected()
    with closing(line):
        line.send(Export(Path(path), job=3))
        heard = line.receive()
    assert isinstance(heard, JobFailed) and heard.job == 3 and "is not written" in heard.sentence


def test_what_is_written_from_outside_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "a.ply").touch()
    assert within_run(Export(Path("exports/a.ply")), tmp_path) == Export(tmp_path / "exports" / "a-2.ply")
    (tmp_path / "renders").symlink_to("/tmp")
    with pytest.raises(ValueError, match="is not written"):
        within_run(Export(tmp_path / "renders" / "a.ply"), tmp_path)


def test_what_a_remote_client_may_send_leaves_out_all_that_ends_or_leads_a_training() -> None:
    led = {command for command in concrete(Command) if command.__name__ in ("Start", "Close", "ReturnSlot")}
    assert not set(REMOTE_COMMANDS) & led and Leave not in REMOTE_COMMANDS
    assert {Export, RenderPath, Snapshot, SetView, Step} < set(REMOTE_COMMANDS)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*(kind.__name__ for kind in concrete(Command)), "", "Nothing"])
fields = st.dictionaries(st.sampled_from(["count", "max_gaussians", "values", "number", "x", "job"]), values)
commands = st.builds(lambda name, rest: {**rest, "type": name}, names | values, fields)


@settings(max_examples=max(200, settings().max_examples))  # each takes a millisecond
@given(data=st.binary(max_size=60) | (commands | values).map(msgspec.msgpack.encode))
def test_data_is_a_command_that_may_be_sent_or_a_value_error(data: bytes) -> None:
    try:
        command = checked_remote_command(data)
    except ValueError:
        return
    assert type(command) in REMOTE_COMMANDS


@pytest.mark.parametrize("path", ["strategy.x.y", "eval_steps.a.b", "steps.x.y", "", ".", "optim..a"])
def test_a_setting_that_is_none_is_a_value_error(path: str) -> None:
    with pytest.raises(ValueError, match="unknown setting"):
        changed(TrainConfig(), path, 1)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def heard(line: RemoteLine, wanted: Event) -> bool:
    return line.receive() == wanted


def test_who_sends_slowly_or_comes_in_crowds_takes_no_place_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_server, "HELLO_SECONDS", 0.5)
    remote = Remote()
    crowd = [socket.create_connection(("127.0.0.1", remote.server.port), 60.0) for _ in range(40)]
    try:
        crowd[0].sendall(b"G")
        for client in crowd:  # each is let go: the first 32 after their time, the others at once
            client.settimeout(60.0)
            try:
                assert client.recv(1 << 16) == b""
            except ConnectionResetError:
                continue
        mute = remote.stranger()  # who shakes hands, and then says nothing
        assert len(told(mute)) == 1
    finally:
        for client in crowd:
            client.close()
    remote.hub.receive(Warned("here"))
    line = remote.connected()
    with closing(line):
        assert heard(line, Warned("here"))
    remote.server.close()


def test_one_who_does_not_read_is_let_go_and_the_others_are_heard(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_server, "SEND_SECONDS", 1.0)
    long = Warned("x" * 1_000_000)
    deaf, good = remote.connected(), remote.connected()
    with closing(deaf), closing(good):
        until(lambda: remote.server.num_clients == 2)
        for _ in range(60):  # more than the socket and the queue of the one that is deaf hold
            remote.hub.receive(long)
            assert heard(good, long)
        until(lambda: remote.server.num_clients == 1)
        remote.hub.receive(Warned("here"))
        assert heard(good, Warned("here"))


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
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, left = threading.Thread.start, 40

    def scarce(thread: threading.Thread) -> None:
        nonlocal left
        if left > 0 and threading.current_thread().name.startswith("remote"):
            left -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    while left > 0:  # more than there are places
        with socket.create_connection(("127.0.0.1", remote.server.port), 60.0) as client:
            assert client.recv(1) == b""
    remote.hub.receive(Warned("here"))
    line = remote.connected()
    with closing(line):
        assert heard(line, Warned("here"))


def test_a_connection_that_fails_does_not_end_the_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda address: _Flaky(create(address)))
    monkeypatch.setattr(remote_server, "ACCEPT_SECONDS", 0.01)
    remote = Remote()
    remote.hub.receive(Warned("here"))
    line = remote.connected()
    with closing(line):
        assert heard(line, Warned("here"))
    remote.server.close()
