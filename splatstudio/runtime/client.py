"""The other end of the worker: gives orders, hears its events, keeps its newest frames."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.runtime.channel.hub import Hub
from splatstudio.runtime.messages import (
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
    Saved,
    SetView,
    Started,
    State,
    StateChanged,
    TrainJob,
)
from splatstudio.runtime.process_setup import log_of
from splatstudio.runtime.rank import activity_of, rank_main
from splatstudio.runtime.remote_run import RemotePlan
from splatstudio.runtime.supervisor import Plan

LOADING_PATIENCE_SECONDS = 5.0  # for a worker that is told to leave and has nothing to save

log = logging.getLogger(__name__)

ONE_RANK = Plan(rank_main, activity_of)


def plan_for(job: Job, devices: RankDevices) -> Plan:
    """Return how a job is done on some devices: a training by one rank on each, all else by one."""
    devices = devices if isinstance(job, TrainJob) else devices.alone()
    return Plan(rank_main, activity_of, devices.num_ranks, devices=devices)


@dataclass(frozen=True, eq=False)
class ReceivedFrame:
    """A frame and its image, [height, width, 3] uint8, which belongs to the receiver."""

    frame: Frame
    image: np.ndarray


class WorkerClient:
    """A worker: one process, or another one in its place when it dies.

    Or a training that runs elsewhere, by a RemotePlan. It is a client of the training's hub, as are the
    remote clients of one that a launcher started. Events are handed to the subscribers on a thread of the
    supervisor's, in order, and kept for `poll`.
    """

    def __init__(self, job: Job, plan: Plan | RemotePlan = ONE_RANK):
        self.state: State = "starting"
        self.step = 0
        # The run's folder is made when the training starts; what is printed before goes here.
        descriptor, name = tempfile.mkstemp(prefix="splatstudio-", suffix=".log")
        os.close(descriptor)
        self._first_log = Path(name)
        # Also where nobody closes this, as when the studio ends by an error.
        weakref.finalize(self, _remove_empty, self._first_log)
        self._run_log = log_of(job.run_dir) if isinstance(job, TrainJob) else None
        self._events: deque[Event] = deque(maxlen=10_000)
        self._frames: dict[int, ReceivedFrame] = {}
        self._views: set[int] = set()  # that somebody has asked for and not dropped
        self._changed = threading.Condition()
        self._subscribers: list[Callable[[Event], None]] = []
        hub = Hub(lambda command: self._supervisor.send(command))
        self._supervisor = plan.supervise(job, lambda: self.log_path, hub)
        self._place = hub.connect(self)

    def start(self) -> WorkerClient:
        """Start the process; it says StateChanged("ready") or ("viewing") when it is there."""
        self._supervisor.start()
        return self

    @property
    def job(self) -> Job:
        """Return the job; after a restart it begins at the checkpoint that was the newest then."""
        return self._supervisor.job

    @property
    def log_path(self) -> Path:
        """Return the file with everything that the worker printed."""
        if self._run_log is not None and self._run_log.exists():
            return self._run_log
        return self._first_log

    @property
    def pid(self) -> int:
        """Return the process id of rank 0."""
        return self._supervisor.pids[0]

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the ranks, rank 0 first; empty before `start`."""
        return self._supervisor.pids

    @property
    def alive(self) -> bool:
        """Return whether the worker has been started and has not ended for good."""
        return self._supervisor.alive

    @property
    def will_pause(self) -> bool | None:
        """Return whether a training will stand still once all orders are obeyed.

        None: it was not told to start, or orders that are given while there is no process are not kept for
        the next one.
        """
        return self._supervisor.will_pause

    def send(self, command: Command) -> None:
        """Give an order; never waits. After the worker's end it has no effect."""
        if isinstance(command, SetView):
            with self._changed:
                self._views.add(command.view)
        self._place.send(command)

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
            self._views.discard(view)
            self._frames.pop(view, None)

    def close(self, timeout: float = 60.0) -> None:
        """Let the worker save and leave; kill it after `timeout` seconds, a few where nothing is unsaved."""
        unsaved = self.state in ("training", "paused")
        self.send(Close())
        self._supervisor.join(timeout if unsaved else min(timeout, LOADING_PATIENCE_SECONDS))
        if self.alive:
            self._supervisor.kill(quietly=not unsaved)
            self._supervisor.join(10.0)
        self._forget_first_log(failed=self.state == "failed")

    def kill(self) -> None:
        """End the worker at once; unsaved steps are lost."""
        failed = self.state == "failed"
        self._supervisor.kill()
        self._supervisor.join(10.0)
        self._forget_first_log(failed=failed)

    def _forget_first_log(self, *, failed: bool) -> None:
        """Remove what was printed before there was a run, unless it tells of a failure."""
        told_of = failed and self.log_path == self._first_log
        if not self.alive and not (told_of and self._first_log.exists() and self._first_log.stat().st_size):
            self._first_log.unlink(missing_ok=True)

    def take_frame(self, frame: Frame, image: np.ndarray) -> None:
        """Keep the newest frame of each view; for the hub."""
        with self._changed:
            if frame.view in self._views:  # or nobody looks any more
                self._frames[frame.view] = ReceivedFrame(frame, image)
                self._changed.notify_all()

    def receive(self, event: Event) -> None:
        """Follow an event and hand it out; for the hub."""
        if isinstance(event, StateChanged):
            self.state = event.state
        elif isinstance(event, (Progress, Started, ModelLoaded, Saved, Finished)):
            self.step = event.step or 0
        elif isinstance(event, Failed):
            self.state, self.step = "failed", event.step
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # it runs on the supervisor's thread, which must live to hear the worker
                log.exception("a listener failed with %s", type(event).__name__)


def _remove_empty(file: Path) -> None:
    with contextlib.suppress(OSError):  # it is gone already
        if file.stat().st_size == 0:
            file.unlink()
