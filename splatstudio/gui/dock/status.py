"""The part of the dock that is always visible: what is open, how far it is, and the main buttons."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

from splatstudio.gui.dock.bars import PartBar, PlateauBar
from splatstudio.gui.panel import Hotkey, Page, Panel
from splatstudio.gui.state.status import Status
from splatstudio.gui.state.tasks import TaskStatus
from splatstudio.gui.theme import ACCENT, STATE_WORDS, box_html, duration, note_html

STOP, SAVE = "Stop", "Save"


class StatusPanel(Panel):
    """Name, state, figures, progress bar, and the buttons that steer the training."""

    look_seconds = 3.0

    def __init__(self, page: Page):
        gui, controller = page.server.gui, page.controller
        self._page, self._controller, self._label = page, controller, ""
        can_train = controller.project.can_train
        self._head = gui.add_html("")
        self._part = PartBar(page)
        self._bar = gui.add_progress_bar(0.0, color=ACCENT, visible=can_train)
        self._primary = gui.add_button("Start training", color=ACCENT, visible=can_train)
        self._start_over = gui.add_button(
            "Start over",
            color="gray",
            hint="Begins a new run, with settings to choose; nothing is overwritten.",
        )
        self._running = gui.add_button_group(
            "Training",
            (STOP, SAVE),
            visible=False,
            hint="Stop saves a checkpoint and ends the training; Save writes one and goes on.",
        )
        self._flat = PlateauBar(page)
        self._primary.on_click(lambda _: controller.press_primary())
        self._start_over.on_click(lambda _: controller.start_over())
        self._running.on_click(
            lambda event: controller.stop() if event.target.value == STOP else controller.save()
        )
        if can_train:
            pause = Hotkey(
                "P", "Pause or resume", lambda _: controller.press_primary(), "Or start the training"
            )
            self._pause = page.hotkeys.add(pause)
            save = Hotkey("S", "Save a checkpoint", lambda _: controller.save(), control=True)
            self._save = page.hotkeys.add(save)

    def look(self) -> None:
        """Look for the files beside a part."""
        self._part.look()

    def refresh(self) -> None:
        """Show the present status."""
        self._flat.refresh()
        self._part.refresh()
        controller, status = self._controller, self._controller.status
        project, choice, other = controller.project, controller.choice(), controller.other_model
        task = self._page.tasks.in_progress
        told = replace(status, message=status.message or project.problem)
        self._head.content = header_html(project.name, told, self._page.viewport.num_viewers, task, other)
        done = 100.0 * status.step / max(1, status.total_steps)
        self._bar.value = done
        self._bar.visible = project.can_train and other is None
        self._say_above(panel_label(status, done, task))
        self._primary.label = choice.label
        self._primary.disabled = not choice.enabled
        self._start_over.visible = controller.can_start_over
        self._running.visible = controller.can_order
        if project.can_train:
            self._pause.disabled = not choice.enabled
            self._save.disabled = not controller.can_order

    def _say_above(self, label: str) -> None:
        """Show what stays in sight when the dock is scrolled or folded up."""
        if label != self._label:
            self._label = label
            self._page.server.gui.set_panel_label(label)


def state_word(status: Status) -> tuple[str, str]:
    """Return what the state is called, and the colour of the dot beside it."""
    if status.state == "finished" and status.step < status.total_steps:
        return "Stopped", STATE_WORDS["paused"][1]  # what Stop has ended is not done
    return STATE_WORDS[status.state]


def panel_label(status: Status, done: float, task: TaskStatus | None = None) -> str:
    """Return what the dock's own head says; `done` are per cent of the steps, `task` a long one."""
    word, _ = state_word(status)
    progress = f" {int(done)} %" if status.state in ("training", "paused") else ""
    also = "" if task is None else f" · {task.verb} {int(task.percent)} %"
    return f"splatstudio · {word}{progress}{also}"


def header_html(
    name: str, status: Status, num_viewers: int, task: TaskStatus | None = None, other: Path | None = None
) -> str:
    """Return the head of the dock as HTML; everything from outside is escaped.

    A long task in progress is told here as well: its own bar may be below what the window shows. It takes the
    place of the number of viewers, so that nothing moves when it begins and ends. Of a model in the view that
    is of no step of this run, `other`, only its own figures are shown.
    """
    word, color = state_word(status)
    aside = f"{num_viewers} viewers" if num_viewers > 1 else ""
    if task is not None:
        aside = _task_html(task)
    figures = "".join(
        f'<div><div class="label">{label}</div>'
        f'<div class="value" data-splatstudio="{label.lower().replace(" ", "-")}">{value}</div></div>'
        for label, value in _figures(status, alone=other is not None)
    )
    below = "" if other is None else note_html(f"In the view: {other}, not of this run.", mark="other")
    below += box_html(status.message, "bad", mark="message") if status.message else ""
    name = html.escape(name)
    return (
        '<div class="ss-head"><div class="title">'
        f'<div class="name" title="{name}" data-splatstudio="name">{name}</div>'
        f'<div class="state"><span class="dot" style="color:{color}"></span>'
        f'<span data-splatstudio="state">{word}</span></div><div class="aside">{aside}</div></div>'
        f'<div class="figures">{figures}</div>{below}</div>'
    )


def _task_html(task: TaskStatus) -> str:
    done = f" {int(task.percent)} %" if task.total else " …"
    left = "" if task.eta_seconds is None else f", {duration(task.eta_seconds)} left"
    text = html.escape(f"{task.verb}{done}{left}")
    return f'<span title="{html.escape(task.text)}" data-splatstudio="task">{text}</span>'


def _figures(status: Status, *, alone: bool) -> list[tuple[str, str]]:
    """Return what the head shows; `alone`: of the model in the view, as it is not of this run."""
    splats = "–" if status.num_gaussians is None else f"{status.num_gaussians:,}"
    if alone or status.total_steps == 0:
        step = [("Step", f"{status.step:,}")] if status.step else []
        return [*step, ("Splats", splats)]
    rate = status.steps_per_second
    return [
        ("Step", f"{status.step:,} / {status.total_steps:,}"),
        ("Splats", splats),
        ("Speed", "–" if rate is None else f"{rate:.1f} it/s"),
        ("Time left", duration(status.eta_seconds)),
        ("Loss", "–" if status.loss is None else f"{status.loss:.4f}"),
        ("Test PSNR", "–" if status.test_psnr is None else f"{status.test_psnr:.2f} dB"),
    ]
