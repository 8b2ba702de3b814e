"""The part of the dock that is always visible: what is open, how far it is, the main buttons, and bars
that come and go."""

from __future__ import annotations

import html
import io
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import viser

from splatstudio.checkpoints.rank_parts import RankPart, part_of
from splatstudio.distributed.rank_devices import DeviceUse
from splatstudio.files.inputs import read_input
from splatstudio.files.path_words import path_words
from splatstudio.gui.amounts import size
from splatstudio.gui.panel import Field, Page, Panel, Rest, ShownMeaning, SinglePress, when_user
from splatstudio.gui.server.viser_private import element_id
from splatstudio.gui.state.project import Project
from splatstudio.gui.state.status import Status
from splatstudio.gui.state.tasks import TaskStatus
from splatstudio.gui.theme import ACCENT, STATE_WORDS, box_html, duration, note_html
from splatstudio.models.merging import place_of_merged, whole_of
from splatstudio.runtime.file_tasks import FileTask, TaskEnd
from splatstudio.runtime.messages import PlateauReached, Save, State, Stop
from splatstudio.runtime.sentences import plateau_advice, plateau_words
from splatstudio.runtime.tasks import num_bytes
from splatstudio.settings.config import LIMIT, TrainConfig, differing, value_of
from splatstudio.settings.presets import nearest_preset
from splatstudio.training.time_plan import (
    StepTimes,
    TimePlan,
    duration_words,
    expected_seconds,
    measured_times,
    proposal,
)

MAX_DOWNLOAD_BYTES = 500_000_000  # viser holds the whole file in memory and so does the browser
MERGE = "merge parts"  # the kind of the task that merges a part with the others

# What becomes of the training while another model is in the view.
BEHIND: dict[State, str] = {
    "training": "Training continues behind it",
    "paused": "The training behind it is paused",
    "finished": "The training behind it has stopped",
    "restarting": "The training behind it is being started again",
    "disconnected": "The training behind it is not connected",
    "failed": "The training behind it has failed",
    "ended": "The training behind it has ended",
}

STOP, SAVE = "Stop", "Save"
MORE = "Train on"
MAX_SUGGESTED_STEPS = 10_000  # that are proposed when all steps are done


class TaskBar(Panel):
    """The newest task of a kind, below the button that starts it: how far it is, Cancel, and its file."""

    def __init__(self, page: Page, kind: object, *, end_stays: bool = True):
        """Show tasks of a `kind`; with `end_stays` the end stays to be read by who was not there then."""
        super().__init__(page)
        self._kind, self._end_stays = kind, end_stays
        self._bar = self.gui.add_progress_bar(0.0, color=ACCENT, visible=False)
        self._text = self.gui.add_html("", visible=False)
        removed, sends = "Partial output is removed.", "Sends the file to this browser."
        self._cancel = self.button("Cancel", lambda _: self._press_cancel(), visible=False, hint=removed)
        self._download = self.button("Download", self._send, visible=False, hint=sends)

    @property
    def _task(self) -> TaskStatus | None:
        return self.page.tasks.newest(self._kind)

    def refresh(self) -> None:
        """Show the task as it is now."""
        task = self._task
        if task is None:
            return
        running = task.end is None
        self._bar.visible = self._cancel.visible = running
        self._text.visible = running or self._end_stays
        if running:
            self._bar.animated = task.total == 0 or (task.done >= task.total and not task.what)
            self._bar.value = task.percent if task.total else 100.0
        bad = task.end is not None and task.end.bad and task.file is None
        self._text.content = note_html(task.text, "bad" if bad else "", mark="job")
        # A file of a task before is offered no more: the text above is of this one.
        there = self._end_stays and task.file is not None and 0 < task.num_bytes < MAX_DOWNLOAD_BYTES
        self._download.visible = there
        if task.file is not None:
            self._download.label = f"Download {task.file.name} ({size(task.num_bytes)})"

    def _press_cancel(self) -> None:
        if self._task is not None:
            self.page.tasks.cancel(self._task.number)

    def _send(self, client: viser.ClientHandle) -> None:
        if self._task is not None and self._task.file is not None:
            download(client, self._task.file)


def download(client: viser.ClientHandle, path: Path) -> None:
    """Send a file, or a folder as a .zip, to a browser; say so where it is gone."""
    try:
        if num_bytes(path) >= MAX_DOWNLOAD_BYTES:
            raise OSError(0, "it has become too large to be sent")
        content = _zipped(path) if path.is_dir() else read_input(path)
    except OSError as error:
        client.add_notification("Not sent", f"{path_words(path)}: {error.strerror}", color="red")
        return
    name = f"{path.name}.zip" if path.is_dir() else path.name
    client.send_file_download(name, content, save_immediately=True)


def _zipped(folder: Path) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
    return content.getvalue()


class PlateauBar(Panel):
    """The offer to stop where the test score stands still, until it is taken, put away or out of date."""

    def __init__(self, page: Page):
        super().__init__(page)
        self._declined: PlateauReached | None = None
        self.keep(
            self.gui.add_html("", visible=False),
            visible=lambda: self._offer is not None,
            content=lambda: "" if self._offer is None else note_html(offer_text(self._offer)),
        )
        saves, away = (
            "Saves and ends the training; Resume goes on.",
            "Dismisses this; the training continues either way.",
        )
        stop = self.button("Stop here", lambda _: self.controller.send(Stop()), ACCENT, hint=saves)
        go_on = self.button("Continue", lambda _: self._decline(), hint=away)
        for button in (stop, go_on):
            self.keep(button, visible=lambda: self._offer is not None)

    @property
    def _offer(self) -> PlateauReached | None:
        offer = self.controller.status.flat
        return offer if self.controller.can_order and offer != self._declined else None

    def _decline(self) -> None:
        self._declined = self.controller.status.flat


def offer_text(offer: PlateauReached) -> str:
    """Return what the dock says of a test score that stands still."""
    return " ".join(filter(None, (f"{plateau_words(offer)}: stop here, or go on?", plateau_advice(offer))))


class TimeBar(Panel):
    """How long the training takes here, said before it begins; a long one gives way to one of ten minutes.

    That is done once, where nobody has asked for any settings; a button takes the full training, and the
    short one again. Only on a processor: a GPU would have to be woken for it, and takes long nowhere.
    """

    def __init__(self, page: Page):
        super().__init__(page)
        self._times: StepTimes | None = None
        self._plan: TimePlan | None = None
        self._full: Project | None = None  # in whose place the plan was taken
        self._proposed = False
        self._estimate: tuple[TrainConfig, float] | None = None
        text = self.gui.add_html("", visible=False)
        self.keep(text, visible=lambda: self._planning, content=self._said)
        hint = "Preset, size of the photos and steps; each can still be changed in the Train tab."
        swap = self.button("", lambda _: self._swap(), visible=False, hint=hint)
        self.keep(swap, visible=lambda: self._planning and self._offered() != "", label=self._offered)
        project = self.controller.project
        if project.resume_step is None and project.devices.gpus == (None,):
            threading.Thread(target=self._measure).start()  # no daemon: Python aborts amid native code

    @property
    def _planning(self) -> bool:
        return self._times is not None and self.controller.can_set_up

    def _measure(self) -> None:
        times, project = measured_times("cpu"), self.controller.project
        if project.scene is not None:
            self._plan = proposal(project.scene, project.config, times)
        self._times = times
        self.page.changed(None)

    def refresh(self) -> None:
        """Tell the time of the settings as they are; of a plan, that it was chosen."""
        if self._planning and not self._proposed:
            self._proposed = True
            if self._plan is not None and not self.controller.project.is_chosen:
                self._swap()
        super().refresh()

    def _swap(self) -> None:
        controller, plan = self.controller, self._plan
        if plan is None:
            return
        if self._full is None:
            full = controller.project
            controller.take_plan("fast", plan.settings)
            self._full = full
            return
        # What fits is found anew, as from the limit that was asked for.
        names = {*differing(controller.project.config, self._full.config)} - {LIMIT}
        values = {name: value_of(self._full.config, name) for name in names}
        controller.take_plan(self._full.preset or nearest_preset(self._full.config).name, values)
        self._full = None

    def _offered(self) -> str:
        if self._plan is None:
            return ""
        if self._full is None:
            return f"Shorter training, {duration_words(self._plan.seconds)}"
        if not self._plan.is_in(self.controller.project.config):
            return ""  # something else was chosen, which its own time is told of
        return f"Full training, {duration_words(self._plan.instead_of)}"

    def _said(self) -> str:
        project = self.controller.project
        if self._times is None or project.scene is None:
            return ""
        if self._estimate is None or self._estimate[0] != project.config:
            seconds = expected_seconds(project.config, project.scene, self._times)
            self._estimate = project.config, seconds
        told = f"Takes {duration_words(self._estimate[1])} here"
        plan = self._plan
        if plan is not None and self._full is None:
            told += f"; the shorter training is {plan.choice}"
        elif plan is not None and self._full is not None and plan.is_in(project.config):
            full = self._full.config
            told += f": {plan.choice}. The full training, {full_choice(full)}, takes"
            told += f" {duration_words(plan.instead_of)}"
        return note_html(f"{told}.", mark="time")


def full_choice(config: TrainConfig) -> str:
    """Return what the training is in whose place a shorter one was taken, as "default, 30,000 steps"."""
    return f"{nearest_preset(config).name}, {config.steps:,} steps"


class PreviewBar(Panel):
    """Which model is in the view in place of the training's, and the way back."""

    def __init__(self, page: Page):
        super().__init__(page)
        text, hint = self.gui.add_html("", visible=False), "Shows its own model again."
        back = self.button("Back to the training", lambda _: self._leave(), hint=hint)
        self._text = self.keep(text, content=self._said)
        for handle in (text, back):
            self.keep(handle, visible=lambda: self.controller.preview.path is not None)
        own = self.button("Back to this run's model", lambda _: self._show_own(), visible=False)
        self.keep(own, visible=self._leads_back)

    @property
    def _newest(self) -> Path | None:
        return self.controller.project.checkpoint()

    def _leave(self) -> None:
        if not self.page.keeps_the_view():
            self.controller.preview.leave()

    def _leads_back(self) -> bool:
        controller = self.controller  # of a run that is done the main button leads back
        here = controller.other_model is not None and controller.step_to_show is None
        return here and self._newest is not None

    def _show_own(self) -> None:
        newest = self._newest
        if newest is not None and not self.page.keeps_the_view():
            self.controller.view(newest)

    def _said(self) -> str:
        status = self.controller.status
        behind = BEHIND.get(status.state, "The training waits behind it")
        path, loaded = self.controller.preview.path, self.controller.preview.loaded
        if path is None:
            return ""
        if loaded is None:
            return note_html(f"{path_words(path)} is being read. {behind}.", mark="preview")
        splats = f"{loaded.num_gaussians:,} splats"
        takes = "pictures, videos and exports use it"
        return note_html(f"In the view: {path_words(path)}, {splats}; {takes}. {behind}.", mark="preview")


class BesideBar(Panel):
    """Which model is at the left of the one in the view, the line between them, and the end of it."""

    def __init__(self, page: Page):
        super().__init__(page)
        text = self.gui.add_html("", visible=False)
        line = self.gui.add_slider("Other | this", 0.0, 1.0, 0.01, 0.5, visible=False)
        page.viewport.beside_slider = element_id(line)
        end = self.button("End the comparison", lambda _: self.controller.beside.leave(), visible=False)
        when_user(line, lambda _, share: page.viewport.show_beside(share))
        self.keep(text, content=self._said)
        for handle in (text, line, end):
            self.keep(handle, visible=lambda: self.controller.beside.path is not None)

    def _said(self) -> str:
        beside = self.controller.beside
        if beside.path is None:
            return ""
        path = path_words(beside.path)
        if beside.worker is None:
            return note_html(f"{path} is being read.", mark="beside")
        sides = f"Left: {path}. Right: the model that this page shows."
        return note_html(f"{sides} Who compares with a photo sees that instead.", mark="beside")


class PartBar(Panel):
    """The offer to merge, where the model in the view is one rank's part: until the whole one is shown."""

    def __init__(self, page: Page):
        super().__init__(page)
        self._path: Path | None = None  # of the model in the view
        self._part: RankPart | None = None
        self._text = self.gui.add_html("", visible=False)
        writes = "Writes the whole model into exports/ beside the parts, and shows it."
        self._merge = self.button(
            "Merge and open", lambda _: self._start(), ACCENT, visible=False, hint=writes
        )
        self.add(TaskBar(page, MERGE, end_stays=False))

    def look(self) -> None:
        """Look again for the files beside a part: the missing one may be copied there."""
        if self._part is not None and not self._part.complete:
            self._path = None

    def refresh(self) -> None:
        """Show the offer that holds for what is in the view now."""
        path = self.controller.shown_path
        if path != self._path:
            self._path, self._part = path, None if path is None else part_of(path)
        part = self._part
        self._text.visible = part is not None
        self._text.content = "" if part is None else part_html(part)
        self._merge.visible = part is not None and part.complete and not self.page.tasks.is_busy(MERGE)
        super().refresh()

    def _start(self) -> None:
        part = self._part
        if part is None or not part.complete:
            return
        whole = whole_of(part)
        if whole is not None:
            if not self.page.keeps_the_view():
                self.controller.view(whole)
            return
        files = (part.path, *part.others)
        task = FileTask(f"Merging {len(files)} parts", files, place_of_merged(part.path))
        self.page.tasks.start(MERGE, task, lambda end: self._ended(task, end))

    def _ended(self, task: FileTask, end: TaskEnd) -> None:
        # Who has turned to another model meanwhile keeps it.
        if end.output is not None and self.controller.shown_path in task.paths:
            self.controller.view(end.output)


def part_html(part: RankPart) -> str:
    """Return the notice that the model in the view is a part, as HTML; file names are escaped."""
    advice = "" if part.complete else ". Copy it there to merge them."
    return box_html(f"{part}{advice}", "warning", mark="part")


class StatusPanel(Panel):
    """Name, state, figures, progress bar, and the buttons that steer the training."""

    look_seconds = 3.0

    def __init__(self, page: Page):
        super().__init__(page)
        gui, controller, self._label = self.gui, self.controller, ""
        can_train = controller.project.can_train
        self._head = gui.add_html("")
        self.keep(
            gui.add_html("", visible=False),
            content=lambda: idle_gpu_html(controller.project.device_use),
            visible=lambda: controller.project.device_use.idle_gpu,
        )
        self._part = self.add(PartBar(page))
        self.add(PreviewBar(page))
        self.add(BesideBar(page))
        self._bar = gui.add_progress_bar(0.0, color=ACCENT, visible=can_train)
        begins = "Prepares a new run with settings to choose; this run stays as it is."
        ends = "Stop saves a checkpoint and ends the training; Save writes one and continues."
        self._primary = self.button("Start training", lambda _: self._press(), ACCENT, visible=can_train)
        goes_on = "How many steps the button above adds to those already done."
        self._more = gui.add_number("More steps", MAX_SUGGESTED_STEPS, min=1, visible=False, hint=goes_on)
        self.add(Field(self._more, lambda: self._steps if controller.can_train_more else None, self._choose))
        self._rests, self._chosen = False, None  # how many more steps somebody wants
        self._single, self._meaning = SinglePress(), ShownMeaning(lambda: page.changed(self))
        new = self.button("New training", lambda _: self._begin_new_run(), hint=begins, visible=can_train)
        # It comes when a training ends, where another button was, which somebody may be about to press.
        rest = Rest(lambda: page.changed(self))
        # Without a name beside them: it would read as a button, or as the state.
        running = gui.add_button_group("", (STOP, SAVE), visible=False, hint=ends)
        when_user(running, lambda _, button: controller.send(Stop() if button == STOP else Save()))
        if can_train:
            self.add(TimeBar(page))
        # While another model is opened, for a moment, nothing moves: all below would go up and come back.
        self.keep(
            new,
            visible=lambda: new.visible if controller.is_opening_model else controller.can_begin_new_run,
            disabled=lambda: not rest.is_over(controller.can_begin_new_run),
        )
        self.keep(running, visible=lambda: controller.can_order)
        self.add(PlateauBar(page))
        if can_train:
            add = page.hotkeys.add
            pause = add("P", "Pause or resume", lambda _: self._press(), "Or start the training")
            save = add("S", "Save a checkpoint", lambda _: controller.send(Save()), control=True)
            self.keep(pause, disabled=lambda: self._rests or not controller.choice().enabled)
            self.keep(save, disabled=lambda: not controller.can_order)

    @property
    def _steps(self) -> int:
        return self._chosen or suggested_steps(self.controller.status.step)

    def _choose(self, more: int) -> None:
        self._chosen = more
        self.page.changed(self)

    def _press(self) -> None:
        controller = self.controller
        if not self._single.counts() or (controller.status.state == "viewing" and self.page.keeps_the_view()):
            return
        if not self._meaning.counts(MORE if controller.can_train_more else controller.choice().label):
            return
        if controller.can_train_more:
            controller.train_more(self._steps)
        else:
            controller.press_primary()

    def _begin_new_run(self) -> None:
        if not (self.controller.can_begin_new_run and self.page.keeps_the_view()):
            self.controller.begin_new_run()

    def look(self) -> None:
        """Look for the files beside a part."""
        self._part.look()

    def refresh(self) -> None:
        """Show the present status."""
        controller, status = self.controller, self.controller.status
        choice, more = controller.choice(), controller.can_train_more
        self._rests = not self._meaning.show(MORE if more else choice.label)
        super().refresh()
        project, other = controller.project, controller.other_model
        task = self.page.tasks.in_progress
        told = replace(status, message=status.message or project.problem)
        viewers = self.page.viewport.num_viewers
        self._head.content = header_html(project.title, told, viewers, task, other, controller.newer_step)
        self._bar.value = done = 100.0 * status.step / max(1, status.total_steps)
        self._bar.visible = project.can_train and other is None
        self._more.disabled = controller.is_opening_model
        if not controller.is_opening_model:
            self._more.visible, self._chosen = more, self._chosen if more else None
        # In this order: a press in between would be for what is not said yet.
        self._primary.disabled = self._rests or not (choice.enabled or more)
        self._primary.label = f"{MORE} to step {status.step + self._steps:,}" if more else choice.label
        # What stays in sight when the dock is scrolled or folded up.
        label = panel_label(status, done, task)
        if label != self._label:
            self._label = label
            self.gui.set_panel_label(label)


def suggested_steps(done: int) -> int:
    """Return how many steps to add to a training that has `done` all of its own: as many again, if few."""
    return min(max(done, 1), MAX_SUGGESTED_STEPS)


def idle_gpu_html(use: DeviceUse) -> str:
    """Return the notice that a GPU of this machine goes unused, and why; empty where none does."""
    return box_html(use.text, "warning", mark="idle-gpu") if use.idle_gpu else ""


def state_word(status: Status) -> tuple[str, str]:
    """Return what the state is called, and the color of the dot beside it."""
    if status.state == "finished" and status.step < status.total_steps:
        return "Stopped", STATE_WORDS["paused"][1]  # what Stop has ended is not done
    return STATE_WORDS[status.state]


def panel_label(status: Status, done: float, task: TaskStatus | None = None) -> str:
    """Return what the dock's own head says; `done` are per cent of the steps, `task` a long one."""
    progress = f" {int(done)} %" if status.state in ("training", "paused") else ""
    also = "" if task is None else f" · {task.verb} {int(task.percent)} %"
    return f"splatstudio · {state_word(status)[0]}{progress}{also}"


def header_html(
    name: str,
    status: Status,
    num_viewers: int,
    task: TaskStatus | None = None,
    other: Path | None = None,
    newer: int | None = None,
) -> str:
    """Return the head of the dock as HTML; everything from outside is escaped.

    A long task in progress is told here as well: its own bar may be below what the window shows. It takes the
    place of the number of viewers, so that nothing moves when it begins and ends. Of a model in the view that
    is of no step of this run, `other`, only its own figures are shown; `newer` is the run's newest step where
    an older one is in the view.
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
    below = "" if other is None else note_html(f"Viewing {path_words(other)} (another run).", mark="other")
    if newer is not None:
        below += note_html(
            f"Viewing step {status.step:,}; the newest of this run is {newer:,}.", mark="older"
        )
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
