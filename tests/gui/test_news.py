"""What is told: to who watches, to who comes back, in the Log tab, and as milestones of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import viser
from gui_parts import FakeBrowsers

from splatstudio.gaussians.change import Change
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.state.tasks import MAX_MISSED_SHOWN, Milestones, News
from splatstudio.gui.tabs.log import TAIL_BYTES, log_html, news_html, tail
from splatstudio.runtime.messages import Densified, Evaluated, Event, Progress, Started, StateChanged
from splatstudio.settings.config import TrainConfig, changed

NO_PATH: Any = None


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
    assert [text for _, text, _ in watching] == [text.text for text in (saved, full, saved, saved)]
    assert len(news.items) == 9


def test_what_does_not_hold_any_longer_leaves_the_page_and_stays_in_the_log() -> None:
    server = FakeBrowsers()
    news = News(cast(viser.ViserServer, server))
    filtered, other = Notice("Filtered like last time", "hidden"), Notice("Saved", "/run")
    news.tell(filtered)
    news.tell(other)
    watching = server.open()
    news.withdraw(filtered)
    assert [title for title, _, _ in watching] == ["Saved"] and len(news.items) == 2
    server.clients.clear()
    news.tell(filtered)
    news.withdraw(filtered)
    assert server.open() == []


def test_the_log_tab_lists_it_with_its_time_and_escaped() -> None:
    news = News(cast(viser.ViserServer, FakeBrowsers()))
    assert news_html(news.items) == ""
    news.tell(Notice("Exported <b>.ply", "/data/<b>.ply"))
    news.tell(Notice("Failed", "why", bad=True))
    page = news_html(news.items)
    assert "/data/&lt;b&gt;.ply" in page and "<b>" not in page and page.count('"bad"') == 1
    assert f"{news.items[0].time:%H:%M:%S}" in page
    assert log_html([]) != log_html([], with_news=True)


def told_of(config: TrainConfig, events: Sequence[Event], state: Any = "training") -> list[str]:
    """Return the lines for some events of a training."""
    lines: list[Notice] = []
    trained = SimpleNamespace(project=SimpleNamespace(config=config), status=Status(state=state, step=7))
    milestones = Milestones(cast(Any, trained), lines.append)
    for event in events:
        milestones.follow(event)
    return [line.title for line in lines]


def progress(step: int) -> Progress:
    return Progress(step, 4000, 0.1, 20.0, 100, 9.0, 1.0)


def test_growth_scores_and_resets_are_told_and_small_changes_are_not() -> None:
    grown, reset = Change(cloned=5), Change(opacities_reset=True)
    events = [
        Started(0, 4000, 100, 42, 6),
        Densified(600, 140, grown),
        Densified(700, 160, grown),
        Densified(800, 200, grown),
        Densified(900, 90, reset),
        *(Densified(step, 95, replace(grown, capped=3)) for step in (1000, 1100)),
        Evaluated(2000, 24.314, 0.81234, 6, NO_PATH),
        StateChanged("paused"),
    ]
    events.insert(-2, Densified(1200, 70, Change(pruned=30)))
    assert told_of(TrainConfig(steps=4000), events) == [
        "Step 0: training begins with 100 splats; 42 photos to learn from, 6 for the test",
        "Step 700: grown from 100 to 160 splats",
        "Step 900: opacities lowered, so that unneeded splats can be removed",
        "Step 900: thinned from 160 to 90 splats",
        "Step 1,000: the limit on the number of splats is reached, 95",
        "Step 1,200: thinned by 30 to 70 splats",
        "Step 2,000: test PSNR 24.31 dB, SSIM 0.8123",
        "Step 7: paused",
    ]
    evaluated = [Evaluated(2000, 24.314, 0.81234, 6, NO_PATH)]
    assert told_of(TrainConfig(), evaluated, "viewing") == [], "the Evaluate tab tells it"


def test_finer_photos_and_colors_are_told_when_they_come() -> None:
    config = changed(changed(TrainConfig(steps=4000), "coarse.first", 4.0), "coarse.until", 0.5)
    events = [Started(0, 4000, 100, 42, 6), *(progress(step) for step in range(100, 3000, 100))]
    assert told_of(config, events)[1:] == [
        "Step 0: photos at about 1/4 of their size at first",
        "Step 500: photos at about 1/3 of their size from here on",
        "Step 1,000: photos at about 1/2 of their size from here on",
        "Step 1,000: more view-dependent color from here on (SH degree 1)",
        "Step 2,000: photos in full size from here on",
        "Step 2,000: more view-dependent color from here on (SH degree 2)",
    ]
    last = [Started(2500, 3000, 100, 42, 6), progress(3000)]
    assert len(told_of(replace(config, steps=3000), last)) == 1, "no step comes that would have more colors"
    again = [Started(2500, 4000, 100, 42, 6), progress(2600)]
    assert told_of(config, again) == [
        "Step 2,500: training goes on with 100 splats; 42 photos to learn from, 6 for the test"
    ], "what has come is not told again"


def test_what_is_noted_is_in_the_log_and_covers_no_picture() -> None:
    clients: dict[int, Any] = {1: SimpleNamespace()}  # whoever is shown something fails
    server = SimpleNamespace(get_clients=lambda: clients, on_client_connect=lambda _: None)
    news = News(cast(Any, server))
    news.note(Notice("Step 7: paused", ""))
    assert [item.notice.title for item in news.items] == ["Step 7: paused"]


def test_the_end_of_a_log_is_read_whatever_its_length(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_bytes(b"start\n" + "".join(f"\x1b[31mline {i}\x1b[0m\n" for i in range(50_000)).encode())
    assert path.stat().st_size > TAIL_BYTES
    assert tail(path) == [f"line {i}" for i in range(49_800, 50_000)]
    path.write_bytes(b"10 %\r50 %\r100 %\nna\xffme <script>\n")
    assert tail(path) == ["10 %", "50 %", "100 %", "na\ufffdme <script>"]
    page = log_html(["RuntimeError: <b>", "all is well", "worker got SIGKILL"])
    assert page.count('data-splatstudio="bad"') == 2 and "&lt;b&gt;" in page and "<b>" not in page
