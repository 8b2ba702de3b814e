"""The other end of the worker: starts it, gives orders, hears its events, notices its death."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np

from splatstudio.worker.channel import FrameSlots, Outbox
from splatstudio.worker.messages import (
    Close,
    Command,
    DropView,
    Event,
    Failed,
    Finished,
    Frame,
    Job,
    ModelLoaded,
    Progress,
    ReturnSlot,
    Saved,
    SetView,
    Started,
    State,
    StateChanged,
    TrainJob,
    Warned,
)
from splatstudio.worker.open_jobs import OpenJobs
from splatstudio.worker.process import worker_main
from splatstudio.worker.reports import death_sentence


@dataclass(frozen=True, eq=False)
class ReceivedFrame:
    """A frame and its image, [height, width, 3] uint8, which belongs to the receiver."""

    frame: Frame
    image: np.ndarray


def _process_context() -> BaseContext:
    """Return how workers are started: forked from a server that has torch loaded, where that exists."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["splatstudio.worker.process"])
    return context


class WorkerClient:
    """A worker process and the wires to it.

    Events are handed to the subscribers on a thread of the client's own, in order, and kept for `poll`.
    """

    def __init__(self, job: Job):
        self.job = job
        self.state: State = "starting"
        self.step = 0
        # The run's folder is made when the training starts; what is printed before goes here.
        descriptor, name = tempfile.mkstemp(prefix="splatstudio-", suffix=".log")
        os.close(descriptor)
        self._first_log = Path(name)
        self._events: deque[Event] = deque(maxlen=10_000)
        self._frames: dict[int, ReceivedFrame] = {}
        self._changed = threading.Condition()
        self._subscribers: list[Callable[[Event], None]] = []
        self._jobs = OpenJobs()
        self._closing = False
        self._last_word: Failed | Finished | None = None
        context = _process_context()
        self._slots = FrameSlots.create()
        self._connection, self._child_end = context.Pipe()
        self._outbox = Outbox(self._connection, "orders")
        # daemon: a studio that ends in disorder ends the worker by SIGTERM, at which it saves and leaves.
        self._process = context.Process(  # type: ignore[attr-defined]
            target=worker_main,
            args=(self._child_end, self._slots.file, job, self._first_log),
            name="splatstudio-worker",
            daemon=True,
        )
        self._reader = threading.Thread(target=self._read, name="events", daemon=True)

    def start(self) -> WorkerClient:
        """Start the process; it says StateChanged("ready") or ("viewing") when it is there."""
        self._process.start()
        self._child_end.close()
        self._reader.start()
        return self

    @property
    def log_path(self) -> Path:
        """Return the file with everything that the worker printed."""
        if isinstance(self.job, TrainJob):
            path = self.job.run_dir / "logs" / "worker.log"
            if path.exists():
                return path
        return self._first_log

    @property
    def pid(self) -> int:
        """Return the worker's process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Say whether the process runs and has been started."""
        return self._reader.is_alive()

    def send(self, command: Command) -> None:
        """Give an order; never waits. After the worker's end it has no effect."""
        self._jobs.sent(command)
        self._outbox.put(command, key=("view", command.view) if isinstance(command, SetView) else None)

    def subscribe(self, subscriber: Callable[[Event], None]) -> None:
        """Call `subscriber` with every event from now on; it must return quickly."""
        self._subscribers.append(subscriber)

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """Return the events since the last poll, waiting up to `timeout` seconds for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._events, timeout)
            events = list(self._events)
            self._events.clear()
            return events

    def wait_for_frame(self, view: int, seq: int, timeout: float) -> ReceivedFrame | None:
        """Return the frame that answers SetView `seq` or a later one; None when it does not come in time."""

        def answer() -> ReceivedFrame | None:
            received = self._frames.get(view)
            return received if received is not None and received.frame.seq >= seq else None

        with self._changed:
            self._changed.wait_for(lambda: answer() or self.state in ("failed", "ended"), timeout)
            return answer()

    def drop_view(self, view: int) -> None:
        """Forget a view here and in the worker."""
        self.send(DropView(view))
        with self._changed:
            self._frames.pop(view, None)

    def close(self, timeout: float = 60.0) -> None:
        """Let the worker save and leave; after `timeout` seconds it is killed."""
        self._closing = True
        self.send(Close())
        self._reader.join(timeout)
        if self.alive:
            self.kill()

    def kill(self) -> None:
        """End the worker at once; unsaved steps are lost."""
        self._process.kill()
        self._reader.join(10.0)

    def _read(self) -> None:
        while True:
            ready = wait([self._connection, self._process.sentinel])
            if self._connection not in ready:
                break
            try:
                event = self._connection.recv()
            except (EOFError, OSError):
                break
            self._receive(event)
        # Only this thread asks for the exit code: the fork server tells it once.
        self._process.join()
        self._report_death()
        self._slots.unlink()
        self._outbox.close()
        self._connection.close()

    def _receive(self, event: Event) -> None:
        self._jobs.heard(event)
        if isinstance(event, Frame):
            image = self._slots.view(event.slot, event.height, event.width).copy()
            self.send(ReturnSlot(event.slot))
            with self._changed:
                self._frames[event.view] = ReceivedFrame(event, image)
                self._changed.notify_all()
            return
        if isinstance(event, StateChanged):
            self.state = event.state
            # Both processes have the file open by now: it needs no name any more.
            self._slots.unlink()
        elif isinstance(event, (Progress, Started, ModelLoaded, Saved)):
            self.step = event.step or 0
        if isinstance(event, Started):
            self._last_word = None
        elif isinstance(event, (Finished, Failed)):
            self._last_word = event
            self.step = event.step
        if isinstance(event, Failed):
            self.state = "failed"
        self._hand_out(event)

    def _hand_out(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
        for subscriber in self._subscribers:
            subscriber(event)

    def _report_death(self) -> None:
        """Say how the worker ended if it did not say so itself."""
        exitcode = self._process.exitcode
        for failed in self._jobs.abandon(self._process.pid):
            self._receive(failed)
        if isinstance(self._last_word, Failed):
            return
        if self._closing and exitcode == 0:
            self._receive(StateChanged("ended"))
            self._first_log.unlink(missing_ok=True)
            return
        sentence = death_sentence(exitcode, self.job)
        if isinstance(self._last_word, Finished):
            # The training had its last word; only the view of its result is gone.
            self._receive(Warned(sentence))
            self._receive(StateChanged("ended"))
        else:
            self._receive(Failed(sentence, self.step, self.log_path))
