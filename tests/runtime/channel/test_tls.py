"""The line to other machines under TLS: who is let in, who in between gains nothing, what is told."""

from __future__ import annotations

import multiprocessing
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import make_certificate
from worker_watcher import wait_until

from splatstudio.runtime.channel import remote_server
from splatstudio.runtime.channel.codec import encode
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.channel.hub import Hub
from splatstudio.runtime.channel.remote_server import RemoteServer, RunCard
from splatstudio.runtime.channel.tls import NO_TLS, TlsFiles, caller_context, encrypted
from splatstudio.runtime.headless_controller import HeadlessController, kept_token, token_file
from splatstudio.runtime.messages import Command, Event, Pause, Started, TrainJob, Warned
from splatstudio.runtime.remote_run import RemoteLine, Unreachable, dial
from splatstudio.settings.config import TrainConfig


class Remote:
    """A training whose line is encrypted: its hub, what it was told to do, its server."""

    def __init__(self, tls: TlsFiles) -> None:
        self.obeyed: list[Command] = []
        self.hub = Hub(self.obeyed.append)
        card = RunCard(Path("scene"), Path("run"), "{}", 2)
        self.server = RemoteServer("127.0.0.1", 0, self.hub, lambda: card, tls=tls)
        self.address = f"tls://127.0.0.1:{self.server.port}"

    def dialed(self, address: str | None = None) -> RemoteLine:
        return dial(address or self.address, self.server.token, frames=True)


@pytest.fixture
def remote(certificate: TlsFiles) -> Iterator[Remote]:
    made = Remote(certificate)
    yield made
    made.server.close()


def test_both_ways_are_encrypted_and_used_at_once(remote: Remote) -> None:
    sent = [Warned(f"{number} {'x' * 200_000}") for number in range(20)]
    with closing(remote.dialed()) as line:
        assert remote.server.scheme == "tls://"

        def order() -> None:
            for _ in range(200):
                line.send(Pause())

        ordering = threading.Thread(target=order)
        ordering.start()
        for event in sent:
            remote.hub.receive(event)
            assert line.receive() == event
        ordering.join()
        remote.hub.receive(Warned("end"))
        assert line.receive() == Warned("end")
    assert set(remote.obeyed) == {Pause()}


def test_who_does_not_read_is_let_go(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_server, "SEND_SECONDS", 2.0)  # who reads may be slow on a busy machine
    with closing(remote.dialed()), closing(remote.dialed()) as good:
        for _ in range(30):
            remote.hub.receive(Warned("x" * 1_000_000))
            assert isinstance(good.receive(), Warned)
        wait_until(lambda: remote.server.num_clients == 1, "who does not read is let go")
        remote.hub.receive(Warned("more"))
        assert isinstance(good.receive(), Warned)


@contextmanager
def in_between(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen in the place of a training, and hand each line that comes over; the address is given."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    serve(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"tls://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_one_in_between_who_hands_all_words_on_is_not_believed(remote: Remote, tmp_path: Path) -> None:
    """It ends the encryption of one side, begins its own to the other, and relays even the proofs."""
    false = make_certificate(tmp_path, "false").context()
    assert false is not None
    heard: list[bytes] = []

    def relay(line: socket.socket) -> None:
        caller = encrypted(line, false, 5.0, lambda: 5.0)
        training = socket.create_connection(("127.0.0.1", remote.server.port))
        training = encrypted(training, caller_context(), 5.0, lambda: 5.0)

        def pump(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    heard.append(data)
                    target.sendall(data)
            target.close()

        threading.Thread(target=pump, args=(training, caller), daemon=True).start()
        pump(caller, training)

    with (
        in_between(relay) as address,
        pytest.raises(ValueError, match=r"the token is not that|does not know"),
    ):
        remote.dialed(address)
    assert heard and not any(remote.server.token.encode() in data for data in heard)
    assert remote.obeyed == [] and remote.server.num_clients == 0


def test_one_side_alone_does_not_encrypt(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_server, "HELLO_SECONDS", 0.3)
    with pytest.raises(Unreachable, match=r"then it is tls://|no training answers"):
        remote.dialed(remote.address.removeprefix("tls://"))
    plain = Remote(NO_TLS)
    with pytest.raises(Unreachable, match="does not encrypt as a training does: omit tls://"):
        remote.dialed(f"tls://127.0.0.1:{plain.server.port}")
    plain.server.close()
    with closing(remote.dialed()):
        pass


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(300)])
def test_garbage_in_the_place_of_a_handshake_ends_itself_alone(remote: Remote, data: bytes) -> None:
    # It may be let go before all is sent.
    with suppress(OSError), socket.create_connection(("127.0.0.1", remote.server.port), 30.0) as stranger:
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1 << 16):
            pass
    with closing(remote.dialed()):
        pass


def test_what_is_no_certificate_is_told_in_a_sentence(tmp_path: Path, certificate: TlsFiles) -> None:
    other = make_certificate(tmp_path, "other")
    (tmp_path / "text").write_text("no certificate")
    cases = {
        TlsFiles(tls_key=certificate.tls_key): "add --tls-cert",
        TlsFiles(tls_cert=tmp_path / "text"): "are no certificate and its private key in PEM",
        TlsFiles(
            tls_cert=certificate.tls_cert
        ): "are no certificate and its private key in PEM",  # the key is missing
        replace(certificate, tls_key=other.tls_key): "are no certificate and its private key",
        replace(certificate, tls_key=tmp_path / "missing"): "missing cannot be read: No such file",
        replace(certificate, tls_key=Path("/dev/zero")): "/dev/zero cannot be read: it is a device",
    }
    for files, sentence in cases.items():
        with pytest.raises(ValueError, match=sentence) as caught:
            files.context()
        assert "\n" not in str(caught.value)
    assert certificate.context() is not None and NO_TLS.context() is None


def test_a_key_with_a_password_is_not_asked_for(tmp_path: Path, certificate: TlsFiles) -> None:
    assert certificate.tls_key is not None
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", str(certificate.tls_key), "-aes256", "-passout", "pass:secret"]
    subprocess.run([*command, "-out", str(locked)], check=True, capture_output=True, timeout=60)
    with pytest.raises(ValueError, match="is encrypted with a password, which cannot be asked for"):
        replace(certificate, tls_key=locked).context()


def test_the_only_file_with_the_token_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: TlsFiles
) -> None:
    """A restart keeps the token, and a run from elsewhere brings none along."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    (run / "attach.json").write_text('{"token": "known to who made this run"}')
    told: list[Event] = []
    ours, theirs = multiprocessing.Pipe()
    slots = FrameSlots.create(num_slots=1, slot_bytes=3)
    job = TrainJob(tmp_path, run, TrainConfig(), attempt=1)
    controller = HeadlessController(ours, slots, job, told.append, certificate)
    controller.listen(("127.0.0.1", 0), None, 1)
    following = threading.Thread(target=controller.follow, daemon=True)
    following.start()
    theirs.recv_bytes()  # it is told to start
    theirs.send_bytes(encode(Started(0, 1, 0, 0, 0)))
    theirs.close()
    following.join(60)
    controller.close()
    slots.close()
    (found,) = [event.sentence for event in told if isinstance(event, Warned) and "--token" in event.sentence]
    address, token = found.split()[-3], found.split()[-1]
    assert address.startswith("tls://127.0.0.1:") and kept_token(run) == token
    files = [path for path in tmp_path.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert files == [token_file(run)]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    files[0].write_text('{"token": "short"}')
    assert kept_token(run) is None
