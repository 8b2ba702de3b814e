"""The long tasks of the page, of a worker or of a process of its own: how far each is, and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.status import Notice
from splatstudio.gui.theme import duration, size
from splatstudio.runtime.file_tasks import FileTask, FileWorker, TaskEnd
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
from splatstudio.runtime.supervisor import WorkerClient
from splatstudio.runtime.tasks import num_bytes, output_of

WATCH_SECONDS = 0.25  # between two looks at how far a task on files is

# While it is done, and afterwards.
_VERBS: dict[type[JobCommand], tuple[str, str]] = {
    Export: ("Exporting", "Exported"),
    RenderPath: ("Rendering", "Rendered"),
    Snapshot: ("Rendering", "Rendered"),
}


@dataclass(frozen=True, eq=False)
class TaskStatus:
    """A task as it is now. `kind` is by what a bar finds it: the type of a command, or who asked."""

    number: int
    kind: object
    doing: str  # as "Rendering orbit.mp4"
    what: str = ""  # what is done just now, where that is told
    done: int = 0
    total: int = 0  # 0: nobody can say
    eta_seconds: float | None = None
    end: Notice | None = None  # None: in progress
    file: Path | None = None  # that is complete
    num_bytes: int = 0  # of it

    @property
    def verb(self) -> str:
        """Return what is done, as "Rendering"."""
        return self.doing.partition(" ")[0]

    @property
    def percent(self) -> float:
        """Return how much of it is done, 0 while nobody can say."""
        return 100.0 * self.done / self.total if self.total else 0.0

    @property
    def text(self) -> str:
        """Return how far it is, or how it ended, in words."""
        if self.end is not None:
            return f"{self.end.title}. {self.end.text}".strip()
        if self.what:
            counted = f", {self.done:,} of {self.total:,}" if self.total else ""
            return f"{self.doing}: {self.what}{counted}"
        if self.total == 0:
            return f"{self.doing} …"
        if self.done >= self.total:
            return f"{self.doing}: finishing …"
        left = "" if self.eta_seconds is None else f", {duration(self.eta_seconds)} left"
        return f"{self.doing}: {self.done:,} of {self.total:,}{left}"


class TaskBoard:
    """The tasks of the page. Methods may be called from any thread."""

    def __init__(
        self,
        controller: Controller,
        notify: Callable[[Notice], None],
        changed: Callable[[], None] = lambda: None,
    ):
        """Call `changed` after each change of a task."""
        self._controller, self._notify, self._changed = controller, notify, changed
        self._tasks: dict[int, TaskStatus] = {}
        self._then: dict[int, Callable[[Any], None]] = {}
        self._workers: dict[int, WorkerClient] = {}  # of tasks that are not the training's worker's
        self._begun: dict[int, int] = {}  # of those that are: how often it had been replaced until then
        self._files: dict[str, FileWorker] = {}  # by who asks: each does one task at a time
        self._cancelled: set[int] = set()  # by the user
        self._numbers = count(1)
        self._lock = threading.RLock()

    def newest(self, kind: object) -> TaskStatus | None:
        """Return the newest task of a kind that is in progress, else the newest of all."""
        with self._lock:
            tasks = [status for status in self._tasks.values() if status.kind == kind]
        running = [status for status in tasks if status.end is None]
        return (running or tasks or [None])[-1]

    def is_busy(self, kind: object) -> bool:
        """Return whether a task of a kind is in progress."""
        newest = self.newest(kind)
        return newest is not None and newest.end is None

    @property
    def in_progress(self) -> TaskStatus | None:
        """Return the task that has been in progress for the longest, None where there is none."""
        with self._lock:
            return next((status for status in self._tasks.values() if status.end is None), None)

    def cancel(self, number: int) -> None:
        """Let a task end; what it was writing is removed."""
        with self._lock:
            status, worker = self._tasks[number], self._workers.get(number)
            self._cancelled.add(number)
        if isinstance(status.kind, str):
            self._files[status.kind].cancel()
        else:
            (worker or self._controller).send(CancelJob(number))

    def close(self) -> None:
        """End the tasks on files; those of a worker end with it."""
        for files in self._files.values():
            files.close()

    def _change(self, number: int, **values: Any) -> None:
        with self._lock:
            self._tasks[number] = replace(self._tasks[number], **values)
        self._changed()

    def _finish(self, number: int, end: object, notice: Notice, file: Path | None, num_bytes: int) -> None:
        """Note a task's end, tell it, and have who asked go on where it is complete."""
        with self._lock:
            then = self._then.pop(number, None)
        self._change(number, end=notice, file=file, num_bytes=num_bytes)
        self._notify(notice)
        if then is not None and isinstance(end, (JobDone, TaskEnd)):
            then(end)
            self._changed()

    # ---- tasks of a worker

    def submit(
        self,
        command: JobCommand,
        then: Callable[[JobDone], None] | None = None,
        worker: WorkerClient | None = None,
    ) -> TaskStatus | None:
        """Send a task to `worker`, by default the training's; `then` is called when it is done.

        None: there is no model yet.
        """
        if worker is None and not self._controller.status.has_model:
            self._notify(Notice("Not possible yet", "There is no model: start the training first.", bad=True))
            return None
        with self._lock:
            number = next(self._numbers)
            command = structs.replace(command, job=number)
            doing = f"{_VERBS[type(command)][0]} {output_of(command).name}"
            status = self._tasks[number] = TaskStatus(number, type(command), doing)
            if then is not None:
                self._then[number] = then
            unheard = worker is not None and worker not in self._workers.values()
            if worker is not None:
                self._workers[number] = worker
            else:
                self._begun[number] = len(self._controller.replacements)
        if worker is not None and unheard:
            worker.subscribe(self.follow)
        (worker or self._controller).send(command)
        self._changed()
        return status

    def follow(self, event: Event) -> None:
        """Take in an event of a worker."""
        if not isinstance(event, (JobProgress, JobDone, JobCancelled, JobFailed)):
            return
        status = self._tasks.get(event.job)
        if status is None:
            return
        if isinstance(event, JobProgress):
            self._change(event.job, done=event.done, total=event.total, eta_seconds=event.eta_seconds)
        elif isinstance(event, JobDone):
            verb, path = _VERBS[cast(type[JobCommand], status.kind)][1], event.path
            text = f"{path}. {event.note}" if event.note else str(path)
            notice = Notice(f"{verb} {path.name} ({size(event.num_bytes)})", text, bad=bool(event.note))
            self._finish(event.job, event, notice, path, event.num_bytes)
        else:
            self._finish(event.job, event, self._failure(status, event), None, 0)

    def _failure(self, status: TaskStatus, event: JobCancelled | JobFailed) -> Notice:
        taken_by = self._taken_by(event)
        if taken_by:
            return Notice(f"{status.doing}: cancelled", f"{taken_by}; nothing of the file was kept.")
        if isinstance(event, JobFailed):
            return Notice(f"{status.doing}: failed", event.sentence, bad=True)
        return Notice(f"{status.doing}: cancelled", "Nothing of it was kept.")

    def _taken_by(self, event: JobCancelled | JobFailed) -> str:
        """Return what took away the worker of a task that has ended, a clause, "" where nothing did."""
        if event.job in self._cancelled:
            return ""
        if event.job in self._workers:
            # Nobody else ends a task of a model that is shown in place of the training's.
            return "Its model was taken out of the view" if isinstance(event, JobCancelled) else ""
        for why in self._controller.replacements[self._begun[event.job] :]:
            return f"{why}, which put the model away"
        return ""

    # ---- tasks on files, in a process of their own; a training goes on meanwhile

    def start(self, asker: str, task: FileTask, then: Callable[[TaskEnd], None]) -> bool:
        """Begin a task on files, and call `then` at its end; False while another one of `asker` goes on."""
        with self._lock:
            if asker not in self._files:
                self._files[asker] = FileWorker(lambda task, end: self._file_task_ended(asker, task, end))
            files, number = self._files[asker], next(self._numbers)
            if not files.start(task):
                return False
            self._tasks[number] = TaskStatus(number, asker, task.title)
            self._then[number] = then
        threading.Thread(target=self._watch, args=(number, files), name="file-task", daemon=True).start()
        self._changed()
        return True

    def _watch(self, number: int, files: FileWorker) -> None:
        shown = None
        while self._tasks[number].end is None:
            progress = files.progress
            if progress is not None and progress is not shown:
                shown = progress
                self._change(number, what=progress.what, done=progress.done, total=progress.total)
            time.sleep(WATCH_SECONDS)

    def _file_task_ended(self, asker: str, task: FileTask, end: TaskEnd) -> None:
        with self._lock:  # a task that ends at once is on the board first
            number = next(status.number for status in self._tasks.values() if _is_running(status, asker))
        try:
            size_of_file = 0 if end.output is None else num_bytes(end.output)
        except OSError:  # it was taken away at once
            size_of_file = 0
        self._finish(number, end, notice_of_end(task, end), end.output, size_of_file)


def _is_running(status: TaskStatus, kind: object) -> bool:
    return status.kind == kind and status.end is None


def notice_of_end(task: FileTask, end: TaskEnd) -> Notice:
    """Return what to tell of the end of a task on files."""
    stays = "" if end.output is None else f"{end.output} is complete and stays."
    if end.cancelled:
        return Notice(f"{task.title}: cancelled", stays or "Nothing of it was kept.")
    if end.error is not None:
        return Notice(f"{task.title}: failed", f"{end.error} {stays}".rstrip(), bad=True)
    if end.scored is not None:
        title = task.title.replace("Evaluating", "Evaluated")
        psnr = end.scored.evaluation.psnr
        return Notice(f"{title}: PSNR {psnr:.2f} dB", str(end.scored.file or ""))
    assert end.output is not None
    splats = f" ({end.num_gaussians:,} splats)" if end.num_gaussians is not None else ""
    return Notice(f"Written {end.output.name}{splats}", str(end.output))
