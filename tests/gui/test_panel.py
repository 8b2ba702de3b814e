"""When panels are refreshed, what fields do with what a user gives, and what is told of what is refused."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import viser
from gui_parts import FakeBrowsers, Steered, as_user, wait_until
from path_builder import random_keys

from splatstudio.gui.app import Studio
from splatstudio.gui.panel import Field, Page, Panel, Refresher
from splatstudio.gui.server.viser_private import after_callbacks
from splatstudio.gui.state.scene_overlay import PathEditor, PathScene
from splatstudio.gui.state.status import Notice
from splatstudio.gui.state.tasks import News
from splatstudio.gui.tabs.render import MotionSection, OutputSection
from splatstudio.gui.tabs.train import CAPTURE_OPTIONS, CaptureOption, Setup, options_on
from splatstudio.gui.tabs.view import BrowserView
from splatstudio.runtime.messages import JobDone
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed, value_of
from splatstudio.settings.presets import PRESETS

REFUSED = "not like this|must be|agree|background"  # by the fixture, or by the settings


class Counting(Panel):
    """Counts what it is asked for."""

    def __init__(self, look_seconds: float | None = None):
        self.look_seconds = look_seconds
        self.refreshes = self.looks = 0

    def refresh(self) -> None:
        self.refreshes += 1

    def look(self) -> None:
        self.looks += 1


class Broken(Panel):
    def __init__(self) -> None:
        pass

    def refresh(self) -> None:
        raise PermissionError(13, "Permission denied")


def fail(panel: Panel, error: Exception) -> None:
    raise AssertionError(panel) from error


def test_a_panel_is_refreshed_after_a_change_and_not_without_one() -> None:
    refresher, one, other, looking = Refresher(fail), Counting(), Counting(), Counting(0.05)
    for panel in (one, other, looking):
        refresher.add(panel)
    refresher.start()
    try:
        time.sleep(0.4)
        assert one.refreshes == other.refreshes == 1, "nothing has happened"
        assert looking.looks > 2 and looking.refreshes == looking.looks
        refresher.changed(one)
        wait_until(lambda: one.refreshes == 2, "the one that has changed")
        assert other.refreshes == 1
        start = time.monotonic()
        while time.monotonic() - start < 0.9:
            refresher.changed()
            time.sleep(0.01)
        wait_until(lambda: other.refreshes > 3, "refreshed while changes stream")
        assert other.refreshes <= 2 + (time.monotonic() - start) / Panel.refresh_seconds
    finally:
        refresher.close()


def test_a_panel_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    studio, good, server = Studio.__new__(Studio), Counting(), FakeBrowsers()
    studio._news, studio._failures = News(cast(Any, server)), {}
    studio._server = cast(Any, server)
    refresher = Refresher(studio._tell_of)
    for panel in (Broken(), good):
        refresher.add(panel)
    shown: list[tuple[str, str, Any]] = []
    with caplog.at_level(logging.ERROR):
        refresher.start()  # nobody is there to be told yet
        shown = server.open()
        for count in (2, 3):
            refresher.changed()
            wait_until(lambda count=count: good.refreshes == count, "the others go on")
    refresher.close()
    (record,) = caplog.records
    assert record.exc_info is not None and "Broken" in record.getMessage()
    ((title, text, _),) = shown
    assert title == "Broken may show old figures" and text.startswith("PermissionError") and "go on" in text


def test_after_each_callback_of_the_page_its_end_is_told_and_viser_runs_all_in_that_pool(
    server: viser.ViserServer,
) -> None:
    failed: list[BaseException] = []
    ended: list[int] = []
    after_callbacks(server, lambda: ended.append(1), failed.append)
    for pool in (server.gui._thread_executor, server.scene._thread_executor):
        assert pool is server._thread_executor
        assert pool.submit(lambda: 7).result(60) == 7
        assert pool.submit(refuse).result(60) is None, "viser has nothing to print of it"
        with pytest.raises(KeyError):
            pool.submit(lambda: {}["gone"]).result(60)
    wait_until(lambda: len(ended) == 6)
    assert [str(error) for error in failed] == ["not like this", "'gone'"] * 2


def refuse(*_: Any, **__: Any) -> None:
    raise ValueError("not like this")


def test_a_refusal_is_told_as_its_sentence_and_a_mistake_as_that() -> None:
    news = News(cast(viser.ViserServer, FakeBrowsers()))
    news.tell_failure(ValueError("a path's tension lies between -1 and 1, not 7"))
    news.tell_failure(PermissionError(13, "Permission denied", "/data/path.json"))
    news.tell_failure(KeyError("gone"))
    first, second, third = (item.notice for item in news.items)
    assert first == Notice("Not done", "a path's tension lies between -1 and 1, not 7", bad=True)
    assert "/data/path.json" in second.text and "mistake" not in second.text
    assert third.text.startswith("KeyError: 'gone'. ") and "mistake of the studio's" in third.text


def test_a_field_keeps_what_a_user_is_about_to_give(server: viser.ViserServer) -> None:
    values, taken = {"shown": 3}, []
    field = Field(server.gui.add_number("Steps", 1), lambda: values["shown"], taken.append)
    field.refresh()
    assert field.handle.value == 3 and taken == [], "the program's own value is nobody's wish"
    field.handle._impl.value = 8  # of a browser whose callback is still to come
    field.refresh()
    assert field.handle.value == 8
    as_user(field.handle, 8)
    values["shown"] = 5
    field.refresh()
    assert taken == [8] and field.handle.value == 5


def test_what_a_user_gave_is_taken_even_when_the_program_changes_the_control_meanwhile(
    server: viser.ViserServer,
) -> None:
    values, taken = {"shown": 3}, []
    field = Field(server.gui.add_number("Duration", 1), lambda: values["shown"], taken.append)
    note, update = field.handle._impl.update_cb
    event: Any = SimpleNamespace(client=SimpleNamespace(client_id=1), client_id=1, target=field.handle)
    for typed in (2, 25):
        field.handle._impl.value = typed
        asyncio.run(cast(Any, note(event)))
    field.refresh()  # before a thread of the pool has come to it
    assert field.handle.value == 3
    update(event)
    update(event)
    assert taken == [2, 25]


@pytest.fixture
def setup(page: Page) -> Setup:
    """Return what can be chosen before a training, where nothing is refused that the settings allow."""
    controller: Any = page.controller
    scene = controller.project.scene

    def change(values: dict[str, Any]) -> None:
        controller.project = replace(controller.project, config=controller.project.config_with(values))

    controller.can_set_up, controller.change_settings, controller.choose_preset = True, change, refuse
    made = Setup(page, scene)
    made.refresh()
    return made


def fields_of(setup: Setup) -> list[Field]:
    return [part for part in setup._parts if isinstance(part, Field)]


def field_of(setup: Setup, label: str) -> Field:
    return next(field for field in fields_of(setup) if field.handle.label == label)


@pytest.mark.parametrize(("label", "value"), [("Preset", "mcmc"), ("Steps", 0), ("Open sky", True)])
def test_a_setting_that_is_refused_is_told_and_shown_as_it_was(
    setup: Setup, page: Page, label: str, value: Any
) -> None:
    controller: Any = page.controller
    config = TrainConfig(random_background=True)
    controller.project = replace(controller.project, config=config)
    setup.refresh()
    field = field_of(setup, label)
    before = field.handle.value
    with pytest.raises(ValueError, match=REFUSED):
        as_user(field.handle, value)
    setup.refresh()
    assert field.handle.value == before and controller.project.config == config
    as_user(field_of(setup, "Varying exposure").handle, True)
    assert controller.project.config.exposure.enabled
    as_user(field_of(setup, "Varying exposure").handle, False)
    assert controller.project.config == config


def test_depths_guide_only_where_the_scene_tells_them(page: Page, blob_scene: Scene, setup: Setup) -> None:
    labels = {field.handle.label for field in fields_of(setup)}
    assert blob_scene.format == "COLMAP" and {option.label for option in CAPTURE_OPTIONS} < labels
    elsewhere = Setup(page, replace(blob_scene, format="nerfstudio"))
    assert labels - {field.handle.label for field in fields_of(elsewhere)} == {"Depth of the points"}


@pytest.mark.parametrize("option", CAPTURE_OPTIONS, ids=lambda option: option.path)
def test_each_option_of_a_capture_is_a_setting_that_is_off_at_first(option: CaptureOption) -> None:
    assert options_on(TrainConfig()) == [] and options_on(PRESETS["fast"].apply(TrainConfig())) == []
    on = changed(TrainConfig(), option.path, option.value)
    assert options_on(on) == [option.label] and value_of(on, option.path) == option.value
    assert changed(on, option.path, option.off) == TrainConfig()


def test_the_fields_of_a_path_show_again_what_holds(page: Page) -> None:
    editor = PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    section = MotionSection(page, editor, PathScene(page.server, editor, 1.0))
    section.refresh()
    before, duration = editor.path.duration, section._duration.handle
    with pytest.raises(ValueError, match="too long"):
        as_user(duration, 1e9)
    section.refresh()
    assert editor.path.duration == before and duration.value == round(before, 3)
    with pytest.raises(ValueError, match="degrees"):
        editor.change_keyframe(fov_y=7.0)
    with pytest.raises(ValueError, match="more than 0"):
        editor.change_keyframe(seconds=-1.0)


def test_a_video_has_the_format_that_is_chosen_or_that_of_a_typed_ending(
    page: Page, sent: list[Any], tmp_path: Path
) -> None:
    editor = PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    section = OutputSection(page, editor)
    suggested = Path(section._file.value)
    client = cast(Any, SimpleNamespace(client_id=0))
    for typed, made in (
        ("my clip", "my clip.mp4"),
        ("my clip v1.2", "my clip v1.2.mp4"),
        ("clip.webm", "clip.webm"),
        (f"{tmp_path}/", str(tmp_path / suggested.name)),
        (str(tmp_path), str(tmp_path / suggested.name)),
        (f"{tmp_path}/my.webm/clip", f"{tmp_path}/my.webm/clip.mp4"),
    ):
        as_user(section._format, "MP4 (H.264), small")
        for end in (len(typed) // 2, len(typed) - 5, len(typed)):  # letter by letter
            as_user(section._file, typed[:end])
        as_user(section._file, typed)
        section._start(client)
        assert sent[-1].output == suggested.parent / made and sent[-1].quality == "small", typed
        assert section._format.value.startswith("WebM" if typed.endswith("webm") else "MP4")
        page.tasks.follow(JobDone(sent[-1].job, sent[-1].output, 1))
    as_user(section._file, "take.webm.mp4")
    as_user(section._format, "PNG frames in a folder")
    assert (section._file.value, section._format.value) == ("take", "PNG frames in a folder")
    as_user(section._fps, 23.976)
    assert editor.path.fps == 23.976 and section._fps.precision == 3


def test_a_browser_that_leaves_while_its_view_is_refreshed_is_left_alone(server: viser.ViserServer) -> None:
    view = BrowserView.__new__(BrowserView)
    view._client = cast(Any, SimpleNamespace(client_id=7))
    view._lock, view._parts = threading.Lock(), None
    look = SimpleNamespace(splats=True)
    view._stream = cast(Any, SimpleNamespace(settings=look, frame=None, camera_snap=None))
    view._legend, view._sky = server.gui.add_html(""), server.gui.add_checkbox("Sky", True)
    view._halves = cast(Any, SimpleNamespace(refresh=lambda: None))
    there: dict[int, object] = {7: view._client}
    view._page = cast(Any, SimpleNamespace(server=SimpleNamespace(get_clients=lambda: there)))
    view.refresh(has_sky=False)
    view._sky.remove()
    with pytest.raises(RuntimeError, match="removed"):
        view.refresh(has_sky=True)
    there.clear()  # first of all, when a browser leaves
    view.refresh(has_sky=True)


def test_what_a_preset_had_to_leave_is_shown_by_the_fields(idle: Steered, page: Page, tmp_path: Path) -> None:
    """The fields follow the settings, whoever changes them."""
    controller: Any = page.controller
    setup = Setup(page, controller.project.scene)
    controller.can_set_up = True
    setup.refresh()
    controller.project = replace(controller.project, config=TrainConfig(steps=77))
    setup.refresh()
    assert field_of(setup, "Steps").handle.value == 77
