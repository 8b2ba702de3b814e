"""A viser server behind the gate, or none at all."""

from __future__ import annotations

import contextlib
import io
import logging
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

import viser
import viser._messages
import websockets.asyncio.server

from splatstudio.gui.server.access import is_wildcard, make_access
from splatstudio.gui.server.connection import Gate, GatedConnection
from splatstudio.gui.server.limits import GateLimits
from splatstudio.gui.server.listening import listen
from splatstudio.gui.server.selftest import Prober

_START_SECONDS = 30.0
_patching = threading.Lock()


@dataclass(frozen=True, eq=False)
class GatedServer:
    """A viser server that only those with the URL can reach."""

    server: viser.ViserServer
    gate: Gate
    port: int
    url: str = field(repr=False)  # with the token: for the terminal, never for a log

    def stop(self) -> None:
        """Close all connections and the port."""
        with contextlib.redirect_stdout(io.StringIO()):  # viser says so
            self.server.stop()


def open_server(
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    allow_hosts: Sequence[str] = (),
    allow_origins: Sequence[str] = (),
    limits: GateLimits = GateLimits(),  # noqa: B008 - frozen
) -> GatedServer:
    """Start a viser server behind the gate, and try the gate before returning.

    Args:
        host: address to listen on; 0.0.0.0 for all of this machine.
        port: None for the first free one from 8080 on, 0 for any.
        token: the secret in the URL, at least 8 characters; None for a new random one.
        allow_hosts: further names of this server, such as that of a reverse proxy.
        allow_origins: further pages that may connect, such as https://studio.example.org.
        limits: what one browser may do.

    Raises:
        ValueError: the port or address cannot be had, or an argument is wrong.
        RuntimeError: the gate does not hold with the installed viser; nothing is left open.
    """
    token = secrets.token_urlsafe(24) if token is None else token
    if len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("A token needs at least 8 letters, digits or signs, without spaces.")
    gate = Gate(make_access(host, token, allow_hosts, allow_origins), limits)
    listener = listen(host, port)
    try:
        return _open_behind(gate, listener, host, token)
    except RuntimeError:
        listener.close()
        raise


def _open_behind(gate: Gate, listener: socket.socket, host: str, token: str) -> GatedServer:
    """Start viser on a listening socket, and try the gate as one who is reached under the same address."""
    address, port = listener.getsockname()[:2]
    server = _build(gate, listener, host, port)
    shown = (
        f"localhost:{port}" if is_wildcard(host) else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    )
    gated = GatedServer(server, gate, port, f"http://{shown}/?token={quote(token)}")
    try:
        if not gate.installed:
            raise RuntimeError(f"viser {viser.__version__} does not serve its page as viser 1.1 does")
        _close_tunnel(server)
        gate.server = server
        if is_wildcard(host):
            address = "::1" if ":" in host else "127.0.0.1"
        prober = Prober((address, port), shown, token)
        prober.check(lambda: gate.refused["message type"] + gate.refused["control"])
        prober.wait(lambda: gate.num_clients == 0)
    except (RuntimeError, OSError, AttributeError, AssertionError) as error:
        gated.stop()
        raise RuntimeError(
            f"The studio's page could not be locked, so it was not opened: {error}. "
            "Install the viser it was made for: pip install 'viser==1.1.*'."
        ) from error
    gate.start_counting()
    return gated


def _build(gate: Gate, listener: socket.socket, host: str, port: int) -> viser.ViserServer:
    """Construct the viser server in a thread of its own: its constructor waits for ever when it fails."""
    built: list[viser.ViserServer] = []

    def build() -> None:
        built.append(viser.ViserServer(host=host, port=port, verbose=False))

    builder = threading.Thread(target=build, daemon=True)
    # viser prints its address, which nobody can open without the token.
    with _patching, contextlib.redirect_stdout(io.StringIO()), _gated_serve(gate, listener):
        builder.start()
        builder.join(_START_SECONDS)
        if not built:
            raise RuntimeError(f"The web server (viser {viser.__version__}) did not start.")
    return built[0]


@contextlib.contextmanager
def _gated_serve(gate: Gate, listener: socket.socket) -> Iterator[None]:
    """Let viser, while it starts, serve on our socket and through the gate.

    When it fails to start in time this stays in force, lest it start late and without the gate.
    """
    serve = websockets.asyncio.server.serve

    def gated_serve(handler: Callable[[Any], Awaitable[None]], *_: Any, **settings: Any) -> Any:
        if gate.installed:
            # viser tries the next port when serving fails; there is only one.
            raise RuntimeError("The web server could not be started.")
        gate.installed = True
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
        if record.getMessage() != "opening handshake failed":
            return True
        gate.refuse("handshake")
        return False

    logger = logging.Logger("splatstudio.websockets", logging.WARNING)
    logger.parent = logging.getLogger()
    logger.addFilter(passes)
    return logger


def _close_tunnel(server: viser.ViserServer) -> None:
    """Take away viser's public tunnel, which any browser could open."""
    for message in (viser._messages.ShareUrlRequest, viser._messages.ShareUrlDisconnect):
        server._websock_server.unregister_handler(message)

    def no_share_url(verbose: bool = True) -> None:
        raise RuntimeError("The studio is never shared through a public tunnel; use ssh -L.")

    server.request_share_url = no_share_url
