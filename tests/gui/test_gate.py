"""Who may come in: addresses, ports, hosts, origins, tokens; and that a gate with a hole does not open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import logging
import socket
import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import rich
import viser
import websockets.asyncio.server
import websockets.server
from free_ports import free_port
from gate_client import CAMERA, TOKEN, client, get, send, wait, websocket
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request
from websockets.sync.connection import Connection

from splatstudio.gui.server.access import Access, Listen, make_access
from splatstudio.gui.server.allowed_browser_messages import GateLimits
from splatstudio.gui.server.gate import Gate, GatedConnection, GatedServer, open_server

PAGE_WORDS = "open the URL printed in the terminal"


@pytest.fixture(scope="module")
def gated() -> Iterator[GatedServer]:
    names, pages = ("studio.example.org",), ("https://portal.example.org",)
    server = open_server(Listen(port=0, allow_host=names, allow_origin=pages), token=TOKEN)
    yield server
    server.stop()


def status(gated: GatedServer, **settings: object) -> int:
    """The HTTP status a WebSocket request gets; 101 when it is let in."""
    try:
        with websocket(gated.port, **settings):  # pyright: ignore[reportArgumentType]
            return 101
    except InvalidStatus as error:
        return error.response.status_code


def cookie_of(gated: GatedServer, host: str) -> str:
    _, headers, _ = get(gated.port, f"/?token={TOKEN}", Host=host)
    return headers["set-cookie"].split(";")[0]


def test_strangers_stay_outside_and_are_counted(gated: GatedServer) -> None:
    own = f"http://localhost:{gated.port}"
    cases = [
        ("token", 403, {"token": None}),
        ("token", 403, {"token": None, "origin": own}),
        ("token", 403, {"token": "wrong"}),
        ("token", 403, {"token": TOKEN + "x"}),
        ("token", 403, {"token": None, "headers": {"Cookie": f"splatstudio_{gated.port}={TOKEN}"}}),
        ("origin", 403, {"origin": "http://evil.example"}),
        ("origin", 403, {"origin": "null"}),
        ("origin", 403, {"origin": f"http://localhost:{gated.port + 1}"}),
        ("origin", 403, {"origin": own + ".evil.example"}),
        ("host", 421, {"host": "evil.example"}),
        ("host", 421, {"host": "evil.example", "origin": f"http://evil.example:{gated.port}"}),
        ("host", 421, {"host": "10.1.2.3"}),
    ]
    for reason, expected, settings in cases:
        before = gated.gate.refused[reason]
        assert status(gated, **settings) == expected, settings
        assert gated.gate.refused[reason] == before + 1, settings


def test_friends_come_in(gated: GatedServer) -> None:
    own = f"http://localhost:{gated.port}"
    assert status(gated) == 101
    assert status(gated, origin=own) == 101
    assert status(gated, origin=own.upper()) == 101
    assert status(gated, host="127.0.0.1", origin=f"http://127.0.0.1:{gated.port}") == 101
    assert status(gated, host="studio.example.org") == 101
    assert status(gated, origin="https://portal.example.org") == 101
    cookie = cookie_of(gated, f"localhost:{gated.port}")
    assert status(gated, token=None, origin=own, headers={"Cookie": f"other=1; {cookie}"}) == 101


def test_the_url_logs_in_and_the_token_leaves_the_address_bar(gated: GatedServer) -> None:
    assert gated.url == f"http://127.0.0.1:{gated.port}/?token={TOKEN}"
    code, headers, _ = get(gated.port, f"/?darkMode&token={TOKEN}")
    assert (code, headers["location"]) == (303, "/?darkMode=")
    name, *attributes = headers["set-cookie"].split("; ")
    assert name.startswith(f"splatstudio_{gated.port}=") and TOKEN not in headers["set-cookie"]
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    code, headers, body = get(gated.port, "/", Cookie=name)
    assert (
        code == 200
        and "<script" in body
        and headers["content-security-policy"] == "frame-ancestors 'self' " + ("https://portal.example.org")
    )
    assert get(gated.port, "/", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_link_from_another_page_logs_in_without_a_redirect(gated: GatedServer) -> None:
    # Browsers do not send a SameSite=Strict cookie along a redirect that another site began.
    code, headers, body = get(gated.port, f"/?token={TOKEN}&x=1%22", Sec_Fetch_Site="cross-site")
    assert code == 200 and 'content="0;url=/?x=1%22"' in body and "set-cookie" in headers


def test_the_redirect_cannot_lead_to_another_server(gated: GatedServer) -> None:
    for path in ("//evil.example/", "/\\evil.example/", "///evil.example"):
        location = get(gated.port, f"{path}?token={TOKEN}")[1]["location"]
        assert location.startswith("/evil.example"), path


def test_through_a_tunnel_the_cookie_has_the_name_of_the_port_in_the_browser(gated: GatedServer) -> None:
    cookie = cookie_of(gated, "localhost:9000")
    assert cookie.startswith("splatstudio_9000=")
    code, _, _ = get(gated.port, "/", Host="localhost:9000", Origin="http://localhost:9000", Cookie=cookie)
    assert code == 200
    assert get(gated.port, "/", Host=f"localhost:{gated.port}", Cookie=cookie)[0] == 403


def test_a_refused_page_says_what_to_do(gated: GatedServer) -> None:
    for path in ("/", "/?token=wrong", "/index.html", "/%2e%2e/secret", "/?token"):
        code, headers, body = get(gated.port, path)
        assert (code, headers["content-type"]) == (403, "text/html; charset=utf-8"), path
        assert PAGE_WORDS in body and TOKEN not in body
    code, _, body = get(gated.port, "/", Host="evil.example<script>")
    assert code == 421 and PAGE_WORDS in body and "evil" not in body
    code, headers, body = get(
        gated.port, "/", Origin="http://evil.example", Cookie=cookie_of(gated, "localhost")
    )
    assert code == 403 and PAGE_WORDS in body and "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["a" * 6000, "%00", "%ff", "a/" * 2000])
def test_a_name_that_no_file_can_have_is_no_page(gated: GatedServer, path: str) -> None:
    cookie = cookie_of(gated, f"localhost:{gated.port}")
    assert get(gated.port, f"/{path}", Cookie=cookie)[0] == 404


def test_healthz_needs_no_token_but_the_right_host(gated: GatedServer) -> None:
    assert get(gated.port, "/healthz")[0] == 200
    assert get(gated.port, "/healthz", Host="evil.example")[0] == 421


def test_damaged_requests_are_refused_and_counted(gated: GatedServer) -> None:
    assert get(gated.port, "/", Host="")[0] == 421
    with socket.create_connection(("127.0.0.1", gated.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert b" 421 " in connection.recv(100)
    before = gated.gate.refused["handshake"]
    with socket.create_connection(("127.0.0.1", gated.port)) as connection:
        connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        connection.settimeout(60)
        while connection.recv(4096):
            pass
    wait(lambda: gated.gate.refused["handshake"] == before + 1)
    assert status(gated) == 101


@pytest.mark.parametrize(("module", "is_fault"), [("websockets.protocol", False), ("viser.others", True)])
def test_a_page_that_is_left_before_it_is_answered_is_no_refusal(
    gated: GatedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: str,
    is_fault: bool,
) -> None:
    asserted: list[int] = []
    names: dict[str, Any] = {"__name__": module, "asserted": asserted}
    exec("def assert_not_left(*_):\n    asserted.append(1)\n    raise AssertionError", names)
    before = gated.gate.refused["handshake"]
    with monkeypatch.context() as patch:  # as websockets does when the browser has closed its side
        patch.setattr(websockets.server.ServerProtocol, "send_response", names["assert_not_left"])
        with socket.create_connection(("127.0.0.1", gated.port)) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(100) == b""
        assert asserted
    assert get(gated.port, "/healthz")[0] == 200
    assert (gated.gate.refused["handshake"] > before) is is_fault is bool(caplog.records)


def test_the_token_is_never_written_anywhere(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        gated = open_server(Listen(port=0), token=TOKEN)
        get(gated.port, f"/?token={TOKEN}")
        get(gated.port, f"/{TOKEN} {TOKEN} {TOKEN}")
        assert status(gated) == 101
        assert status(gated, token=TOKEN + "x") == 403
        gated.stop()
    assert TOKEN not in repr(gated)
    ours = [record for record in caplog.records if not record.name.startswith("websockets.client")]
    assert any("token" in record.getMessage() for record in ours)
    assert not any(TOKEN in logging.Formatter().format(record) for record in ours)
    out, err = capfd.readouterr()
    assert TOKEN not in out + err and "viser" not in out


def test_viser_prints_nothing_and_others_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Also past a redirected output, as rich prints in a notebook."""
    gated = open_server(Listen(port=0), token=TOKEN)
    label = gated.server.gui.add_html("there")
    gated.stop()
    with warnings.catch_warnings(record=True) as told:
        label.content = "nobody sees this any more"
    assert not told
    rich.print("something of the user's")
    printed = capsys.readouterr()
    assert printed.out == "something of the user's\n" and printed.err == ""
    viser.ViserServer("127.0.0.1", free_port()).stop()
    assert "viser" in capsys.readouterr().out, "a server of the user's own prints as ever"


def test_the_33rd_browser_is_told_and_the_others_go_on(gated: GatedServer) -> None:
    with contextlib.ExitStack() as stack:
        browsers = [stack.enter_context(websocket(gated.port)) for _ in range(32)]
        wait(lambda: gated.gate.num_clients == 32)
        before = gated.gate.refused["clients"]
        assert status(gated) == 503
        code, _, body = get(gated.port, "/", Authorization=f"Bearer {TOKEN}")
        assert code == 503 and "32 browsers" in body and "http-equiv" in body
        assert gated.gate.refused["clients"] == before + 2
        send(browsers[0], CAMERA)
        wait(lambda: gated.server.get_clients())
        browsers[5].close()
        wait(lambda: gated.gate.num_clients == 31)
        assert status(gated) == 101
    wait(lambda: gated.gate.num_clients == 0)


def test_browsers_that_come_at_once_are_never_too_many() -> None:
    gated = open_server(Listen(port=0), token=TOKEN, limits=GateLimits(max_clients=2))
    outcomes: list[object] = []
    most = 0
    done = threading.Event()

    def visit() -> None:
        try:
            with websocket(gated.port) as connection:
                send(connection, CAMERA)
                connection.recv(timeout=60)
                done.wait(120)
                outcomes.append("in")
        except (InvalidStatus, ConnectionClosed) as error:
            outcomes.append(error)

    visitors = [threading.Thread(target=visit) for _ in range(12)]
    for visitor in visitors:
        visitor.start()
    try:
        wait(lambda: len(outcomes) == 10)
        most = gated.gate.num_clients
    finally:
        done.set()
        for visitor in visitors:
            visitor.join()
        gated.stop()
    assert most == 2 and outcomes.count("in") == 2 and gated.gate.refused["clients"] == 10


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
def test_a_browser_that_never_reads_is_dropped_and_hurts_nobody() -> None:
    gated = open_server(Listen(port=0), token=TOKEN, limits=GateLimits(silent_seconds=2.0))
    points, colors = np.zeros((300_000, 3), np.float32), np.zeros((300_000, 3), np.uint8)
    try:
        with websocket(gated.port) as reader, _stalled(gated.port):
            wait(lambda: gated.gate.num_clients == 2)
            gated.server.scene.add_point_cloud("/points", points, colors)  # more than the socket buffers hold
            received = 0

            def read_until_dropped() -> bool:
                nonlocal received
                gated.server.scene.add_icosphere("/ball", radius=1.0 + received)
                with contextlib.suppress(TimeoutError):
                    received += len(reader.recv(timeout=0.05))
                return gated.gate.num_clients == 1

            wait(read_until_dropped)
            assert received > 2_000_000
    finally:
        gated.stop()


@contextlib.contextmanager
def _stalled(port: int) -> Iterator[socket.socket]:
    """A browser that shakes hands and then takes nothing any more."""
    lines = [
        "GET / HTTP/1.1",
        f"Host: localhost:{port}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Sec-WebSocket-Protocol: viser-v{viser.__version__}",
        f"Authorization: Bearer {TOKEN}",
    ]
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        yield connection


def test_a_port_in_use_is_named_and_otherwise_the_next_one_is_taken() -> None:
    first = open_server()
    second = open_server()
    try:
        assert first.port != second.port and second.port > first.port >= 8080
        with pytest.raises(ValueError, match=f"Port {first.port} is already in use"):
            open_server(Listen(port=first.port))
        assert first.url != second.url and len(first.url.partition("token=")[2]) >= 30
    finally:
        first.stop()
        second.stop()
    open_server(Listen(port=first.port)).stop()  # it is free again


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 70000}, "no port 70000"),
        ({"port": -1}, "no port -1"),
        ({"host": "203.0.113.7"}, "does not belong to this machine"),
        ({"host": "no-such-host.invalid"}, "'no-such-host.invalid' is not known"),
        ({"host": "a" * 100}, "is not known"),
        ({"token": "short"}, "at least 8"),
        ({"token": "with a space"}, "without spaces"),
        ({"allow_host": ("https://x.org",)}, "a name without port"),
        ({"allow_host": ("x.org:80",)}, "a name without port"),
        ({"allow_origin": ("x.org",)}, "looks like https://"),
        ({"allow_origin": ("https://x.org/page",)}, "looks like https://"),
    ],
)
def test_bad_arguments_are_explained_at_once(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        token = settings.pop("token", TOKEN)
        open_server(Listen(**{"port": 0, **settings}), token=token)


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "::1", "::"])
def test_other_addresses_work_and_keep_the_token(host: str) -> None:
    try:
        gated = open_server(Listen(host, 0), token=TOKEN)
    except ValueError:
        if ":" in host:
            pytest.skip("this machine has no IPv6")
        raise
    try:
        shown = "[::1]" if host == "::1" else "localhost"
        assert gated.url == f"http://{shown}:{gated.port}/?token={TOKEN}"
        if host == "0.0.0.0":
            # By address from another machine: names can be rebound, addresses cannot.
            assert get(gated.port, "/", Host="192.168.1.20:8080", Authorization=f"Bearer {TOKEN}")[0] == 200
            assert get(gated.port, "/", Host="192.168.1.20:8080")[0] == 403
            assert get(gated.port, "/", Host="evil.example", Authorization=f"Bearer {TOKEN}")[0] == 421
    finally:
        gated.stop()


@pytest.mark.parametrize(
    ("hole", "found"),
    [
        ("token", "without the token"),
        ("sender", "from a foreign web page"),
        ("closed", "with the token"),
        ("messages", "public tunnel"),
        ("serve", "does not serve its page"),
    ],
)
def test_a_gate_with_a_hole_does_not_open(monkeypatch: pytest.MonkeyPatch, hole: str, found: str) -> None:
    if hole == "token":
        monkeypatch.setattr(Access, "is_authorized", lambda *_: True)
    elif hole == "sender":
        monkeypatch.setattr(Access, "check_sender", lambda *_: "80")
    elif hole == "closed":
        monkeypatch.setattr(Access, "is_authorized", lambda *_: False)
    elif hole == "messages":
        monkeypatch.setattr(GatedConnection, "recv", websockets.asyncio.server.ServerConnection.recv)
        monkeypatch.setattr("splatstudio.gui.server.gate._PATIENCE_SECONDS", 0.3)
    else:
        # A viser that starts its web server in another way.
        other = types.SimpleNamespace(serve=websockets.asyncio.server.serve)
        other = types.SimpleNamespace(asyncio=types.SimpleNamespace(server=other))
        monkeypatch.setattr("viser.infra._infra.websockets", other)
    port = free_port(2)
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(RuntimeError, match=found):
        open_server(Listen(port=port), token=TOKEN)
    for reachable in (port, port + 1):
        with socket.socket() as visitor:
            assert visitor.connect_ex(("127.0.0.1", reachable)) != 0


def test_the_first_picture_is_for_friends_alone(gated: GatedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    path, friend = "/first-picture.jpg?width=320&height=200", {"Authorization": f"Bearer {TOKEN}"}
    assert get(gated.port, path, **friend)[0] == 204, "there is no model"
    monkeypatch.setattr(gated.gate, "first_picture", lambda *size: asked.append(size) or b"a picture")
    assert get(gated.port, path)[0] == 403 and asked == []
    code, headers, body = get(gated.port, path, **friend)
    assert (code, headers["content-type"], body) == (200, "image/jpeg", "a picture") and asked == [(320, 200)]
    assert "no-store" in headers["cache-control"]
    assert get(gated.port, path.replace("320", "320000"), **friend)[0] == 404 and len(asked) == 1


def test_viser_is_served_as_before_once_the_gate_is_built(gated: GatedServer) -> None:
    assert websockets.asyncio.server.serve.__module__.startswith("websockets")


def test_a_visitor_becomes_a_client_of_viser(gated: GatedServer) -> None:
    with client(gated) as connection:
        assert isinstance(connection, Connection)
        (handle,) = gated.server.get_clients().values()
        assert handle.camera.image_width == 1280 and handle.camera.position[2] == 3


def test_a_browser_that_knows_the_address_waits_until_the_gate_has_tried_itself() -> None:
    access = make_access(Listen(), TOKEN)
    gate = Gate(access, GateLimits())
    own = ("Host", "127.0.0.1:8080")
    login = gate.answer(Request(f"/?token={TOKEN}", Headers([own])))
    assert login is not None and login.status_code == 303
    visit = Request("/", Headers([own, ("Cookie", login.headers["Set-Cookie"].split(";")[0])]))
    waits = gate.answer(visit)
    assert waits is not None and waits.status_code == 503 and b"The studio is opening." in (waits.body or b"")
    assert gate.answer(Request("/", Headers([own, ("Authorization", f"Bearer {TOKEN}")]))) is None
    gate.start_counting()
    assert gate.answer(visit) is None


def test_of_a_crowd_that_waits_at_the_door_the_oldest_go_and_the_secret_is_let_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = open_server(Listen(port=0), token=TOKEN, limits=GateLimits(max_strangers=5))
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        crowd = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60)) for _ in range(20)
        ]
        wait(lambda: server.gate.refused["crowd"] == 15)
        for stranger in crowd[:15]:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert get(server.port, "/", Authorization=f"Bearer {TOKEN}")[0] == 200
        with websocket(server.port):
            wait(lambda: server.gate.num_clients == 1)
    assert not [record for record in caplog.records if record.exc_info]


def test_that_no_descriptor_is_left_is_told_once_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate(make_access(Listen(), TOKEN), GateLimits())
    gate.start_counting()
    loop = asyncio.new_event_loop()
    for _ in range(3):
        gate.hear_of(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    assert gate.refused["descriptors"] == 3
    assert len(caplog.records) == 1 and "descriptors" in caplog.text and not caplog.records[0].exc_info
    gate.hear_of(loop, {"message": "another fault", "exception": ValueError("x")})
    loop.close()
    assert "another fault" in caplog.text
