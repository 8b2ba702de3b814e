"""The long tasks of the page, how far each is and how it ended, and all that the studio has told."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, cast

import viser
from msgspec import structs

from splatstudio.error_text import first_line, reason
from splatstudio.files.path_words import path_words
from splatstudio.gui.amounts import size
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.status import Notice
from splatstudio.gui.theme import ACCENT, duration
from splatstudio.runtime import messages
from splatstudio.runtime.file_tasks import FileTask, FileWorker, TaskEnd
from splatstudio.runtime.supervisor import WorkerClient
from splatstudio.runtime.tasks import num_bytes, output_of
from splatstudio.training.data.resolution import divisor_at, sh_degree_at

WATCH_SECONDS = 0.25  # between two looks at how far a task on files is

# While it is done, and afterward.
_VERBS: dict[type[messages.JobCommand], tuple[str, str]] = {
    messages.Export: ("Exporting", "Exported"),
    messages.RenderPath: ("Rendering", "Rendered"),
    messages.Snapshot: ("Rendering", "Rendered"),
}

NUM_KEPT = 200
MAX_MISSED_SHOWN = 4  # to who comes back; the others are in the Log tab

NOTABLE_GROWTH = 1.5  # times the number of splats that was told last, or less than one over it
NOTABLE_LOSS = 0.2  # of the splats that one change removes: told in any case
COARSENESSES = (1, 2, 3, 4, 6, 8)  # by which the sides of photos are divided, as they are told


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
    then: Callable[[Any], None] | None = None  # who asked goes on with this, where it is complete
    worker: WorkerClient | None = None  # whose task it is, None: the training's worker's, or a process's
    begun: int = 0  # how often the training's worker had been replaced until then
    cancelled: bool = False  # by the user
    ended: int = 0  # its place in the order in which tasks ended

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
        self._files: dict[str, FileWorker] = {}  # by who asks: each does one task at a time
        self._numbers, self._ends = count(1), count(1)
        self._lock = threading.RLock()

    def newest(self, kind: object) -> TaskStatus | None:
        """Return the newest task of a kind that is in progress, else the one that ended last."""
        with self._lock:
            tasks = [status for status in self._tasks.values() if status.kind == kind]
        running = [status for status in tasks if status.end is None]
        return running[-1] if running else max(tasks, key=lambda status: status.ended, default=None)

    def is_busy(self, kind: object) -> bool:
        """Return whether a task of a kind is in progress."""
        newest = self.newest(kind)
        return newest is not None and newest.end is None

    @property
    def in_progress(self) -> TaskStatus | None:
        """Return the task that has been in progress for the longest, None where there is none."""
        with self._lock:
            return next((status for status in self._tasks.values() if status.end is None), None)

    @property
    def of_the_view(self) -> TaskStatus | None:
        """Return a task in progress that ends where another model comes into the view, None without one.

        Those of a training go on while it does, behind whatever is in the view.
        """
        shown = self._controller.preview.worker
        if shown is None and self._controller.can_order:
            return None
        with self._lock:
            tasks = [task for task in self._tasks.values() if task.end is None and task.worker is shown]
        return next((task for task in tasks if not isinstance(task.kind, str)), None)

    def cancel(self, number: int) -> None:
        """Let a task end; what it was writing is removed."""
        status = self._change(number, cancelled=True)
        if isinstance(status.kind, str):
            self._files[status.kind].cancel()
        else:
            (status.worker or self._controller).send(messages.CancelJob(number))

    def close(self) -> None:
        """End the tasks on files; those of a worker end with it."""
        for files in self._files.values():
            files.close()

    def _change(self, number: int, **values: Any) -> TaskStatus:
        with self._lock:
            status = self._tasks[number] = replace(self._tasks[number], **values)
        self._changed()
        return status

    def _finish(self, number: int, end: object, notice: Notice, file: Path | None, num_bytes: int) -> None:
        """Note a task's end, tell it, and have who asked go on where it is complete."""
        with self._lock:
            ended = next(self._ends)
        then = self._change(number, end=notice, file=file, num_bytes=num_bytes, ended=ended).then
        self._notify(notice)
        if then is not None and isinstance(end, (messages.JobDone, TaskEnd)):
            try:
                then(end)
            except (ValueError, OSError) as error:  # the file may be gone by now
                self._notify(Notice("Not done", reason(error), bad=True))
            self._changed()

    # ---- tasks of a worker

    def submit(
        self,
        command: messages.JobCommand,
        then: Callable[[messages.JobDone], None] | None = None,
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
            unheard = worker is not None and all(each.worker is not worker for each in self._tasks.values())
            begun = len(self._controller.replacements)
            status = TaskStatus(number, type(command), doing, then=then, worker=worker, begun=begun)
            self._tasks[number] = status
        if worker is not None and unheard:
            worker.subscribe(self.follow)
        (worker or self._controller).send(command)
        self._changed()
        return status

    def follow(self, event: messages.Event) -> None:
        """Take in an event of a worker."""
        if not isinstance(
            event, (messages.JobProgress, messages.JobDone, messages.JobCancelled, messages.JobFailed)
        ):
            return
        status = self._tasks.get(event.job)
        if status is None:
            return
        if isinstance(event, messages.JobProgress):
            self._change(event.job, done=event.done, total=event.total, eta_seconds=event.eta_seconds)
        elif isinstance(event, messages.JobDone):
            verb, path = _VERBS[cast(type[messages.JobCommand], status.kind)][1], event.path
            text = f"{path_words(path)}. {event.note}" if event.note else path_words(path)
            notice = Notice(f"{verb} {path.name} ({size(event.num_bytes)})", text, bad=bool(event.note))
            self._finish(event.job, event, notice, path, event.num_bytes)
        else:
            self._finish(event.job, event, self._failure(status, event), None, 0)

    def _failure(self, status: TaskStatus, event: messages.JobCancelled | messages.JobFailed) -> Notice:
        taken_by = self._taken_by(status, event)
        if taken_by:
            return Notice(f"{status.doing}: cancelled", f"{taken_by}; nothing of the file was kept.")
        if isinstance(event, messages.JobFailed):
            return Notice(f"{status.doing}: failed", event.sentence, bad=True)
        return Notice(f"{status.doing}: cancelled", "Nothing of it was kept.")

    def _taken_by(self, status: TaskStatus, event: messages.JobCancelled | messages.JobFailed) -> str:
        """Return what took away the worker of a task that has ended, a clause, "" where nothing did."""
        if status.cancelled:
            return ""
        if status.worker is not None:
            # Nobody else ends a task of a model that is shown in place of the training's.
            ended = isinstance(event, messages.JobCancelled)
            return "Its model was taken out of the view" if ended else ""
        for why in self._controller.replacements[status.begun :]:
            return f"{why}, which put the model away"
        return ""

    # ---- tasks on files, in a process of their own; a training goes on meanwhile

    def start(self, asker: str, task: FileTask, then: Callable[[TaskEnd], None]) -> None:
        """Begin a task on files, and call `then` at its end.

        Raises ValueError while another one of `asker` goes on.
        """
        with self._lock:
            if asker not in self._files:
                self._files[asker] = FileWorker(lambda task, end: self._file_task_ended(asker, task, end))
            files, number = self._files[asker], next(self._numbers)
            if not files.start(task):
                raise ValueError("Another task is in progress.")
            self._tasks[number] = TaskStatus(number, asker, task.title, then=then)
        threading.Thread(target=self._watch, args=(number, files), name="file-task", daemon=True).start()
        self._changed()

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
            running = (status for status in self._tasks.values() if status.end is None)
            number = next(status.number for status in running if status.kind == asker)
        try:
            size_of_file = 0 if end.output is None else num_bytes(end.output)
        except OSError:  # it was taken away at once
            size_of_file = 0
        self._finish(number, end, notice_of_end(task, end), end.output, size_of_file)


def notice_of_end(task: FileTask, end: TaskEnd) -> Notice:
    """Return what to tell of the end of a task on files."""
    stays = "" if end.output is None else f"{path_words(end.output)} is complete and stays."
    if end.cancelled:
        return Notice(f"{task.title}: cancelled", stays or "Nothing of it was kept.")
    if end.error is not None:
        return Notice(f"{task.title}: failed", f"{end.error} {stays}".rstrip(), bad=True)
    if end.scored is not None:
        title = task.title.replace("Evaluating", "Evaluated")
        psnr = end.scored.evaluation.psnr
        return Notice(
            f"{title}: PSNR {psnr:.2f} dB", "" if end.scored.file is None else path_words(end.scored.file)
        )
    assert end.output is not None
    held = f" ({end.num_gaussians:,} splats)" if end.num_gaussians is not None else ""
    if end.mesh is not None:
        held = f" ({end.mesh.report.triangles:,} triangles)"
    return Notice(f"Written {end.output.name}{held}", path_words(end.output))


@dataclass(frozen=True)
class NewsItem:
    """Something that was told, and when."""

    time: datetime
    notice: Notice


class News:
    """Tells every browser; what is told while none is open waits for the next. Any thread may call."""

    def __init__(self, server: viser.ViserServer, changed: Callable[[], None] = lambda: None):
        """Call `changed` after each thing that is told or noted."""
        self._server, self._changed = server, changed
        self._items: deque[NewsItem] = deque(maxlen=NUM_KEPT)
        self._missed: list[Notice] = []
        # What does not go by itself, the last few.
        self._stays: dict[Notice, list[viser.NotificationHandle]] = {}
        self._lock = threading.Lock()
        server.on_client_connect(self._catch_up)

    @property
    def items(self) -> tuple[NewsItem, ...]:
        """Return what was told last, the newest at the end."""
        with self._lock:
            return tuple(self._items)

    def tell(self, notice: Notice) -> None:
        """Show a notice in every browser, and keep it.

        What goes wrong again and again, as a save on a full disk, is shown once: its newest time.
        """
        with self._lock:
            clients = list(self._server.get_clients().values())
            self._items.append(NewsItem(datetime.now(), notice))
            if not clients:
                others = [missed for missed in self._missed if missed != notice]
                self._missed = [*others, notice][-NUM_KEPT:]
            before = self._stays.pop(notice, [])
        for handle in before:
            handle.remove()
        shown = [_show(client, notice, stays=notice.bad) for client in clients]
        with self._lock:
            if notice.bad:
                self._stays[notice] = shown
                self._stays = dict(list(self._stays.items())[-NUM_KEPT:])
        self._changed()

    def withdraw(self, notice: Notice) -> None:
        """Show a notice no more, as it does not hold any longer; the Log tab keeps it."""
        with self._lock:
            self._missed = [missed for missed in self._missed if missed != notice]
            shown = self._stays.pop(notice, [])
        for handle in shown:
            handle.remove()

    def note(self, notice: Notice) -> None:
        """Keep a notice for the Log tab, without showing it to anybody."""
        with self._lock:
            self._items.append(NewsItem(datetime.now(), notice))
        self._changed()

    def tell_failure(self, error: BaseException) -> None:
        """Tell of what a button, a field or a key did not do because of `error`."""
        if isinstance(error, (ValueError, OSError)):  # what the user did, or what his disk did
            self.tell(Notice("Not done", str(error), bad=True))
            return
        sentence = (
            f"{type(error).__name__}: {first_line(error)}. Nothing else is touched; it is a mistake of the"
        )
        self.tell(Notice("Not done", f"{sentence} studio's, and the terminal has the details.", bad=True))

    def _catch_up(self, client: viser.ClientHandle) -> None:
        """Tell the first who comes what happened while nobody watched."""
        with self._lock:
            missed, self._missed = self._missed, []
        # What went wrong is said before what went well, and the newest of each.
        chosen = sorted(missed, key=lambda notice: notice.bad)[-MAX_MISSED_SHOWN:]
        for notice in missed:
            if any(notice is other for other in chosen):
                handle = _show(client, notice, stays=True)
                with self._lock:
                    self._stays.setdefault(notice, []).append(handle)
        if len(missed) > len(chosen):
            more = f"{len(missed) - len(chosen):,} more messages while nobody watched"
            _show(client, Notice(more, "They are in the Log tab."), stays=True)


def _show(client: viser.ClientHandle, notice: Notice, *, stays: bool) -> viser.NotificationHandle:
    return client.add_notification(
        notice.title,
        notice.text,
        auto_close_seconds=None if stays else 8.0,
        color="red" if notice.bad else ACCENT,
    )


class Milestones:
    """Follows the worker's events, and notes what is worth a line; each thing once."""

    def __init__(self, trained: Controller, note: Callable[[Notice], None]):
        self._trained = trained
        self._note = note
        self._num_train = 0
        self._told_splats = 0
        self._full = False  # whether it was told that the limit on the splats is reached
        self._degree = 0
        self._coarseness = 1

    def follow(self, event: messages.Event) -> None:
        """Take in an event of the worker, after the status has."""
        match event:
            case messages.Started():
                self._begin(event)
            case messages.Densified():
                self._grow(event)
            case messages.Progress(step=step):
                self._refine(step)
            case messages.Evaluated(step=step, psnr=psnr, ssim=ssim) if (
                self._trained.status.state == "training"
            ):
                self._tell(step, f"test PSNR {psnr:.2f} dB, SSIM {ssim:.4f}")
            case messages.StateChanged(state="paused", unsaved=False):
                self._tell(self._trained.status.step, "paused")

    def _tell(self, step: int, what: str) -> None:
        self._note(Notice(f"Step {step:,}: {what}", ""))

    def _begin(self, event: messages.Started) -> None:
        config = self._trained.project.config
        self._num_train, self._told_splats, self._full = event.num_train, event.num_gaussians, False
        self._degree = sh_degree_at(event.step, config, event.num_train)
        self._coarseness = _coarseness(divisor_at(event.step, config))
        verb = "goes on" if event.step else "begins"
        photos = f"{event.num_train:,} photos to learn from, {event.num_test:,} for the test"
        self._tell(event.step, f"training {verb} with {event.num_gaussians:,} splats; {photos}")
        if self._coarseness > 1:
            self._tell(event.step, f"photos at about 1/{self._coarseness} of their size at first")

    def _grow(self, event: messages.Densified) -> None:
        told = self._told_splats
        if event.change.opacities_reset:
            self._tell(event.step, "opacities lowered, so that unneeded splats can be removed")
        gone = event.change.pruned
        if gone > NOTABLE_LOSS * (event.num_gaussians + gone):
            self._tell(event.step, f"thinned by {gone:,} to {event.num_gaussians:,} splats")
            self._told_splats = event.num_gaussians
        elif not told / NOTABLE_GROWTH < event.num_gaussians < told * NOTABLE_GROWTH:
            verb = "grown" if event.num_gaussians > told else "thinned"
            self._tell(event.step, f"{verb} from {told:,} to {event.num_gaussians:,} splats")
            self._told_splats = event.num_gaussians
        if event.change.capped and not self._full:
            self._full = True
            self._tell(event.step, f"the limit on the number of splats is reached, {event.num_gaussians:,}")

    def _refine(self, step: int) -> None:
        config = self._trained.project.config
        if step >= config.steps:
            return  # no step comes that would have it
        coarseness = _coarseness(divisor_at(step, config))
        if coarseness < self._coarseness:
            size = "in full size" if coarseness == 1 else f"at about 1/{coarseness} of their size"
            self._tell(step, f"photos {size} from here on")
        self._coarseness = coarseness
        degree = sh_degree_at(step, config, self._num_train)
        if degree > self._degree:
            self._tell(step, f"more view-dependent color from here on (SH degree {degree})")
        self._degree = degree


def _coarseness(divisor: float) -> int:
    """Return the nearest of COARSENESSES that is not below `divisor`."""
    return next((each for each in COARSENESSES if divisor <= each), COARSENESSES[-1])
