"""What the page says where a button, a field or a key cannot do what it was asked for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import viser
from path_builder import random_keys

from splatstudio.cameras.camera_path import Keyframe
from splatstudio.gui.server.viser_private import on_failed_callback
from splatstudio.gui.state.keyframes import PathEditor
from splatstudio.gui.state.news import News
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.browser_view import BrowserView
from splatstudio.gui.tabs.path_section import MotionSection
from splatstudio.gui.tabs.train import Setup
from splatstudio.settings.config import TrainConfig


def test_what_ends_a_callback_is_told_and_viser_runs_all_of_them_in_that_pool() -> None:
    server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    told: list[BaseException] = []
    try:
        on_failed_callback(server, told.append)
        for pool in (server.gui._thread_executor, server.scene._thread_executor):
            assert pool is server._thread_executor
            assert pool.submit(lambda: 7).result(60) == 7
            with pytest.raises(ValueError, match="not like this"):
                pool.submit(refuse).result(60)
    finally:
        server.stop()
        server._thread_executor.shutdown(wait=True)  # what is told is told by then
    assert [str(error) for error in told] == ["not like this", "not like this"]


def refuse(*_: Any, **__: Any) -> None:
    raise ValueError("not like this")


def test_a_refusal_is_told_as_its_sentence_and_a_mistake_as_that() -> None:
    fake = SimpleNamespace(get_clients=dict, on_client_connect=lambda _: None)
    news = News(cast(viser.ViserServer, fake))
    news.tell_failure(ValueError("a path's tension lies between -1 and 1, not 7"))
    news.tell_failure(PermissionError(13, "Permission denied", "/data/path.json"))
    news.tell_failure(KeyError("gone"))
    first, second, third = (item.notice for item in news.items)
    assert first == Notice("Not done", "a path's tension lies between -1 and 1, not 7", bad=True)
    assert "/data/path.json" in second.text and "mistake" not in second.text
    assert third.text.startswith("KeyError: 'gone'. ") and "mistake of the studio's" in third.text


def test_a_preset_that_is_refused_is_told_and_the_former_one_chosen_again() -> None:
    notices: list[Notice] = []
    setup = Setup.__new__(Setup)
    setup._chosen, setup._notify = "standard", notices.append
    setup._preset = cast(Any, SimpleNamespace(value="quality"))
    setup._description = cast(Any, SimpleNamespace(content="as it was"))
    project = SimpleNamespace(config=TrainConfig())
    setup._controller = cast(Any, SimpleNamespace(can_set_up=True, project=project, choose_preset=refuse))
    setup._follow_preset()
    assert notices == [Notice("Not changed", "not like this", bad=True)]
    assert setup._preset.value == setup._chosen == "standard"
    assert setup._description.content == "as it was"


def test_the_fields_of_a_path_show_again_what_holds() -> None:
    editor = PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    section = MotionSection.__new__(MotionSection)
    section._editor, section._shown = editor, None
    shown = {name: SimpleNamespace(value=None, visible=True) for name in ("_tension", "_loop", "_duration")}
    vars(section).update(shown, _undo=SimpleNamespace(disabled=False))
    section.refresh()
    before = editor.path.duration
    section._duration.value = 1e9  # a field sets its own value before it tells of it
    with pytest.raises(ValueError, match="too long"):
        section._change_duration(cast(Any, SimpleNamespace(client=object())))
    section.refresh()
    assert editor.path.duration == before and section._duration.value == round(before, 3)
    with pytest.raises(ValueError, match="degrees"):
        editor.change_keyframe(fov_y=7.0)
    with pytest.raises(ValueError, match="more than 0"):
        editor.change_keyframe(seconds=-1.0)
    assert [type(key) for key in editor.path.keyframes] == [Keyframe, Keyframe]


def test_a_browser_that_leaves_while_its_view_is_refreshed_is_left_alone() -> None:
    server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    try:
        view = BrowserView.__new__(BrowserView)
        view._client = cast(Any, SimpleNamespace(client_id=7))
        view._lock, view._parts, view._texts = threading.Lock(), None, {}
        view._frame, view._stream = None, cast(Any, SimpleNamespace(look=SimpleNamespace(splats=True)))
        view._legend, view._sky = server.gui.add_html(""), server.gui.add_checkbox("Sky", True)
        there: dict[int, object] = {7: view._client}
        view._page = cast(Any, SimpleNamespace(server=SimpleNamespace(get_clients=lambda: there)))
        view.refresh(has_sky=False)
        view._sky.remove()
        with pytest.raises(RuntimeError, match="removed"):
            view.refresh(has_sky=True)
        there.clear()  # first of all, when a browser leaves
        view.refresh(has_sky=True)
    finally:
        server.stop()
