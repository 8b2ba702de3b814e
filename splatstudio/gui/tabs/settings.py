"""The form of live settings, derived from how the configuration declares them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import viser

from splatstudio.gui.panel import Page
from splatstudio.gui.state.setting_names import GROUPS, HELP, WORDS, label_of, number_of
from splatstudio.gui.theme import counted, note_html
from splatstudio.settings.config import value_of
from splatstudio.settings.presets import switched_off
from splatstudio.settings.setting import Setting
from splatstudio.settings.strategy_config import unread_settings


@dataclass(frozen=True)
class LiveSetting:
    """A setting that a running training takes: its group, its dotted path, and what is declared of it."""

    group: str
    path: str
    declared: Setting


def live_settings(config: Any, group: str = "") -> Iterator[LiveSetting]:
    """Yield the live settings of a configuration in the order of their declaration, groups last."""
    groups = []
    for field in fields(config):
        value = getattr(config, field.name)
        path = f"{group}.{field.name}" if group else field.name
        if is_dataclass(value):
            groups.append((value, path))
        elif "setting" in field.metadata and field.metadata["setting"].live:
            yield LiveSetting(group, path, field.metadata["setting"])
    for value, path in groups:
        yield from live_settings(value, path)


class SettingInput:
    """One setting of the form: it shows the run's value until the user enters another one."""

    def __init__(self, gui: viser.GuiApi, setting: LiveSetting, value: Any):
        self.path = setting.path
        self._kind = type(value)
        self._shown = self._displayed(value)
        label, hint = label_of(setting.path), hint_of(setting)
        low, high = setting.declared.low, setting.declared.high
        self.handle: viser.GuiInputHandle[Any]
        if isinstance(value, bool):
            self.handle = gui.add_checkbox(label, value, hint=hint)
        elif isinstance(value, int) and setting.path not in WORDS:
            least, most = (None if bound is None else int(bound) for bound in (low, high))
            self.handle = gui.add_number(label, value, min=least, max=most, step=1, hint=hint)
        elif isinstance(value, tuple):
            self.handle = gui.add_rgb(label, self._shown, hint=hint)
        else:
            # As text: a learning rate of 1.6e-4 has no sensible step.
            self.handle = gui.add_text(label, self._shown, hint=hint)
        self.handle.on_update(lambda _: None)  # Apply follows what is entered

    @property
    def edited(self) -> bool:
        """Return whether it shows another value than the run has."""
        return self.handle.value != self._shown

    def read(self) -> Any:
        """Return what was entered. Raises ValueError when it is no number."""
        value = self.handle.value
        if self._kind is tuple:
            return tuple(part / 255.0 for part in value)
        if not isinstance(value, str):
            return value
        return number_of(self.path, value, int if self._kind is int else float)

    def show(self, value: Any) -> None:
        """Show the run's value, unless the user has begun to enter another one."""
        untouched, self._shown = not self.edited, self._displayed(value)
        if untouched or self._means(value):
            self.reset()

    def reset(self) -> None:
        """Show the run's value."""
        self.handle.value = self._shown

    def _means(self, value: Any) -> bool:
        """Return whether what was entered is this value, as 2e-4 is 0.0002."""
        try:
            return self._displayed(self.read()) == self._displayed(value)
        except ValueError:
            return False

    def _displayed(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(round(255.0 * part) for part in value)
        text = f"{value:g}" if isinstance(value, float) else f"{value}"
        if self.path in WORDS:
            return WORDS[self.path].get(value, text)  # type: ignore[arg-type] - 0.0 is 0
        return text if isinstance(value, float) else value


class SettingsForm:
    """All live settings in a folder, below the button that applies what was changed."""

    def __init__(self, page: Page):
        gui = page.server.gui
        self._controller = page.controller
        self._config = page.controller.project.config
        self._inputs: list[SettingInput] = []
        self._headings: dict[str, viser.GuiHtmlHandle] = {}
        with gui.add_folder("Live settings", expand_by_default=False):
            self._apply = gui.add_button("Apply", disabled=True)
            self._undo = gui.add_button("Undo", color="gray", visible=False)
            self._answer = gui.add_html("")
            for setting in live_settings(self._config):
                group = setting.group
                if group not in self._headings:
                    heading = f'<div class="ss-heading">{GROUPS.get(group, group)}</div>'
                    self._headings[group] = gui.add_html(heading)
                value = value_of(self._config, setting.path)
                self._inputs.append(SettingInput(gui, setting, value))
        self._apply.on_click(lambda _: self._send())
        self._undo.on_click(lambda _: self._reset())

    def refresh(self) -> None:
        """Follow the run's settings, offer what it reads, and Apply where something was entered."""
        config, paths = self._controller.project.config, [each.path for each in self._inputs]
        if config is not self._config:
            self._config = config
            for each in self._inputs:
                each.show(value_of(config, each.path))
        # Nothing is offered that would change nothing.
        offered = {*paths}.difference(unread_settings(config.strategy, paths), switched_off(config, paths))
        for each in self._inputs:
            each.handle.visible = each.path in offered
        for group, heading in self._headings.items():
            heading.visible = any(path.rpartition(".")[0] == group for path in offered)
        num = sum(each.edited for each in self._inputs)
        self._apply.label = f"Apply {counted(num, 'change')}" if num else "Apply"
        self._apply.disabled = num == 0
        self._undo.visible = num > 0

    def _send(self) -> None:
        edited = [each for each in self._inputs if each.edited]
        try:
            self._controller.change_settings({each.path: each.read() for each in edited})
        except ValueError as error:
            self._answer.content = note_html(f"Not changed: {error}.", "bad", mark="refusal")
        else:
            self._answer.content = ""

    def _reset(self) -> None:
        for each in self._inputs:
            each.reset()
        self._answer.content = ""


def hint_of(setting: LiveSetting) -> str:
    """Return what is said of a setting to who points at it: what it does, its range, and its own name."""
    declared, words = setting.declared, WORDS.get(setting.path)
    low, high = declared.low, declared.high
    if words is not None:
        allowed = f" Type a number or: {', '.join(words.values())}."
    elif low is not None and high is not None:
        allowed = f" From {low:g} to {high:g}."
    else:
        allowed = "" if low is None else f" At least {low:g}."
    return f"{HELP.get(setting.path, declared.help)}{allowed} Also called {setting.path}."
