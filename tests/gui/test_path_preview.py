"""The preview of a camera path: where it begins, and where one stands after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from gui_parts import fake_camera, wait_until
from path_builder import random_keys

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.gui.panel import Page
from splatstudio.gui.state.scene_overlay import Draft, PathEditor
from splatstudio.gui.tabs import path_preview
from splatstudio.gui.tabs.path_preview import PLAY, STOP, PathPreviews, PreviewSection

START = np.array([7.0, 8.0, 9.0])


class Visitor:
    """A browser that notes the values of the slider, and goes where it is sent."""

    def __init__(self) -> None:
        up, target = np.array([0.0, 0.0, 1.0]), np.zeros(3)
        self.camera = fake_camera(position=START, look_at=target, up_direction=up)
        self.percents: list[float] = []
        self.client_id, self.atomic = 1, nullcontext

    def is_at(self, place: Any) -> bool:
        return bool(np.allclose(self.camera.position, place, atol=1e-6))


@pytest.fixture
def visitor(monkeypatch: pytest.MonkeyPatch) -> Visitor:
    def place(client: Any, view: dict[str, Any]) -> None:
        for name, value in view.items():
            setattr(client.camera, name, value)

    monkeypatch.setattr(path_preview, "place_camera", place)
    monkeypatch.setattr(path_preview, "tell_framing", lambda *_: None)
    monkeypatch.setattr(path_preview, "show_value", lambda client, _, value: client.percents.append(value))
    return Visitor()


@pytest.fixture
def section(page: Page, visitor: Visitor) -> Iterator[PreviewSection]:
    browsers = SimpleNamespace(get_clients=lambda: {1: visitor}, on_client_disconnect=lambda _: None)
    previews = PathPreviews(cast(Any, browsers), 3.0, ())
    path = CameraPath(random_keys(1, 3))
    yield PreviewSection(page, PathEditor(Draft(path, 0, "one")), previews)
    previews.stop(cast(Any, visitor))


def scrub(section: PreviewSection, visitor: Visitor, percent: float) -> np.ndarray:
    """Move the slider, as its browser does; return where the path is there."""
    section._place.value = percent
    section._scrub(cast(Any, visitor), percent)
    path = section._editor.path
    return path.camera_at(path.duration * percent / 100.0).position


def press(section: PreviewSection, visitor: Visitor, button: str) -> None:
    section._press(cast(Any, visitor), button)


@pytest.mark.parametrize(("percent", "begins"), [(60.0, 60.0), (0.0, 0.0), (100.0, 0.0)])
def test_it_is_played_from_where_the_slider_is(
    section: PreviewSection, visitor: Visitor, percent: float, begins: float
) -> None:
    section._editor.change_duration(100.0)
    scrub(section, visitor, percent)
    press(section, visitor, PLAY)
    wait_until(lambda: len(visitor.percents) >= 2, "it is played")
    assert begins < visitor.percents[0] + 0.05 < begins + 30.0
    assert visitor.percents == sorted(visitor.percents)


def test_two_presses_of_play_in_the_same_moment_are_one(section: PreviewSection, visitor: Visitor) -> None:
    press(section, visitor, PLAY)
    press(section, visitor, PLAY)  # before the first has moved anything
    wait_until(lambda: len(visitor.percents) >= 2, "it is played")
    press(section, visitor, STOP)
    assert visitor.is_at(START)


def test_presses_that_are_heard_at_once_leave_one_player(
    section: PreviewSection, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember = PathPreviews._remember

    def slowly(previews: PathPreviews, client: Any) -> None:
        remember(previews, client)
        time.sleep(0.1)

    monkeypatch.setattr(PathPreviews, "_remember", slowly)
    presses = [threading.Thread(target=press, args=(section, visitor, PLAY)) for _ in range(2)]
    for each in presses:
        each.start()
    for each in presses:
        each.join(60.0)
    press(section, visitor, STOP)
    assert not [thread for thread in threading.enumerate() if thread.name == "preview"]
    assert visitor.is_at(START)


def test_stop_goes_back_to_before_the_first_place_that_was_looked_at(
    section: PreviewSection, visitor: Visitor
) -> None:
    for percent in (20.0, 50.0):
        assert visitor.is_at(scrub(section, visitor, percent))
    press(section, visitor, STOP)
    assert visitor.is_at(START)
    place = scrub(section, visitor, 50.0)
    press(section, visitor, PLAY)
    wait_until(lambda: visitor.percents and not visitor.is_at(place), "it is played")
    section._toggle(cast(Any, visitor))
    assert visitor.is_at(START) and visitor.percents[-1] == 50.0
    section._toggle(cast(Any, visitor))
    wait_until(lambda: not visitor.is_at(START), "the key plays it again")
    press(section, visitor, STOP)
    press(section, visitor, STOP)
    assert visitor.is_at(START)


def test_after_the_end_of_a_path_one_stands_where_one_stood(
    section: PreviewSection, visitor: Visitor
) -> None:
    section._editor.change_duration(1.0)
    scrub(section, visitor, 80.0)
    press(section, visitor, PLAY)
    wait_until(lambda: not section._previews.is_playing(cast(Any, visitor)), "it is over")
    assert visitor.is_at(START) and visitor.percents[-1] == 80.0


def test_who_has_gone_elsewhere_meanwhile_comes_back_to_there(
    section: PreviewSection, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrub(section, visitor, 20.0)
    monkeypatch.setattr(path_preview, "SETTLED_SECONDS", 0.0)
    visitor.camera.position = elsewhere = np.array([-5.0, 0.0, 1.0])
    scrub(section, visitor, 30.0)
    press(section, visitor, STOP)
    assert visitor.is_at(elsewhere)


def test_another_path_is_looked_at_from_its_beginning(section: PreviewSection, visitor: Visitor) -> None:
    scrub(section, visitor, 40.0)
    section._editor.change_duration(9.0)
    section.refresh()
    assert section._place.value == 40.0, "the same path"
    section._editor.load(CameraPath(random_keys(2, 4)), "two")
    section.refresh()
    assert section._place.value == 0.0
