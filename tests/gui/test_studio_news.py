"""What happens while no browser is open is there for the next one: what was told, and how each task ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import viser
from gui_parts import FakeBrowsers, trained_run
from studio_page import PAGE_TEST, TIMEOUT, open_screen

from splatstudio.gui.state.news import MAX_MISSED_SHOWN, News
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.log import log_html, news_html
from splatstudio.runtime.messages import Export
from splatstudio.scene.scene import Scene


def test_what_nobody_saw_is_shown_once_to_who_comes_first() -> None:
    server = FakeBrowsers()
    news = News(cast(viser.ViserServer, server))
    news.tell(Notice("Exported a.ply", "/data/a.ply"))
    news.tell(Notice("Exporting b.ply: failed", "No space left on device.", bad=True))
    first, second = server.open(), server.open()
    assert [title for title, _, _ in first] == ["Exported a.ply", "Exporting b.ply: failed"] and not second
    assert [seconds for _, _, seconds in first] == [None, None], "it went away before it was read"
    news.tell(Notice("Saved", "/run"))
    assert first[-1] == second[-1] == ("Saved", "/run", 8.0)
    server.clients.clear()
    assert not server.open()


def test_of_much_that_nobody_saw_the_failures_are_shown_and_the_rest_is_counted() -> None:
    server = FakeBrowsers()
    news = News(cast(viser.ViserServer, server))
    news.tell(Notice("Failed", "first", bad=True))
    for number in range(300):
        news.tell(Notice(f"Saved step {number}", ""))
        if number == 200:
            news.tell(Notice("Failed", "second", bad=True))
    shown = server.open()
    assert len(shown) == MAX_MISSED_SHOWN + 1 and ("Failed", "second", None) in shown
    assert shown[-1][1] == "They are in the Log tab." and shown[-2][0] == "Saved step 299"
    assert len(news.items) == 200


def test_what_fails_again_and_again_is_on_the_page_once_and_in_the_log_each_time() -> None:
    server = FakeBrowsers()
    news = News(cast(viser.ViserServer, server))
    full, saved = Notice("Please note", "Not saved: the disk is full.", bad=True), Notice("Saved", "/run")
    for notice in (full, full, full):
        news.tell(notice)
    watching = server.open()
    assert [text for _, text, _ in watching] == [full.text]
    for notice in (full, full, saved, full, saved, saved):
        news.tell(notice)
    assert [text for _, text, _ in watching] == [
        text.text for text in (full, full, saved, full, saved, saved)
    ]
    assert len(news.items) == 9


def test_the_log_tab_lists_it_with_its_time_and_escaped() -> None:
    news = News(cast(viser.ViserServer, FakeBrowsers()))
    assert news_html(news.items) == ""
    news.tell(Notice("Exported <b>.ply", "/data/<b>.ply"))
    news.tell(Notice("Failed", "why", bad=True))
    page = news_html(news.items)
    assert "/data/&lt;b&gt;.ply" in page and "<b>" not in page and page.count('"bad"') == 1
    assert f"{news.items[0].time:%H:%M:%S}" in page
    assert log_html([]) != log_html([], with_news=True)


@PAGE_TEST[0]
@PAGE_TEST[1]
def test_a_browser_that_comes_back_sees_what_failed_and_what_was_written_meanwhile(
    browser: Any, blob_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained_run(blob_scene, tmp_path / "run")
    (tmp_path / "in the way").write_text("a file where a folder would have to be")
    screen = open_screen(browser, tmp_path / "run")
    studio = screen.studio
    try:
        screen.wait(lambda: studio.controller.status.state == "viewing", "the model is there")
        screen.page.goto("about:blank")
        screen.wait(lambda: not studio._server.get_clients(), "the browser is gone")
        for output in (tmp_path / "in the way" / "a.ply", tmp_path / "b.ply"):
            studio._tasks.submit(Export(output))
            screen.wait(lambda: studio._tasks.newest(Export).end is not None, "it ends")  # type: ignore[union-attr]
        screen.page.goto(studio.url)
        shown = screen.page.get_by_text("a.ply: failed")
        shown.first.wait_for(timeout=1000 * TIMEOUT)
        screen.close_notices()
        screen.tab("Export")
        screen.wait(lambda: str(tmp_path / "b.ply") in screen.text("job"), "the path stays below the button")
        screen.tab("Log")
        screen.wait(lambda: "in the way" in screen.text("news"), "the failure is in the Log tab")
        assert str(tmp_path / "b.ply") in screen.text("news")
        assert not screen.errors
    finally:
        screen.page.close()
        studio.close()
