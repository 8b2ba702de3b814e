"""What the buttons do: holds the worker, follows its events, and decides what is possible in each state."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from splatstudio.camera import Camera
from splatstudio.config import changed, value_of
from splatstudio.run import Run
from splatstudio.studio.beside import Beside
from splatstudio.studio.frame_source import FrameSource, ModelState
from splatstudio.studio.history import History, evaluated_in, newest_scores, offer_in
from splatstudio.studio.project import Project
from splatstudio.studio.status import Choice, Notice, Status, choice_of, followed, notice_of
from splatstudio.studio.viewport import FRAME_SECONDS
from splatstudio.worker.client import ReceivedFrame, WorkerClient, plan_for
from splatstudio.worker.messages import (
    Close,
    Command,
    Event,
    Exported,
    Failed,
    Frame,
    Job,
    JobCancelled,
    JobDone,
    JobFailed,
    Pause,
    Resume,
    Save,
    Saved,
    SettingChanged,
    SetView,
    Start,
    Started,
    StateChanged,
    Stop,
    TrainJob,
    UpdateSettings,
    ViewJob,
    ViewOptions,
)

log = logging.getLogger(__name__)


class Controller(FrameSource):
    """The studio's side of the worker. Methods may be called from any thread."""

    def __init__(self, project: Project, notify: Callable[[Notice], None]):
        self.project = project
        self.history = History()
        self.status = Status(total_steps=project.config.steps if project.can_train else 0)
        self.last_export: Exported | None = None
        self.last_saved: Saved | None = None
        self.beside = Beside(notify)
        self._notify = notify
        self._lock = threading.RLock()
        self._following = threading.Lock()  # news come from more than one process
        self._seq = count(1)
        self._listeners: list[Callable[[Event], None]] = []
        self._resume_step = project.resume_step
        self._untrained = False  # whether another model is on view before the training was ever started
        self._to_set: dict[str, Any] = {}  # live settings for when the training goes on
        self._worker = self._new_worker(project.first_job())
        self._load_history()

    def open(self) -> None:
        """Start the worker, with what the project has to show; call it when all listeners are there."""
        self._worker.start()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every event of the worker, after the status has taken it in."""
        self._listeners.append(listener)

    # ---- what the user can do

    def choice(self) -> Choice:
        """Return what the primary button says and whether it can be pressed."""
        return choice_of(self.status, self._resume_step, self._untrained, self._will_pause)

    @property
    def can_order(self) -> bool:
        """Say whether a training can be told to save, to pause or to stop, now or as soon as it is back."""
        return self.status.state in ("training", "paused") or self._will_pause is not None

    @property
    def _will_pause(self) -> bool | None:
        """Say of a training that is being started again whether it will stand still; else None."""
        job, state = self._worker.job, self.status.state
        retried = isinstance(job, TrainJob) and job.attempt > 0
        again = state == "restarting" or (state == "loading" and retried)
        return self._worker.will_pause if again else None

    def press_primary(self) -> None:
        """Start, pause or resume, whatever `choice` offers."""
        with self._lock:
            state = self.status.state
            if not self.choice().enabled:
                return
            if state == "training" or self._will_pause is False:
                self._worker.send(Pause())
            elif state in ("paused", "finished") or self._will_pause:
                self._worker.send(Resume())
            elif state == "ready":
                self._start_first()
            elif self._resume_step is not None:
                self._begin(resume=True)
            elif self.project.run_folder_taken:
                # What a failed training left behind is neither gone on with nor overwritten.
                self._start_anew()
            else:
                self._begin(resume=False)

    @property
    def can_start_over(self) -> bool:
        """Say whether there is something that a new run could leave behind."""
        return self.project.can_train and self.status.state in ("viewing", "finished", "failed", "ended")

    def start_over(self) -> None:
        """Make a new run ready to start, with all its settings to choose; the old one stays as it is."""
        with self._lock:
            if self.can_start_over:
                old = self._worker
                self._turn_to_new_run()
                if self._replace_worker(self.project.first_job()):
                    old.close()

    def train_at_once(self) -> None:
        """Start or resume without waiting for the page; a run whose steps are all done is started over.

        Raises ValueError when there is nothing that could be trained.
        """
        if not self.project.can_train:
            raise ValueError(f"{self.project.path} is a finished model, which cannot be trained")
        with self._lock:
            if isinstance(self._worker.job, TrainJob):
                self._start_first()
            elif self._resume_step is not None:
                self._begin(resume=True)
            else:
                self._start_anew()

    @property
    def can_set_up(self) -> bool:
        """Say whether the training has not begun, so that every setting can still be chosen."""
        lost = self.status.state in ("failed", "ended") and self._resume_step is None
        return self.project.can_train and (self.status.state == "ready" or lost)

    def change_settings(self, values: Mapping[str, Any]) -> None:
        """Change settings, given by their dotted paths.

        A running training takes them from its next step on, which a SettingChanged confirms; what is still
        to be started or resumed begins with them. Raises ValueError, and changes nothing, where one is wrong.
        """
        with self._lock:
            if self.can_set_up:
                config = self.project.config_with(values)
            else:
                config = self.project.config_later(values, self.status.step)
            if self._trains:
                self._worker.send(UpdateSettings(tuple(values.items())))
                return
            self.project = replace(self.project, config=config, given=self.project.given | values.keys())
            self.status = replace(self.status, total_steps=config.steps)
            if not self.can_set_up:
                self._to_set |= values
                self._resume_step = self.project.resume_step

    def choose_preset(self, name: str) -> None:
        """Take the settings of a preset, but for those that the user asked for. Before the start alone."""
        with self._lock:
            given = self.project.given
            changes, note = self.project.changes_by_preset(name)
            self.change_settings(changes)
            self.project = replace(self.project, given=given)
        if note is not None:
            self._notify(Notice("Made to fit", note))

    @property
    def can_train_more(self) -> bool:
        """Say whether all steps that were planned are done, and their model is the one on view."""
        status = self.status
        done = status.state in ("viewing", "finished") and status.step >= status.total_steps
        own = self.project.can_train and self.project.owns(self._worker.job)
        return done and status.total_steps > 0 and own

    def train_more(self, num_steps: int) -> None:
        """Go on with a training that has done all its steps."""
        with self._lock:
            if self.can_train_more:
                self.change_settings({"steps": self.status.step + num_steps})
                if self._trains:
                    self._worker.send(Resume())
                else:
                    self._begin(resume=True)

    @property
    def _trains(self) -> bool:
        """Say whether the worker has a training that can take new settings."""
        under_way = self.status.state in ("loading", "training", "paused", "finished", "restarting")
        return under_way and isinstance(self._worker.job, TrainJob)

    @property
    def shown_path(self) -> Path | None:
        """Return which model from the disk is in the view, or is about to be; None: that of the training."""
        job = self._worker.job
        return self.beside.path or (job.model_path if isinstance(job, ViewJob) else None)

    def view(self, path: Path) -> None:
        """Show a model from the disk in place of the present one; a training in progress goes on behind it.

        Raises ValueError when its process cannot be started.
        """
        with self._lock:
            scene = self.project.scene
            frame = None if scene is None else tuple(map(tuple, scene.transform.tolist()))
            if self._trains and self.status.state != "finished":
                job = ViewJob(path, frame)
                self.beside.show(job, plan_for(job, self.project.devices))
                return
            self.beside.leave()
            old = self._worker
            self._resume_step = self.project.resume_step
            self._untrained = self.project.can_train and not self.project.run_folder_taken
            self.status = replace(self.status, state="loading", message="", has_model=False)
            if not self._replace_worker(ViewJob(path, frame)):
                return
            if not self.project.can_train:
                self.project = replace(self.project, path=path, model_path=path)
        old.close()

    def send(self, command: Command) -> None:
        """Give the worker an order."""
        self._worker.send(command)

    def stop(self) -> None:
        """Save and end the training."""
        self.send(Stop())

    def take_scores(self, file: Path) -> None:
        """Take in an evaluation by another process, where it is the newest one of this project's run."""
        run_dir, scores = self.project.run_dir, evaluated_in(file)
        own = run_dir is not None and file.resolve().parent == (run_dir / "eval").resolve()
        if own and scores is not None and not scores.step < self.history.test_psnr.last_step:
            self._take(self._worker, scores)

    def save(self) -> None:
        """Write a checkpoint now."""
        self.send(Save())

    def close(self) -> None:
        """Let the worker save what is unsaved and leave."""
        self._worker.send(Close())  # a model beside the training does not keep it waiting
        self.beside.close()
        self._worker.close()

    def kill(self) -> None:
        """End the worker at once; what is unsaved is lost."""
        self.beside.kill()
        self._worker.kill()

    @property
    def log_path(self) -> Path:
        """Return the file with everything that the worker printed."""
        return self._worker.log_path

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the ranks, empty while there are none."""
        worker = self._worker
        return worker.pids if worker.alive else ()

    # ---- where pictures come from

    def model_state(self) -> ModelState:
        """Return whether there is a model to see, its step, and whether it trains now."""
        other, status = self.beside.worker, self.status
        if other is not None:
            return ModelState(other.step, False)
        return ModelState(status.step if status.has_model else None, status.state == "training")

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        """Return a picture of the model, None when there was none within FRAME_SECONDS."""
        seq, worker = next(self._seq), self.beside.worker or self._worker
        worker.send(SetView(view, seq, camera, options))
        return worker.wait_for_frame(view, seq, FRAME_SECONDS)

    def forget(self, view: int) -> None:
        """Note that nobody looks at this view any more."""
        for worker in (self.beside.worker, self._worker):
            if worker is not None:
                worker.drop_view(view)

    # ---- the worker

    def _new_worker(self, job: Job) -> WorkerClient:
        worker = WorkerClient(job, plan_for(job, self.project.devices))
        worker.subscribe(lambda event: self._take(worker, event))
        return worker

    def _begin(self, *, resume: bool) -> None:
        """Train in a new process; the one before, which only shows a model or has died, leaves."""
        old = self._worker
        self.status = replace(self.status, state="loading", message="", has_model=False)
        job = self.project.training_job(resume=resume)
        if resume:
            job = replace(job, settings=(*job.settings, *self._to_set.items()))
        if not self._replace_worker(job):
            return
        self._to_set, self._untrained = {}, False
        self._worker.send(Start())
        old.close()

    def _replace_worker(self, job: Job) -> bool:
        """Start another worker in place of the present one; tell why and keep that one when it cannot."""
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
            return False
        return True

    def _start_first(self) -> None:
        """Start the training that the worker waits with, or another one if its settings have been changed."""
        job = self._worker.job
        if isinstance(job, TrainJob) and job.config == self.project.config:
            self._worker.send(Start())
        else:
            self._begin(resume=False)

    def _turn_to_new_run(self) -> None:
        self.project = self.project.started_over()
        self.history = History()
        self.status = Status(total_steps=self.project.config.steps)
        self._resume_step, self._to_set, self._untrained = None, {}, False

    def _start_anew(self) -> None:
        self._turn_to_new_run()
        self._begin(resume=False)

    def _take(self, worker: WorkerClient, event: Event) -> None:
        """Follow an event; those of a worker that has been replaced no longer matter."""
        # The long tasks of a worker that has been replaced end as well.
        replaced = worker is not self._worker and not isinstance(event, (JobDone, JobCancelled, JobFailed))
        if replaced or isinstance(event, Frame):
            return
        if isinstance(event, Failed) or (isinstance(event, StateChanged) and event.state == "ended"):
            # Known before the status changes: from then on the button may be pressed.
            self._resume_step = self.project.resume_step
        with self._following:
            known = event == self.status.flat  # told again after a restart, or when a run goes on
            self.status = followed(self.status, event)
            self.history.follow(event)
            if isinstance(event, Started):
                self.status = replace(self.status, test_psnr=self.history.last_test_psnr)
        if isinstance(event, SettingChanged):
            known = not self._take_setting(event)
        elif isinstance(event, Exported):
            self.last_export = event
        elif isinstance(event, Saved):
            self.last_saved = event
        elif isinstance(event, Failed):
            log.error("%s (log: %s)", event.sentence, event.log_path)
        notice = None if known else notice_of(event)
        if notice is not None:
            self._notify(notice)
        for listener in self._listeners:
            listener(event)

    def _take_setting(self, event: SettingChanged) -> bool:
        """Return whether a setting has changed; it may only be set again after a restart."""
        if value_of(self.project.config, event.path) == event.value:
            return False
        self.project = replace(self.project, config=changed(self.project.config, event.path, event.value))
        return True

    def _load_history(self) -> None:
        run_dir = self.project.run_dir
        if run_dir is not None and (run_dir / "metrics.jsonl").exists():
            run = Run.open(run_dir)
            self.history.load(run.metrics().rows)
            flat = offer_in(run, self.project.config, self._resume_step)
            self.status = replace(self.status, flat=flat, test_psnr=self.history.last_test_psnr)
            if (newest := newest_scores(run)) is not None:
                self.take_scores(newest)
