"""A worker on a real tiny scene and what it has told: what the tests of the background process share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from splatstudio.cameras.camera import Camera
from splatstudio.runtime import messages
from splatstudio.runtime.supervisor import ONE_RANK, Plan, WorkerClient
from splatstudio.runtime.tasks import Tasks
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

TIMEOUT = 120.0  # for anything to happen on a busy machine
E = TypeVar("E", bound=messages.Event)
MANY = TrainConfig(steps=100_000, eval_steps=(), save_steps=(), sh_degree=1)


class Watcher:
    """A worker client and all events it has told so far."""

    def __init__(self, client: WorkerClient):
        self.client = client
        self.events: list[messages.Event] = []

    def wait(self, kind: type[E], wanted: Callable[[E], bool] = lambda _: True) -> E:
        """Return the next event of a kind; those before it are kept in `events`."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            for event in self.take():
                if isinstance(event, kind) and wanted(event):
                    return event
        raise AssertionError(f"no {kind.__name__} came; there were {self.events[-10:]}")

    def send(self, command: messages.Command) -> None:
        self.client.send(command)

    def reach(self, state: messages.State) -> None:
        """Wait until the worker tells that it has come to a state."""
        self.wait(messages.StateChanged, lambda event: event.state == state)

    def start(self) -> Watcher:
        """Start the training, and return this."""
        self.send(messages.Start())
        return self

    def pause(self) -> None:
        """Pause, and wait until it stands still."""
        self.send(messages.Pause())
        self.reach("paused")

    def save(self) -> messages.Saved:
        """Save, and return what is told of that."""
        self.send(messages.Save())
        return self.wait(messages.Saved)

    def take(self) -> Iterator[messages.Event]:
        """Yield the events one by one as they come, for a moment."""
        if not hasattr(self, "_pending"):
            self._pending: list[messages.Event] = []
        self._pending += self.client.poll(0.2)
        while self._pending:
            event = self._pending.pop(0)
            self.events.append(event)
            yield event

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind so far."""
        return [event for event in self.events if isinstance(event, kind)]


class Launch(Protocol):
    """Starts a worker for a job; the fixture `launch` is one."""

    def __call__(self, job: messages.Job, plan: Plan = ...) -> Watcher: ...


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start workers; whatever is left of them is ended after the test."""
    watchers: list[Watcher] = []

    def start(job: messages.Job, plan: Plan = ONE_RANK) -> Watcher:
        watchers.append(Watcher(WorkerClient(job, plan).start()))
        return watchers[-1]

    yield start
    for watcher in watchers:
        if watcher.client.alive:
            watcher.client.kill()
        watcher.client._first_log.unlink(missing_ok=True)  # it stays where it tells of a failure


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds; `what` says what never happened otherwise."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)


def front_camera(scene: Scene) -> Camera:
    """Return the camera of a training photo, twice as large."""
    return scene.cameras[1].resized(96, 80)


def finish(jobs: Tasks) -> None:
    for task in list(jobs._tasks):
        assert task.thread is not None
        task.thread.join()


def train(launch: Launch, job: messages.TrainJob, plan: Plan = ONE_RANK) -> Watcher:
    """Return a worker that trains and has a checkpoint."""
    worker = launch(job, plan)
    worker.client.send(messages.Start())
    worker.wait(messages.Progress)
    worker.client.send(messages.Save())
    worker.wait(messages.Saved)
    return worker


def states(worker: Watcher, since: int = 0) -> list[str]:
    return [event.state for event in worker.events[since:] if isinstance(event, messages.StateChanged)]
