"""Who may come in: the checks of a request's Host, Origin and token, before viser sees it.

The Host check stops DNS rebinding (a foreign page whose name is made to point at 127.0.0.1), the Origin check
stops foreign pages that open a WebSocket, the token stops everybody else, other users of this machine too.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

_OPEN_THE_URL = "Please open the URL printed in the terminal where splatstudio was started."
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)


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
        return " ".join(["frame-ancestors 'self'", *sorted(self.origins)])


def make_access(host: str, token: str, allow_hosts: Iterable[str], allow_origins: Iterable[str]) -> Access:
    """Return the rules for a server that listens on `host` and is also known under the allowed names.

    Raises ValueError: an allowed host is not a bare name, or an allowed origin is not scheme://name.
    """
    names = {"localhost", "127.0.0.1", "[::1]"}
    if not is_wildcard(host):
        names.add(f"[{host.lower()}]" if ":" in host else host.lower())
    for name in allow_hosts:
        match = _HOST.fullmatch(name.lower())
        if match is None or match["port"] is not None:
            raise ValueError(
                f"An allowed host is a name without port, such as studio.example.org, not {name!r}."
            )
        names.add(match["name"].rstrip("."))
    origins: set[str] = set()
    for origin in allow_origins:
        parts = urlsplit(origin.lower())
        match = _HOST.fullmatch(parts.netloc)
        if parts.scheme not in {"http", "https"} or match is None or parts.path.strip("/") or parts.query:
            raise ValueError(f"An allowed origin looks like https://studio.example.org, not {origin!r}.")
        origins.add(f"{parts.scheme}://{parts.netloc}")
    return Access(token, frozenset(names), frozenset(origins), is_wildcard(host))


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
    body = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>splatstudio</title>"
        '<meta name="color-scheme" content="dark light"><meta name=viewport content="width=device-width">'
        f"{refresh}<body style='font:1.1rem system-ui;max-width:40rem;margin:20vh auto;padding:0 1rem'>"
        f"<h1 style='font-size:1.3rem'>splatstudio</h1><p>{sentence}</p>"
    ).encode()
    headers = Headers(
        {
            "Content-Type": "text/html; charset=utf-8",
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
