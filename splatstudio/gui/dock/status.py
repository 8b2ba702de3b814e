"""The part of the dock that is always visible: what is open, how far it is, and the main buttons."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

from splatstudio.gui.dock.hotkeys import Hotkey
from splatstudio.gui.dock.job_bar import progress_text
from splatstudio.gui.dock.part_bar import PartBar
from splatstudio.gui.dock.plateau_bar import PlateauBar
from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.state.controller import Status
from splatstudio.gui.state.tasks import JobStatus
from splatstudio.gui.theme import ACCENT, MUTED, STATE_WORDS, duration

STOP, SAVE = "Stop", "Save"


class StatusPanel(Panel):
    """Name, state, figures, progress bar, and the buttons that steer the training."""

    def __init__(self, page: Page):
        server, controller = page.server, page.controller
        self._controller, self._viewport, self._jobs = controller, page.viewport, page.jobs
        self._gui, self._label = server.gui, ""
        can_train = controller.project.can_train
        self._head = server.gui.add_html("")
        self._part = PartBar(page)
        self._bar = server.gui.add_progress_bar(0.0, color=ACCENT, visible=can_train)
        self._primary = server.gui.add_button("Start training", color=ACCENT, visible=can_train)
        self._start_over = server.gui.add_button(
            "Start over",
            color="gray",
            hint="Begins a new run, with settings to choose; nothing is overwritten.",
        )
        self._running = server.gui.add_button_group(
            "Training",
            (STOP, SAVE),
            visible=False,
            hint="Stop saves a checkpoint and ends the training; Save writes one and goes on.",
        )
        self._flat = PlateauBar(page)
        self._shown: tuple[object, ...] = ()
        self._primary.on_click(lambda _: controller.press_primary())
        self._start_over.on_click(lambda _: controller.start_over())
        self._running.on_click(lambda event: self._press_running(event.target.value))
        if can_train:
            self._pause = page.hotkeys.add(
                Hotkey("P", "Pause or resume", lambda _: controller.press_primary(), "Or start the training")
            )
            self._save = page.hotkeys.add(
                Hotkey("S", "Save a checkpoint", lambda _: controller.save(), control=True)
            )

    def refresh(self) -> None:
        """Show the present status; what has not changed is not sent again."""
        self._flat.refresh()
        self._part.refresh()
        controller, status = self._controller, self._controller.status
        num_viewers = self._viewport.num_viewers
        choice = controller.choice()
        running = controller.can_order
        job = self._jobs.in_progress
        name, problem, other = controller.project.name, controller.project.problem, controller.other_model
        shown = (name, problem, other, status, choice, num_viewers, controller.can_start_over, running, job)
        if shown == self._shown:
            return
        self._shown = shown
        told = replace(status, message=status.message or problem)
        self._head.content = header_html(name, told, num_viewers, job, other)
        done = 100.0 * status.step / max(1, status.total_steps)
        self._bar.value = done
        self._bar.visible = controller.project.can_train and other is None
        self._say_above(panel_label(status, done, job))
        self._primary.label = choice.label
        self._primary.disabled = not choice.enabled
        self._start_over.visible = controller.can_start_over
        self._running.visible = running
        if controller.project.can_train:
            self._pause.disabled = not choice.enabled
            self._save.disabled = not running

    def close(self) -> None:
        """End the merging in progress."""
        self._part.close()

    def _say_above(self, label: str) -> None:
        """Show what stays in sight when the dock is scrolled or folded up."""
        if label != self._label:
            self._label = label
            self._gui.set_panel_label(label)

    def _press_running(self, button: str) -> None:
        if button == STOP:
            self._controller.stop()
        else:
            self._controller.save()


def state_word(status: Status) -> tuple[str, str]:
    """Return what the state is called, and the colour of the dot beside it."""
    if status.state == "finished" and status.step < status.total_steps:
        return "Stopped", STATE_WORDS["paused"][1]  # what Stop has ended is not done
    return STATE_WORDS[status.state]


def panel_label(status: Status, done: float, job: JobStatus | None = None) -> str:
    """Return what the dock's own head says; `done` are per cent of the steps, `job` a long task."""
    word, _ = state_word(status)
    progress = f" {int(done)} %" if status.state in ("training", "paused") else ""
    task = "" if job is None else f" · {job.verb} {int(job.percent)} %"
    return f"splatstudio · {word}{progress}{task}"


def header_html(
    name: str, status: Status, num_viewers: int, job: JobStatus | None = None, other: Path | None = None
) -> str:
    """Return the head of the dock as HTML; everything from outside is escaped.

    A long task in progress, `job`, is told here as well: its own bar may be below what the window shows. It
    takes the place of the number of viewers, so that nothing moves when it begins and ends. Of a model in the
    view that is of no step of this run, `other`, only its own figures are shown.
    """
    word, color = state_word(status)
    aside = f"{num_viewers} viewers" if num_viewers > 1 else ""
    if job is not None:
        aside = _job_html(job)
    figures = "".join(_figure(label, value) for label, value in _figures(status, alone=other is not None))
    message = ""
    if other is not None:
        message = (
            f'<div data-splatstudio="other" style="margin-top:6px;font-size:12px;overflow-wrap:anywhere;'
            f'color:{MUTED}">In the view: {html.escape(str(other))}, not of this run.</div>'
        )
    if status.message:
        message += (
            '<div style="margin-top:8px;padding:8px 10px;border-radius:6px;font-size:12px;line-height:1.45;'
            f'background:rgba(255,92,92,.14);color:#ffb3b3">{html.escape(status.message)}</div>'
        )
    return (
        '<div style="padding:2px 10px 4px 10px;font-variant-numeric:tabular-nums">'
        '<div style="display:flex;align-items:center;gap:12px;margin-bottom:7px">'
        '<div style="font-size:17px;font-weight:650;overflow:hidden;text-overflow:ellipsis;'
        f'white-space:nowrap" title="{html.escape(name)}" data-splatstudio="name">{html.escape(name)}</div>'
        '<div style="display:flex;align-items:center;gap:7px;font-size:13px;white-space:nowrap">'
        f'<span style="width:9px;height:9px;border-radius:50%;background:{color};'
        f'box-shadow:0 0 6px {color}"></span><span data-splatstudio="state">{word}</span></div>'
        f'<div style="margin-left:auto;white-space:nowrap;font-size:12px;color:{MUTED}">{aside}</div></div>'
        f'<div style="display:grid;grid-template-columns:1.3fr 1fr .9fr;gap:5px 10px">{figures}</div>'
        f"{message}</div>"
    )


def _job_html(job: JobStatus) -> str:
    progress = job.progress
    done = f" {int(job.percent)} %" if progress is not None and progress.total else " …"
    left = None if progress is None else progress.eta_seconds
    text = f"{job.verb}{done}" + ("" if left is None else f", {duration(left)} left")
    whole = html.escape(progress_text(job))
    return f'<span title="{whole}" data-splatstudio="task">{html.escape(text)}</span>'


def _figures(status: Status, *, alone: bool) -> list[tuple[str, str]]:
    """Return what the head shows; `alone`: of the model in the view, as it is not of this run."""
    splats = "–" if status.num_gaussians is None else f"{status.num_gaussians:,}"
    if alone or status.total_steps == 0:
        step = [("Step", f"{status.step:,}")] if status.step else []
        return [*step, ("Splats", splats)]
    rate = status.steps_per_second
    figures = [
        ("Step", f"{status.step:,} / {status.total_steps:,}"),
        ("Splats", splats),
        ("Speed", "–" if rate is None else f"{rate:.1f} it/s"),
        ("Time left", duration(status.eta_seconds)),
        ("Loss", "–" if status.loss is None else f"{status.loss:.4f}"),
        ("Test PSNR", "–" if status.test_psnr is None else f"{status.test_psnr:.2f} dB"),
    ]
    return figures


def _figure(label: str, value: str) -> str:
    key = label.lower().replace(" ", "-")
    return (
        f'<div><div style="font-size:11px;color:{MUTED}">{label}</div>'
        f'<div data-splatstudio="{key}" style="font-size:13.5px;font-weight:550;white-space:nowrap">'
        f"{value}</div></div>"
    )
