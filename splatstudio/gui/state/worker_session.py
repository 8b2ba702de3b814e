"""The worker that the page steers now: started, replaced by another one, followed, and asked for pictures."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

from splatstudio.cameras.camera import Camera
from splatstudio.files.run import Run
from splatstudio.gui.state.frame_source import FRAME_SECONDS, FrameSource, ModelState
from splatstudio.gui.state.history import History
from splatstudio.gui.state.preview_model import Beside
from splatstudio.gui.state.project import Project
from splatstudio.gui.state.run_so_far import evaluated_in, run_so_far
from splatstudio.gui.state.status import Notice, Status, followed, notice_of
from splatstudio.runtime.client import ReceivedFrame, WorkerClient, plan_for
from splatstudio.runtime.messages import (
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
    ModelLoaded,
    Saved,
    SettingChanged,
    SetView,
    Started,
    StateChanged,
    ViewOptions,
)
from splatstudio.settings.config import changed, value_of

log = logging.getLogger(__name__)


class WorkerSession(FrameSource):
    """One worker at a time, and what is known of it. Methods may be called from any thread."""

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
        self._anew = False  # whether a new run was begun, and the model that was seen last is of another one
        self.last_step: int | None = None  # of which the run that was opened has something; None: of all
        self.replacements: list[str] = []  # why the worker was replaced, each time
        self._worker = self._new_worker(project.first_job())
        self._load_history()
        self._told_damaged: set[str] = set()
        self._tell_damaged(project.passed_over)

    def open(self) -> None:
        """Start the worker, with what the project has to show; call it when all listeners are there."""
        self._worker.start()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every event of the worker, after the status has taken it in."""
        self._listeners.append(listener)

    def send(self, command: Command) -> None:
        """Give the worker an order."""
        self._worker.send(command)

    def take_scores(self, file: Path) -> None:
        """Take in an evaluation by another process, where it is the newest one of this project's run."""
        run_dir, scores = self.project.run_dir, evaluated_in(file)
        own = run_dir is not None and file.resolve().parent == (run_dir / "eval").resolve()
        if own and scores is not None and not scores.step < self.history.test_psnr.last_step:
            self._take(self._worker, scores)

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
        step = status.step if status.has_model else None
        return ModelState(step, status.state == "training", anew=step is None and self._anew)

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

    def _replace_worker(self, job: Job, why: str) -> bool:
        """Start another worker in place of the present one; keep that one, and tell it, when it cannot.

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
            return False
        self.replacements.append(why)
        return True

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
                self._show_last_figures()
            elif isinstance(event, ModelLoaded):
                self._anew = False
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

    def _tell_damaged(self, sentences: Iterable[str]) -> None:
        """Tell of damaged checkpoints that are not used, of each once."""
        for sentence in sentences:
            if sentence not in self._told_damaged:
                self._told_damaged.add(sentence)
                self._notify(Notice("A checkpoint is damaged", f"{sentence}.", bad=True))

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

    def _show_last_figures(self) -> None:
        history = self.history
        self.status = replace(self.status, test_psnr=history.last_test_psnr, loss=history.last_loss)
