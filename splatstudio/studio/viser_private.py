"""All that the studio takes from viser beyond its public interface; a test fails when viser changes it."""

from __future__ import annotations

import contextlib
import http
import io
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import viser
import websockets.asyncio.server
from viser import _messages
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}


def push_background_jpeg(client: viser.ClientHandle, jpeg: bytes) -> None:
    """Show encoded JPEG bytes behind the scene in one browser.

    The public call encodes by itself, at 4-6 ms a frame instead of 1.
    """
    message = _messages.BackgroundImageMessage(format="jpeg", rgb_data=jpeg, depth_data=None)
    client.scene._websock_interface.queue_message(message)
    client.flush()


def open_server(host: str, port: int, label: str) -> viser.ViserServer:
    """Start viser on exactly this address, closed to other sites' pages and without its public tunnel.

    Raises ValueError when it cannot listen there.
    """
    require_bindable(host, port)
    server_module = websockets.asyncio.server
    serve = server_module.serve
    server_module.serve = _guarded(serve, host)
    try:
        # viser prints its own address, in a box; the studio prints the one to open.
        with contextlib.redirect_stdout(io.StringIO()):
            server = viser.ViserServer(host=host, port=port, label=label, verbose=False)
    finally:
        server_module.serve = serve
    if server.get_port() != port:
        # viser silently moves on when another program took the port in this very moment.
        server.stop()
        raise ValueError(f"port {port} on {host} is in use; name another one with --port")
    _remove_share(server)
    return server


def require_bindable(host: str, port: int) -> None:
    """Raise ValueError, naming host and port, when nothing can listen there: viser would hang or move."""
    if not 0 < port < 65536:
        raise ValueError(f"port {port} is not between 1 and 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        reason = "is in use" if error.errno == 98 else f"cannot be used ({error.strerror})"
        raise ValueError(f"port {port} on {host} {reason}; name another one with --port") from error


def _remove_share(server: viser.ViserServer) -> None:
    """Take away viser's public tunnel, which any browser could open, even without its button."""
    for message_class in (_messages.ShareUrlRequest, _messages.ShareUrlDisconnect):
        server._websock_server.unregister_handler(message_class)
    server.request_share_url = lambda verbose=True: None


def refusal(headers: Headers, host: str) -> str | None:
    """Return why a request must not be served, None when it may.

    A page of another site could otherwise connect to a studio on this machine, also by a host name that it
    lets point here (DNS rebinding). Where the studio listens on all addresses, names cannot be known: only
    the origin is compared.
    """
    requested = headers.get("Host", "")
    name = urlsplit(f"//{requested}").hostname or ""
    if host in LOCAL_NAMES and name not in LOCAL_NAMES:
        return f"The studio answers only to local names, not to {name!r}."
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != requested:
        return "Pages of other sites may not use the studio."
    return None


def _guarded(serve: Callable[..., Any], host: str) -> Callable[..., Any]:
    """Wrap the `serve` of websockets so that every request passes `refusal` first."""

    def guarded_serve(*arguments: Any, process_request: Any = None, **options: Any) -> Any:
        def check(connection: ServerConnection, request: Request) -> Response | Awaitable | None:
            reason = refusal(request.headers, host)
            if reason is not None:
                return connection.respond(http.HTTPStatus.FORBIDDEN, reason + "\n")
            return process_request(connection, request) if process_request else None

        return serve(*arguments, process_request=check, **options)

    return guarded_serve
