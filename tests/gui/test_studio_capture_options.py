"""What can be switched on for a capture that is not ideal: which settings change, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from splatstudio.gui.state.controller import Notice
from splatstudio.gui.state.project import open_project
from splatstudio.gui.tabs.capture_options import (
    CAPTURE_OPTIONS,
    CaptureOption,
    CaptureOptions,
    options_on,
)
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed, value_of


class Box:
    """A checkbox of the page, as far as the options use it."""

    def __init__(self, label: str, value: bool, hint: str):
        self.label, self.value, self.hint = label, value, hint

    def on_update(self, told: Callable[[object], None]) -> None:
        """Remember whom a click is told."""
        self._told = told

    def click(self) -> None:
        """Do as a browser does."""
        self.value = not self.value
        self._told(None)


@pytest.mark.parametrize("option", CAPTURE_OPTIONS, ids=lambda option: option.path)
def test_each_option_is_a_setting_that_is_off_at_first(option: CaptureOption) -> None:
    assert options_on(TrainConfig()) == []
    on = changed(TrainConfig(), option.path, option.value)
    assert options_on(on) == [option.label] and value_of(on, option.path) == option.value
    assert changed(on, option.path, option.off) == TrainConfig()


def options_of(scene: Scene, config: TrainConfig, run: Path) -> tuple[Any, dict[str, Box], list[Notice]]:
    """Return what holds the project, the boxes by their labels, and what the user is told."""
    controller = SimpleNamespace(project=open_project(scene.path, config, run), can_set_up=True)

    def change(values: dict[str, Any]) -> None:
        controller.project = replace(controller.project, config=controller.project.config_with(values))

    controller.change_settings = change
    boxes: dict[str, Box] = {}

    def add(label: str, value: bool, hint: str) -> Box:
        boxes[label] = Box(label, value, hint)
        return boxes[label]

    gui = SimpleNamespace(add_folder=lambda *_, **__: nullcontext(), add_checkbox=add)
    told: list[Notice] = []
    page = SimpleNamespace(server=SimpleNamespace(gui=gui), controller=controller, notify=told.append)
    CaptureOptions(cast(Any, page), scene)
    return controller, boxes, told


def test_what_cannot_be_together_is_refused_and_shown_as_it_is(blob_scene: Scene, tmp_path: Path) -> None:
    config = TrainConfig(random_background=True)
    controller, boxes, told = options_of(blob_scene, config, tmp_path / "run")
    boxes["Open sky"].click()
    assert not boxes["Open sky"].value and not controller.project.config.sky.enabled
    (notice,) = told
    assert notice.bad and "random_background" in notice.text
    boxes["Light changes"].click()
    assert controller.project.config.exposure.enabled and len(told) == 1
    boxes["Light changes"].click()
    assert controller.project.config == config


def test_depths_guide_only_where_the_scene_tells_them(blob_scene: Scene, tmp_path: Path) -> None:
    assert blob_scene.format == "COLMAP"
    assert "Few photos" in options_of(blob_scene, TrainConfig(), tmp_path / "run")[1]
    elsewhere = replace(blob_scene, format="nerfstudio")
    _, boxes, _ = options_of(elsewhere, TrainConfig(), tmp_path / "run")
    assert len(boxes) == len(CAPTURE_OPTIONS) - 1 and "Few photos" not in boxes
