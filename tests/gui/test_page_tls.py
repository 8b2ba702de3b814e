"""The page under TLS: the gate, the start page before it, and what both say of it."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from gate_client import TOKEN
from viser import __version__ as VISER

from splatstudio.gui.server.access import Listen, advice
from splatstudio.gui.server.gate import GatedServer, open_server
from splatstudio.gui.server.start_page import StartPage
from splatstudio.gui.server.start_views import StartContent
from splatstudio.runtime.channel.tls import TlsFiles


def listening(files: TlsFiles) -> Listen:
    return Listen("localhost", 0, tls_cert=files.tls_cert, tls_key=files.tls_key)


@pytest.fixture(scope="module")
def gated(certificate: TlsFiles) -> Iterator[GatedServer]:
    server = open_server(listening(certificate), token=TOKEN)
    yield server
    server.stop()


def asked(url: str, files: TlsFiles, **headers: str) -> http.client.HTTPResponse:
    """Return the answer to a browser that trusts the certificate and checks its name."""
    parts = urlsplit(url)
    context = ssl.create_default_context(cafile=str(files.tls_cert))
    connection = http.client.HTTPSConnection(parts.netloc, context=context, timeout=60)
    connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
    return connection.getresponse()


def test_the_page_is_served_encrypted_to_who_has_its_address(
    gated: GatedServer, certificate: TlsFiles
) -> None:
    assert gated.url == f"https://localhost:{gated.port}/?token={TOKEN}"
    first = asked(gated.url, certificate)
    cookie = first.headers["Set-Cookie"]
    assert first.status == 303 and cookie.endswith("; Secure")
    page = f"https://localhost:{gated.port}/"
    assert asked(page, certificate, Cookie=cookie.partition(";")[0]).status == 200
    assert asked(page, certificate).status == 403
    # Not by a client with threads: Python's sockets of TLS take no reading beside writing.
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": "https://evil.example"}
    key = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    for headers, status in ((upgrade, 403), ({**upgrade, "Origin": page[:-1]}, 101)):
        viser = {"Sec-WebSocket-Protocol": f"viser-v{VISER}", "Cookie": cookie.partition(";")[0]}
        assert asked(page, certificate, **headers, **key, **viser).status == status


@pytest.mark.parametrize(
    "said", [f"GET /?token={TOKEN} HTTP/1.1\r\n\r\n".encode(), b"\x16\x03\x01\x00\x05hello"]
)
def test_who_does_not_encrypt_learns_nothing(gated: GatedServer, said: bytes) -> None:
    heard = b""
    with socket.create_connection(("127.0.0.1", gated.port), 60) as stranger, suppress(ConnectionResetError):
        stranger.sendall(said)
        while data := stranger.recv(1000):
            heard += data
    assert not heard or heard.startswith(b"\x15\x03"), "a TLS alert at most"


def test_the_start_page_hands_its_address_over_encrypted(tmp_path: Path, certificate: TlsFiles) -> None:
    page = StartPage(listening(certificate), lambda: StartContent((), tmp_path, tmp_path))
    assert asked(page.url, certificate).status == 303
    server = open_server(page.address)
    try:
        assert server.url == page.url and asked(page.url, certificate).status == 303
    finally:
        server.stop()


def test_a_certificate_that_does_not_do_opens_no_page(tmp_path: Path, certificate: TlsFiles) -> None:
    wrong = replace(listening(certificate), tls_cert=tmp_path / "none.pem")
    with pytest.raises(ValueError, match=r"none\.pem cannot be read: No such file"):
        open_server(wrong)


def test_of_an_encrypted_page_nobody_is_warned(certificate: TlsFiles) -> None:
    everywhere = replace(listening(certificate), host="0.0.0.0")
    assert not [line for line in advice(everywhere, "https://x/", 80, {}) if "Warning" in line]
    assert [line for line in advice(Listen("0.0.0.0"), "http://x/", 80, {}) if "Warning" in line]
