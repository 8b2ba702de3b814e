"""The Train tab: what to train with, how it develops, and what can be changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import viser

from splatstudio.error_text import first_of
from splatstudio.files.path_words import path_words
from splatstudio.gui.amounts import counted
from splatstudio.gui.panel import Field, Page, Panel
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.status import GROUPS, HELP, WORDS, label_of, number_of, titled
from splatstudio.gui.tabs.plots import TrainingPlots
from splatstudio.gui.theme import note_html, rgb_bytes, table_html
from splatstudio.runtime.messages import Evaluate
from splatstudio.runtime.sentences import plateau_advice, plateau_words
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import (
    FREE_ON_RESUME,
    LIMIT,
    TrainConfig,
    declaration,
    differing,
    setting_names,
    value_of,
)
from splatstudio.settings.presets import PRESETS, nearest_preset, switched_off
from splatstudio.settings.strategy_config import unread_settings
from splatstudio.training.memory_plan import splats_chosen, splats_wanted
from splatstudio.training.plateau import evaluation_interval

DOWNSCALES = (1, 2, 4, 8)
MOST_CHANGES = 6  # of a preset's settings that are named
# What the page shows beside the preset, what says which photos those are, and when to evaluate and to save.
SHOWN_ELSEWHERE = frozenset({"downscale", "model", "test_every", "test_images", LIMIT, *FREE_ON_RESUME})
PRECISIONS = {
    "auto": "16 bits between machines, 32 within one",
    "fp32": "32 bits",
    "mixed": "colors, gradients in 16 bits",
}


def live_settings() -> list[str]:
    """Return the dotted names of all live settings in the order of their declaration, groups last."""
    live = [path for path in setting_names(TrainConfig) if declaration(TrainConfig, path).live]
    return sorted(live, key=lambda path: path.count("."))


class SettingInput:
    """One setting of the form: it shows the run's value until the user enters another one."""

    def __init__(self, gui: viser.GuiApi, path: str, value: Any):
        self.path, self._declared = path, declaration(TrainConfig, path)
        self._kind = type(value)
        self._shown = self._displayed(value)
        label, hint = label_of(path), hint_of(path)
        low, high = self._declared.low, self._declared.high
        self.handle: viser.GuiInputHandle[Any]
        if isinstance(value, bool):
            self.handle = gui.add_checkbox(label, value, hint=hint)
        elif isinstance(value, int) and path not in WORDS:
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
        """Return what was entered. Raises ValueError when it is no number, or out of its range."""
        value = self.handle.value
        if self._kind is tuple:
            return tuple(part / 255.0 for part in value)
        if isinstance(value, str):
            value = number_of(self.path, value, int if self._kind is int else float)
        low, high = self._declared.low, self._declared.high
        if low is not None and not value >= low:
            words = ", ".join(WORDS.get(self.path, {}).values())
            least = f"{words} or above 0" if words else f"{low:g} or more"
            raise ValueError(f"{label_of(self.path)} must be {least}")
        if high is not None and not value <= high:
            raise ValueError(f"{label_of(self.path)} must be {high:g} or less")
        return value

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
            return rgb_bytes(value)
        text = f"{value:g}" if isinstance(value, float) else f"{value}"
        if self.path in WORDS:
            return WORDS[self.path].get(value, text)  # type: ignore[arg-type] - 0.0 is 0
        return text if isinstance(value, float) else value


class SettingsForm(Panel):
    """All live settings in a folder, below the button that applies what was changed."""

    def __init__(self, page: Page):
        super().__init__(page)
        gui, self._config = self.gui, self.controller.project.config
        self._inputs: list[SettingInput] = []
        self._headings: dict[str, viser.GuiHtmlHandle] = {}
        with gui.add_folder("Live settings", expand_by_default=False):
            self._apply = self.button("Apply", lambda _: self._send(), None, disabled=True)
            self._undo = self.button("Undo", lambda _: self._reset(), disabled=True)
            self._answer = gui.add_html(answer_html())
            for path in live_settings():
                group = path.rpartition(".")[0]
                if group not in self._headings:
                    heading = f'<div class="ss-heading">{GROUPS.get(group, group)}</div>'
                    self._headings[group] = gui.add_html(heading)
                self._inputs.append(SettingInput(gui, path, value_of(self._config, path)))

    def refresh(self) -> None:
        """Follow the run's settings, offer what it reads, and Apply where something was entered."""
        config, paths = self.controller.project.config, [each.path for each in self._inputs]
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
        num = len(self._edited)
        self._apply.label = f"Apply {counted(num, 'change')}" if num else "Apply"
        self._apply.disabled = num == 0
        self._undo.disabled = num == 0

    @property
    def _edited(self) -> list[SettingInput]:
        return [each for each in self._inputs if each.edited]

    def _send(self) -> None:
        values, refused = dict[str, Any](), list[str]()
        for each in self._edited:
            try:
                values[each.path] = each.read()
            except ValueError as error:
                refused.append(str(error))
        try:
            if not refused:
                self.controller.change_settings(values)
        except ValueError as error:
            refused.append(str(error))
        self._answer.content = answer_html(f"Not changed: {'; '.join(refused)}." if refused else "")

    def _reset(self) -> None:
        for each in self._inputs:
            each.reset()
        self._answer.content = answer_html()


def answer_html(refusal: str = "") -> str:
    """Return why something was not changed; it takes the same room where there is nothing to tell."""
    told = note_html(refusal, "bad", mark="refusal") if refusal else ""
    return f'<div class="ss-answer">{told}</div>'


def hint_of(path: str) -> str:
    """Return what is said of a setting to who points at it: what it does, its range, and its option."""
    declared, words = declaration(TrainConfig, path), WORDS.get(path)
    low, high = declared.low, declared.high
    if words is not None:
        allowed = f" Type a number or: {', '.join(words.values())}."
    elif low is not None and high is not None:
        allowed = f" From {low:g} to {high:g}."
    else:
        allowed = "" if low is None else f" At least {low:g}."
    option = path.replace("_", "-")
    return f"{HELP.get(path, declared.help)}{allowed} On the command line: --{option}."


@dataclass(frozen=True)
class CaptureOption:
    """A property of a capture in the user's words, and the setting that makes up for it."""

    label: str
    path: str
    value: bool | int | float  # when it is on
    hint: str
    suits: Callable[[Scene], bool] = lambda scene: True

    def is_on(self, config: TrainConfig) -> bool:
        """Return whether the setting is another than that of a training without options."""
        return value_of(config, self.path) != self.off

    @property
    def off(self) -> bool | int | float:
        """Return the setting's value where the option is off."""
        return value_of(TrainConfig(), self.path)


# What can be switched on for a capture that is not ideal, before its training begins.
CAPTURE_OPTIONS = (
    CaptureOption(
        "Varying exposure",
        "exposure.enabled",
        True,
        "Clouds, lamps or automatic exposure: learns how the colors of each photo differ.",
    ),
    CaptureOption(
        "Camera poses",
        "poses.enabled",
        True,
        "Refines cameras that are slightly off. An export with cameras writes the refined ones.",
    ),
    CaptureOption(
        "Open sky",
        "sky.enabled",
        True,
        "Learns a background behind the splats. Exported files do not contain it.",
    ),
    CaptureOption(
        "Anti-aliasing",
        "antialiased",
        True,
        "Looks right from other distances than the photos'; exported files tell other programs to render"
        " this way if the format can.",
    ),
    CaptureOption(
        "Depth of the points",
        "depth.weight",
        0.1,
        "Guides the training with the depths of the sparse points, as most presets do.",
        lambda scene: scene.format == "COLMAP" and len(scene.points) > 0,  # it tells who sees each point
    ),
    CaptureOption(
        "Remove floaters", "shapes.min_views", 2, "Regularly removes splats that fewer than two photos show."
    ),
)


def options_on(config: TrainConfig) -> list[str]:
    """Return the labels of the options that are on, but for those that belong to the preset."""
    own = nearest_preset(config).settings
    on = [option for option in CAPTURE_OPTIONS if option.is_on(config)]
    return [option.label for option in on if own.get(option.path) != value_of(config, option.path)]


class TrainPanel(Panel):
    """What a new training takes, Evaluate, live settings, the facts of the run; `plots` are a panel, too."""

    def __init__(self, page: Page, tab: viser.GuiTabHandle):
        super().__init__(page)
        controller, project = self.controller, self.controller.project
        # A training that was started elsewhere needs no setting up, nor are its photos always here.
        if project.scene is not None:
            self.add(Setup(page, project.scene))
        self.plots = TrainingPlots(page, tab)
        compares = "Compares the model with the photos that are held out for the test."
        evaluate = self.button("Evaluate now", lambda _: controller.send(Evaluate()), hint=compares)
        self.keep(evaluate, visible=lambda: self._can_evaluate)
        self.add(SettingsForm(page))
        # Open where there are no curves yet that it would push away.
        with self.gui.add_folder("About this run", expand_by_default=project.model_path is None):
            self.keep(self.gui.add_html(""), content=lambda: settings_html(controller))

    @property
    def _can_evaluate(self) -> bool:
        active = self.controller.status.state in ("training", "paused", "finished")
        return active and self.controller.project.can_evaluate


class Setup(Panel):
    """What can be chosen before a training begins: preset, length, numbers, sizes, options of the capture."""

    def __init__(self, page: Page, scene: Scene):
        super().__init__(page)
        gui, self._scene, config = self.gui, scene, self.controller.project.config
        self._opened_with = nearest_preset(config).name
        size = (scene.cameras[0].width * config.downscale, scene.cameras[0].height * config.downscale)
        downscales = sorted({*DOWNSCALES, config.downscale})
        sizes = {_size_label(size, downscale): downscale for downscale in downscales}
        labels = {downscale: label for label, downscale in sizes.items()}
        self._folder = gui.add_folder(None)
        with self._folder:
            self._field(
                gui.add_dropdown(
                    "Preset",
                    tuple(PRESETS),
                    initial_value=self._opened_with,
                    hint="Settings tuned for one goal; you can still change each of them.",
                ),
                lambda _: self._preset,
                lambda name: self.controller.choose_preset(name),
            )
            self._description = gui.add_html("")
            more = "More can be added when they are done."
            self._setting(gui.add_number("Steps", config.steps, min=1, step=1000, hint=more), "steps")
            limit, hint = config.densify.max_gaussians, declaration(TrainConfig, LIMIT).help
            self._setting(gui.add_number("Max splats", limit, min=1, step=100_000, hint=hint), LIMIT)
            self._field(
                gui.add_dropdown(
                    "Photos",
                    tuple(sizes),
                    initial_value=labels[config.downscale],
                    hint="Smaller ones train faster and show less detail.",
                ),
                lambda config: labels.get(config.downscale),
                lambda label: self._change("downscale", sizes[label]),
            )
            with gui.add_folder("Capture issues", expand_by_default=bool(options_on(config))):
                for option in CAPTURE_OPTIONS:
                    if option.suits(scene) or option.is_on(config):
                        box = gui.add_checkbox(option.label, option.is_on(config), hint=option.hint)
                        self._field(box, option.is_on, partial(self._switch, option))

    def _field(self, handle: Any, shown: Callable[[TrainConfig], Any], take: Callable[[Any], None]) -> None:
        """Let a control show and change the settings; it shows again what holds where one is refused."""
        self.add(
            Field(
                handle,
                lambda: shown(self.controller.project.config),
                lambda value: take(value) if self.controller.can_set_up else None,
            )
        )

    def _setting(self, handle: Any, path: str) -> None:
        self._field(handle, lambda config: value_of(config, path), partial(self._change, path))

    def refresh(self) -> None:
        """Offer this only before the start, with the settings as they are now."""
        self._folder.visible = self.controller.can_set_up
        if self.controller.can_set_up:
            super().refresh()
            config = self.controller.project.config
            self._description.content = preset_html(self._preset, config, self._scene)

    @property
    def _preset(self) -> str:
        return self.controller.project.preset or self._opened_with

    def _change(self, path: str, value: Any) -> None:
        self.controller.change_settings({path: value})

    def _switch(self, option: CaptureOption, on: bool) -> None:
        self._change(option.path, option.value if on else option.off)


def preset_html(name: str, config: TrainConfig, scene: Scene) -> str:
    """Return what a preset is for, how many splats it comes to, and which of its settings were changed."""
    preset = PRESETS[name]
    own = preset.changes(config)
    given = differing(config, preset.apply(TrainConfig()))
    changed = [*own, *(name for name in given if name not in own and name not in SHOWN_ELSEWHERE)]
    changes = f" Changed: {first_of([*map(titled, changed)], MOST_CHANGES)}." if changed else ""
    most = _most_splats(config, scene)
    number = "" if most is None else f" With these photos it makes at most {most:,} splats."
    return note_html(preset.description + number + changes, mark="preset")


def _most_splats(config: TrainConfig, scene: Scene | None) -> int | None:
    """Return how many splats there are at most where the strategy chooses that, else None."""
    if scene is None:
        return None
    small = scene.resized(config.downscale)
    return None if splats_chosen(config, small) is None else splats_wanted(config, small)


def settings_html(controller: Controller) -> str:
    """Return what a user may want to know of the run's settings."""
    project = controller.project
    config, scene = project.config, project.scene
    rows = [("Steps", f"{config.steps:,}")]
    if scene is not None:
        rows += [
            ("Photos", f"{len(scene.train_indices)} to train, {len(scene.test_indices)} to test"),
            ("Sparse points", f"{len(scene.points):,}"),
            ("Format", scene.format),
            ("Evaluated", evaluated_when(config, len(scene.test_indices))),
        ]
    flat = controller.status.flat
    if flat is not None:
        rows.append(("Please note", f"{plateau_words(flat)}. {plateau_advice(flat)}".rstrip()))
    rows += [
        ("Downscale", str(config.downscale)),
        ("Spherical harmonics", f"degree {config.sh_degree}"),
        ("SSIM weight", f"{config.ssim_weight:g}"),
        ("Max splats", most_splats(config, scene)),
        ("Run folder", path_words(project.run_dir) if project.run_dir else "–"),
    ]
    if options_on(config):
        rows.append(("Capture issues", ", ".join(options_on(config))))
    if project.devices.num_ranks > 1 or config.precision != "auto":
        rows.append(("Sent between ranks", PRECISIONS[config.precision]))
    return table_html(rows)


def most_splats(config: TrainConfig, scene: Scene | None) -> str:
    """Return how many splats a training makes at most, and why where that is fewer than are allowed."""
    most = config.densify.max_gaussians
    chosen = _most_splats(config, scene)
    if chosen is None or chosen >= most:
        return f"{most:,}"
    return f"{chosen:,}, chosen by the photos; {most:,} are allowed"


def evaluated_when(config: TrainConfig, num_photos: int) -> str:
    """Return how often the `num_photos` test photos are evaluated."""
    if num_photos == 0:
        return "never: no photos to test"
    interval = evaluation_interval(config, num_photos)
    at = sorted(step for step in config.eval_steps if step < config.steps)
    at = [step for step in at if not (interval and step % interval == 0)]
    times = [f"every {interval:,} steps"] if interval else []
    times += [f"at step {', '.join(f'{step:,}' for step in at)}"] if at else []
    return ", ".join([*times, "at the end"])


def _size_label(size: tuple[int, int], downscale: int) -> str:
    pixels = f"{size[0] // downscale} × {size[1] // downscale} px"
    return f"Full, {pixels}" if downscale == 1 else f"1/{downscale}, {pixels}"
