"""Work on files of models in a process of its own: merge, evaluate, mesh. A training goes on meanwhile."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path

from splatstudio.error_text import first_line, in_words
from splatstudio.evaluation.evaluate import ImageScore, measures_for
from splatstudio.files.durable import remove_partial
from splatstudio.files.outputs import make_folder
from splatstudio.models.merging import merged_parts
from splatstudio.models.scoring import EvaluationTask, Scored, evaluate_task
from splatstudio.operating_system import give_way
from splatstudio.runtime.fork_server import guarded_start, process_context
from splatstudio.runtime.stop_signals import hear_sigterm
from splatstudio.surfaces.make_mesh import WrittenMesh, mesh_of_task
from splatstudio.surfaces.mesh_options import MeshTask

NICENESS = 10  # a training beside it comes first


@dataclass(frozen=True)
class FileTask:
    """What to do: join `paths` and write them to `output`, evaluate, or both; or make a mesh."""

    title: str  # in words, for the page
    paths: tuple[Path, ...] = ()
    output: Path | None = None
    evaluation: EvaluationTask | None = None
    lpips: tuple[str, ...] = ()
    color_correct: bool = False
    mesh: MeshTask | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files and folders that it writes."""
        meshes = () if self.mesh is None else self.mesh.files
        return meshes if self.output is None else (self.output, *meshes)


@dataclass(frozen=True)
class TaskProgress:
    """How far a task is; total 0: not known."""

    done: int
    total: int
    what: str


@dataclass(frozen=True)
class TaskWritten:
    """What a task has written completely: it stays, however the task ends."""

    output: Path
    num_gaussians: int
    note: str = ""  # on what the file does not keep


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended: `error` is one sentence, None when all went well."""

    error: str | None = None
    cancelled: bool = False
    output: Path | None = None  # what was written, also by a task that failed or was cancelled after that
    num_gaussians: int | None = None  # of what was written
    note: str = ""  # on what that does not keep
    scored: Scored | None = None
    mesh: WrittenMesh | None = None


class FileWorker:
    """Runs one task at a time. Methods may be called from any thread."""

    def __init__(self, on_end: Callable[[FileTask, TaskEnd], None]) -> None:
        """Call `on_end` with each task's end, on a thread of its own."""
        self._on_end = on_end
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._thread: threading.Thread | None = None
        self._task: FileTask | None = None
        self._cancelled = False
        self._closed = False
        self.progress: TaskProgress | None = None

    @property
    def task(self) -> FileTask | None:
        """Return the task in progress, None when there is none."""
        return self._task

    def start(self, task: FileTask) -> bool:
        """Begin a task; False, and nothing is done, while another one is in progress.

        Raises OSError or RuntimeError where the machine has no process or thread for it.
        """
        with self._lock:
            if self._task is not None or self._closed:
                return False
            context = process_context()
            receiver, sender = context.Pipe(duplex=False)
            # daemon: it ends with the studio.
            process: BaseProcess = context.Process(  # type: ignore[attr-defined]
                target=file_task_main, args=(sender, task), name="splatstudio-files", daemon=True
            )
            thread = threading.Thread(
                target=self._follow, args=(receiver, task, process), name="files", daemon=True
            )
            self._task, self._cancelled, self.progress = task, False, TaskProgress(0, 0, "starting")
            try:
                with guarded_start():
                    process.start()
                thread.start()
            except BaseException:  # there are no more processes or threads: the next task may find some
                if process.pid is not None:
                    process.kill()
                receiver.close()
                sender.close()
                self._task = self.progress = None
                raise
            sender.close()
            self._process, self._thread = process, thread
        return True

    def cancel(self) -> None:
        """End the task in progress at once; what it was writing is removed, what it has written stays."""
        with self._lock:
            if self._process is not None:
                self._cancelled = True
                self._process.kill()

    def close(self) -> None:
        """End what is in progress; nothing can be started any more."""
        with self._lock:
            self._closed = True
        self.cancel()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(10.0)

    def _follow(self, receiver: Connection, task: FileTask, process: BaseProcess) -> None:
        end: TaskEnd | None = None
        output = num = None
        with receiver, contextlib.suppress(EOFError, OSError):
            while end is None:
                message = receiver.recv()
                if isinstance(message, TaskEnd):
                    end = message
                elif isinstance(message, TaskWritten):
                    output, num = message.output, message.num_gaussians
                else:
                    self.progress = message
        process.join()
        with self._lock:
            if self._cancelled and end is None:
                end = TaskEnd(cancelled=True, output=output, num_gaussians=num)
            self._process = self._task = self.progress = None
        if end is None:
            sentence = f"{task.title} ended unexpectedly (exit code {process.exitcode})."
            end = TaskEnd(error=sentence, output=output, num_gaussians=num)
        if end.error is not None or end.cancelled:
            _clear_away(task, process.pid)
        self._on_end(task, end)


def file_task_main(connection: Connection, task: FileTask) -> None:
    """Do a task and tell how far it is; the process's entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the studio's to understand
    hear_sigterm()
    give_way(NICENESS)
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    connection.send(_done(connection, task))
    connection.close()


def _done(connection: Connection, task: FileTask) -> TaskEnd:
    def report(done: int, total: int, what: str) -> None:
        connection.send(TaskProgress(done, total, what))

    def count(done: int, total: int, score: ImageScore | None) -> None:
        report(done, total, "loading the photos" if score is None else f"compared {score.name}")

    output = num = scored = mesh = None
    note = ""
    try:
        if task.output is not None:
            merged = merged_parts(task.paths, report)
            report(0, 0, f"writing {task.output.name}")
            make_folder(task.output.parent)
            exported = merged.write(task.output)
            output, num, note = exported.output, exported.num_gaussians, exported.note or ""
            connection.send(TaskWritten(output, num, note))
            del merged
        if task.evaluation is not None:
            report(0, 0, "loading the model")
            measures = measures_for(task.lpips, color_correct=task.color_correct)
            scored = evaluate_task(task.evaluation, measures, count)
        if task.mesh is not None:
            make_folder(task.mesh.output.parent)
            mesh = mesh_of_task(task.mesh, report)
            output = mesh.output
    except (ValueError, OSError) as error:
        return TaskEnd(error=in_words(error), output=output, num_gaussians=num)
    except (RuntimeError, MemoryError) as error:
        # torch tells of memory that it does not get by a RuntimeError.
        return TaskEnd(error=f"{task.title} failed: {first_line(error)}", output=output, num_gaussians=num)
    return TaskEnd(output=output, num_gaussians=num, note=note, scored=scored, mesh=mesh)


def _leave_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _clear_away(task: FileTask, pid: int | None) -> None:
    """Remove what a process that was killed left half-written."""
    for file in () if pid is None else task.files:
        remove_partial(file, pid)
        for entry in file.parent.glob(f".{glob.escape(file.name)}.tmp-{pid}"):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
