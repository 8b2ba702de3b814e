"""The start page: who gets in, what it offers, and that the studio takes over its address."""

from __future__ import annotations

import contextlib
import errno
import html
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gate_client import get, wait
from scene_builder import tiny_scene, write_colmap
from start_visitor import ANY_PORT, Visitor
from studio_page import PAGE_TEST, TIMEOUT, WINDOW

from splatstudio.cli import start
from splatstudio.files.recent import recent_file, recent_paths, remember
from splatstudio.files.run import Run
from splatstudio.gui.server.start_page import MAX_VISITORS, OpenRequest, StartPage
from splatstudio.gui.server.start_views import Entry, StartContent
from splatstudio.scene.demo import STEPS as DEMO_STEPS
from splatstudio.scene.demo import demo_scene
from splatstudio.scene.layout import holds_several
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig


@pytest.fixture
def start_page(tmp_path: Path) -> Iterator[StartPage]:
    lists = [("Runs in this folder", [Entry(tmp_path / "<b>&", "a 'scene'")]), ("Opened before", [])]
    made = StartPage(ANY_PORT, lambda: StartContent(lists, tmp_path / "demo", tmp_path))
    yield made
    made.close()


def test_a_choice_of_the_command_line_is_opened_and_the_page_says_how_far_that_is(
    start_page: StartPage,
) -> None:
    start_page.choose(Path("/photos/<i>"))
    assert start_page.next_request() == OpenRequest("/photos/<i>", train=False)
    visitor = Visitor(start_page)
    start_page.show_progress("Matching: 30 of 120 pairs, 20 s left")
    shown = visitor.get()[1]
    assert "Opening /photos/&lt;i&gt; ..." in shown and "Matching: 30 of 120 pairs, 20 s left" in shown
    start_page.tell("These photos give no poses.")
    shown = visitor.get()[1]
    assert "These photos give no poses." in shown and "Matching" not in shown and "Opening" not in shown


def test_what_is_being_opened_can_be_ended_by_who_has_the_page(start_page: StartPage) -> None:
    visitor, ended = Visitor(start_page), threading.Event()
    key = visitor.key
    start_page.choose(Path("/photos"))
    start_page.next_request()
    assert "Cancel" not in visitor.get()[1], "a scene opens in a moment"
    start_page.offer_cancel(ended.set)
    assert "Cancel" in visitor.get()[1] and "Finished work is kept" in visitor.get()[1]
    assert visitor.ask("/", do="cancel", key="another page's")[0] == 403 and not ended.is_set()
    assert visitor.ask("/", do="cancel", key=key)[0] == 303
    assert ended.wait(30) and "Cancel" not in visitor.get()[1]
    start_page.tell("The estimation was ended.")
    start_page.choose(Path("/photos"))
    assert "Cancel" not in visitor.get()[1], "that is over"


def test_of_several_scenes_in_a_folder_one_is_chosen_on_the_page(
    own_list: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fox", "statue"):
        write_colmap(tmp_path / "all" / name, tiny_scene(3))
    chosen: list[Path] = []

    def opened(path: Path, *, network: Any, **_: Any) -> SimpleNamespace:
        if not chosen:  # as the studio reads the scene
            chosen.append(path)
            threading.Thread(target=choose, args=(network.take.__self__,)).start()
            load_scene(path)
        return SimpleNamespace(path=path)

    def choose(page: StartPage) -> None:
        visitor = Visitor(page)
        while "The scenes there" not in (shown := visitor.get()[1]):
            pass
        assert "holds 2 scenes: fox (3 photos), statue" in shown and "3 photos</span>" in shown
        visitor.choose(open=str(tmp_path / "all/statue"))

    monkeypatch.setattr("splatstudio.gui.app.open_studio", opened)
    assert holds_several(tmp_path / "all") and not holds_several(tmp_path / "all/fox")
    studio: Any = start.studio_of_choice(ANY_PORT, browser=False, train=False, chosen=tmp_path / "all")
    assert studio.path == tmp_path / "all/statue"
    assert "open one of them, on the page" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "steps"), [((), DEMO_STEPS), (("steps",), 123)])
def test_the_demo_of_the_page_is_trained_as_the_command_trains_it(
    own_list: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], steps: int
) -> None:
    def opened(path: Path, *, config: TrainConfig, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(path=path, config=config)

    monkeypatch.setattr("splatstudio.gui.app.open_studio", opened)
    studio: Any = start.studio_of_choice(
        ANY_PORT, browser=False, train=False, chosen=demo_scene(), config=TrainConfig(steps=123), given=given
    )
    assert studio.path == demo_scene() and studio.config.steps == steps


def test_strangers_see_nothing_and_choose_nothing(start_page: StartPage) -> None:
    own = f"http://127.0.0.1:{start_page.port}"
    for status, path, headers in (
        (403, "/", {}),
        (403, "/?open=/etc", {}),
        (403, "/?token=wrong", {}),
        (421, f"/?token={start_page.token}", {"Host": "evil.example"}),
        (403, f"/?token={start_page.token}", {"Origin": "http://evil.example"}),
    ):
        answer = get(start_page.port, path, **headers)
        assert answer[0] == status, (path, headers, answer)
        assert "name=" not in str(answer[2]).replace("<meta name=", "") and "set-cookie" not in answer[1]
    visitor = Visitor(start_page)
    # The cookie goes along with what any page of this machine asks for: the key in the form does not.
    assert visitor.get("/?open=/etc")[0] == 403
    assert visitor.get("/?open=/etc&key=wrong", Origin=own)[0] == 403
    assert start_page._requests.empty()


def test_what_it_offers_is_shown_and_names_cannot_steer_the_page(start_page: StartPage) -> None:
    status, text = Visitor(start_page).get()
    offered = re.findall(r'<button name="open" value="([^"]+)"', text)
    assert status == 200 and [Path(html.unescape(value)).name for value in offered] == ["<b>&", "demo"]
    assert "<b>" not in text and "Opened before" not in text
    policy = get(start_page.port, "/")[1]["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'self'" in policy


def test_a_choice_is_told_once_and_a_failure_brings_the_page_back(start_page: StartPage) -> None:
    visitor = Visitor(start_page)
    assert visitor.choose(open="/no/<i>where", train="1") == 303
    assert start_page.next_request() == OpenRequest("/no/<i>where", train=True)
    status, text = visitor.get()
    assert status == 200 and "Opening /no/&lt;i&gt;where" in text and 'http-equiv="refresh"' in text
    assert visitor.get("/?open=/other&key=x")[0] == 303 and start_page._requests.empty()
    start_page.tell("<i>is not there")
    text = visitor.get()[1]
    assert "&lt;i&gt;is not there" in text and 'value="/no/&lt;i&gt;where"' in text, "what was typed stays"
    visitor.choose(open="here")
    assert start_page.next_request() == OpenRequest("here", train=False)


def test_its_socket_listens_on_while_nobody_serves(start_page: StartPage) -> None:
    listener = start_page.address.take_port()
    try:
        with socket.create_connection(("127.0.0.1", start_page.port), timeout=10):  # waits in the queue
            assert listener.accept()[0].close() is None
    finally:
        listener.close()


def served(monkeypatch: pytest.MonkeyPatch) -> tuple[list[StartPage], list[Any], threading.Thread]:
    """Serve the start page until something is opened, as the command does: page, studio and thread."""
    pages, studios = list[StartPage](), list[Any]()
    there = threading.Event()

    class NotedPage(StartPage):
        def __init__(self, *given: Any):
            super().__init__(*given)
            pages.append(self)
            there.set()

    def serve() -> None:
        studios.append(start.studio_of_choice(ANY_PORT, browser=False, train=False, config=TrainConfig()))

    monkeypatch.setattr(start, "StartPage", NotedPage)
    thread = threading.Thread(target=serve)
    thread.start()
    assert there.wait(60)
    return pages, studios, thread


def test_the_studio_of_what_is_chosen_is_at_the_same_address(
    own_folder: Path, own_list: Path, blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (page,), studios, thread = served(monkeypatch)
    visitor = Visitor(page)
    visitor.choose(open="nowhere")
    deadline = threading.Event()
    while "nowhere does not exist" not in visitor.get()[1]:
        assert not deadline.wait(0.05) and thread.is_alive()
    visitor.choose(open=str(blob_folder))
    thread.join(60)
    (studio,) = studios
    try:
        assert (studio.port, studio.url) == (page.port, page.url)
        status, text = visitor.get()
        assert status == 200 and "viser" in text.lower(), "the browser is let in with the cookie that it has"
        assert get(page.port, "/")[0] == 403
        assert recent_paths() == (blob_folder,)
    finally:
        studio.close()


def test_runs_and_what_was_opened_before_are_offered_newest_first(
    own_folder: Path, own_list: Path, blob_folder: Path
) -> None:
    Run.create(Path("runs/one"), blob_folder, TrainConfig())
    Path("runs/damaged").mkdir()
    Path("runs/damaged/run.json").write_text("{")
    for path in (blob_folder, own_folder, Path("runs/one"), demo_scene(), blob_folder):
        assert remember(path) == ""
    remember(own_folder / "gone")
    offered = start.start_content()
    (runs, recent) = (dict((entry.path, entry.detail) for entry in rows) for _, rows in offered.lists)
    assert str(blob_folder) in runs[Path("runs/one")] and "damaged" in runs[Path("runs/damaged")]
    assert list(recent) == [blob_folder, own_folder] and (offered.demo / "sparse").is_dir()


@pytest.mark.parametrize("content", [b"{", b'{"a": 1}', b"[1, null]", b'["a\\u0000b"]', b"\xff"])
def test_a_damaged_list_is_begun_anew(own_list: Path, tmp_path: Path, content: bytes) -> None:
    own_list.parent.mkdir(parents=True)
    own_list.write_bytes(content)
    assert recent_paths() == () and remember(tmp_path) == "" and recent_paths() == (tmp_path,)


def test_a_list_that_cannot_be_written_is_told_and_hinders_nothing(
    own_list: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_list.parent.parent.write_text("a file where its folder should be")
    start.note_opened(tmp_path)
    assert "cannot be kept" in capsys.readouterr().out and recent_file() == own_list


@PAGE_TEST[0]
@PAGE_TEST[1]
def test_a_browser_goes_from_the_start_page_to_the_studio(
    browser: Any, own_folder: Path, own_list: Path, blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (page,), studios, thread = served(monkeypatch)
    tab = browser.new_page(viewport=WINDOW)
    tab.set_default_timeout(1000 * TIMEOUT)
    tab.goto(page.url)
    tab.get_by_label("Open a folder or a file").fill(str(blob_folder))
    tab.get_by_role("button", name="Open", exact=True).click()
    thread.join(TIMEOUT)
    try:
        tab.locator("#root").wait_for(state="attached")  # of the page of the studio; others see what it shows
        assert "open=" not in tab.url and "token=" not in tab.url
    finally:
        tab.close()
        for studio in studios:
            studio.close()


def test_a_connection_that_fails_does_not_end_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = StartPage(ANY_PORT, lambda: StartContent((), tmp_path, tmp_path))
    accept, failed = socket.socket.accept, []

    def fails_at_first(listener: socket.socket) -> object:
        if len(failed) < 3:
            failed.append(1)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fails_at_first)
    assert get(page.port)[0] == 403 and len(failed) == 3
    page.close()


def test_a_crowd_is_heard_a_few_at_a_time(tmp_path: Path) -> None:
    page = StartPage(ANY_PORT, lambda: StartContent((), tmp_path, tmp_path))
    with contextlib.ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection(("127.0.0.1", page.port), 60))
            for _ in range(MAX_VISITORS + 3)
        ]
        for stranger in crowd[MAX_VISITORS:]:
            assert stranger.recv(1) == b""

    def is_heard() -> bool:
        with contextlib.suppress(ConnectionError):  # while the last of the crowd leave
            return get(page.port)[0] == 403
        return False

    wait(is_heard)
    page.close()
