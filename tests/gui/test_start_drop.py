"""Files that are dropped on the start page: which are taken, that they come whole, and what is refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from start_visitor import ANY_PORT, Visitor
from studio_page import PAGE_TEST, TIMEOUT, WINDOW
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from splatstudio.gui.server import dropped_files
from splatstudio.gui.server.dropped_files import MOST_BYTES, MOST_FILES, checked
from splatstudio.gui.server.start_page import OpenRequest, StartPage
from splatstudio.gui.server.start_views import StartContent
from splatstudio.operating_system import hold


@pytest.fixture
def page(tmp_path: Path) -> Iterator[StartPage]:
    made = StartPage(ANY_PORT, lambda: StartContent((), tmp_path / "demo", tmp_path))
    yield made
    made.close()


def line_to(page: StartPage, cookie: str, **settings: Any) -> ClientConnection:
    headers = {"Cookie": cookie}
    return connect(f"ws://localhost:{page.port}/drop", additional_headers=headers, proxy=None, **settings)


def drop(page: StartPage, files: dict[str, bytes], key: str | None = None) -> dict[str, Any]:
    """Bring files as the page's script does; return the last answer."""
    visitor = Visitor(page)
    with line_to(page, visitor.cookie) as line:
        told = [[name, len(data)] for name, data in files.items()]
        line.send(json.dumps({"key": visitor.key if key is None else key, "files": told}))
        answer = json.loads(line.recv(TIMEOUT))
        if "taken" not in answer:
            return answer
        with suppress(ConnectionClosed):  # it may have refused them already
            for data in files.values():
                for at in range(0, len(data), 1000):
                    line.send(data[at : at + 1000])
        return json.loads(line.recv(TIMEOUT))


@pytest.mark.parametrize(
    ("names", "name", "is_file"),
    [
        (["a.ply"], "a.ply", True),
        (["scene.tar.gz"], "scene.tar.gz", True),
        (["film.MP4"], "film.MP4", True),
        (["b.jpg", "a.png"], "photos", False),
        (["scan/images/a.jpg", "scan/sparse/0/points3D.bin"], "scan", False),
        (["run/run.json", "run/metrics.jsonl"], "run", False),
    ],
)
def test_what_the_studio_opens_is_taken(names: list[str], name: str, is_file: bool) -> None:
    taken = checked([[path, 10] for path in names])
    assert (taken.name, taken.is_file, taken.num_bytes) == (name, is_file, 10 * len(names))


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ([["notes.pdf", 1]], "notes.pdf cannot be opened .* Drop photos"),
        ([["a.jpg", 1], ["notes.pdf", 1]], "notes.pdf cannot be opened"),
        ([["a/b.jpg", 1], ["c/d.jpg", 1]], "Several things came at once"),
        ([["a/b.txt", 1]], "a holds no photos"),
        ([["a.ply", MOST_BYTES + 1]], "8.00 GB are more than the 8.00 GB"),
        ([[f"{i}.jpg", 1] for i in range(MOST_FILES + 1)], "20,001 files are more"),
        ([], "Nothing came"),
        ({"a": 1}, "Nothing came"),
        ([["a.ply", -1]], "plain name"),
        ([["a.ply", True]], "damaged"),
        ([["a.ply"]], "damaged"),
        ([["a.jpg", 1], ["b.jpg", 1], ["a.jpg", 2]], "Two of the files are called a.jpg"),
        *(
            ([[name, 1]], "plain name")
            for name in (
                "../a.ply",
                "/a.ply",
                "a//b.ply",
                "a\\b.ply",
                "C:a.ply",
                ".a.ply",
                "a\0.ply",
                "\ud800.ply",
            )
        ),
        ([["/".join(["a"] * 13) + ".ply", 1]], "plain name"),
        ([["a" * 300 + ".ply", 1]], "plain name"),
    ],
)
def test_what_cannot_be_taken_is_a_sentence(told: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        checked(told)


def test_what_is_dropped_lies_there_whole_and_is_opened(page: StartPage, tmp_path: Path) -> None:
    data = bytes(range(256)) * 20
    files = {"scan/images/a.jpg": data, "scan/empty.txt": b"", "scan/sparse/0/cameras.bin": data[:1000]}
    place = tmp_path / "dropped" / "scan"
    assert drop(page, files) == {"place": str(place), "opens": True}
    assert (place / "images" / "a.jpg").read_bytes() == data and (place / "empty.txt").read_bytes() == b""
    assert page.next_request() == OpenRequest(str(place), train=False)
    assert "Opening" in Visitor(page).get()[1]
    assert "being opened" in drop(page, {"a.ply": b"x"}, key=page._key)["error"]
    page.tell("It could not be opened.")
    assert drop(page, files)["place"] == str(tmp_path / "dropped" / "scan-2"), "nothing is written over"
    page.tell("")
    for number in ("", "-2"):
        assert drop(page, {"a.tar.gz": b"12"})["place"] == str(tmp_path / "dropped" / f"a{number}.tar.gz")
        page.tell("")


def test_only_the_page_itself_may_bring_files(page: StartPage, tmp_path: Path) -> None:
    assert "earlier start page" in drop(page, {"a.ply": b"x"}, key="wrong")["error"]
    cookie = Visitor(page).cookie
    for settings in ({"cookie": "none=1"}, {"cookie": cookie, "origin": "http://evil.example"}):
        with pytest.raises(InvalidStatus) as refused:
            line_to(page, **settings).close()
        assert refused.value.response.status_code == 403
    assert not (tmp_path / "dropped").exists() and page._requests.empty()


@pytest.mark.parametrize("message", ["x", "[]", "[" * 100_000, "text", b"too long"])
def test_who_sends_something_else_is_told_and_leaves_nothing(
    page: StartPage, tmp_path: Path, message: str | bytes
) -> None:
    visitor = Visitor(page)
    with line_to(page, visitor.cookie) as line:
        if message in ("text", b"too long"):
            line.send(json.dumps({"key": visitor.key, "files": [["a.ply", 4]]}))
            assert json.loads(line.recv(TIMEOUT)) == {"taken": True}
        line.send(message)
        assert json.loads(line.recv(TIMEOUT))["error"].endswith(".")
    assert list((tmp_path / "dropped").glob(".*")) == [] if (tmp_path / "dropped").exists() else True


def test_a_browser_that_goes_leaves_nothing_behind(page: StartPage, tmp_path: Path) -> None:
    visitor = Visitor(page)
    with line_to(page, visitor.cookie) as line:
        line.send(json.dumps({"key": visitor.key, "files": [["a.ply", 4000]]}))
        line.recv(TIMEOUT)
        line.send(b"1234")
        with line_to(page, visitor.cookie) as other:
            assert "already" in json.loads(other.recv(TIMEOUT))["error"], "one at a time"
    with page._copying:
        assert list((tmp_path / "dropped").iterdir()) == []


def test_what_a_killed_program_left_half_copied_goes_at_the_next_start(tmp_path: Path) -> None:
    drops = tmp_path / dropped_files.FOLDER
    long_ago = time.time() - 60.0
    for name in (".tmp-dead", ".tmp-busy", ".tmp-new", "photos"):
        (drops / name / "whole").mkdir(parents=True)
        (drops / name / "whole" / "a.jpg").write_bytes(b"half")
        if name != ".tmp-new":
            os.utime(drops / name, (long_ago, long_ago))
    held = hold(drops / ".tmp-busy")
    try:
        StartPage(ANY_PORT, lambda: StartContent([], tmp_path / "demo", tmp_path)).close()
    finally:
        os.close(held)
    assert {path.name for path in drops.iterdir()} == {".tmp-busy", ".tmp-new", "photos"}


def test_the_end_of_the_page_ends_a_drop(tmp_path: Path) -> None:
    page = StartPage(ANY_PORT, lambda: StartContent((), tmp_path / "demo", tmp_path))
    visitor = Visitor(page)
    line = line_to(page, visitor.cookie)
    line.send(json.dumps({"key": visitor.key, "files": [["a.ply", 4000]]}))
    line.recv(TIMEOUT)
    page.close()
    assert list((tmp_path / "dropped").iterdir()) == []
    line.close()


def test_a_full_disk_is_told_before(page: StartPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped_files, "MIN_FREE_BYTES", 1 << 60)
    assert "can be used in" in drop(page, {"a.ply": b"1234"})["error"]


# Lets files fall onto the page as from a file manager; browsers make no entries of folders for a script.
LET_FALL = """files => {
  const transfer = new DataTransfer();
  for (const [name, bytes] of files) transfer.items.add(new File([new Uint8Array(bytes)], name));
  const told = {dataTransfer: transfer, bubbles: true, cancelable: true};
  for (const kind of ["dragover", "drop"]) document.body.dispatchEvent(new DragEvent(kind, told));
}"""


# What the page tells, also what stands there for a moment, until it shows another page.
REMEMBER = """() => {
  const told = document.getElementById("drop-told");
  sessionStorage.told = "";
  new MutationObserver(() => { sessionStorage.told += told.textContent; }).observe(told, {childList: true});
}"""


class TestInABrowser:
    pytestmark = PAGE_TEST

    def test_files_are_dropped_or_chosen(self, browser: Any, page: StartPage, tmp_path: Path) -> None:
        tab = browser.new_page(viewport=WINDOW)
        tab.set_default_timeout(1000 * TIMEOUT)
        tab.goto(page.url)
        told = tab.get_by_role("status")
        tab.evaluate(LET_FALL, [["notes.pdf", [1, 2]]])
        # Not by a function, which is text that the page does not allow to be run as a script.
        tab.locator("#drop-told", has_text="cannot be opened").wait_for()
        tab.evaluate(REMEMBER)
        # One right after the other: the second while the first is still on its way.
        both = f"files => files.forEach(file => ({LET_FALL})([file]))"
        tab.evaluate(both, [["a.ply", [1, 2, 3]], ["b.ply", [1]]])
        tab.get_by_text("Opening").wait_for()
        assert (tmp_path / "dropped" / "a.ply").read_bytes() == b"\1\2\3"
        assert not (tmp_path / "dropped" / "b.ply").exists()
        refused = "b.ply was not taken: drop it again when this is done"
        assert refused in tab.evaluate("() => sessionStorage.told"), "a second one is not lost without a word"
        assert page.next_request().path == str(tmp_path / "dropped" / "a.ply")
        page.tell("It is damaged.")
        scan = tmp_path / "mine" / "scan" / "images"
        scan.mkdir(parents=True)
        pixels = np.random.default_rng(0).integers(0, 255, (700, 500, 3), np.uint8)
        Image.fromarray(pixels).save(scan / "a.png")
        (scan / ".hidden").write_text("")
        tab.get_by_text("It is damaged.").wait_for()
        with tab.expect_file_chooser() as chooser:
            tab.get_by_role("button", name="Choose a folder").click()
        chooser.value.set_files(str(scan.parent))
        tab.get_by_text("Opening").wait_for()
        copied = tmp_path / "dropped" / "scan" / "images"
        assert [path.name for path in copied.iterdir()] == ["a.png"]
        assert (copied / "a.png").read_bytes() == (scan / "a.png").read_bytes()
        page.tell("")
        with tab.expect_file_chooser() as chooser:
            tab.get_by_role("button", name="Choose files").click()
        chooser.value.set_files([str(scan / "a.png")])
        tab.get_by_text("Opening").wait_for()
        assert (tmp_path / "dropped" / "photos" / "a.png").is_file()
        assert told.count() == 0
        tab.close()
