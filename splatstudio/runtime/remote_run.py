"""A training that runs elsewhere, in the place of one of this machine's own: the same orders, events, frames.

It goes on when this side leaves. When the line breaks, because a rank has died or the network has, it is
dialed again and again: the launcher starts the ranks again, and they are found at the same address.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import simplejpeg
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, WebSocketException
from websockets.sync.client import ClientConnection, connect

from splatstudio.error_text import as_sentence, printable
from splatstudio.runtime import messages
from splatstudio.runtime.channel.codec import decode, encode
from splatstudio.runtime.channel.frame_slots import MAX_FRAME_PIXELS
from splatstudio.runtime.channel.hub import HubClient
from splatstudio.runtime.channel.remote_server import (
    GONE_SECONDS,
    MAX_HELLO,
    PING_SECONDS,
    PROTOCOL,
    QUIET,
    REMOTE_COMMANDS,
    SEND_SECONDS,
    Greeting,
    Hello,
    Ready,
    RunCard,
    Welcome,
    is_nonce,
    limit_waiting,
    new_greeting,
    order_words,
    proof,
    same,
    shut,
)
from splatstudio.runtime.channel.tls import SCHEME, TlsSocket, caller_context, encrypted

MAX_ANSWER = 1 << 26  # bytes of a message of the training, which has shown that it knows the token
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # for each thing that is said first: the other end may be anybody
REDIAL_SECONDS = 1.0
PATIENCE_SECONDS = 600.0  # for the launcher to start the ranks again, on another machine perhaps
DETACH_SECONDS = 2.0

log = logging.getLogger(__name__)


class Unreachable(ValueError):
    """Nobody answers, which may be different in a moment."""


class RemoteLine:
    """A connection to a training that has shown that it knows the token."""

    def __init__(self, connection: ClientConnection, card: RunCard):
        self._connection = connection
        self.card = card

    def send(self, command: messages.Command) -> None:
        """Send a command; OSError where the line has broken."""
        try:
            self._connection.send(encode(command))
        except (ConnectionClosed, AssertionError) as error:  # the library's own, of a line that just closes
            raise ConnectionError(str(error)) from error

    def receive(self) -> messages.Event:
        """Wait for the next event; OSError where the line has broken, ValueError for what is none."""
        try:
            return decode(self._connection.recv(decode=False), messages.Event)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    def shut(self) -> None:
        """Wake who reads and who writes here."""
        shut(self._connection.socket)

    def close(self) -> None:
        """Leave; the training goes on."""
        self.shut()
        self._connection.close_socket()


def dial(address: str, token: str, *, frames: bool) -> RemoteLine:
    """Return a line to the training at `address`, HOST:PORT, encrypted where it is tls://HOST:PORT.

    Raises Unreachable where nobody answers, else ValueError, with one sentence.
    """
    host, _, port = address.removeprefix(SCHEME).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address} is no address: give HOST:PORT, as the training printed it")
    host = host.strip("[]")
    try:
        connection = connect(
            f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}",
            sock=_connected(host, int(port), tls=address.startswith(SCHEME)),
            compression=None,
            max_size=MAX_HELLO,  # whoever it is, until it has shown that it knows the token
            open_timeout=CONNECT_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=GONE_SECONDS,
            close_timeout=1.0,
            proxy=None,
            user_agent_header=None,
            logger=QUIET,  # a line that goes dead is told where it is missed
        )
    except (InvalidHandshake, InvalidMessage) as error:
        # A port that a training has left may belong to another program for a while.
        raise Unreachable(_no_training(address)) from error
    except ssl.SSLError as error:
        plain = address.removeprefix(SCHEME)
        raise Unreachable(
            f"what answers at {plain} does not encrypt as a training does: omit {SCHEME} where it was started"
            " without --tls-cert"
        ) from error
    # websockets asserts something of its own where a line is cut in the midst of shaking hands.
    except (OSError, WebSocketException, AssertionError) as error:
        raise Unreachable(f"no training answers at {address}: {error}") from error
    try:
        limit_waiting(connection.socket)
        card = _introduced(connection, token, address, frames)
    except (OSError, ConnectionClosed) as error:
        connection.close_socket()
        raise Unreachable(f"the training at {address} has ended, or does not answer: {error}") from error
    except ValueError:
        connection.close_socket()
        raise
    return RemoteLine(connection, card)


def _connected(host: str, port: int, *, tls: bool) -> socket.socket:
    """Return a line to whoever listens there; OSError where nobody does, or nobody who encrypts."""
    line = socket.create_connection((host, port), CONNECT_SECONDS)
    if tls:
        return encrypted(line, caller_context(), CONNECT_SECONDS, lambda: SEND_SECONDS)
    line.settimeout(None)
    return line


def _no_training(address: str) -> str:
    hint = "" if address.startswith(SCHEME) else f", unless it encrypts: then it is {SCHEME}{address}"
    return f"what answers at {address} is no training of splatstudio{hint}"


def _introduced(connection: ClientConnection, token: str, address: str, frames: bool) -> RunCard:
    other, line = _no_training(address), connection.socket
    seen = line.getpeercert(binary_form=True) if isinstance(line, TlsSocket) else None
    certificate = hashlib.sha256(seen).hexdigest() if seen else ""
    try:
        greeting = decode(connection.recv(timeout=ANSWER_SECONDS, decode=False), Greeting)
    except ValueError as error:
        raise Unreachable(other) from error
    if greeting.splatstudio != PROTOCOL:
        raise ValueError(
            f"the training at {address} speaks version {greeting.splatstudio}, this program version"
            f" {PROTOCOL}: use the same release of splatstudio on both sides"
        )
    if not is_nonce(greeting.nonce):
        raise Unreachable(other)
    own = new_greeting().nonce
    shown = proof(token, "caller", greeting.nonce, own, certificate)
    connection.send(encode(Hello(PROTOCOL, own, shown, frames)))
    try:
        welcome = decode(connection.recv(timeout=ANSWER_SECONDS, decode=False), Welcome)
        if welcome.refused:
            raise (Unreachable if welcome.for_now else ValueError)(printable(welcome.refused))
        if not same(welcome.proof, proof(token, "training", greeting.nonce, own, certificate)):
            raise ValueError("what answers there does not know the token, so it is not your training")
        connection.protocol.max_message_size = MAX_ANSWER
        connection.send(encode(Ready()))
        return decode(connection.recv(timeout=ANSWER_SECONDS, decode=False), RunCard)
    except ValueError as error:
        kind = Unreachable if isinstance(error, Unreachable) else ValueError
        raise kind(f"{address}: {error}") from error


def dial_again(dialed: Callable[[], RemoteLine], left: threading.Event) -> RemoteLine:
    """Return what `dialed` gives as soon as somebody answers: the launcher starts ranks that died again.

    Raises ValueError with one sentence where it may not be, where nobody does for long, or once it is `left`.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not left.wait(REDIAL_SECONDS):
        try:
            line = dialed()
            if not left.is_set():
                return line
            line.close()
        except Unreachable:
            if time.monotonic() >= deadline:
                raise
    raise ValueError("the training was left")


@dataclass(frozen=True)
class RemotePlan:
    """Where the training runs, instead of here: `line` is the first connection, `dialed` gives another one.

    That raises Unreachable where nobody answers for now, and ValueError where nobody will.
    """

    line: RemoteLine
    dialed: Callable[[], RemoteLine]

    def supervise(self, job: messages.Job, log_path: Callable[[], Path], listener: HubClient) -> RemoteRun:
        """Return what stands between a training and `listener`; see `Supervisor`."""
        return RemoteRun(self, job, listener)


class RemoteRun:
    """What a Supervisor is to processes of this machine. Methods may be called from any thread."""

    pids: tuple[int, ...] = ()  # there is no process here
    will_pause = None  # orders that are given while the line is broken are not kept
    trains = False  # what it has to save it saves itself

    def __init__(self, plan: RemotePlan, job: messages.Job, listener: HubClient):
        self.job = job
        self._plan = plan
        self._listener = listener
        self._line: RemoteLine | None = plan.line
        self._sending = threading.Lock()
        # The newest of each, for a training that was started again.
        self._views: dict[int, messages.SetView] = {}
        self._jobs: set[int] = set()
        self._saved: int | None = None  # the step that was saved last, as far as was told
        self._left = threading.Event()
        self._finished = False
        self._thread = threading.Thread(target=self._run, name="remote run", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether it has been started and has not ended."""
        return self._thread.is_alive()

    def send(self, command: messages.Command) -> None:
        """Give an order; Close only leaves, and the training goes on. What cannot arrive is told of."""
        if isinstance(command, messages.Close):
            self.kill()
            return
        if type(command) not in REMOTE_COMMANDS:
            return  # Start: it has been started
        with self._sending:
            if isinstance(command, messages.SetView):
                self._views[command.view] = command
            elif isinstance(command, messages.DropView):
                self._views.pop(command.view, None)
            elif isinstance(command, messages.JobCommand):
                self._jobs.add(command.job)
            sent = self._write(command)
        if sent or isinstance(command, (messages.SetView, messages.DropView, messages.CancelJob)):
            return
        if isinstance(command, messages.JobCommand):
            self._end_jobs("There is no connection to the training; ask for it again when there is.")
        else:
            told = f"The training was not told to {order_words(command)}"
            self._listener.receive(messages.Warned(f"{told}: there is no connection to it just now."))

    def kill(self, *, quietly: bool = False) -> None:
        """Leave at once; the training goes on."""
        self._left.set()
        if (line := self._line) is not None:
            line.shut()  # who sends there, to one who does not read, holds the lock
        with self._sending:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def join(self, timeout: float) -> None:
        """Wait until it has been left, `timeout` seconds at most."""
        if self.alive and threading.current_thread() is not self._thread:
            self._thread.join(min(timeout, DETACH_SECONDS))

    def _write(self, command: messages.Command) -> bool:
        if self._line is None:
            return False
        try:
            self._line.send(command)
        except OSError:
            self._line.shut()  # who reads from here notices, and dials again
            return False
        return True

    def _run(self) -> None:
        line: RemoteLine | None = self._plan.line
        while line is not None and not self._left.is_set():
            try:
                self._listen(line)
            except (OSError, ValueError) as error:
                log.info("the line broke: %s", error)
            with self._sending:
                self._line = None
            line.close()
            self._end_jobs("The connection to the training broke before it was complete.")
            line = None if self._left.is_set() or self._finished else self._dial_again()
        if self._finished or self._left.is_set():
            self._listener.receive(messages.StateChanged("ended"))

    def _dial_again(self) -> RemoteLine | None:
        """Return another line to the training; None where this side has left, or has given up."""
        broken = _broken_sentence(self._saved)
        self._listener.receive(messages.StateChanged("disconnected", reason=broken))
        self._listener.receive(messages.Warned(broken))
        try:
            line = dial_again(self._plan.dialed, self._left)
        except ValueError as error:
            if not self._left.is_set():
                why = as_sentence(str(error))
                self._listener.receive(
                    messages.Failed(f"{why} What it has saved is in its run folder.", 0, None, why)
                )
            return None
        with self._sending:
            if self._left.is_set():
                line.close()
                return None
            self._line = line
            for wanted in self._views.values():
                self._write(wanted)
        return line

    def _listen(self, line: RemoteLine) -> None:
        """Hand on what is told until the line breaks; OSError or ValueError then."""
        while True:
            event = line.receive()
            if isinstance(event, messages.JpegFrame):
                self._take_picture(event)
                continue
            if isinstance(event, messages.Frame):
                raise ValueError("a frame comes with its picture")
            if isinstance(event, (messages.JobDone, messages.JobFailed, messages.JobCancelled)):
                with self._sending:
                    self._jobs.discard(event.job)
            elif isinstance(event, (messages.Finished, messages.StateChanged)):
                # A launched training leaves at its end; until then a broken line is a broken line.
                self._finished = isinstance(event, messages.Finished) or event.state == "finished"
            elif isinstance(event, messages.Saved):
                self._saved = event.step
            self._listener.receive(event)

    def _take_picture(self, picture: messages.JpegFrame) -> None:
        frame = picture.frame
        # Known before it is unpacked: a few bytes can stand for gigabytes.
        height, width, *_ = simplejpeg.decode_jpeg_header(picture.jpeg)
        if (height, width) != (frame.height, frame.width) or frame.width * frame.height > MAX_FRAME_PIXELS:
            raise ValueError("this picture has another size")
        self._listener.take_frame(frame, simplejpeg.decode_jpeg(picture.jpeg, colorspace="RGB"))

    def _end_jobs(self, sentence: str) -> None:
        with self._sending:
            jobs, self._jobs = self._jobs, set()
        for job in sorted(jobs):
            self._listener.receive(messages.JobFailed(job, sentence))


def _broken_sentence(saved: int | None) -> str:
    """Return what to tell of a line that broke, where the step of the last save is known or is not."""
    until = f"{datetime.now() + timedelta(seconds=PATIENCE_SECONDS):%H:%M}"
    kept = "What it has saved is in its run folder." if saved is None else f"It last saved step {saved:,}."
    return (
        f"The connection to the training broke and is tried again until {until}. The training may have ended."
        f" {kept}"
    )
