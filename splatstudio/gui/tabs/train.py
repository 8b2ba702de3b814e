"""The Train tab: what to train with, how it develops, and what can be changed meanwhile."""

from __future__ import annotations

import html
import time

import numpy as np
import viser

from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.state.controller import Controller, Notice
from splatstudio.gui.state.history import Curve
from splatstudio.gui.tabs.capture_options import CaptureOptions, options_on
from splatstudio.gui.tabs.keyframe_section import set_value
from splatstudio.gui.tabs.plot import Line, Plot, axis_ranges, from_zero
from splatstudio.gui.tabs.settings import SettingsForm
from splatstudio.gui.theme import ACCENT, GOOD, MUTED, TEST_COLOR, css
from splatstudio.runtime.messages import Evaluate
from splatstudio.runtime.sentences import plateau_advice, plateau_words
from splatstudio.scene import Scene
from splatstudio.settings.config import TrainConfig, declaration, value_of
from splatstudio.settings.presets import PRESETS, nearest_preset
from splatstudio.train.memory_plan import splats_chosen
from splatstudio.train.plateau import evaluation_interval

PLOT_SECONDS = 0.75
DOWNSCALES = (1, 2, 4, 8)
BLUE, ORANGE = css(ACCENT), css(TEST_COLOR)


class TrainPanel(Panel):
    """What a new training takes, the plots, Evaluate, the live settings, and the facts of the run."""

    def __init__(self, page: Page, tab: viser.GuiTabHandle):
        gui, controller = page.server.gui, page.controller
        self._controller = controller
        # A training that was started elsewhere needs no setting up, nor are its photographs always here.
        self._setup = Setup(page) if controller.project.scene is not None else None
        self._more = MoreSteps(page)
        self._plots = Plots(page, tab)
        self._evaluate = gui.add_button(
            "Evaluate now",
            color="gray",
            hint="Compares the model with the photographs that are held out for the test.",
            visible=False,
        )
        self._evaluate.on_click(lambda _: controller.send(Evaluate()))
        self._form = SettingsForm(page)
        # Open where there are no curves yet that it would push away.
        with gui.add_folder("About this run", expand_by_default=controller.project.model_path is None):
            self._facts = gui.add_html("")
        self._told: object = None

    def refresh(self) -> None:
        """Show what has changed."""
        project, status = self._controller.project, self._controller.status
        active = status.state in ("training", "paused", "finished")
        self._evaluate.visible = active and project.can_evaluate
        if self._setup is not None:
            self._setup.refresh()
        self._more.refresh()
        self._form.refresh()
        self._plots.refresh()
        if self._told != (project, status.flat):
            self._told = (project, status.flat)
            self._facts.content = settings_html(self._controller)


class Setup:
    """What can be chosen before a training begins: preset, length, numbers, sizes, options."""

    def __init__(self, page: Page):
        gui, controller = page.server.gui, page.controller
        self._controller = controller
        config, scene = controller.project.config, controller.project.scene
        assert scene is not None
        self._scene = scene
        self._shown: TrainConfig | None = config
        self._notify = page.notify
        self._folder = gui.add_folder(None)
        camera = scene.cameras[0]
        size = (camera.width * config.downscale, camera.height * config.downscale)
        self._sizes = {
            _size_label(size, downscale): downscale for downscale in sorted({*DOWNSCALES, config.downscale})
        }
        with self._folder:
            self._preset = gui.add_dropdown(
                "Preset",
                tuple(PRESETS),
                initial_value=nearest_preset(config).name,
                hint="A set of settings for one wish; each of them can still be changed.",
            )
            self._chosen = self._preset.value  # whose settings hold
            self._description = gui.add_html(preset_html(self._chosen, config, scene))
            self._steps = gui.add_number(
                "Steps", config.steps, min=1, step=1000, hint="More can be added when they are done."
            )
            self._cap = gui.add_number(
                "Max splats",
                config.densify.max_gaussians,
                min=1,
                step=100_000,
                hint=declaration(TrainConfig, "densify.max_gaussians").help,
            )
            self._size = gui.add_dropdown(
                "Photographs",
                tuple(self._sizes),
                initial_value=_size_label(size, config.downscale),
                hint="Smaller ones train faster and show less detail.",
            )
            self._capture = CaptureOptions(page, scene)
        self._preset.on_update(lambda _: self._follow_preset())
        self._steps.on_update(lambda _: self._take("steps", self._steps.value))
        self._cap.on_update(lambda _: self._take("densify.max_gaussians", self._cap.value))
        self._size.on_update(lambda _: self._take("downscale", self._sizes[self._size.value]))

    def refresh(self) -> None:
        """Offer this only before the start, with the settings as they are now."""
        self._folder.visible = self._controller.can_set_up
        self._capture.refresh()
        config = self._controller.project.config
        if config is self._shown:
            return
        self._shown = config
        label = next((label for label, each in self._sizes.items() if each == config.downscale), None)
        set_value(self._steps, config.steps)
        set_value(self._cap, config.densify.max_gaussians)
        if label is not None:
            set_value(self._size, label)
        self._description.content = preset_html(self._preset.value, config, self._scene)

    def _follow_preset(self) -> None:
        wanted = self._preset.value
        if not self._controller.can_set_up or wanted == self._chosen:
            return
        try:
            self._controller.choose_preset(wanted)
        except ValueError as error:
            self._preset.value = self._chosen
            self._notify(Notice("Not changed", str(error), bad=True))
            return
        self._chosen = wanted
        self._description.content = preset_html(wanted, self._controller.project.config, self._scene)

    def _take(self, path: str, value: int) -> None:
        # What `refresh` shows is nobody's wish, also where another one has come since.
        known = [config for config in (self._shown, self._controller.project.config) if config is not None]
        if self._controller.can_set_up and value not in [value_of(config, path) for config in known]:
            try:
                self._controller.change_settings({path: value})
            except ValueError as error:
                self._notify(Notice("Not changed", str(error), bad=True))
                self._shown = None  # the fields show again what holds


class MoreSteps:
    """When all steps are done: how many more, and the button that trains them."""

    def __init__(self, page: Page):
        gui, self._controller = page.server.gui, page.controller
        self._folder = gui.add_folder(None, visible=False)
        with self._folder:
            self._num = gui.add_number("More steps", max(1, page.controller.project.config.steps // 2), min=1)
            self._go_on = gui.add_button("Train on", color=ACCENT)
        self._go_on.on_click(lambda _: self._controller.train_more(self._num.value))

    def refresh(self) -> None:
        """Offer this only where a training has done all that was planned."""
        offered = self._controller.can_train_more
        self._folder.visible = offered
        if offered:
            label = f"Train on to step {self._controller.status.step + self._num.value:,}"
            if label != self._go_on.label:
                self._go_on.label = label


class Plots:
    """How loss, PSNR, the number of splats and the speed develop."""

    def __init__(self, page: Page, tab: viser.GuiTabHandle):
        gui, self._controller = page.server.gui, page.controller
        self._due = 0.0
        self._history = page.controller.history
        self._hint = gui.add_html(_muted("The curves appear when the training has begun."))
        self._loss = Plot(page.server, tab, "Loss (orange: opacities reset)", order=-4.0)
        self._psnr = Plot(page.server, tab, "PSNR, dB (orange: test)", order=-3.0)
        self._splats = Plot(page.server, tab, "Splats, thousands (green: densified)", order=-2.0)
        self._speed = Plot(page.server, tab, "Steps a second", order=-1.0)

    def refresh(self) -> None:
        """Show new values, every PLOT_SECONDS at most."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PLOT_SECONDS
        history = self._controller.history
        if history is not self._history:
            self._history = history
            for plot in (self._loss, self._psnr, self._splats, self._speed):
                plot.remove()
        self._hint.visible = len(history.loss) < 2
        loss = joined([history.loss, history.resets])
        if len(history.loss) > 1:
            lines = [Line("loss", BLUE), Line("opacities reset", ORANGE, width=0.0, dots=5.0)]
            self._loss.show(loss, lines, axis_ranges(loss, 0.1), "step")
        psnr = joined([history.train_psnr, history.test_psnr])
        if len(psnr[0]) > 1:
            lines = [Line("training", BLUE), Line("test", ORANGE, dots=6.0)]
            self._psnr.show(psnr, lines, axis_ranges(psnr, 5.0), "step")
        steps, *numbers = joined([history.num_gaussians, history.densified])
        if len(history.num_gaussians) > 1:
            splats = (steps, *(row / 1000.0 for row in numbers))
            lines = [Line("splats", BLUE), Line("densified", css(GOOD), width=0.0, dots=4.0)]
            self._splats.show(splats, lines, from_zero(splats), "step")
        speed = joined([history.rate])
        if len(history.rate) > 1:
            self._speed.show(speed, [Line("it/s", BLUE)], from_zero(speed), "step")


def joined(curves: list[Curve]) -> tuple[np.ndarray, ...]:
    """Return one row of steps and one row of values a curve, NaN where a curve has no value at a step."""
    arrays = [curve.arrays() for curve in curves]
    steps = np.unique(np.concatenate([steps for steps, _ in arrays]))
    rows = [steps]
    for own_steps, values in arrays:
        row = np.full(len(steps), np.nan)
        row[np.searchsorted(steps, own_steps)] = values
        rows.append(row)
    return tuple(rows)


def preset_html(name: str, config: TrainConfig, scene: Scene) -> str:
    """Return what a preset is for, how many splats it comes to, and which of its settings were changed."""
    preset = PRESETS[name]
    own = preset.changes(config)
    changes = f" Changed: {', '.join(own)}." if own else ""
    chosen = splats_chosen(config, scene.resized(config.downscale))
    number = "" if chosen is None else f" Here at most {chosen:,} splats."
    text = html.escape(preset.description + number + changes)
    return (
        f'<div data-splatstudio="preset" style="padding:0 10px 4px;font-size:12px;color:{MUTED}">{text}</div>'
    )


PRECISIONS = {
    "auto": "16 bits between machines, 32 within one",
    "fp32": "32 bits",
    "mixed": "colours, gradients in 16 bits",
}


def settings_html(controller: Controller) -> str:
    """Return what a user may want to know of the run's settings."""
    project = controller.project
    config, scene = project.config, project.scene
    rows = [("Steps", f"{config.steps:,}")]
    if scene is not None:
        rows += [
            ("Photographs", f"{len(scene.train_indices)} to train, {len(scene.test_indices)} to test"),
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
        ("Max splats", f"{config.densify.max_gaussians:,}"),
        ("Run folder", str(project.run_dir) if project.run_dir else "–"),
    ]
    if options_on(config):
        rows.append(("This capture", ", ".join(options_on(config))))
    if project.devices.num_ranks > 1 or config.precision != "auto":
        rows.append(("Sent between ranks", PRECISIONS[config.precision]))
    return table_html(rows)


def evaluated_when(config: TrainConfig, num_photos: int) -> str:
    """Return how often the `num_photos` test photographs are evaluated."""
    if num_photos == 0:
        return "never: no photographs to test"
    interval = evaluation_interval(config, num_photos)
    at = sorted(step for step in config.eval_steps if step < config.steps)
    at = [step for step in at if not (interval and step % interval == 0)]
    times = [f"every {interval:,} steps"] if interval else []
    times += [f"at step {', '.join(f'{step:,}' for step in at)}"] if at else []
    return ", ".join([*times, "at the end"])


def table_html(rows: list[tuple[str, str]]) -> str:
    """Return label and value pairs as a table; values are escaped."""
    cells = "".join(
        f'<div style="color:{MUTED}">{html.escape(label)}</div>'
        f'<div style="overflow-wrap:anywhere">{html.escape(value)}</div>'
        for label, value in rows
    )
    return (
        '<div style="display:grid;grid-template-columns:auto 1fr;gap:3px 14px;padding:2px 10px 6px;'
        f'font-size:12px">{cells}</div>'
    )


def _size_label(size: tuple[int, int], downscale: int) -> str:
    pixels = f"{size[0] // downscale} × {size[1] // downscale} px"
    return f"Full, {pixels}" if downscale == 1 else f"1/{downscale}, {pixels}"


def _muted(text: str) -> str:
    return f'<div style="padding:6px 10px;font-size:12px;color:{MUTED}">{text}</div>'
