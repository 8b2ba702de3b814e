"""What can be switched on for a capture that is not ideal, before its training begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import viser

from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.controller import Notice
from splatstudio.gui.tabs.keyframe_section import set_value
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, value_of


@dataclass(frozen=True)
class CaptureOption:
    """A property of a capture in the user's words, and the setting that makes up for it."""

    label: str
    path: str
    value: bool | int | float  # when it is on
    hint: str
    suits: Callable[[Scene], bool] = lambda scene: True

    def is_on(self, config: TrainConfig) -> bool:
        """Say whether the setting is another than that of a training without options."""
        return value_of(config, self.path) != self.off

    @property
    def off(self) -> bool | int | float:
        """Return the setting's value where the option is off."""
        return value_of(TrainConfig(), self.path)


def _tells_who_sees_points(scene: Scene) -> bool:
    return scene.format == "COLMAP" and len(scene.points) > 0


CAPTURE_OPTIONS = (
    CaptureOption(
        "Light changes",
        "exposure.enabled",
        True,
        "Clouds, lamps or the camera's automatic exposure: learns how the colors of each photograph differ.",
    ),
    CaptureOption(
        "Camera poses",
        "poses.enabled",
        True,
        "Learns where cameras that are a little off really stood. An export with cameras writes that.",
    ),
    CaptureOption(
        "Open sky",
        "sky.enabled",
        True,
        "Learns the colors behind everything apart from the splats. An exported file is without them.",
    ),
    CaptureOption(
        "Near and far",
        "antialiased",
        True,
        "Looks right from other distances than the photographs'; exported files tell other programs to draw"
        " them so, where the format can.",
    ),
    CaptureOption(
        "Few photos",
        "depth.weight",
        0.1,
        "Lets the depths of the sparse points guide the training.",
        _tells_who_sees_points,
    ),
    CaptureOption(
        "Floaters",
        "shapes.min_views",
        2,
        "Removes what fewer than two photographs show, now and then.",
    ),
)


def options_on(config: TrainConfig) -> list[str]:
    """Return the labels of the options that are on."""
    return [option.label for option in CAPTURE_OPTIONS if option.is_on(config)]


class CaptureOptions:
    """The folder of these options, each a checkbox with what it is for."""

    def __init__(self, page: Page, scene: Scene):
        gui, self._controller = page.server.gui, page.controller
        self._notify = page.notify
        self._shown = config = page.controller.project.config
        self._boxes: list[tuple[CaptureOption, viser.GuiCheckboxHandle]] = []
        with gui.add_folder("This capture", expand_by_default=bool(options_on(config))):
            for option in CAPTURE_OPTIONS:
                if option.suits(scene) or option.is_on(config):
                    box = gui.add_checkbox(option.label, option.is_on(config), hint=option.hint)
                    box.on_update(lambda _, option=option, box=box: self._take(option, box.value))
                    self._boxes.append((option, box))

    def refresh(self) -> None:
        """Show what holds by now."""
        config = self._controller.project.config
        if config is not self._shown:
            self._shown = config
            for option, box in self._boxes:
                set_value(box, option.is_on(config))

    def _take(self, option: CaptureOption, on: bool) -> None:
        # What `refresh` has shown needs not be taken again.
        if not self._controller.can_set_up or on == option.is_on(self._controller.project.config):
            return
        try:
            self._controller.change_settings({option.path: option.value if on else option.off})
        except ValueError as error:
            set_value(next(box for each, box in self._boxes if each is option), not on)
            self._notify(Notice("Not changed", str(error), bad=True))
