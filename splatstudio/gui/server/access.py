"""Who may come in, and where the page listens.

A request's Host, Origin and token are checked before viser sees it. The Host check stops DNS rebinding (a
foreign page whose name is made to point at 127.0.0.1), the Origin check stops foreign pages that open a
WebSocket, the token stops everybody else, other users of this machine too."""

from __future__ import annotations

import errno
import getpass
import hashlib
import hmac
import html
import ipaddress
import os
import platform
import re
import secrets
import socket
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psutil
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from splatstudio.gui.server.page_files import THEME, page_of, page_text
from splatstudio.operating_system import take_port_again
from splatstudio.runtime.channel.tls import TlsFiles

_OPEN_THE_URL = "Please open the URL printed in the terminal where splatstudio was started."
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)

STILL_HERE = "/still-here"  # where a page that was let in asks whether it still would be
_PORTS = range(8080, 8180)  # that "auto" tries


class Refusal(Exception):
    """A request that is not let in: the HTTP status, the counter it adds to, a sentence for the reader."""

    def __init__(self, status: HTTPStatus, reason: str, sentence: str, reload_after: int | None = None):
        super().__init__(sentence)
        self.status = status
        self.reason = reason
        self.sentence = sentence
        self.reload_after = reload_after


@dataclass(frozen=True)
class Access:
    """The token and the names under which this studio may be reached."""

    token: str = field(repr=False)
    hosts: frozenset[str]
    origins: frozenset[str]
    any_address: bool  # IP addresses are let through: the server listens on all of them
    encrypted: bool = False
    framed_by: tuple[str, ...] = ()  # pages that may show this one in a frame, and nothing more

    def answer(self, request: Request) -> Response | None:
        """Answer a request that ends at the door, as the first visit with the token; None: it is let in.

        Raises Refusal for whoever is not let in.
        """
        port = self.check_sender(request)
        if request.path == "/healthz":
            return page_response(HTTPStatus.OK, "The studio is running.")
        if request.path == THEME:  # on every page, also for who is not let in
            return data_response(
                HTTPStatus.OK, "text/javascript; charset=utf-8", page_text("theme.js").encode()
            )
        if not is_websocket(request) and (login := self.login(request, port)):
            return login
        if not self.is_authorized(request, port):
            sentence = "This studio is locked. Please open the URL printed in the terminal where "
            raise Refusal(HTTPStatus.FORBIDDEN, "token", sentence + "splatstudio was started.")
        return None

    def harden(self, response: Response) -> Response:
        """Return a response with what tells browsers to keep other pages away from it."""
        response.headers["Content-Security-Policy"] = self.frame_ancestors()
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def check_sender(self, request: Request) -> str:
        """Check Host and Origin, and return the port under which the browser sees this server.

        Any port is right, so that a tunnel (ssh -L 9000:localhost:8080) works.

        Raises Refusal: 421 for a foreign or damaged Host, 403 for a page of another origin.
        """
        hosts = request.headers.get_all("Host")
        match = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if match is None or not self._is_ours(match["name"].rstrip(".")):
            sentence = "This studio is not reached under this name. " + _OPEN_THE_URL
            raise Refusal(HTTPStatus.MISDIRECTED_REQUEST, "host", sentence)
        origins = request.headers.get_all("Origin")
        if len(origins) > 1 or (origins and not self._is_own_page(origins[0].lower(), match[0])):
            sentence = "Another web page tried to reach this studio. " + _OPEN_THE_URL
            raise Refusal(HTTPStatus.FORBIDDEN, "origin", sentence)
        return match["port"] or "80"

    def _is_ours(self, name: str) -> bool:
        if name in self.hosts:
            return True
        # An address cannot be rebound; only names can.
        return self.any_address and is_address(name.strip("[]"))

    def _is_own_page(self, origin: str, host: str) -> bool:
        if origin in self.origins:
            return True
        scheme, separator, place = origin.partition("://")
        default = {"http": ":80", "https": ":443"}.get(scheme)
        if not separator or default is None:
            return False
        return place.removesuffix(default) == host.removesuffix(default)

    def is_authorized(self, request: Request, port: str) -> bool:
        """Whether a request brings the token: in the cookie of an earlier visit, or as a bearer."""
        given: list[tuple[str, str]] = []
        for line in request.headers.get_all("Authorization"):
            scheme, _, value = line.partition(" ")
            if scheme.lower() == "bearer":
                given.append((value.strip(), self.token))
        for line in request.headers.get_all("Cookie"):
            for cookie in line.split(";"):
                name, _, value = cookie.strip().partition("=")
                if name == _cookie_name(port):
                    given.append((value, self._cookie_value()))
        # All are compared, so that the time tells nothing.
        return any([_equal(*pair) for pair in given])

    def login(self, request: Request, port: str) -> Response | None:
        """Answer a visit by the URL with `?token=`: keep it in a cookie, and take it out of the address bar.

        Returns None when the address carries no token, or a wrong one.
        """
        path, _, query = request.path.partition("?")
        parameters = parse_qsl(query, keep_blank_values=True)
        tokens = [value for name, value in parameters if name == "token"]
        if not any([_equal(value, self.token) for value in tokens]):
            return None
        # One leading slash only: //name would be an address on another server.
        location = "/" + quote(path.lstrip("/\\"), safe="/%")
        rest = urlencode([pair for pair in parameters if pair[0] != "token"])
        location += f"?{rest}" if rest else ""
        cookie = f"{_cookie_name(port)}={self._cookie_value()}; HttpOnly; SameSite=Strict; Path=/"
        cookie += "; Secure" if self.encrypted else ""
        if request.headers.get_all("Sec-Fetch-Site") == ["cross-site"]:
            # A link followed from a web terminal or a chat. Browsers withhold a SameSite=Strict cookie along
            # the redirects of such a visit, but not when our own page moves on.
            response = page_response(HTTPStatus.OK, "Opening the studio.", reload_after=0, location=location)
        else:
            response = page_response(HTTPStatus.SEE_OTHER, "Opening the studio.")
            response.headers["Location"] = location
        response.headers["Set-Cookie"] = cookie
        return response

    def _cookie_value(self) -> str:
        # Not the token itself: browsers show cookies to every server of this machine, whatever its port.
        return hmac.new(self.token.encode(), b"splatstudio cookie", hashlib.sha256).hexdigest()

    def frame_ancestors(self) -> str:
        """The pages that may show the studio in a frame, as a Content-Security-Policy."""
        return " ".join(["frame-ancestors 'self'", *sorted(self.origins), *self.framed_by])


def make_access(listen: Listen, token: str) -> Access:
    """Return the rules for a server that listens there, and is also known under the allowed names.

    Raises ValueError: an allowed host is not a bare name, or an allowed origin is not scheme://name.
    """
    names = {"localhost", "127.0.0.1", "[::1]"}
    host = listen.host
    if not is_wildcard(host):
        names.add(f"[{host.lower()}]" if ":" in host else host.lower())
    for name in listen.allow_host:
        match = _HOST.fullmatch(name.lower())
        if match is None or match["port"] is not None:
            raise ValueError(
                f"An allowed host is a name without port, such as studio.example.org, not {name!r}."
            )
        names.add(match["name"].rstrip("."))
    origins: set[str] = set()
    for origin in listen.allow_origin:
        parts = urlsplit(origin.lower())
        match = _HOST.fullmatch(parts.netloc)
        if parts.scheme not in {"http", "https"} or match is None or parts.path.strip("/") or parts.query:
            raise ValueError(f"An allowed origin looks like https://studio.example.org, not {origin!r}.")
        origins.add(f"{parts.scheme}://{parts.netloc}")
    encrypted = listen.tls_cert is not None
    framed_by = listen.framed_by
    return Access(token, frozenset(names), frozenset(origins), is_wildcard(host), encrypted, framed_by)


def is_wildcard(host: str) -> bool:
    """Whether a server on this host listens on all addresses of the machine."""
    return is_address(host) and ipaddress.ip_address(host).is_unspecified


def is_address(name: str) -> bool:
    """Whether a host is given as an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_websocket(request: Request) -> bool:
    """Whether a request wants to become a WebSocket."""
    return any(value.lower() == "websocket" for value in request.headers.get_all("Upgrade"))


def page_response(
    status: HTTPStatus, sentence: str, *, reload_after: int | None = None, location: str = "/"
) -> Response:
    """Return a small page with one sentence; with `reload_after` (seconds) it moves on to `location`."""
    refresh = ""
    if reload_after is not None:
        refresh = f'<meta http-equiv="refresh" content="{reload_after};url={html.escape(location)}">'
    return html_response(status, page_of("sentence.html", refresh=refresh, sentence=sentence, theme=THEME))


def html_response(status: HTTPStatus, text: str) -> Response:
    """Return a whole page, which no browser keeps."""
    # Names may hold half a letter.
    return data_response(status, "text/html; charset=utf-8", text.encode(errors="replace"))


def data_response(status: HTTPStatus, kind: str, body: bytes) -> Response:
    """Return data of a media type, which no browser keeps."""
    headers = Headers(
        {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Cache-Control": "no-store",
        }
    )
    return Response(status.value, status.phrase, headers, body)


def _cookie_name(port: str) -> str:
    # Cookies do not know ports: without it two studios seen as localhost would log each other out.
    return f"splatstudio_{port}"


def _equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())


@dataclass(frozen=True)
class Listen(TlsFiles):
    """Where the studio's page can be reached.

    Args:
        host: Address to listen on; 0.0.0.0 for every network of this machine.
        port: Port to listen on; "auto" takes the first free one from 8080 on.
        allow_host: Further names of this machine, such as that of a reverse proxy.
        allow_origin: Further pages that may connect, such as https://studio.example.org.
        tls_cert: Serve the page encrypted, as https, with the certificate in this PEM file (with those that
            lead to its authority, where browsers need them).
        tls_key: PEM file with the certificate's private key, where it is not in the same file.
    """

    host: str = "127.0.0.1"
    port: int | Literal["auto"] = "auto"
    allow_host: tuple[str, ...] = ()
    allow_origin: tuple[str, ...] = ()

    framed_by = ()  # pages that may show this one in a frame, beside those that may connect

    def new_token(self) -> str:
        """Return the secret for the page's address."""
        return secrets.token_urlsafe(24)

    def at_port(self, port: int) -> Listen:
        """Return the same place with this port, to be listened on anew."""
        return Listen(**{**{name: getattr(self, name) for name in Listen.__dataclass_fields__}, "port": port})

    def taken_over(self, token: str, take: Callable[[], socket.socket]) -> TakenOver:
        """Return this place for who takes over its secret, and the socket that `take` returns."""
        own = {name: getattr(self, name) for name in Listen.__dataclass_fields__}
        return TakenOver(**own, token=token, take=take)

    def take_port(self) -> socket.socket:
        """Return a socket that listens here; port 0 takes any.

        viser itself hangs for ever on a bad address, and silently moves on from a port that is taken.
        Raises ValueError when the port is taken or not allowed, or the host is not of this machine.
        """
        if self.port != "auto" and not 0 <= self.port <= 65535:
            raise ValueError(f"There is no port {self.port}: choose one from 1024 to 65535.")
        family, address = _resolve(self.host)
        for port in _PORTS if self.port == "auto" else [self.port]:
            try:
                return _bound(family, address, port)
            except OSError as error:
                if self.port != "auto" or error.errno != errno.EADDRINUSE:
                    raise ValueError(_explanation(error, self.host, port)) from error
        first, last = _PORTS[0], _PORTS[-1]
        raise ValueError(f"All ports from {first} to {last} are in use: name a free one with --port.")


@dataclass(frozen=True)
class TakenOver(Listen):
    """The address of a page that is there: whoever listens takes over its socket and secret, and it ends."""

    token: str = field(repr=False, kw_only=True)
    take: Callable[[], socket.socket] = field(repr=False, kw_only=True)

    def new_token(self) -> str:
        """Return the secret that the browser has already."""
        return self.token

    def take_port(self) -> socket.socket:
        """Return the socket on which the page listened."""
        return self.take()


@dataclass(frozen=True)
class InNotebook(Listen):
    """A place for a page that stands in a notebook: Jupyter's pages of this machine may show it in a frame.

    Over https the browser would take the two for different sites, and withhold the cookie.
    """

    framed_by = ("http://127.0.0.1:*", "http://localhost:*")  # as Jupyter prints them, at any port


class PassedOn:
    """A page whose address another one can take over: the socket listens on, and the secret stays."""

    listen: Listen
    port: int
    token: str
    handed_over = False
    _listener: socket.socket

    @property
    def address(self) -> TakenOver:
        """Return where one listens who takes over the address of this page."""
        return self.listen.at_port(self.port).taken_over(self.token, self.hand_over)

    def hand_over(self) -> socket.socket:
        """Stop serving and return the socket, which listens on."""
        self._stop_serving()
        self.handed_over = True
        return self._listener

    def close(self) -> None:
        """Stop serving and leave the port."""
        if not self.handed_over:
            self._stop_serving()
            self._listener.close()

    def _stop_serving(self) -> None:
        raise NotImplementedError


THIS_MACHINE = Listen()


def advice(listen: Listen, url: str, port: int, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the sentences to print below the page's address.

    Args:
        listen: where the server listens.
        url: the page's address with its token, as seen on this machine.
        port: the port that the server has.
        environment: the variables of the shell; sshd sets SSH_CONNECTION.
    """
    host = listen.host
    if not _is_loopback(host):
        others = [url.replace(f"localhost:{port}", f"{address}:{port}") for address in _addresses(host)]
        if others and others != [url]:
            yield f"From other machines: {' or '.join(others)}"
        if listen.tls_cert is None:
            yield (
                f"Warning: the studio listens on {host}, unencrypted, and who learns its address with the "
                "token can steer it; where you do not trust the network, give --tls-cert, or omit --host and "
                "use ssh -L."
            )
    tunnel = ssh_line(host, port, environment)
    if tunnel is not None:
        yield f"To open it in the browser of the computer that you came from, run there first: {tunnel}"


def url_of(listen: Listen, port: int, token: str) -> str:
    """Return the address of the page with its secret, as it is seen on this machine."""
    scheme = "http" if listen.tls_cert is None else "https"
    return f"{scheme}://{shown_host(listen.host)}:{port}/?token={quote(token)}"


def shown_host(host: str) -> str:
    """Return how a browser of this machine names the host."""
    if is_wildcard(host):
        return "localhost"
    return f"[{host}]" if ":" in host else host


def open_browser(url: str) -> None:
    """Open the default browser where there is a display: elsewhere one of the terminal would take it."""
    if platform.system() != "Linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)


def ssh_line(host: str, port: int, environment: Mapping[str, str]) -> str | None:
    """Return the command that brings the page's port to the computer one logged in from; None without SSH."""
    # The client's address and port, then this machine's.
    parts = environment.get("SSH_CONNECTION", "").split()
    if len(parts) != 4:
        return None
    _, _, server, server_port = parts
    target = "localhost" if _is_loopback(host) or is_wildcard(host) else host
    if ":" in target:
        target = f"[{target}]"
    login = f"{environment.get('USER') or getpass.getuser()}@{server}"
    option = "" if server_port == "22" else f" -p {server_port}"
    return f"ssh -N -L {port}:{target}:{port}{option} {login}"


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def _addresses(host: str) -> list[str]:
    """Return the addresses under which other machines may reach a server on `host`, three at most."""
    if not is_wildcard(host):
        return [host]
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not _is_loopback(entry.address)
    ]
    return found[:3]


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"The host {host!r} is not known: try 127.0.0.1.") from error
    # "localhost" has two addresses; every browser tries the IPv4 one.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, str(address[0])


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        take_port_again(listener)
        listener.bind((address, port))
        listener.listen(100)
    except OSError:
        listener.close()
        raise
    return listener


def _explanation(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} is already in use, perhaps by another splatstudio: close it, name another one, or "
            "take a free one with --port auto."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"The address {host} does not belong to this machine: try 127.0.0.1, or 0.0.0.0 for all."
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"Port {port} is reserved for the administrator: choose one from 1024 to 65535."
    return f"Cannot listen on {host}, port {port}: {error.strerror}."
