"""`ss.show`: what it takes, who may frame its page, and that it ends with Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gate_client import TOKEN, get

import splatstudio as ss
from splatstudio.files.run import Run
from splatstudio.gui.notebook import ShownStudio
from splatstudio.gui.server.access import InNotebook, Listen
from splatstudio.gui.server.gate import GatedServer, open_server

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.fixture
def shown() -> Iterator[ShownStudio]:
    folder = Path(__file__).parents[2] / "assets" / "demo"
    page = ss.show(folder, port=0)
    yield page
    page.close()


def policy_of(server: GatedServer) -> str:
    status, headers, _ = get(server.port, "/", Cookie=cookie_of(server))
    assert status == 200
    return headers["content-security-policy"]


def cookie_of(server: GatedServer) -> str:
    _, headers, _ = get(server.port, f"/?token={TOKEN}")
    return headers["set-cookie"].split(";")[0]


def test_only_a_page_for_notebooks_may_be_framed_and_that_by_this_machine() -> None:
    local = ["http://127.0.0.1:*", "http://localhost:*"]
    for listen, others in ((Listen(port=0), []), (InNotebook(port=0), local)):
        server = open_server(listen, token=TOKEN)
        try:
            assert policy_of(server).split() == ["frame-ancestors", "'self'", *others]
            # Who may frame it may not connect to it.
            foreign = get(server.port, "/", Cookie=cookie_of(server), Origin="http://localhost:8888")
            assert foreign[0] == 403
        finally:
            server.stop()


def test_a_place_that_is_passed_on_is_no_longer_framed() -> None:
    assert InNotebook(port=0).at_port(80).framed_by == ()


def test_the_frame_holds_the_page_until_it_is_closed(shown: ShownStudio) -> None:
    frame = shown._repr_html_()
    assert shown.url in frame and "data-height=" in frame
    assert shown.url.partition("token=")[2] not in repr(shown)
    ids = {shown._repr_html_().split('"')[1] for _ in range(3)}
    assert len(ids) == 3, "the same page may be shown in several cells"
    shown.close()
    shown.close()
    assert "closed" in shown._repr_html_() and "closed" in repr(shown)


def test_what_cannot_be_shown_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="from 200 to 4000"):
        ss.show(tmp_path, height=3)
    with pytest.raises(ValueError, match="not a int: save it first"):
        ss.show(7)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="nothing"):
        ss.show(tmp_path / "nothing")


def test_a_render_function_has_a_frame_too() -> None:
    page = ss.show(lambda *_: np.zeros((4, 4, 3), np.uint8), port=0, height=300)
    try:
        assert 'data-height="300"' in page._repr_html_()
        page.refresh()
    finally:
        page.close()


def test_it_ends_with_python_and_saves(blob_folder: Path, tmp_path: Path) -> None:
    program = f"""
import time
import splatstudio as ss
with open("began", "a") as file:
    file.write("once ")
page = ss.show({str(blob_folder)!r}, port=0)
studio = page._studio
studio.start_training()
while studio.controller.status.step == 0:
    time.sleep(0.05)
"""
    (tmp_path / "shows.py").write_text(program)
    subprocess.run([sys.executable, "shows.py"], cwd=tmp_path, check=True, timeout=250)
    assert (tmp_path / "began").read_text() == "once ", "no process of the page's runs the program again"
    (run,) = (tmp_path / "runs").iterdir()
    assert Run.open(run).path == run and any((run / "ckpts").iterdir()), "what was unsaved is saved"
