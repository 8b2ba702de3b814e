"""Where pycolmap is missing: the line that installs it, the button that runs it, and what pip says."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from gate_client import get
from textured_rooms import ring, table_with_boxes, write_photos

from splatstudio.cli import start
from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.start_page import StartPage
from splatstudio.poses import install

PIP = """#!/bin/sh
echo "$@" > {arguments}
echo "Collecting pycolmap>=4.2"
{end}
"""


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return what puts a program in the place of Python, and returns the file of its arguments."""

    def put(end: str) -> Path:
        program, arguments = tmp_path / "my python", tmp_path / "arguments"
        program.write_text(PIP.format(arguments=f"'{arguments}'", end=end))
        program.chmod(0o755)
        monkeypatch.setattr("splatstudio.poses.install.sys.executable", str(program))
        installed = tmp_path / "installed"
        monkeypatch.setattr(install, "has_colmap", installed.exists)
        return arguments

    return put


def test_pip_runs_in_this_environment_and_its_lines_are_told(
    pip: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = pip(f"touch '{tmp_path / 'installed'}'; echo 'Successfully installed pycolmap'")
    told: list[str] = []
    install.install_colmap(told.append)
    assert told == ["Collecting pycolmap>=4.2", "Successfully installed pycolmap"]
    assert arguments.read_text().split()[:3] == ["-m", "pip", "install"]
    assert arguments.read_text().split()[-1] == "splatstudio[photos]"
    install.refuse_without_colmap()


def test_why_pip_failed_is_one_sentence(pip: Callable[[str], Path]) -> None:
    pip("echo 'error: externally-managed-environment'; echo 'a hint'; exit 1")
    with pytest.raises(ValueError, match=r"pip could not.*\(error: externally-managed.*my python' -m pip"):
        install.install_colmap(lambda line: None)


def test_without_pip_the_line_is_that_of_uv(
    pip: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip("exit 1")
    monkeypatch.setattr(install, "find_spec", lambda name: None)
    with pytest.raises(install.ColmapMissing, match=r"run uv pip install --python .*my python' ") as missing:
        install.refuse_without_colmap()
    assert not missing.value.can_install
    with pytest.raises(ValueError, match="there is no pip in this environment: run uv"):
        install.install_colmap(lambda line: None)


def test_the_button_installs_and_the_photos_open(
    pip: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_photos(tmp_path / "photos", table_with_boxes(), ring(20)[:2])
    pip(f"echo 'Downloading pycolmap (38 MB)'; sleep 1; touch '{tmp_path / 'installed'}'")
    monkeypatch.setattr(start, "has_colmap", (tmp_path / "installed").exists)
    seen: list[str] = []
    pages: list[StartPage] = []

    class NotedPage(StartPage):
        def __init__(self, *given: Any):
            super().__init__(*given)
            pages.append(self)

    def press() -> None:
        while not pages:
            time.sleep(0.01)
        (page,) = pages
        cookie = get(page.port, f"/?token={page.token}")[1]["set-cookie"].split(";")[0]

        def shown(path: str = "/") -> str:
            body = get(page.port, path, Cookie=cookie)[2]
            return body if isinstance(body, str) else body.decode()

        while "Install it and go on" not in (text := shown()):
            time.sleep(0.05)
        seen.append(text)
        key = re.findall(r'name="key" value="([^"]+)"', text)[0]
        shown("/?" + urlencode({"key": key, "open": str(tmp_path / "photos"), "install": "1"}))
        while "pip: Downloading pycolmap (38 MB)" not in shown():
            time.sleep(0.05)
        seen.append("pip")

    def estimated(front: Any, path: Path) -> None:
        seen.append(f"estimated {path.name}")

    monkeypatch.setattr(start, "StartPage", NotedPage)
    monkeypatch.setattr(start._Front, "_estimate", estimated)
    monkeypatch.setattr("splatstudio.gui.app.open_studio", lambda path, **_: SimpleNamespace(path=path))
    visitor = threading.Thread(target=press, daemon=True)
    visitor.start()
    studio: Any = start.studio_of_choice(
        Listen(port=0), browser=False, train=False, chosen=tmp_path / "photos"
    )
    visitor.join(10)
    assert studio.path == tmp_path / "photos" and seen[1:] == ["pip", "estimated photos"]
    assert "pip install" in seen[0] and "or press the button on the page" in capsys.readouterr().out
