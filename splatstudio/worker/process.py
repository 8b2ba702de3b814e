"""The background process: trains when told to, shows the model at any time, and says how it ended.

Threads: this one trains and obeys; one receives commands; one sends events; one renders frames; one waits for
the death of the parent; each job has one. None of them ever waits for the studio.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path

from splatstudio.worker.channel import FrameSlots, Outbox, SlotsFile
from splatstudio.worker.frames import FrameRenderer
from splatstudio.worker.jobs import Jobs
from splatstudio.worker.messages import (
    CancelJob,
    Close,
    Command,
    DropView,
    Event,
    Failed,
    Job,
    JobCommand,
    JobProgress,
    Progress,
    ReturnSlot,
    SetView,
    TrainJob,
)
from splatstudio.worker.reports import failure_sentence
from splatstudio.worker.training import Training
from splatstudio.worker.viewing import Viewing

ORPHAN_GRACE_SECONDS = 60.0  # for the last save after the studio has died

log = logging.getLogger("splatstudio.worker")


def worker_main(connection: Connection, slots_file: SlotsFile, job: Job, log_path: Path) -> None:
    """Run the worker until it is told to leave; the process's entry point."""
    # Ctrl-C reaches the whole foreground process group, but only the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect_output(log_path)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    log.info("worker %d starts: %s", os.getpid(), job)
    worker = Worker(connection, slots_file, job, log_path)
    signal.signal(signal.SIGTERM, lambda *_: worker.post(Close()))
    # An error in any thread is an error of the worker.
    threading.excepthook = lambda arguments: worker.post(_ThreadError(arguments.exc_value))
    _watch_parent(worker)
    try:
        worker.run()
    except Exception as error:
        log.error("%s", traceback.format_exc())
        worker.rescue(error)
        worker.emit(Failed(failure_sentence(error, job), worker.step, worker.log_path))
        worker.leave()
        sys.exit(1)
    worker.leave()
    log.info("worker leaves")


class _ThreadError(Command):
    """An exception that ended a thread, on its way to the main thread."""

    def __init__(self, error: BaseException | None):
        self.error = error


class Worker:
    """The main thread: one training or one finished model, and the orders about it."""

    def __init__(self, connection: Connection, slots_file: SlotsFile, job: Job, log_path: Path):
        self.log_path = log_path
        self._connection = connection
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outbox = Outbox(connection, "events")
        self._frames = FrameRenderer(FrameSlots.attach(slots_file), self.emit)
        self._jobs = Jobs(self.emit, lambda: self._activity.running)
        self._activity: Training | Viewing
        if isinstance(job, TrainJob):
            self._activity = Training(job, self.emit, self._frames.publish, self._log_into)
        else:
            self._activity = Viewing(job, self.emit, self._frames.publish)
        threading.Thread(target=self._receive, name="commands", daemon=True).start()

    @property
    def step(self) -> int:
        """Return the training step reached, 0 where nothing is trained."""
        return self._activity.step

    def post(self, command: Command) -> None:
        """Queue an order for the main thread; may be called from any thread and from signal handlers."""
        self._commands.put(command)

    def emit(self, event: Event) -> None:
        """Send an event; never waits."""
        key = None
        if isinstance(event, Progress):
            key = ("progress", 0)
        elif isinstance(event, JobProgress):
            key = ("job", event.job)
        self._outbox.put(event, key)

    def run(self) -> None:
        """Obey until Close."""
        self._activity.begin()
        while True:
            command = self._next_command()
            if isinstance(command, _ThreadError):
                assert command.error is not None
                raise command.error
            if isinstance(command, Close):
                break
            if command is None:
                self._activity.advance()
            elif isinstance(command, JobCommand):
                self._jobs.start(command, self._activity.model_copy())
            else:
                self._activity.execute(command)
        self._activity.close()

    def rescue(self, error: Exception) -> None:
        """Save what can be saved before `error` ends the worker."""
        self._activity.rescue(error)

    def leave(self) -> None:
        """End the jobs, send what is left to send and stop the threads."""
        self._jobs.close()
        self._frames.close()
        self._outbox.flush(5.0)
        self._outbox.close()

    def _log_into(self, path: Path) -> None:
        """Go on with the log in the run's folder, once there is one."""
        redirect_output(path)
        self.log_path = path
        log.info("worker %d trains here", os.getpid())

    def _next_command(self) -> Command | None:
        """Return the next order; None when there is a step to train instead of waiting."""
        try:
            return self._commands.get(block=not self._activity.running)
        except queue.Empty:
            return None

    def _receive(self) -> None:
        """Serve view requests and cancelled jobs at once; hand everything else to the main thread."""
        while True:
            try:
                command = self._connection.recv()
            except (EOFError, OSError):
                self.post(Close())
                return
            if isinstance(command, SetView):
                self._frames.request(command)
            elif isinstance(command, DropView):
                self._frames.drop(command.view)
            elif isinstance(command, ReturnSlot):
                self._frames.return_slot(command.slot)
            elif isinstance(command, CancelJob):
                self._jobs.cancel(command.job)
            else:
                self.post(command)


def redirect_output(log_path: Path) -> None:
    """Send everything that this process prints, native code included, to the log file."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _watch_parent(worker: Worker) -> None:
    """Save and leave when the parent dies, however it dies."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        log.warning("the studio is gone: saving and leaving")
        worker.post(Close())
        timer = threading.Timer(ORPHAN_GRACE_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()

    threading.Thread(target=watch, name="parent", daemon=True).start()
