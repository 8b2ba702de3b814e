"""The gate: every request and message passes it on the way to viser. It tries itself at each start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import logging
import socket
import ssl
import sys
import threading
import time
import traceback
import warnings
import weakref
from asyncio import get_running_loop
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
import rich
import viser
import viser._messages
import websockets.asyncio.server
from viser.infra._async_message_buffer import AsyncMessageBuffer
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from splatstudio.gui.server.access import (
    STILL_HERE,
    THIS_MACHINE,
    Access,
    Listen,
    Refusal,
    data_response,
    is_websocket,
    is_wildcard,
    make_access,
    page_response,
    url_of,
)
from splatstudio.gui.server.allowed_browser_messages import GateLimits, MessageFilter, Unacceptable
from splatstudio.gui.server.opening_page import asked_size, is_page, opened, opening_page, viser_page
from splatstudio.runtime.channel.tls import caller_context, encrypted

_ANSWER_SECONDS = 60.0  # for an answer to a request, on a machine that is at work
_PATIENCE_SECONDS = 60.0  # for a message to be looked at
_TLS_SECONDS = 10.0  # for a browser to begin with TLS

_log = logging.getLogger(__name__)
_ANY = "The gate of the studio's page refused something for the first time: %s."
_NEWS = {
    "token": "Rejected a tab with an old token (%s). Open the address that "
    "is printed here; a tab of an earlier studio can be closed.",
    "value": "Something that was typed on the page is out of its field's bounds and was not taken (%s).",
}

_START_SECONDS = 30.0
_patching = threading.Lock()
_BUILDER = "splatstudio-builds-viser"  # the thread in which a server of ours is made
_silent: weakref.WeakSet[object] = weakref.WeakSet()  # viser's web servers of our pages


class Prober:
    """Opens WebSockets to a server with whatever headers are to be tried."""

    def __init__(self, address: tuple[str, int], url: str, token: str):
        """Try the server at `address`, whose page has that `url`."""
        self._address = address
        self._scheme, _, self._host = url.partition("/?")[0].partition("://")
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
        if connection is None:
            raise RuntimeError(f"a browser with the token was answered with {status}")
        with connection:
            self._check_messages(connection, num_refused)

    def _check_messages(self, connection: ClientConnection, num_refused: Callable[[], int]) -> None:
        messages = [
            {"type": "ShareUrlRequest"},
            {"type": "GuiUpdateMessage", "uuid": "none", "updates": {"value": 1}},
            {"type": "CommandTriggerMessage", "uuid": "none"},
        ]
        wanted = num_refused() + len(messages)
        for message in messages:
            connection.send(msgspec.msgpack.encode(message))
        if not self.wait(lambda: num_refused() >= wanted):
            raise RuntimeError("a request for a public tunnel was not stopped")

    def wait(self, reached: Callable[[], bool]) -> bool:
        """Wait until something holds; tell whether it did in time."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not reached() and time.monotonic() < deadline:
            time.sleep(0.002)
        return reached()

    def _status(self, **settings: Any) -> int:
        connection, status = self._open(**settings)
        if connection is not None:
            connection.close()
        return status

    def _line(self) -> socket.socket:
        line = socket.create_connection(self._address, timeout=_ANSWER_SECONDS)
        if self._scheme == "http":
            return line
        return encrypted(line, caller_context(), _ANSWER_SECONDS, lambda: _ANSWER_SECONDS)

    def _open(
        self, *, host: str | None = None, origin: str | None = None, token: str | None = ""
    ) -> tuple[ClientConnection | None, int]:
        """Ask for a WebSocket; return the connection, if any, and the HTTP status, 0 without an answer."""
        try:
            connection = connect(
                f"ws://{host or self._host}/",
                sock=self._line(),
                origin=Origin(origin or f"{self._scheme}://{self._host}"),
                subprotocols=[Subprotocol(f"viser-v{viser.__version__}")],
                additional_headers={}
                if token is None
                else {"Authorization": f"Bearer {token or self._token}"},
                open_timeout=_ANSWER_SECONDS,
                proxy=None,
            )
        except InvalidStatus as refused:
            return None, refused.response.status_code
        except (OSError, InvalidHandshake, TimeoutError):
            return None, 0
        return connection, 101


class Gate:
    """Stands between the browsers and one viser server, and counts what it refuses.

    `refused` maps a reason to how often it was given: host, origin, token, clients, crowd, descriptors (none
    was left), handshake (before a browser is let in); message type, damaged, attribute, value, control,
    control off, camera, upload, large (messages); fast (messages that had to wait).
    """

    def __init__(self, access: Access, limits: GateLimits):
        self.refused: Counter[str] = Counter()
        self.limits = limits
        self.server: viser.ViserServer | None = None
        self.installed = False  # viser serves through this gate
        # Draws the first view at a width and a height, px, as JPEG; None where there is nothing to be seen.
        self.first_picture: Callable[[int, int], bytes | None] = lambda width, height: None
        self._trying = True  # the self-test's refusals are no news
        self._access = access
        self._connections: set[ServerConnection] = set()
        self._strangers: dict[ServerConnection, None] = {}  # in the order in which they came
        self._warned: set[str] = set()

    @property
    def num_clients(self) -> int:
        """How many browsers are connected."""
        return len(self._connections)

    def meet(self, stranger: ServerConnection) -> None:
        """Note who has come; the oldest of too many goes: who knows the secret is let in at once."""
        self._strangers[stranger] = None
        if len(self._strangers) > self.limits.max_strangers:
            oldest = next(iter(self._strangers))
            self.part_from(oldest)
            self.refuse("crowd")
            oldest.transport.abort()

    def part_from(self, stranger: ServerConnection) -> None:
        """Forget who was let in, or has gone."""
        self._strangers.pop(stranger, None)

    def hear_of(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what went wrong in the server's loop: that nobody could be accepted is no fault of ours."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            self.refuse("descriptors")
        else:
            loop.default_exception_handler(context)

    def refuse(self, reason: str) -> None:
        """Count a refusal, and say so in the log the first time."""
        self.refused[reason] += 1
        if reason not in self._warned and not self._trying:
            self._warned.add(reason)
            _log.warning(_NEWS.get(reason, _ANY), reason)

    def start_counting(self) -> None:
        """Forget what the self-test made it refuse."""
        self._trying = False
        self.refused.clear()

    def answer(self, request: Request) -> Response | None:
        """Answer a request that ends here; None for one that viser may answer."""
        try:
            if (response := self._access.answer(request)) is not None:
                return response
            if self._trying and not request.headers.get_all("Authorization"):
                # A browser that was at this address before; the self-test brings its token in a header.
                return page_response(HTTPStatus.SERVICE_UNAVAILABLE, "The studio is opening.", reload_after=1)
            if request.path == STILL_HERE:
                return page_response(HTTPStatus.OK, "This studio is still here.")
            opens_page = is_websocket(request) or is_page(request)
            if opens_page and self.num_clients >= self.limits.max_clients:
                sentence = f"{self.num_clients} browsers are connected already, which is the limit. "
                sentence += "Please close one; this page tries again by itself."
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "clients", sentence, reload_after=5)
        except Refusal as refusal:
            self.refuse(refusal.reason)
            return page_response(refusal.status, refusal.sentence, reload_after=refusal.reload_after)
        return None

    def guard(self, viser_answers: Callable[..., Any] | None) -> Callable[..., Awaitable[Response | None]]:
        """Return a `process_request` for the WebSocket server: the gate's answer, else viser's."""

        async def process_request(connection: ServerConnection, request: Request) -> Response | None:
            response = self.answer(request)
            if response is None and (size := asked_size(request)) is not None:
                picture = await get_running_loop().run_in_executor(None, self.first_picture, *size)
                status = HTTPStatus.NO_CONTENT if picture is None else HTTPStatus.OK
                response = data_response(status, "image/jpeg", picture or b"")
            if response is None and viser_answers is not None:
                try:
                    response = viser_answers(connection, request)
                    if inspect.isawaitable(response):
                        response = await response
                    if response is not None and is_page(request):
                        response = opened(response)
                except (OSError, ValueError):  # no file can have that name, as one of 6,000 letters
                    response = page_response(HTTPStatus.NOT_FOUND, "There is no such page.")
            return None if response is None else self._access.harden(response)

        return process_request

    def admit(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """Return a connection handler that keeps count of the browsers."""

        async def handle(connection: ServerConnection) -> None:
            # This begins in the same turn of the event loop in which `answer` let it in: the limit is exact.
            self._connections.add(connection)
            self.part_from(connection)
            try:
                await handler(connection)
            finally:
                self._connections.discard(connection)
                sent = connection.protocol.close_sent
                if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
                    self.refuse("large")

        return handle

    def find_client(self, connection: ServerConnection) -> viser.ClientHandle | None:
        """Return viser's handle of a connection; None before its first camera."""
        assert self.server is not None
        for client_id, live in tuple(self.server._websock_server._live_connections.items()):
            if live is connection:
                return self.server._connected_clients.get(client_id)
        return None


class GatedConnection(ServerConnection):
    """A WebSocket that gives viser only the messages that the filter passes, at a bounded rate."""

    def __init__(self, gate: Gate, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self._gate = gate
        self._filter = MessageFilter(gate.limits)
        self._client: viser.ClientHandle | None = None
        self._credit = gate.limits.messages_per_second  # messages that may come at once
        self._credit_time = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give up on a browser that takes nothing: pings would wait behind the frames it never reads."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            milliseconds = int(1000 * self._gate.limits.silent_seconds)
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, option, milliseconds)
        super().connection_made(transport)
        self.loop.set_exception_handler(self._gate.hear_of)
        self._gate.meet(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget one who has gone."""
        self._gate.part_from(self)
        super().connection_lost(exc)

    async def recv(self, decode: bool | None = None) -> Any:
        """Return the next message that is good."""
        while True:
            raw = await super().recv(decode)
            await self._pace()
            server = self._gate.server
            if server is None:  # it is being built; nobody but the self-test knows of it
                continue
            if self._client is None:
                self._client = self._gate.find_client(self)
            try:
                return self._filter.passed(raw, server, self._client)
            except Unacceptable as error:
                self._gate.refuse(error.reason)

    async def _pace(self) -> None:
        """Take one message from the credit, or wait: then the browser's messages wait in its own machine."""
        rate = self._gate.limits.messages_per_second
        now = self.loop.time()
        self._credit = min(rate, self._credit + (now - self._credit_time) * rate) - 1
        self._credit_time = now
        if self._credit < 0:
            self._gate.refuse("fast")
            await asyncio.sleep(-self._credit / rate)


@dataclass(frozen=True, eq=False)
class GatedServer:
    """A viser server that only those with the URL can reach."""

    server: viser.ViserServer
    gate: Gate
    port: int
    url: str = field(repr=False)  # with the token: for the terminal, never for a log

    def stop(self) -> None:
        """Close all connections and the port."""
        self.server.stop()


def open_server(
    listen: Listen = THIS_MACHINE,
    *,
    token: str | None = None,
    limits: GateLimits = GateLimits(),  # noqa: B008 - frozen
) -> GatedServer:
    """Start a viser server behind the gate, and try the gate before returning.

    `token` is the secret in the URL, at least 8 characters; None: that of `listen`. Raises ValueError where
    the port or address is not available, or an argument is wrong, and RuntimeError where the gate does not
    hold with the installed viser; nothing is left open then.
    """
    token = listen.new_token() if token is None else token
    if len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("A token needs at least 8 letters, digits or signs, without spaces.")
    gate = Gate(make_access(listen, token), limits)
    context = listen.context()
    listener = listen.take_port()
    try:
        return _open_behind(gate, listener, listen, context, token)
    except RuntimeError:
        listener.close()
        raise


def _open_behind(
    gate: Gate, listener: socket.socket, listen: Listen, context: ssl.SSLContext | None, token: str
) -> GatedServer:
    """Start viser on a listening socket, and try the gate as one who is reached under the same address."""
    address, port = listener.getsockname()[:2]
    server, host = _build(gate, listener, listen.host, context), listen.host
    gated = GatedServer(server, gate, port, url_of(listen, port, token))
    try:
        if not gate.installed:
            raise RuntimeError(f"viser {viser.__version__} does not serve its page as viser 1.1 does")
        opening_page(viser_page())
        _close_tunnel(server)
        gate.server = server
        if is_wildcard(host):
            address = "::1" if ":" in host else "127.0.0.1"
        prober = Prober((address, port), gated.url, token)
        prober.check(lambda: gate.refused["message type"] + gate.refused["control"])
        prober.wait(lambda: gate.num_clients == 0)
    except (RuntimeError, OSError, AttributeError, AssertionError, ValueError) as error:
        gated.stop()
        raise RuntimeError(
            f"The studio's page could not be locked, so it was not opened: {error}. "
            "Install the viser it was made for: pip install 'viser==1.1.*'."
        ) from error
    gate.start_counting()
    return gated


class SharedEvent(asyncio.Event):
    """An event that any thread may set; those who wait for it are woken by the event loop's own thread.

    viser 1.1 sets the event of its messages in whatever thread sends one, and then again in the event loop.
    asyncio's own event goes through its waiters each time, which now and then fails ("deque mutated during
    iteration") in a thread that only wanted to send: a browser's pictures stood still for good.
    """

    def set(self) -> None:
        """Set it; in the event loop also wake who waits, who may have been left to it by another thread."""
        try:
            get_running_loop()
        except RuntimeError:
            self._value = True
            return
        self._value = False
        super().set()


def _let_any_thread_send() -> None:
    """Give every buffer of messages that viser makes from now on an event that any thread may set."""
    make = AsyncMessageBuffer.__init__
    if getattr(make, "sets_shared_event", False):
        return

    def make_shared(buffer: AsyncMessageBuffer, *args: Any, **kwargs: Any) -> None:
        make(buffer, *args, **kwargs)
        buffer.message_event = SharedEvent()

    make_shared.sets_shared_event = True  # type: ignore[attr-defined]
    AsyncMessageBuffer.__init__ = make_shared  # type: ignore[method-assign]


def _build(
    gate: Gate, listener: socket.socket, host: str, context: ssl.SSLContext | None
) -> viser.ViserServer:
    """Construct the viser server in a thread of its own: its constructor waits for ever when it fails."""
    built: list[viser.ViserServer] = []

    def build() -> None:
        server = viser.ViserServer(host=host, port=listener.getsockname()[1], verbose=False)
        _silent.add(server._websock_server)
        built.append(server)

    _let_any_thread_send()
    _quiet_viser()
    builder = threading.Thread(target=build, name=_BUILDER, daemon=True)
    with _patching, _gated_serve(gate, listener, context):
        builder.start()
        builder.join(_START_SECONDS)
        if not built:
            raise RuntimeError(f"The web server (viser {viser.__version__}) did not start.")
    return built[0]


def _quiet_viser() -> None:
    """Let our servers print nothing, neither their address, which needs the token, nor their end.

    viser prints by rich, which goes past a redirected output in a notebook; other servers there are none of
    ours. It also warns of what is shown to a browser that has left, or after the page was closed: both are
    ordinary here.
    """
    warnings.filterwarnings("ignore", message=r"Queued a \w+ on a closed connection")
    if getattr(rich.print, "without_viser", False):
        return
    printed = rich.print

    def without_viser(*objects: Any, **how: Any) -> None:
        caller = sys._getframe(1)
        of_viser = str(caller.f_globals.get("__name__")).startswith("viser.")
        of_ours = threading.current_thread().name == _BUILDER or caller.f_locals.get("self") in _silent
        if not (of_viser and of_ours):
            printed(*objects, **how)

    without_viser.without_viser = True  # pyright: ignore[reportFunctionMemberAccess]
    rich.print = without_viser


@contextlib.contextmanager
def _gated_serve(gate: Gate, listener: socket.socket, context: ssl.SSLContext | None) -> Iterator[None]:
    """Let viser, while it starts, serve on our socket and through the gate.

    When it fails to start in time this stays in force, lest it start late and without the gate.
    """
    serve = websockets.asyncio.server.serve

    def gated_serve(handler: Callable[[Any], Awaitable[None]], *_: Any, **settings: Any) -> Any:
        if gate.installed:
            # viser tries the next port when serving fails; there is only one.
            raise RuntimeError("The web server could not be started.")
        gate.installed = True
        if context is not None:
            settings |= {"ssl": context, "ssl_handshake_timeout": _TLS_SECONDS}
        settings |= {
            "process_request": gate.guard(settings.get("process_request")),
            "max_size": gate.limits.max_message_bytes,
            "sock": listener,
            "create_connection": partial(GatedConnection, gate),
            "logger": _quiet_logger(gate),
            "server_header": None,
        }
        return serve(gate.admit(handler), **settings)

    websockets.asyncio.server.serve = gated_serve  # pyright: ignore[reportAttributeAccessIssue]
    yield
    websockets.asyncio.server.serve = serve


def _quiet_logger(gate: Gate) -> logging.Logger:
    """Return a logger for the WebSocket server that cannot tell the token: its requests contain it."""

    def passes(record: logging.LogRecord) -> bool:
        handshake = record.getMessage() == "opening handshake failed"
        if handshake and not _has_gone(record):
            gate.refuse("handshake")
        return not handshake and not _has_gone(record)

    logger = logging.Logger("splatstudio.websockets", logging.WARNING)
    logger.parent = logging.getLogger()
    logger.addFilter(passes)
    return logger


def _has_gone(record: logging.LogRecord) -> bool:
    """Return whether a page was left before it was answered, as by a quick reload: websockets asserts."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, AssertionError):
        error = error.__cause__
    frames = [] if error is None else [*traceback.walk_tb(error.__traceback__)]
    # What we or viser assert is a fault.
    return bool(frames) and frames[-1][0].f_globals["__name__"].startswith("websockets.")


def _close_tunnel(server: viser.ViserServer) -> None:
    """Take away viser's public tunnel, which any browser could open."""
    for message in (viser._messages.ShareUrlRequest, viser._messages.ShareUrlDisconnect):
        server._websock_server.unregister_handler(message)

    def no_share_url(verbose: bool = True) -> None:
        raise RuntimeError("The studio is never shared through a public tunnel; use ssh -L.")

    server.request_share_url = no_share_url
