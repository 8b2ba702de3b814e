"""The form of live settings, derived from how the configuration declares them."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import viser

from splatstudio.gui.panel_context import Page
from splatstudio.gui.state.setting_names import GROUPS, HELP, WORDS, label_of, number_of
from splatstudio.gui.theme import BAD, MUTED
from splatstudio.settings.config import Setting, value_of
from splatstudio.settings.notes import switched_off
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


class _Input:
    """One setting of the form. `edited` says whether it shows another value than the run has."""

    def __init__(self, gui: viser.GuiApi, setting: LiveSetting, value: Any):
        self.path = setting.path
        self._kind = type(value)
        self._shown = self._displayed(value)
        label, hint = label_of(setting.path), hint_of(setting)
        low, high = setting.declared.low, setting.declared.high
        self._handle: viser.GuiInputHandle[Any]
        if isinstance(value, bool):
            self._handle = gui.add_checkbox(label, value, hint=hint)
        elif isinstance(value, int) and setting.path not in WORDS:
            bounds = (None if low is None else int(low), None if high is None else int(high))
            self._handle = gui.add_number(label, value, min=bounds[0], max=bounds[1], step=1, hint=hint)
        elif isinstance(value, tuple):
            self._handle = gui.add_rgb(label, self._shown, hint=hint)
        else:
            # As text: a learning rate of 1.6e-4 has no sensible step.
            self._handle = gui.add_text(label, self._shown, hint=hint)

    def offer(self, offered: bool) -> None:
        self._handle.visible = offered

    @property
    def edited(self) -> bool:
        return self._handle.value != self._shown

    def read(self) -> Any:
        """Return what was entered. Raises ValueError when it is no number."""
        value = self._handle.value
        if self._kind is tuple:
            return tuple(part / 255.0 for part in value)
        if not isinstance(value, str):
            return value
        return number_of(self.path, value, int if self._kind is int else float)

    def show(self, value: Any) -> None:
        """Show the run's value, unless the user has begun to enter another one."""
        untouched, self._shown = not self.edited, self._displayed(value)
        if untouched or self._means(value):
            self._handle.value = self._shown

    def _means(self, value: Any) -> bool:
        """Say whether what was entered is this value, as 2e-4 is 0.0002."""
        try:
            return self._displayed(self.read()) == self._displayed(value)
        except ValueError:
            return False

    def reset(self) -> None:
        """Show the run's value."""
        self._handle.value = self._shown

    def _displayed(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(round(255.0 * part) for part in value)
        words = WORDS.get(self.path)
        if words is not None:
            return words.get(value, f"{value:g}" if isinstance(value, float) else f"{value}")
        return f"{value:g}" if isinstance(value, float) else value


class SettingsForm:
    """All live settings in a folder, below the button that applies what was changed."""

    def __init__(self, page: Page):
        gui = page.server.gui
        self._controller = page.controller
        self._config = page.controller.project.config
        self._inputs: list[_Input] = []
        self._headings: dict[str, viser.GuiHtmlHandle] = {}
        with gui.add_folder("Live settings", expand_by_default=False):
            self._apply = gui.add_button("Apply", disabled=True)
            self._undo = gui.add_button("Undo", color="gray", visible=False)
            self._answer = gui.add_html("")
            groups: dict[str, list[LiveSetting]] = {}
            for setting in live_settings(self._config):
                groups.setdefault(setting.group, []).append(setting)
            for group, settings in groups.items():
                self._headings[group] = gui.add_html(_heading(GROUPS.get(group, group)))
                for setting in settings:
                    value = value_of(self._config, setting.path)
                    self._inputs.append(_Input(gui, setting, value))
        self._apply.on_click(lambda _: self._send())
        self._undo.on_click(lambda _: self._reset())
        self._offer()

    def refresh(self) -> None:
        """Follow the run's settings, and offer Apply where something was entered."""
        config = self._controller.project.config
        if config is not self._config:
            self._config = config
            for each in self._inputs:
                each.show(value_of(config, each.path))
            self._offer()
        num = sum(each.edited for each in self._inputs)
        label = "Apply" if num == 0 else f"Apply {num} change{'s' if num > 1 else ''}"
        if self._apply.label != label:
            self._apply.label = label
            self._apply.disabled = num == 0
            self._undo.visible = num > 0

    def _offer(self) -> None:
        """Show what the run reads, and nothing that would change nothing."""
        paths = [each.path for each in self._inputs]
        unread = unread_settings(self._config.strategy, paths) + switched_off(self._config, paths)
        offered = set(paths).difference(unread)
        for each in self._inputs:
            each.offer(each.path in offered)
        for group, heading in self._headings.items():
            heading.visible = any(path.rpartition(".")[0] == group for path in offered)

    def _send(self) -> None:
        edited = [each for each in self._inputs if each.edited]
        try:
            self._controller.change_settings({each.path: each.read() for each in edited})
        except ValueError as error:
            self._answer.content = _refusal(f"Not changed: {error}.")
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


def _heading(text: str) -> str:
    return f'<div style="padding:4px 10px 2px;font-size:11px;font-weight:600;color:{MUTED}">{text}</div>'


def _refusal(sentence: str) -> str:
    return (
        f'<div data-splatstudio="refusal" style="padding:2px 10px 6px;font-size:12px;color:{BAD}">'
        f"{html.escape(sentence)}</div>"
    )
