"""The long tasks that the page has asked the worker for: how far each is, and what became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from msgspec import structs

from splatstudio.gui.state.controller import Controller, Notice
from splatstudio.gui.theme import size
from splatstudio.runtime.client import WorkerClient
from splatstudio.runtime.messages import (
    CancelJob,
    Event,
    Export,
    JobCancelled,
    JobCommand,
    JobDone,
    JobFailed,
    JobProgress,
    RenderPath,
    Snapshot,
)
from splatstudio.runtime.tasks import output_of


@dataclass(frozen=True, eq=False)
class JobStatus:
    """A task: what it was asked to do, the last news of it, and its end (None: in progress)."""

    command: JobCommand
    progress: JobProgress | None = None
    end: JobDone | JobCancelled | JobFailed | None = None
    ended_by: str = ""  # a clause: what took away the worker that had it, where nobody cancelled it

    @property
    def doing(self) -> str:
        """Return what is done to which file, as "Rendering orbit.mp4"."""
        return f"{self.verb} {output_of(self.command).name}"

    @property
    def verb(self) -> str:
        """Return what is done, as "Rendering"."""
        return _WORDS[type(self.command)][0]

    @property
    def percent(self) -> float:
        """Return how much of it is done, 0 while nobody can say."""
        progress = self.progress
        return 100.0 * progress.done / progress.total if progress is not None and progress.total else 0.0

    @property
    def file(self) -> Path | None:
        """Return the complete file, None where there is none (yet)."""
        return self.end.path if isinstance(self.end, JobDone) else None


class JobBoard:
    """The tasks of the page. Methods may be called from any thread."""

    def __init__(self, controller: Controller, notify: Callable[[Notice], None]):
        self._controller = controller
        self._notify = notify
        self._jobs: dict[int, JobStatus] = {}
        self._then: dict[int, Callable[[JobDone], None]] = {}
        self._workers: dict[int, WorkerClient] = {}  # of tasks that are not the training's worker's
        self._begun: dict[int, int] = {}  # of those that are: how often it had been replaced until then
        self._cancelled: set[int] = set()  # by the user
        self._ids = count(1)
        self._lock = threading.Lock()

    def submit(
        self,
        command: JobCommand,
        then: Callable[[JobDone], None] | None = None,
        worker: WorkerClient | None = None,
    ) -> JobStatus | None:
        """Send a task to `worker`, by default the training's; `then` is called when it is done.

        None: there is no model yet.
        """
        if worker is None and not self._controller.status.has_model:
            self._notify(Notice("Not possible yet", "There is no model: start the training first.", bad=True))
            return None
        with self._lock:
            command = structs.replace(command, job=next(self._ids))
            status = self._jobs[command.job] = JobStatus(command)
            if then is not None:
                self._then[command.job] = then
            unheard = worker is not None and worker not in self._workers.values()
            if worker is not None:
                self._workers[command.job] = worker
            else:
                self._begun[command.job] = len(self._controller.replacements)
        if worker is None:
            self._controller.send(command)
        else:
            if unheard:
                worker.subscribe(self.follow)
            worker.send(command)
        return status

    def cancel(self, job: int) -> None:
        """Let a task end; what it was writing is removed."""
        with self._lock:
            worker = self._workers.get(job)
            self._cancelled.add(job)
        (worker or self._controller).send(CancelJob(job))

    def newest(self, kind: type[JobCommand]) -> JobStatus | None:
        """Return the newest task of a kind that is in progress, else the newest of all."""
        with self._lock:
            jobs = [status for status in self._jobs.values() if isinstance(status.command, kind)]
        running = [status for status in jobs if status.end is None]
        return (running or jobs or [None])[-1]

    @property
    def in_progress(self) -> JobStatus | None:
        """Return the task that has been in progress for the longest, None where there is none."""
        with self._lock:
            return next((status for status in self._jobs.values() if status.end is None), None)

    def follow(self, event: Event) -> None:
        """Take in an event of the worker."""
        if not isinstance(event, (JobProgress, JobDone, JobCancelled, JobFailed)):
            return
        with self._lock:
            status = self._jobs.get(event.job)
            if status is None:
                return
            if isinstance(event, JobProgress):
                self._jobs[event.job] = replace(status, progress=event)
                return
            status = replace(status, end=event, ended_by=self._ended_by(event))
            self._jobs[event.job] = status
            then = self._then.pop(event.job, None)
        self._notify(_notice(status, event))
        if isinstance(event, JobDone) and then is not None:
            then(event)

    def _ended_by(self, event: JobDone | JobCancelled | JobFailed) -> str:
        """Return what took away the worker of a task that has ended, "" where nothing did."""
        if isinstance(event, JobDone) or event.job in self._cancelled:
            return ""
        if event.job in self._workers:
            # Nobody else ends a task of a model that is shown beside the training.
            return "Its model was taken out of the view" if isinstance(event, JobCancelled) else ""
        for why in self._controller.replacements[self._begun[event.job] :]:
            return f"{why}, which put the model away"
        return ""


_WORDS: dict[type[JobCommand], tuple[str, str]] = {
    Export: ("Exporting", "Exported"),
    RenderPath: ("Rendering", "Rendered"),
    Snapshot: ("Rendering", "Rendered"),
}


def _notice(status: JobStatus, event: JobDone | JobCancelled | JobFailed) -> Notice:
    if isinstance(event, JobDone):
        done = _WORDS[type(status.command)][1]
        text = f"{event.path}. {event.note}" if event.note else str(event.path)
        return Notice(f"{done} {event.path.name} ({size(event.num_bytes)})", text, bad=bool(event.note))
    if status.ended_by:
        return Notice(f"{status.doing}: cancelled", why_ended(status))
    if isinstance(event, JobCancelled):
        return Notice(f"{status.doing}: cancelled", "Nothing of it was kept.")
    return Notice(f"{status.doing}: failed", event.sentence, bad=True)


def why_ended(status: JobStatus) -> str:
    """Return the sentence on a task whose worker was taken away."""
    return f"{status.ended_by}; nothing of the file was kept."
