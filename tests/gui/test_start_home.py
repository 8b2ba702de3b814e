"""From the start page to the studio and back again, at one address, and what becomes of a training."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gate_client import get
from gui_parts import as_user, wait_until
from start_visitor import ANY_PORT, Visitor

from splatstudio.cli import start
from splatstudio.gui.leaving_bars import HomeBar
from splatstudio.gui.panel import Page
from splatstudio.gui.server.access import STILL_HERE
from splatstudio.gui.server.start_page import StartPage
from splatstudio.gui.server.start_views import StartContent
from splatstudio.gui.state.leaving import DIED, NOT_SAVED, Leaving
from splatstudio.gui.state.status import Notice
from splatstudio.runtime.messages import StateChanged, Stop
from splatstudio.training.device_options import AS_FOUND


def press(bar: HomeBar, label: str) -> None:
    """Press a button of the bar that is to be seen."""
    bar.refresh()
    (handle,) = (
        handle for handle, *_ in bar._kept if getattr(handle, "label", None) == label and handle.visible
    )
    as_user(handle, handle.value)
    bar.refresh()


def test_nobody_is_asked_where_nothing_trains(page: Page) -> None:
    cast(Any, page.controller).unsaved = cast(Any, page.controller).can_order = False
    went: list[bool] = []
    press(HomeBar(page, lambda: went.append(True), lambda: went.clear(), lambda: True), "Start page")
    assert went == [True]


def test_a_training_is_ended_only_by_who_says_so(page: Page) -> None:
    cast(Any, page.controller).unsaved, cast(Any, page.controller).can_order = False, True
    went: list[bool] = []
    bar = HomeBar(page, lambda: went.append(True), lambda: went.clear(), lambda: True)
    press(bar, "Start page")
    press(bar, "Stay here")
    assert went == []
    press(bar, "Start page")
    press(bar, "Save and go to the start page")
    assert went == [True]


def test_a_studio_is_left_when_its_training_is_saved_and_stays_where_it_cannot_be(
    notices: list[Notice],
) -> None:
    controller, left = cast(Any, SimpleNamespace(unsaved=True)), list[str]()
    sent, heard = list[object](), list[Any]()
    controller.send, controller.listen = sent.append, heard.append
    leaving = Leaving(controller, notices.append)
    leaving.begin(lambda: left.append("at once"))
    assert sent == [Stop()] and left == []
    heard[0](StateChanged("paused", unsaved=True))
    assert notices == [NOT_SAVED] and "is kept: mend what the Log says" in notices[0].text
    heard[0](StateChanged("paused", unsaved=True))  # of a Save of the user's own
    assert len(notices) == 1
    controller.unsaved = False
    time.sleep(0.3)
    assert left == [], "who could not leave then does not later, by itself"
    controller.unsaved = True
    leaving.begin(lambda: left.append("of a process that dies"))
    heard[0](StateChanged("restarting"))
    assert notices[1:] == [DIED]
    leaving.begin(lambda: left.append("first"))
    leaving.stay()
    leaving.begin(lambda: left.append("second"))
    controller.unsaved = False
    wait_until(lambda: left == ["second"])
    leaving.begin(lambda: left.append("third"))
    assert left == ["second", "third"], "where nothing is unsaved it is at once"


def test_the_next_studio_comes_at_the_same_address_and_its_run_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, offered, asked = object(), list[bool](), list[dict[str, Any]]()
    studio = SimpleNamespace(offer_home=lambda: offered.append(True))
    ends = iter([address, address, None])

    def choice(listen: object, **words: Any) -> object:
        assert listen is address
        asked.append(words)
        return studio

    monkeypatch.setattr(start, "run_until_closed", lambda studio, devices: next(ends))
    monkeypatch.setattr(start, "studio_of_choice", choice)
    start.run_with_start_page(cast(Any, studio), {"run_dir": Path("runs/one"), "devices": AS_FOUND})
    assert len(asked) == 2 and len(offered) == 3
    assert all(words["run_dir"] is None and words["browser"] is words["train"] is False for words in asked)


def test_a_page_of_the_studio_before_is_told_to_load_this_one(tmp_path: Path) -> None:
    page = StartPage(ANY_PORT, lambda: StartContent((), tmp_path, tmp_path))
    try:
        assert get(page.port, STILL_HERE)[0] == 403
        assert Visitor(page).get(STILL_HERE) == (205, "")
    finally:
        page.close()
