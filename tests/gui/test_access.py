"""Where the page can be reached, what `splatstudio open` says of it, and who is told that it is gone."""

from __future__ import annotations

import os
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from gate_client import get
from started_programs import run_program, start_program

from splatstudio.gui.server.access import STILL_HERE, Listen, advice, ssh_line
from splatstudio.gui.server.gate import GatedServer, open_server

SSH = {"SSH_CONNECTION": "203.0.113.9 52210 192.0.2.7 22", "USER": "ada"}
URL = "http://127.0.0.1:8080/?token=secret"


def test_nothing_is_said_of_a_page_that_only_this_machine_reaches() -> None:
    assert list(advice(Listen("127.0.0.1"), URL, 8080, {})) == []
    assert list(advice(Listen("localhost"), URL, 8080, {})) == []


def test_under_ssh_the_ready_line_is_given() -> None:
    (sentence,) = advice(Listen(), URL, 8080, SSH)
    assert sentence.endswith(": ssh -N -L 8080:localhost:8080 ada@192.0.2.7")
    other = SSH | {"SSH_CONNECTION": "2001:db8::9 52210 2001:db8::7 2222"}
    assert ssh_line("0.0.0.0", 8090, other) == "ssh -N -L 8090:localhost:8090 -p 2222 ada@2001:db8::7"
    assert ssh_line("192.0.2.7", 80, SSH) == "ssh -N -L 80:192.0.2.7:80 ada@192.0.2.7"
    assert ssh_line("::1", 80, SSH) == "ssh -N -L 80:localhost:80 ada@192.0.2.7"
    assert ssh_line("127.0.0.1", 80, {"SSH_CONNECTION": "?"}) is None


def test_a_page_for_the_whole_network_warns_and_keeps_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "splatstudio.gui.server.access._addresses", lambda host: ["192.0.2.7", "198.51.100.3"]
    )
    addresses, warning = advice(Listen("0.0.0.0"), "http://localhost:8080/?token=secret", 8080, {})
    assert addresses.count("token=secret") == 2 and "http://192.0.2.7:8080/" in addresses
    assert warning.startswith("Warning:") and "0.0.0.0" in warning and warning.count(".") == 4


def test_the_command_says_all_this_and_lets_in_by_the_names_it_was_given(
    blob_folder: Path, tmp_path: Path
) -> None:
    arguments = ["--host", "0.0.0.0", "--allow-host", "studio.example.org", "--allow-origin"]
    arguments += ["https://studio.example.org", "--no-browser", "--port", "0", "--steps", "5"]
    command = ("-m", "splatstudio", "open", blob_folder)
    process = start_program(*command, *arguments, env=os.environ | SSH)
    try:
        lines = []
        while "ssh -N -L" not in "".join(lines):
            line = process.stdout.readline()
            assert line, lines
            lines.append(line)
        said = "".join(lines)
        match = re.search(r"http://localhost:(\d+)/\?token=(\S+)", said)
        assert match is not None and f"ssh -N -L {match[1]}:localhost:{match[1]} ada@192.0.2.7" in said
        assert "Warning: the studio listens on 0.0.0.0" in said
        assert status(match[1], "studio.example.org", match[2], "https://studio.example.org") == 200
        assert status(match[1], "studio.example.org", "wrong", "https://studio.example.org") == 403
        assert status(match[1], "other.example.org", match[2]) == 421
        assert status(match[1], "studio.example.org", match[2], "https://other.example.org") == 403
    finally:
        process.terminate()
        process.wait(120)


def status(port: str, host: str, token: str, origin: str | None = None) -> int:
    """Return the answer to a request for the page under a name, with a token, from another page."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Host": host})
    request.add_header("Authorization", f"Bearer {token}")
    if origin is not None:
        request.add_header("Origin", origin)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_port_in_use_is_an_error_that_names_it_and_what_to_do(blob_folder: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = ("-m", "splatstudio", "open", blob_folder, "--port", port)
        result = run_program(*command, cwd=tmp_path, timeout=200)
    assert result.returncode == 2
    assert f"Port {port} is already in use" in result.stderr and "--port auto" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def gated() -> Any:
    server = open_server(Listen(port=0))
    yield server
    server.stop()


def test_a_page_that_would_not_be_let_in_any_more_is_told_so(gated: GatedServer) -> None:
    assert get(gated.port, STILL_HERE)[0] == 403
    assert get(gated.port, STILL_HERE, Authorization=f"Bearer {gated.url.rpartition('=')[2]}")[0] == 200
