"""A training watched and steered from other machines: websockets, after a handshake.

Nothing that comes over the line is ever run or unpickled: a command is one of `REMOTE_COMMANDS`, whose fields
are checked, and what is written goes into two folders of the run. Who is slow, or gone, keeps nobody waiting.
"""

from __future__ import annotations

import hmac
import logging
import math
import re
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
from msgspec import Struct
from msgspec.structs import replace
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from splatstudio.cameras.camera import Camera
from splatstudio.error_text import printable
from splatstudio.formats import free_path
from splatstudio.operating_system import limit_sending
from splatstudio.runtime.channel.codec import check_camera, decode, encode
from splatstudio.runtime.channel.frame_slots import MAX_FRAME_PIXELS
from splatstudio.runtime.channel.hub import Hub, HubConnection
from splatstudio.runtime.channel.mailbox import Outbox
from splatstudio.runtime.channel.tls import NO_TLS, SCHEME, TlsFiles, encrypted
from splatstudio.runtime.messages import (
    CancelJob,
    Command,
    DropView,
    Evaluate,
    Event,
    Export,
    Frame,
    JobCommand,
    JobFailed,
    JpegFrame,
    Pause,
    Progress,
    RenderPath,
    Resume,
    Save,
    SetCap,
    SetView,
    Snapshot,
    Step,
    Stop,
    UpdateSettings,
)

PROTOCOL = 6  # both sides must speak the same
MAX_HELLO = 1 << 10  # bytes, of who may be anybody
SEND_SECONDS = 5.0  # for the other end to read: who does not is let go
GONE_SECONDS = 15  # for the other machine to confirm what was sent to it
PING_SECONDS = 5.0  # between two questions whether it is there
NONCE = re.compile("[0-9a-f]{32}")
WRONG_TOKEN = "the token is not that of this training"

# What a remote client may send.
REMOTE_COMMANDS: tuple[type[Command], ...] = (
    *(Pause, Resume, Step, Stop, Save, Evaluate, SetCap, UpdateSettings),
    *(SetView, DropView, Export, RenderPath, Snapshot, CancelJob),
)
WRITABLE_RUN_FOLDERS = ("exports", "renders")  # folders of the run that commands from outside may write into
MAX_COMMAND = 1 << 24  # bytes: an export names the cameras of all photos
MAX_NUMBER = 1 << 53  # beyond it a step or a number of splats is none, and no float holds it exactly
MAX_CLIENTS = 8
MAX_WORDS = 300  # letters of an order that is noted
MAX_STRANGERS = 32  # who have not shown the token yet
MAX_WAITING = 500  # events for one who is slow: then the oldest are left out
HELLO_SECONDS = 10.0  # for the token to be shown
FLUSH_SECONDS = 2.0  # at the end, for the last words to all
ACCEPT_SECONDS = 1.0  # after a connection that failed
UNANSWERED_SECONDS = 10.0  # after which a picture is no longer waited for
JPEG_QUALITY = 90

log = logging.getLogger("splatstudio.runtime")
# What strangers send is their affair: it would fill the log of a training.
QUIET = logging.getLogger("splatstudio.runtime.websockets")


class Greeting(Struct, frozen=True):
    """What a training says first."""

    splatstudio: int  # the protocol's version
    nonce: str


class Hello(Struct, frozen=True, forbid_unknown_fields=True):
    """What a caller answers. `frames`: it wants pictures as well as events."""

    version: int
    nonce: str
    proof: str
    frames: bool = False


class RunCard(Struct, frozen=True):
    """What a training says of itself to who has the token; `rows` are lines of its metrics, thinned out."""

    scene_path: Path
    run_dir: Path
    config: str  # JSON
    num_ranks: int
    rows: str = "[]"  # JSON


class Ready(Struct, frozen=True):
    """What a caller says who has seen the training's proof: long messages may come."""


class Welcome(Struct, frozen=True):
    """What a caller gets who knows the token, or why not."""

    proof: str = ""
    refused: str = ""  # a sentence
    for_now: bool = False  # whether that may be different in a moment


def new_greeting() -> Greeting:
    """Return a greeting with a new random number."""
    return Greeting(PROTOCOL, secrets.token_hex(16))


def checked(data: bytes, token: str, greeting: Greeting, certificate: str = "") -> tuple[Hello, Welcome]:
    """Return what a caller wants, and what to answer; `certificate`: see `proof`.

    Raises ValueError, with the sentence to refuse with, where the caller does not know the token.
    """
    hello = decode(data, Hello)
    if hello.version != PROTOCOL:
        raise ValueError(f"the training speaks version {PROTOCOL}: use the same release on both sides")
    if not is_nonce(hello.nonce):
        raise ValueError("this is no greeting")
    if not same(hello.proof, proof(token, "caller", greeting.nonce, hello.nonce, certificate)):
        raise ValueError(WRONG_TOKEN)
    return hello, Welcome(proof(token, "training", greeting.nonce, hello.nonce, certificate))


def is_nonce(said: str) -> bool:
    """Return whether a random number looks like one."""
    return NONCE.fullmatch(said) is not None


def proof(token: str, role: str, training_nonce: str, caller_nonce: str, certificate: str = "") -> str:
    """Return what only one who knows the token can say in that role, of "caller" and "training".

    `certificate` is the fingerprint of the one that the line is encrypted with, as this side sees it: what is
    said through another line proves nothing here. "": the line is not encrypted.
    """
    said = f"splatstudio {PROTOCOL} {role} {training_nonce} {caller_nonce} {certificate}".encode()
    return hmac.new(token.encode(errors="surrogateescape"), said, "sha256").hexdigest()


def same(given: str, expected: str) -> bool:
    """Return whether a proof is the expected one, in the same time whichever it is."""
    return given.isascii() and hmac.compare_digest(given, expected)


def limit_waiting(line: socket.socket) -> None:
    """Let sending fail with an OSError where the other end does not read, or its machine is gone."""
    limit_sending(line, SEND_SECONDS, GONE_SECONDS)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def shut(line: socket.socket) -> None:
    """Wake the thread that reads from `line`."""
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has gone


QUIET.setLevel(logging.CRITICAL)


def checked_remote_command(data: bytes | str) -> Command:
    """Return the command that a remote client sent; ValueError where it may send none such."""
    if isinstance(data, str):
        raise ValueError("a command is binary")
    command = decode(data, Command)
    if type(command) not in REMOTE_COMMANDS:
        raise ValueError(f"{type(command).__name__} is no command for a remote client")
    if not _is_finite(command):
        raise ValueError("a number is too large")
    for camera in _cameras_of(command):
        check_camera(camera)
    if isinstance(command, SetView) and not command.camera.width * command.camera.height <= MAX_FRAME_PIXELS:
        raise ValueError("this view is too large")
    return command


def _cameras_of(command: Command) -> list[Camera]:
    if isinstance(command, (SetView, Snapshot)):
        return [command.camera]
    if isinstance(command, Export):
        named = [camera for _, camera in command.cameras]
        return named if command.first is None else [*named, command.first]
    return []


def _is_finite(value: object) -> bool:
    """Return whether all numbers in a message are finite, and no larger than a float holds exactly."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, Path, np.ndarray)):
        return True  # arrays were looked at when they were made
    if isinstance(value, (int, float)):
        return math.isfinite(value) and abs(value) <= MAX_NUMBER
    if isinstance(value, tuple):
        return all(_is_finite(item) for item in value)
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    return all(_is_finite(getattr(value, name)) for name in names)


def within_run(command: JobCommand, run_dir: Path) -> JobCommand:
    """Return a task with where it writes: a new file in a folder of the run that is meant for such.

    Raises ValueError with one sentence for any other place.
    """
    assert isinstance(command, (Export, RenderPath, Snapshot)), command
    asked = command.path if isinstance(command, Export) else command.output
    root = run_dir.resolve()
    path = (root / asked).resolve()  # where links lead out, too
    folders = [root / name for name in WRITABLE_RUN_FOLDERS]
    if not any(folder in path.parents for folder in folders):
        where = " or ".join(map(str, folders))
        raise ValueError(f"{asked} is not written: from outside only files in {where} can be")
    path = free_path(path)
    return replace(command, path=path) if isinstance(command, Export) else replace(command, output=path)


def order_words(command: Command) -> str:
    """Return what an order from outside is, on one line that steers no terminal: "export to a.ply"."""
    match command:
        case Export(path=path):
            words = f"export to {path}"
        case RenderPath(output=output):
            words = f"render a camera path to {output}"
        case Snapshot(output=output):
            words = f"render a picture to {output}"
        case UpdateSettings(values=values):
            words = "change settings: " + ", ".join(f"{path} to {value}" for path, value in values)
        case Step(count=count):
            words = "train one step" if count == 1 else f"train {count:,} steps"
        case SetCap(max_gaussians=most):
            words = f"add no splats above {most:,}"
        case CancelJob():
            words = "cancel a task"
        case _:
            words = type(command).__name__.lower()
    return printable(words)[:MAX_WORDS]


class RemoteServer:
    """Lets in who has the token, and makes a client of the hub of each."""

    def __init__(
        self,
        host: str,
        port: int,
        hub: Hub,
        card: Callable[[], RunCard],
        token: str | None = None,
        tls: TlsFiles = NO_TLS,
    ):
        """Listen; OSError when the address is not available. `port` 0: any free one; `token` None: a new one.

        `card` says what is trained; it is called when somebody comes. ValueError for what `tls` names.
        """
        self._tls, self._certificate = tls.context(), tls.fingerprint
        self.scheme = SCHEME if self._tls else ""  # before the address that is given to others
        # Of hexadecimal digits: a word that begins with a dash would be taken for an option.
        self.token = token or secrets.token_hex(16)
        self._hub = hub
        self._card = card
        self._clients: list[RemoteClient] = []
        self._lock = threading.Lock()
        self._closed = False
        self._num_lines = 0  # connections, of clients and of strangers
        self._socket = socket.create_server((host, port))
        self.port = int(self._socket.getsockname()[1])
        # No browser: a page of somebody else's has no business here, and sends an Origin.
        self._websockets = serve(
            self._serve,
            sock=self._socket,
            origins=[None],
            compression=None,
            max_size=MAX_HELLO,
            open_timeout=HELLO_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=GONE_SECONDS,
            close_timeout=1.0,
            server_header=None,
            logger=QUIET,
        )
        # Not its own loop: threads that are no daemons would keep a training's process from ending.
        threading.Thread(target=self._accept, name="remote", daemon=True).start()

    @property
    def num_clients(self) -> int:
        """Return how many watch."""
        with self._lock:
            return len(self._clients)

    def close(self) -> None:
        """Let everybody go, once they have been told what there was to tell."""
        self._closed = True
        shut(self._socket)  # else the thread that waits there keeps the port
        self._socket.close()
        with self._lock:
            clients = list(self._clients)
        deadline = time.monotonic() + FLUSH_SECONDS
        for client in clients:
            client.flush(max(0.0, deadline - time.monotonic()))
            client.drop()

    def _accept(self) -> None:
        while True:
            try:
                line, address = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                # Who called has gone again, or too many files are open: that passes.
                log.warning("nobody could be let in: %s", error)
                time.sleep(ACCEPT_SECONDS)
                continue
            with self._lock:
                num_strangers = self._num_lines - len(self._clients)
                self._num_lines += num_strangers < MAX_STRANGERS
            if num_strangers >= MAX_STRANGERS:
                line.close()
                continue
            name = f"remote-{address[0]}"
            try:
                threading.Thread(target=self._meet, args=(line, address), name=name, daemon=True).start()
            except RuntimeError as error:  # the machine has no more threads: no reason to end a training
                log.warning("nobody could be let in: %s", error)
                self._end(line)

    def _meet(self, line: socket.socket, address: object) -> None:
        """Serve a connection until it ends."""
        try:
            limit_waiting(line)
            if self._tls is not None:
                line = encrypted(line, self._tls, HELLO_SECONDS, lambda: SEND_SECONDS)
            self._websockets.handler(line, address)
        except (OSError, RuntimeError) as error:  # the last: there are no more threads
            log.info("who came is let go: %s", error)
        finally:
            self._end(line)

    def _end(self, line: socket.socket) -> None:
        line.close()
        with self._lock:
            self._num_lines -= 1

    def _serve(self, connection: ServerConnection) -> None:
        client: RemoteClient | None = None
        try:
            hello = self._let_in(connection)
            if hello is None:
                return
            client = RemoteClient(connection, self._hub, frames=hello.frames)
            with self._lock:
                self._clients.append(client)
            client.begin()
            while True:
                self._take(connection.recv(), client)
        except ConnectionClosed:  # as wanted, or by the network: nobody says goodbye
            log.info("who watched has gone")
        except (OSError, ValueError, RuntimeError) as error:  # the last: there are no more threads
            log.info("who watched is let go: %s", error)
        finally:
            if client is not None:
                with self._lock:
                    self._clients.remove(client)
                client.drop()

    def _let_in(self, connection: ServerConnection) -> Hello | None:
        """Return what a caller wants who knows the token; None for others, who are told why not.

        Raises ConnectionClosed, TimeoutError or ValueError for what is no answer.
        """
        greeting = new_greeting()
        connection.send(encode(greeting))
        answer = connection.recv(timeout=HELLO_SECONDS, decode=False)
        try:
            hello, welcome = checked(answer, self.token, greeting, self._certificate)
        except ValueError as error:
            connection.send(encode(Welcome(refused=str(error))))
            return None
        if self.num_clients >= MAX_CLIENTS:  # of which some may be gone, and not be missed yet
            refused = f"{MAX_CLIENTS} watch this training already"
            connection.send(encode(Welcome(refused=refused, for_now=True)))
            return None
        connection.protocol.max_message_size = MAX_COMMAND
        connection.send(encode(welcome))
        decode(connection.recv(timeout=HELLO_SECONDS, decode=False), Ready)
        connection.send(encode(self._card()))
        return hello

    def _take(self, data: bytes | str, client: RemoteClient) -> None:
        """Obey a command; ValueError when it is none."""
        command = checked_remote_command(data)
        if not isinstance(command, (SetView, DropView)):
            log.info("told from outside: %s", order_words(command))
        if isinstance(command, JobCommand):
            try:
                command = within_run(command, self._card().run_dir)
            except ValueError as error:
                client.receive(JobFailed(command.job, str(error)))
                return
        client.send(command)


class RemoteClient:
    """A client of the hub on another machine: lets no more pictures be drawn than are read there."""

    def __init__(self, connection: ServerConnection, hub: Hub, *, frames: bool):
        self._connection = connection
        self._hub = hub
        self._frames = frames
        self._lock = threading.Lock()
        self._owed: dict[int, float] = {}  # views that are being drawn, and since when
        self._next: OrderedDict[int, SetView] = OrderedDict()  # the newest wish of each, to be drawn after
        self._outbox: Outbox[Event | tuple[Frame, np.ndarray]] = Outbox(
            self._write, "events of a remote client", MAX_WAITING
        )
        self._place: HubConnection | None = None

    def begin(self) -> None:
        """Hear what has been told so far, and all that comes."""
        self._place = self._hub.connect(self)

    def receive(self, event: Event) -> None:
        """Send an event; never waits."""
        self._outbox.put(event, "progress" if isinstance(event, Progress) else None)

    def take_frame(self, frame: Frame, image: np.ndarray) -> None:
        """Send a picture, in place of an older one of the view that still waits; never waits."""
        self._outbox.put((frame, image), ("frame", frame.view))

    def send(self, command: Command) -> None:
        """Hand on a command; a view is drawn as soon as the picture of it before has been read."""
        assert self._place is not None, "it has begun"
        if isinstance(command, SetView):
            if not self._frames or not self._is_due(command):
                return
        elif isinstance(command, DropView):
            with self._lock:
                self._owed.pop(command.view, None)
                self._next.pop(command.view, None)
        self._place.send(command)

    def _is_due(self, wanted: SetView) -> bool:
        """Return whether a view is to be drawn now; else it is once the picture before has been sent."""
        now = time.monotonic()
        with self._lock:
            since = self._owed.get(wanted.view)
            if since is not None and now - since < UNANSWERED_SECONDS:
                self._next[wanted.view] = wanted
                return False
            self._owed[wanted.view] = now
            return True

    def flush(self, seconds: float) -> None:
        """Wait until all is sent, `seconds` at most."""
        self._outbox.flush(seconds)

    def drop(self) -> None:
        """Let it go; its tasks go on."""
        self._outbox.close()
        if self._place is not None:
            self._place.close()
        shut(self._connection.socket)

    def _write(self, message: Event | tuple[Frame, np.ndarray]) -> None:
        """Write a message to the socket; for the outbox. Raises OSError where nobody reads."""
        if isinstance(message, tuple):
            frame, image = message
            image = np.ascontiguousarray(image)
            jpeg = simplejpeg.encode_jpeg(image, quality=JPEG_QUALITY, colorspace="RGB", fastdct=True)
            data = encode(JpegFrame(frame, jpeg))
        else:
            frame, data = None, encode(message)
        try:
            self._connection.send(data)
        except (ConnectionClosed, AssertionError) as error:  # the library's own, of a line that just closes
            shut(self._connection.socket)
            raise ConnectionError(str(error)) from error
        if frame is not None:
            self._draw_next(frame.view)

    def _draw_next(self, view: int) -> None:
        """Have what waits for a picture to be sent drawn now."""
        with self._lock:
            self._owed.pop(view, None)
            wanted = self._next.pop(view, None)
            if wanted is not None:
                self._owed[view] = time.monotonic()
        if wanted is not None and self._place is not None:
            self._place.send(wanted)
