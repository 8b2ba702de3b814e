"""Long tasks beside the training: each on its own copy of the model, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from splatstudio.cameras.camera import Camera
from splatstudio.error_text import first_line
from splatstudio.files.durable import partial_path, remove_partial, sync_file
from splatstudio.files.outputs import make_folder
from splatstudio.kernels import ops
from splatstudio.models.exporter import ExportedModel, ExportRequest, write_model, write_refined
from splatstudio.models.model import Model
from splatstudio.models.video import write_frames, write_picture
from splatstudio.operating_system import sync_folder
from splatstudio.rendering.render import render_image
from splatstudio.runtime.messages import (
    Event,
    Export,
    Exported,
    JobCancelled,
    JobCommand,
    JobDone,
    JobFailed,
    JobProgress,
    RenderPath,
    Snapshot,
    ViewOptions,
    Warned,
)
from splatstudio.runtime.shared_views import Cancelled, CopyDrawer
from splatstudio.runtime.view_renderer import Painter

MAX_JOBS = 4  # at a time: each holds a copy of the model
PROGRESS_SECONDS = 0.2  # at most five JobProgress events a second
CLOSE_SECONDS = 20.0  # for a task to notice that it was cancelled

log = logging.getLogger("splatstudio.runtime")


class Task:
    """A job in progress: its thread's way to tell how far it is and to ask whether to go on."""

    def __init__(self, command: JobCommand, emit: Callable[[Event], None], num_threads: Callable[[], int]):
        self.command = command
        self.emit = emit
        self.num_threads = num_threads
        self.cancelled = threading.Event()
        self.note = ""  # on what its file does not keep
        self.thread: threading.Thread | None = None
        self._started = time.monotonic()
        self._due = 0.0

    def progress(self, done: int, total: int) -> None:
        """Tell how far the job is; not every call is passed on."""
        now = time.monotonic()
        if now < self._due and done < total:
            return
        self._due = now + PROGRESS_SECONDS
        eta = (now - self._started) / done * (total - done) if done > 0 else None
        self.emit(JobProgress(self.command.job, done, total, eta))


class Tasks:
    """The long tasks of a worker: started on its main thread, cancelled from any."""

    def __init__(self, emit: Callable[[Event], None], training: Callable[[], bool]):
        self._emit = emit
        self._training = training
        self._tasks: list[Task] = []  # numbers are their senders' own: two may have the same one
        self._unwanted: set[int] = set()  # cancelled before they began
        self._abandoned = False
        self._lock = threading.Lock()

    def start(self, command: JobCommand, model_copy: Callable[[], Model | CopyDrawer | None]) -> None:
        """Begin a job on what `model_copy` returns, its own to keep; None: there is no model yet.

        A job that is refused copies nothing; one without memory for its copy fails alone.
        """
        with self._lock:
            unwanted = command.job in self._unwanted
        if unwanted:
            self._emit(JobCancelled(command.job))
            return
        refusal = self._refusal(command)
        model = None
        if refusal is None:
            try:
                model = model_copy()
                refusal = "There is no model yet; press Start first."
            except (MemoryError, RuntimeError) as error:
                # torch tells of memory that it does not get by a RuntimeError.
                log.exception("no copy of the model for job %d", command.job)
                refusal = f"The model could not be copied for this task: {first_line(error)}"
        if model is None:
            self._emit(JobFailed(command.job, refusal or ""))
            return
        task = Task(command, self._emit, self._num_threads)
        task.thread = threading.Thread(
            target=self._run, args=(task, model), name=f"job-{command.job}", daemon=True
        )
        with self._lock:
            self._tasks.append(task)
        task.progress(0, 0)
        try:
            task.thread.start()
        except RuntimeError as error:  # the machine has no more threads: no reason to end a training
            self._end(task, model, JobFailed(command.job, f"This task could not be started: {error}."))

    def cancel(self, job: int) -> None:
        """Let a job end as soon as it can, also one that has still to be started."""
        with self._lock:
            tasks = [task for task in self._tasks if task.command.job == job]
            self._unwanted.add(job)
        for task in tasks:
            task.cancelled.set()

    def abandon(self) -> None:
        """Say nothing of the jobs that `close` will cut off, because this process fails.

        Nobody has cancelled them: who started this process tells of their failure, and of the reason.
        """
        self._abandoned = True

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Cancel all jobs and wait for their ends, `timeout` seconds at most; nothing half-written stays."""
        with self._lock:
            tasks = list(self._tasks)
        deadline = time.monotonic() + timeout
        for task in tasks:
            task.cancelled.set()
        for task in tasks:
            assert task.thread is not None
            task.thread.join(max(0.0, deadline - time.monotonic()))
            if task.thread.is_alive():
                remove_partial(output_of(task.command))

    def _refusal(self, command: JobCommand) -> str | None:
        with self._lock:
            running = [task.command for task in self._tasks]
        if len(running) >= MAX_JOBS:
            return f"{len(running)} tasks are running already; wait for one of them, or cancel it."
        output = output_of(command)
        if any(output_of(other) == output for other in running):
            return f"{output} is being written already; name another file."
        return None

    def _num_threads(self) -> int:
        """Return how many threads a job may use now: a training may be slowed, not stopped."""
        threads = torch.get_num_threads()
        return max(1, threads // 2) if self._training() else threads

    def _run(self, task: Task, model: Model | CopyDrawer) -> None:
        torch.set_grad_enabled(False)  # holds for this thread alone
        job, output = task.command.job, output_of(task.command)
        try:
            with ops.limited_threads(self._num_threads()):
                done = _WORK[type(task.command)](task, model)
            end = JobDone(job, output, num_bytes(output), task.note) if done else JobCancelled(job)
        except Cancelled:
            end = JobCancelled(job)
        except (ValueError, OSError) as error:
            end = JobFailed(job, str(error))
        except Exception as error:
            # Whatever it is: a job has its own copy of the model, and the training beside it goes on. Torch
            # tells of memory by a RuntimeError, and the errors of PyAV have classes of their own.
            log.exception("job %d failed", job)
            end = JobFailed(job, f"{output} could not be written: {first_line(error)}")
        self._end(task, model, end)

    def _end(self, task: Task, model: Model | CopyDrawer, end: Event) -> None:
        if isinstance(model, CopyDrawer):
            model.close()
        with self._lock:
            self._tasks.remove(task)
            cut_off = self._abandoned and task.command.job not in self._unwanted
        if cut_off and isinstance(end, JobCancelled):
            log.info("%s: cut off", output_of(task.command))
            return
        log.info("%s: %s", output_of(task.command), _told(end))
        self._emit(end)


def _told(end: Event) -> str:
    """Return the end of a task for the log, which people read."""
    if isinstance(end, JobDone):
        return f"complete, {end.num_bytes:,} bytes"
    return end.sentence if isinstance(end, JobFailed) else "cancelled"


def _drawing(
    task: Task, model: Model | CopyDrawer, cameras: Sequence[Camera], options: ViewOptions | None
) -> Callable[[Camera], np.ndarray]:
    """Return what draws `cameras`, one after the other."""
    if isinstance(model, CopyDrawer):
        return model.of(cameras, options, task.cancelled.is_set)
    painter = Painter()

    def draw(camera: Camera) -> np.ndarray:
        # Asked for each picture: a training may be paused or go on meanwhile.
        with ops.limited_threads(task.num_threads()):
            if options is None:
                return render_image(model.gaussians, camera, model.options)
            return painter.paint(model.gaussians, camera, model.options, options).picture.image

    return draw


def output_of(command: JobCommand) -> Path:
    """Return the file or folder that a job writes."""
    assert isinstance(command, (Export, RenderPath, Snapshot)), f"{command} writes nothing"
    return command.path if isinstance(command, Export) else command.output


def cameras_beside(path: Path) -> Path:
    """Return a free name for the cameras of a model that is exported to `path`.

    It begins with the whole name of the model: scene.ply and scene.spz each have cameras of their own.
    """
    free, number = path.with_name(f"{path.name}.cameras.json"), 2
    while free.exists():
        free, number = path.with_name(f"{path.name}-{number}.cameras.json"), number + 1
    return free


def num_bytes(path: Path) -> int:
    """Return the size of a file, or of the files in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir())
    return path.stat().st_size


def _render_path(task: Task, model: Model | CopyDrawer) -> bool:
    command = task.command
    assert isinstance(command, RenderPath)
    cameras = command.path.cameras()
    return write_frames(
        _drawing(task, model, cameras, command.options),
        cameras,
        command.output,
        fps=command.path.fps,
        quality=command.quality,
        on_frame=lambda number, _: task.progress(number, len(cameras)),
        should_stop=task.cancelled.is_set,
    )


def _take_snapshot(task: Task, model: Model | CopyDrawer) -> bool:
    command = task.command
    assert isinstance(command, Snapshot)
    image = _drawing(task, model, [command.camera], command.options)(command.camera)
    return _complete(task, command.output, lambda partial: write_picture(partial, image))


def _export(task: Task, model: Model | CopyDrawer) -> bool:
    command = task.command
    assert isinstance(command, Export) and isinstance(model, Model), "a file has the whole model"
    request = ExportRequest(
        trim=command.trim,
        upright=command.upright,
        normals=command.normals,
        eyes=[np.asarray(eye) for eye in command.eyes],
        first=command.first,
        title=command.path.stem,  # the name under which it is written first is none
    )
    written: list[ExportedModel] = []
    done = _complete(task, command.path, lambda partial: written.append(write_model(model, partial, request)))
    if done:
        (exported,) = written
        notes = list(exported.notes)
        if command.cameras:
            try:
                beside = cameras_beside(command.path)
                notes += write_refined(model, beside, command.cameras, upright=command.upright)
            except OSError as error:
                # The model itself is complete.
                why = error.strerror or error
                task.emit(Warned(f"{command.path} is written, but not the cameras beside it ({why})."))
        task.note = " ".join(notes)
        task.emit(Exported(command.path, exported.num_gaussians, num_bytes(command.path)))
    return done


def _complete(task: Task, output: Path, write: Callable[[Path], object]) -> bool:
    """Write `output` under another name first; return False, with nothing left of it, when cancelled."""
    partial = partial_path(output)
    try:
        make_folder(output.parent)
        remove_partial(output)
        write(partial)
        sync_file(partial)
        if task.cancelled.is_set():
            return False
        partial.replace(output)
        sync_folder(output.parent)
    except OSError as error:
        raise ValueError(f"{output} could not be written ({error.strerror or error})") from error
    except ValueError as error:
        # Nobody knows the name under which it is written first.
        raise ValueError(str(error).replace(str(partial), str(output))) from error
    finally:
        remove_partial(output)
    return True


_WORK: dict[type[JobCommand], Callable[[Task, Model | CopyDrawer], bool]] = {
    Export: _export,
    RenderPath: _render_path,
    Snapshot: _take_snapshot,
}
