"""What the buttons do: holds the worker, follows its events, and decides what is possible in each state."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from splatstudio.camera import Camera
from splatstudio.run import Run
from splatstudio.studio.history import History
from splatstudio.studio.project import Project
from splatstudio.studio.viewport import FRAME_SECONDS, FrameSource, ModelState
from splatstudio.worker.client import ReceivedFrame, WorkerClient
from splatstudio.worker.messages import (
    Command,
    Evaluated,
    Event,
    Export,
    Exported,
    Failed,
    Finished,
    Frame,
    Job,
    ModelLoaded,
    Pause,
    Progress,
    Resume,
    Save,
    Saved,
    SetView,
    Start,
    Started,
    State,
    StateChanged,
    Stop,
    TrainJob,
    ViewOptions,
    Warned,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Status:
    """What the page shows of the training; replaced as a whole, so that a reader never sees half of it."""

    state: State = "starting"
    step: int = 0
    total_steps: int = 0
    num_gaussians: int | None = None
    steps_per_second: float | None = None
    eta_seconds: float | None = None
    loss: float | None = None
    test_psnr: float | None = None
    message: str = ""  # why it failed; empty otherwise
    has_model: bool = False


@dataclass(frozen=True)
class RankFigures:
    """What one process of the training has to show; None: not known."""

    num_gaussians: int | None
    step_seconds: float | None


@dataclass(frozen=True)
class Notice:
    """Something to tell everybody who watches."""

    title: str
    text: str
    bad: bool = False


@dataclass(frozen=True)
class Choice:
    """What the primary button offers now."""

    label: str
    enabled: bool = True


class Controller(FrameSource):
    """The studio's side of the worker. Methods may be called from any thread."""

    def __init__(self, project: Project, notify: Callable[[Notice], None]):
        self.project = project
        self.history = History()
        self.status = Status(total_steps=project.config.steps if project.can_train else 0)
        self.options = ViewOptions(background=project.config.background)
        self.last_export: Exported | None = None
        self.last_saved: Saved | None = None
        self._notify = notify
        self._lock = threading.RLock()
        self._seq = count(1)
        self._listeners: list[Callable[[Event], None]] = []
        self._resume_step = project.resume_step
        self._load_history()
        self._worker = self._new_worker(project.first_job())

    def open(self) -> None:
        """Start the worker, with what the project has to show; call it when all listeners are there."""
        self._worker.start()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with every event of the worker, after the status has taken it in."""
        self._listeners.append(listener)

    # ---- what the user can do

    def choice(self) -> Choice:
        """Return what the primary button says and whether it can be pressed."""
        status = self.status
        if status.state == "training":
            return Choice("Pause")
        if status.state in ("starting", "loading", "restarting"):
            return Choice("Starting …", enabled=False)
        if status.state == "paused" or (status.state == "finished" and status.step < status.total_steps):
            return Choice("Resume")
        if status.state == "finished":
            return Choice("All steps done", enabled=False)
        if self._resume_step is not None:
            return Choice(f"Resume from step {self._resume_step:,}")
        if status.state == "viewing":
            return Choice("All steps done", enabled=False)
        return Choice("Start training")

    def press_primary(self) -> None:
        """Start, pause or resume, whatever `choice` offers."""
        with self._lock:
            state = self.status.state
            if not self.choice().enabled:
                return
            if state == "training":
                self._worker.send(Pause())
            elif state == "paused" or state == "finished":
                self._worker.send(Resume())
            elif state == "ready":
                self._worker.send(Start())
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
        """Train anew into a new run folder; the old one stays as it is."""
        with self._lock:
            if self.can_start_over:
                self._start_anew()

    def train_at_once(self) -> None:
        """Start or resume without waiting for the page; a run whose steps are all done is started over.

        Raises ValueError when there is nothing that could be trained.
        """
        if not self.project.can_train:
            raise ValueError(f"{self.project.path} is a finished model, which cannot be trained")
        with self._lock:
            if isinstance(self._worker.job, TrainJob):
                self.send(Start())
            elif self._resume_step is not None:
                self._begin(resume=True)
            else:
                self._start_anew()

    def send(self, command: Command) -> None:
        """Give the worker an order."""
        self._worker.send(command)

    def stop(self) -> None:
        """Save and end the training."""
        self.send(Stop())

    def save(self) -> None:
        """Write a checkpoint now."""
        self.send(Save())

    def export(self, path: Path) -> None:
        """Write the model as a PLY file."""
        self.send(Export(path.expanduser()))

    def close(self) -> None:
        """Let the worker save what is unsaved and leave."""
        self._worker.close()

    def kill(self) -> None:
        """End the worker at once; what is unsaved is lost."""
        self._worker.kill()

    @property
    def log_path(self) -> Path:
        """Return the file with everything that the worker printed."""
        return self._worker.log_path

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the ranks, empty while there are none."""
        worker = self._worker
        return (worker.pid,) if worker.alive else ()

    @property
    def rank_figures(self) -> tuple[RankFigures, ...]:
        """Return the figures of each rank, rank 0 first; empty without a training."""
        status = self.status
        if status.num_gaussians is None:
            return ()
        rate = status.steps_per_second
        return (RankFigures(status.num_gaussians, 1.0 / rate if rate else None),)

    # ---- where pictures come from

    def model_state(self) -> ModelState:
        """Return whether there is a model to see, its step, and whether it trains now."""
        status = self.status
        return ModelState(status.step if status.has_model else None, status.state == "training")

    def render(self, view: int, camera: Camera) -> ReceivedFrame | None:
        """Return a picture of the model, None when there was none within FRAME_SECONDS."""
        seq, worker = next(self._seq), self._worker
        worker.send(SetView(view, seq, camera, self.options))
        return worker.wait_for_frame(view, seq, FRAME_SECONDS)

    def forget(self, view: int) -> None:
        """Note that nobody looks at this view any more."""
        self._worker.drop_view(view)

    # ---- the worker

    def _new_worker(self, job: Job) -> WorkerClient:
        worker = WorkerClient(job)
        worker.subscribe(lambda event: self._take(worker, event))
        return worker

    def _begin(self, *, resume: bool) -> None:
        """Train in a new process; the one before, which only shows a model or has died, leaves."""
        old = self._worker
        self.status = replace(self.status, state="loading", message="", has_model=False)
        # Known before it starts: the events of a worker that is not the present one are dropped.
        self._worker = self._new_worker(self.project.training_job(resume=resume))
        self._worker.start()
        self._worker.send(Start())
        old.close()

    def _start_anew(self) -> None:
        self.project = self.project.started_over()
        self.history = History()
        self.status = Status(total_steps=self.project.config.steps)
        self._resume_step = None
        self._begin(resume=False)

    def _take(self, worker: WorkerClient, event: Event) -> None:
        """Follow an event; those of a worker that has been replaced no longer matter."""
        if worker is not self._worker or isinstance(event, Frame):
            return
        self.status = _followed(self.status, event)
        if isinstance(event, Progress):
            self.history.loss.add(event.step, event.loss)
            if event.psnr is not None:
                self.history.train_psnr.add(event.step, event.psnr)
        elif isinstance(event, Evaluated):
            self.history.test_psnr.add(event.step, event.psnr)
        elif isinstance(event, Exported):
            self.last_export = event
        elif isinstance(event, Saved):
            self.last_saved = event
        elif isinstance(event, StateChanged) and event.state == "ended":
            self._resume_step = self.project.resume_step
        elif isinstance(event, Failed):
            self._resume_step = self.project.resume_step
            log.error("%s (log: %s)", event.sentence, event.log_path)
        notice = _notice(event)
        if notice is not None:
            self._notify(notice)
        for listener in self._listeners:
            listener(event)

    def _load_history(self) -> None:
        run_dir = self.project.run_dir
        if run_dir is not None and (run_dir / "metrics.jsonl").exists():
            self.history.load(Run.open(run_dir).metrics().rows)
            if len(self.history.test_psnr):
                last = float(self.history.test_psnr.arrays()[1][-1])
                self.status = replace(self.status, test_psnr=last)


def _followed(status: Status, event: Event) -> Status:
    """Return the status after an event."""
    if isinstance(event, StateChanged):
        rate = status.steps_per_second if event.state == "training" else None
        # With the worker goes the model that it showed.
        has_model = status.has_model and event.state != "ended"
        return replace(
            status, state=event.state, steps_per_second=rate, eta_seconds=None, has_model=has_model
        )
    if isinstance(event, ModelLoaded):
        return replace(status, step=event.step or 0, num_gaussians=event.num_gaussians, has_model=True)
    if isinstance(event, Started):
        return replace(status, step=event.step, total_steps=event.total_steps)
    if isinstance(event, Progress):
        return replace(
            status,
            step=event.step,
            total_steps=event.total_steps,
            num_gaussians=event.num_gaussians,
            steps_per_second=event.steps_per_second,
            eta_seconds=event.eta_seconds,
            loss=event.loss,
        )
    if isinstance(event, Evaluated):
        return replace(status, test_psnr=event.psnr)
    if isinstance(event, Finished):
        return replace(status, step=event.step)
    if isinstance(event, Failed):
        return replace(status, state="failed", message=event.sentence, has_model=False)
    return status


def _notice(event: Event) -> Notice | None:
    """Return what to tell the user about an event, None where the page shows it anyway."""
    if isinstance(event, Saved):
        return Notice(f"Saved step {event.step:,}", str(event.path))
    if isinstance(event, Exported):
        return Notice(f"Exported {event.num_gaussians:,} splats", str(event.path))
    if isinstance(event, Finished) and event.completed:
        return Notice("Training finished", f"All {event.step:,} steps are done.")
    if isinstance(event, Finished):
        return Notice("Training stopped", f"At step {event.step:,}; Resume goes on from there.")
    if isinstance(event, Warned):
        return Notice("Please note", event.sentence, bad=True)
    if isinstance(event, Failed):
        return Notice("Failed", event.sentence, bad=True)
    return None
