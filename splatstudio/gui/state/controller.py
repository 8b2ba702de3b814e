"""What the buttons do: the worker that the page steers now, what is known of it, and what is possible."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from splatstudio.cameras.camera import Camera
from splatstudio.error_text import for_terminal
from splatstudio.files.outputs import refuse_unwritable
from splatstudio.files.path_words import path_words
from splatstudio.files.run import Run
from splatstudio.gui.state.history import History, evaluated_in, run_so_far
from splatstudio.gui.state.preview_model import PreviewModel, model_of
from splatstudio.gui.state.project import Project, frame_of, with_plan, with_settings
from splatstudio.gui.state.status import PAUSE, Choice, Notice, Status, followed, notice_of
from splatstudio.gui.state.stream import FRAME_SECONDS, FrameSource, ModelState
from splatstudio.runtime import messages
from splatstudio.runtime.remote_run import RemotePlan
from splatstudio.runtime.supervisor import (
    Plan,
    ReceivedFrame,
    SaveRetries,
    WorkerClient,
    plan_for,
    retry_sentence,
)
from splatstudio.settings.config import changed, value_of

JOB_ENDS = (messages.JobDone, messages.JobCancelled, messages.JobFailed)
POLL_SECONDS = 0.1  # between two looks at a training that saves before the studio closes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelInView:
    """The model that a task is given: its place on the disk, None for the training's, and what is known."""

    path: Path | None
    step: int | None
    num_gaussians: int | None  # None: there is no model
    sh_degree: int
    worker: WorkerClient | None  # that has it, None: the training's


class Controller(FrameSource):
    """The studio's side of the worker, one at a time. Methods may be called from any thread."""

    elsewhere = False  # whether the training is not this studio's: it goes on when that is closed

    def __init__(self, project: Project, notify: Callable[[Notice], None]):
        self.project = project
        self.history = History()
        self.status = Status(total_steps=project.config.steps if project.can_train else 0)
        self.last_saved: messages.Saved | None = None
        self.last_step: int | None = None  # of which the run that was opened has something; None: of all
        self.replacements: list[str] = []  # why the worker was replaced, each time
        self.preview = PreviewModel(notify)
        self.beside = PreviewModel(notify)  # another model, at the left of the one in the view
        self.preview.on_export = self._tell_listeners
        self._notify = notify
        self._lock = threading.RLock()
        self._following = threading.Lock()  # news come from more than one process
        self._seq = count(1)
        self._listeners: list[Callable[[messages.Event], None]] = []
        self._resume_step = project.resume_step
        self._anew = False  # whether a new run was begun, and the model that was seen last is of another one
        self._untrained = False  # whether another model is on view before the training was ever started
        self._to_set: dict[str, Any] = {}  # live settings for when the training goes on
        self._told_damaged: set[str] = set()
        self._sh_degree = project.config.sh_degree  # until a model is loaded
        job = project.first_job()
        self._newest_step = self._newest_beside(job)  # of the run, while a model from the disk is on view
        self._worker = self._new_worker(job)
        self._load_history()
        self._tell_damaged(project.passed_over)

    def open(self) -> None:
        """Start the worker, with what the project has to show; call it when all listeners are there."""
        self._worker.start()

    def listen(self, listener: Callable[[messages.Event], None]) -> None:
        """Call `listener` with every event of the worker, after the status has taken it in."""
        self._listeners.append(listener)

    def send(self, command: messages.Command) -> None:
        """Give the worker an order."""
        self._worker.send(command)

    def close(self) -> None:
        """Let the worker save what is unsaved and leave."""
        self._worker.send(messages.Close())  # a model beside the training does not keep it waiting
        for other in (self.preview, self.beside):
            other.end()
        self._worker.close()

    def kill(self) -> None:
        """End the worker at once; what is unsaved is lost."""
        for other in (self.preview, self.beside):
            other.end(at_once=True)
        self._worker.kill(quietly=True)

    @property
    def unsaved(self) -> bool:
        """Return whether there is something that to close the studio must save."""
        return self._worker.unsaved and not self.elsewhere

    @property
    def log_path(self) -> Path:
        """Return the file with everything that the worker printed."""
        return self._worker.log_path

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the ranks, empty while there are none."""
        worker = self._worker
        return worker.pids if worker.alive else ()

    # ---- what is in the view

    def model_state(self) -> ModelState:
        """Return whether there is a model to see, its step, and whether it trains now."""
        other, status = self.preview.worker, self.status
        if other is not None:
            return ModelState(other.step, False)
        step = status.step if status.has_model else None
        return ModelState(step, status.state == "training", anew=step is None and self._anew)

    def render(self, view: int, camera: Camera, options: messages.ViewOptions) -> ReceivedFrame | None:
        """Return a picture of the model, None when there was none within FRAME_SECONDS."""
        return self._rendered_by(self.preview.worker or self._worker, view, camera, options)

    def render_beside(self, view: int, camera: Camera, options: messages.ViewOptions) -> ReceivedFrame | None:
        """Return a picture of the model that is compared with, None where there is none."""
        worker = self.beside.worker
        return None if worker is None else self._rendered_by(worker, view, camera, options)

    def _rendered_by(
        self, worker: WorkerClient, view: int, camera: Camera, options: messages.ViewOptions
    ) -> ReceivedFrame | None:
        seq = next(self._seq)
        worker.send(messages.SetView(view, seq, camera, options))
        return worker.wait_for_frame(view, seq, FRAME_SECONDS)

    def forget(self, view: int) -> None:
        """Note that nobody looks at this view any more."""
        for worker in (self.preview.worker, self.beside.worker, self._worker):
            if worker is not None:
                worker.drop_view(view)

    @property
    def in_view(self) -> ModelInView:
        """Return what pictures, videos and exports are of: another model as soon as it has been read."""
        if (shown := self.preview.shown) is not None:
            worker, loaded = shown
            facts = loaded.step, loaded.num_gaussians, loaded.sh_degree
            return ModelInView(model_of(worker.job), *facts, worker)
        status = self.status
        num = status.num_gaussians if status.has_model else None
        return ModelInView(model_of(self._worker.job), status.step or None, num, self._sh_degree, None)

    @property
    def shown_path(self) -> Path | None:
        """Return which model from the disk is in the view, or is about to be; None: that of the training."""
        return self.preview.path or model_of(self._worker.job)

    @property
    def other_model(self) -> Path | None:
        """Return the model in the view where it is not of this project's run, None where it is."""
        job = self._worker.job
        return None if not self.project.can_train or self.project.owns(job) else model_of(job)

    def _newest_beside(self, job: messages.Job) -> int | None:
        """Return the newest step of this run where a job shows a model of this run or another, else None."""
        return self.project.newest_step if isinstance(job, messages.ViewJob) else None

    @property
    def newer_step(self) -> int | None:
        """Return the newest step of the run, where an older one is in the view; None where that is not so."""
        status, newest = self.status, self._newest_step
        older = status.state == "viewing" and newest is not None and status.step < newest
        return newest if older and self.other_model is None else None

    @property
    def shows_own_newest(self) -> bool:
        """Return whether the model in the view is the one that the figures of this run are of."""
        return self.preview.path is None and self.other_model is None and self.newer_step is None

    @property
    def step_to_show(self) -> int | None:
        """Return the newest step of a run that has made all its steps, where it is not in the view."""
        if self._resume_step is not None:
            return None
        state, another = self.status.state, self.other_model is not None
        gone = state in ("failed", "ended") or (another and state == "viewing")
        return self._newest_step if gone else self.newer_step

    def _view_job(self, path: Path) -> messages.ViewJob:
        scene = self.project.scene
        return messages.ViewJob(path, frame_of(self.project), None if scene is None else scene.path)

    def compare_with(self, path: Path) -> None:
        """Show a model from the disk at the left of the one in the view.

        Raises ValueError when its process cannot be started.
        """
        job = self._view_job(path)
        self.beside.show(job, plan_for(job, self.project.devices))

    def view(self, path: Path) -> None:
        """Show a model from the disk in place of the present one; a training in progress goes on behind it.

        Raises ValueError when its process cannot be started.
        """
        with self._lock:
            job = self._view_job(path)
            if self._trains and self.status.state != "finished":
                self.preview.show(job, plan_for(job, self.project.devices))
                return
            self.preview.leave()
            self._newest_step, self._resume_step = self._newest_beside(job), self.project.resume_step
            self._untrained = self.project.can_train and not self.project.run_folder_taken
            self.status = replace(self.status, state="loading", message="", has_model=False)
            old = self._replace_worker(job, "Another model was opened")
            if old is not None and not self.project.can_train:
                self.project = replace(self.project, path=path, model_path=path)
        if old is not None:
            old.close()

    # ---- what the user can do

    def choice(self) -> Choice:
        """Return what the primary button says and whether it can be pressed."""
        status, resume_step = self.status, self._resume_step  # events may change them meanwhile
        if (step := self.step_to_show) is not None:
            return Choice(f"Show step {step:,}")
        if (will_pause := self._will_pause) is not None:
            return Choice("Resume" if will_pause else PAUSE)
        if status.state == "training":
            return Choice(PAUSE)
        if status.state in ("starting", "loading"):  # a training, or a saved model
            return Choice("Starting …" if status.state == "starting" else "Loading …", enabled=False)
        if status.state == "restarting":
            return Choice("Restarting …", enabled=False)
        if status.state == "paused" and 0 < status.total_steps <= status.step:
            return Choice("Save and finish")  # the disk was full at the last step, or fewer are wanted now
        if status.state == "paused" or (status.state == "finished" and status.step < status.total_steps):
            return Choice("Resume")
        if status.state == "finished":
            return Choice("All steps done", enabled=False)
        if resume_step is not None:
            return Choice(f"Resume from step {resume_step:,}")
        if status.state == "viewing" and not self._untrained:
            return Choice("All steps done", enabled=False)
        return Choice("Start training")

    @property
    def can_order(self) -> bool:
        """Return whether a training can be told to save, pause or stop, now or as soon as it is back."""
        return self.status.state in ("training", "paused") or self._will_pause is not None

    @property
    def _will_pause(self) -> bool | None:
        """Return of a training that is being started again whether it will stand still; else None."""
        job, state = self._worker.job, self.status.state
        retried = isinstance(job, messages.TrainJob) and job.attempt > 0
        again = state == "restarting" or (state == "loading" and retried)
        return self._worker.will_pause if again else None

    def press_primary(self) -> None:
        """Start, pause or resume, whatever `choice` offers."""
        with self._lock:
            state = self.status.state
            if not self.choice().enabled:
                return
            if state == "training" or self._will_pause is False:
                self.send(messages.Pause())
            elif state in ("paused", "finished") or self._will_pause:
                self.send(messages.Resume())
            elif self.step_to_show is not None:
                newest = self.project.checkpoint()
                if newest is None:
                    self._newest_step = None
                    raise ValueError("Its models were deleted meanwhile: this run has none to show.")
                self.view(newest)
            else:
                self._start(waiting=state == "ready")

    @property
    def is_opening_model(self) -> bool:
        """Return whether a model from the disk is on its way into the view."""
        return self.status.state in ("starting", "loading") and model_of(self._worker.job) is not None

    @property
    def can_begin_new_run(self) -> bool:
        """Return whether there is something that a new run could leave behind."""
        return self.project.can_train and self.status.state in ("viewing", "finished", "failed", "ended")

    def begin_new_run(self) -> None:
        """Make a new run ready to start, with all its settings to choose; the old one stays as it is."""
        with self._lock:
            if self.can_begin_new_run:
                self._turn_to_new_run()
                old = self._replace_worker(self.project.first_job(), "A new run was begun with New training")
                if old is not None:
                    old.close()

    def train_at_once(self) -> None:
        """Start or resume without waiting for the page; where all steps are done a new run begins.

        Raises ValueError when there is nothing that could be trained.
        """
        if not self.project.can_train:
            raise ValueError(f"{path_words(self.project.path)} is a finished model, which cannot be trained")
        with self._lock:
            self._start(waiting=isinstance(self._worker.job, messages.TrainJob))

    @property
    def can_train_more(self) -> bool:
        """Return whether all steps that were planned are done, and their model is the one on view."""
        status = self.status
        done = status.state in ("viewing", "finished") and 0 < status.total_steps <= status.step
        return done and self.project.can_train and self.project.owns(self._worker.job)

    def train_more(self, num_steps: int) -> None:
        """Go on with a training that has done all its steps."""
        with self._lock:
            if self.can_train_more:
                if not self._trains:
                    self.project.refuse_nothing_to_resume()
                self.change_settings({"steps": self.status.step + num_steps})
                if self._trains:
                    self.send(messages.Resume())
                else:
                    self._begin(resume=True)

    def save_and_stop(self) -> None:
        """Let a training save and end before the studio closes; where the disk has no room, try it again.

        Returns when it has ended, has been told often enough, or has died over it.
        """
        events: queue.SimpleQueue[messages.Event] = queue.SimpleQueue()
        self.listen(events.put)
        self.send(messages.Stop())
        retries, warned = SaveRetries(), ""
        # The state is asked for, too: it may have ended by itself before it was told to.
        while self.unsaved or not events.empty():
            if retries.take_due():
                self.send(messages.Stop())
            try:
                event = events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(event, messages.Warned):
                warned = event.sentence
            elif isinstance(event, messages.StateChanged) and event.state == "restarting":
                self.kill()  # it died while it saved; another one in its place has nothing more to save
                return
            elif isinstance(event, messages.StateChanged) and event.unsaved:
                if not retries.fail():
                    return
                if retries.num_failed == 1:
                    print(for_terminal(warned), retry_sentence(told=True), sep="\n", flush=True)

    # ---- settings

    @property
    def can_set_up(self) -> bool:
        """Return whether the training has not begun, so that every setting can still be chosen."""
        lost = self.status.state in ("failed", "ended") and self._resume_step is self._newest_step is None
        return self.project.can_train and (self.status.state == "ready" or lost)

    def change_settings(self, values: Mapping[str, Any]) -> None:
        """Change settings, given by their dotted paths.

        A running training takes them from its next step on, which a SettingChanged confirms; what is still
        to be started or resumed begins with them. Raises ValueError, and changes nothing, where one is wrong.
        """
        with self._lock:
            if self.can_set_up:
                self._set_up(*with_settings(self.project, values))
                return
            config = self.project.config_later(values, self.status.step)
            if self._trains:
                self.send(messages.UpdateSettings(tuple(values.items())))
                return
            self._to_set |= values
            self._set_up(replace(self.project, config=config, given=self.project.given | values.keys()))
            self._resume_step = self.project.resume_step

    def choose_preset(self, name: str) -> None:
        """Take the settings of a preset, but for those that the user asked for.

        Raises ValueError, and changes nothing, after the start.
        """
        with self._lock:
            if not self.can_set_up:
                raise ValueError("a preset is chosen before the start, and this training has begun")
            self._set_up(*with_plan(self.project, name, {}))

    def take_plan(self, preset: str, values: Mapping[str, Any]) -> None:
        """Take the settings of a preset and others by dotted names, as a plan for this machine has them.

        Nobody has asked for these: another preset may change them. Raises ValueError, and changes nothing,
        after the start.
        """
        with self._lock:
            if not self.can_set_up and self.status.state != "starting":
                raise ValueError("the length of a training is planned before the start, and this has begun")
            self._set_up(*with_plan(self.project, preset, values))

    def _set_up(self, project: Project, notice: Notice | None = None) -> None:
        self.project = project
        self.status = replace(self.status, total_steps=project.config.steps)
        if notice is not None:
            self._notify(notice)

    # ---- the worker

    @property
    def _trains(self) -> bool:
        """Return whether the worker has a training that can take new settings."""
        under_way = self.status.state in ("loading", "training", "paused", "finished")
        under_way = under_way or self.status.state in ("restarting", "disconnected")
        return under_way and isinstance(self._worker.job, messages.TrainJob)

    def _start(self, *, waiting: bool) -> None:
        """Start the training that the worker is `waiting` with, go on with the run, or begin a new one."""
        job = self._worker.job
        if waiting and isinstance(job, messages.TrainJob) and job.config == self.project.config:
            self.send(messages.Start())
        elif not waiting and self._resume_step is not None:
            self._begin(resume=True)
        else:
            if not waiting and self.project.run_folder_taken:
                # What a failed training left behind is neither gone on with nor overwritten.
                self._turn_to_new_run()
            self._begin(resume=False)

    def _turn_to_new_run(self) -> None:
        self.project = self.project.with_new_run()
        self.history = History()
        self.status = Status(total_steps=self.project.config.steps)
        self._anew, self.last_step = True, None
        self._resume_step, self._to_set, self._untrained, self._newest_step = None, {}, False, None

    def _begin(self, *, resume: bool) -> None:
        """Train in a new process; the one before, which only shows a model or has died, leaves."""
        if not resume:
            job = self.project.training_job()
        else:
            job, damaged = self.project.resumed_job()
            self._tell_damaged(damaged)
            job = replace(job, settings=(*job.settings, *self._to_set.items()))
        refuse_unwritable(job.run_dir, "copy the run to a folder of your own and open that")
        self.status = replace(self.status, state="loading", message="", has_model=False)
        old = self._replace_worker(job, "The training was resumed" if resume else "A new training was begun")
        if old is not None:
            self._to_set, self._untrained, self._newest_step = {}, False, None
            self.send(messages.Start())
            old.close()

    def _plan_for(self, job: messages.Job) -> Plan | RemotePlan:
        return plan_for(job, self.project.devices)

    def _new_worker(self, job: messages.Job) -> WorkerClient:
        worker = WorkerClient(job, self._plan_for(job))
        worker.subscribe(lambda event: self._take(worker, event))
        return worker

    def _replace_worker(self, job: messages.Job, why: str) -> WorkerClient | None:
        """Start another worker and return the one before; where it cannot start, tell it and return None.

        `why`, a clause as "The training was resumed", is for whoever has work with the present one.
        """
        old = self._worker
        try:
            # Known before it starts: the events of a worker that is not the present one are dropped.
            self._worker = self._new_worker(job)
            self._worker.start()
        except OSError as error:
            self._worker = old
            sentence = f"The worker could not be started: {error}. What is saved is safe; try it again."
            log.exception("no new worker")
            self.status = replace(self.status, state="failed", message=sentence)
            self._notify(Notice("Failed", sentence, bad=True))
            return None
        self.replacements.append(why)
        return old

    def _take(self, worker: WorkerClient, event: messages.Event) -> None:
        """Follow an event; those of a worker that has been replaced no longer matter."""
        # The long tasks of a worker that has been replaced end as well.
        if isinstance(event, messages.Frame) or (
            worker is not self._worker and not isinstance(event, JOB_ENDS)
        ):
            return
        match event:
            case messages.Failed() | messages.StateChanged(state="ended"):
                # Known before the status changes: from then on the button may be pressed.
                self._resume_step, self._newest_step = self.project.resume_step, self.project.newest_step
        with self._following:
            known = event == self.status.flat  # told again after a restart, or when a run goes on
            self.status = followed(self.status, event)
            self.history.follow(event)
        match event:
            case messages.Started():
                self._show_last_figures()
            case messages.ModelLoaded():
                self._anew, self._sh_degree = False, event.sh_degree
                if self._newest_step is not None and self.other_model is None:
                    self._show_figures_of(self.status.step)
            case messages.SettingChanged(path=path, value=value):
                # It may only be set again after a restart.
                known = value_of(self.project.config, path) == value
                if not known:
                    self.project = replace(self.project, config=changed(self.project.config, path, value))
            case messages.Saved():
                self.last_saved = event
            case messages.Failed():
                log.error("%s (log: %s)", event.sentence, event.log_path)
        notice = None if known else notice_of(event)
        if notice is not None:
            self._notify(notice)
        self._tell_listeners(event)

    def _tell_listeners(self, event: messages.Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _tell_damaged(self, sentences: Iterable[str]) -> None:
        """Tell of damaged checkpoints that are not used, of each once."""
        for sentence in sentences:
            if sentence not in self._told_damaged:
                self._told_damaged.add(sentence)
                self._notify(Notice("A checkpoint is damaged", f"{sentence}.", bad=True))

    # ---- what the disk tells

    def take_scores(self, file: Path) -> None:
        """Take in an evaluation of this run by another process; of the newest one the figures, too."""
        run_dir, scores = self.project.run_dir, evaluated_in(file)
        own = run_dir is not None and file.resolve().parent == (run_dir / "eval").resolve()
        if not own or scores is None:
            return
        if scores.step < self.history.test_psnr.last_step:
            self.history.test_psnr.insert(scores.step, scores.psnr)
        else:
            self._take(self._worker, scores)

    def _load_history(self) -> None:
        run_dir = self.project.run_dir
        if run_dir is None or not (run_dir / "metrics.jsonl").exists():
            return
        so_far = run_so_far(Run.open(run_dir), self.project.config, self._resume_step)
        self.history, self.last_step = so_far.history, so_far.last_step
        self._show_last_figures()
        self.status = replace(self.status, flat=so_far.flat)
        if so_far.scores is not None:
            self.take_scores(so_far.scores)

    def _show_figures_of(self, step: int) -> None:
        """Show what was measured of a model of this run: the newest one has other scores."""
        if step == self._newest_step:
            self._show_last_figures()
        else:
            psnr = self.history.test_psnr.of(step)
            self.status = replace(self.status, loss=self.history.loss.at(step), test_psnr=psnr)

    def _show_last_figures(self) -> None:
        history = self.history
        self.status = replace(self.status, test_psnr=history.test_psnr.newest, loss=history.loss.newest)
