"""What a process that takes another one's place must be told, to be where that one was."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from splatstudio.worker.messages import (
    Command,
    DropView,
    Event,
    Finished,
    Job,
    Pause,
    Resume,
    SettingChanged,
    SetView,
    Start,
    StateChanged,
    Step,
    Stop,
    TrainJob,
)


class StandingOrders:
    """The orders that still hold: whether to train, the live settings, the newest view of each browser.

    Methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._started = False
        self._paused = False
        self._views: dict[int, SetView] = {}
        self._settings: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def started(self) -> bool:
        """Say whether the training was told to start."""
        return self._started

    @property
    def paused(self) -> bool:
        """Say whether the training was told to stand still."""
        return self._paused

    def sent(self, command: Command) -> None:
        """Note an order that goes to the worker."""
        with self._lock:
            if isinstance(command, SetView):
                self._views[command.view] = command
            elif isinstance(command, DropView):
                self._views.pop(command.view, None)
            elif isinstance(command, Start):
                self._started, self._paused = True, False
            elif isinstance(command, (Pause, Stop)):
                self._paused = True
            elif isinstance(command, (Resume, Step)):
                self._paused = False

    def heard(self, event: Event) -> None:
        """Note an event that has come from the worker."""
        with self._lock:
            if isinstance(event, SettingChanged):
                self._settings[event.path] = event.value
            elif isinstance(event, StateChanged) and event.state in ("paused", "training"):
                # It may have paused by itself: after the last step of a Step, on a full disk.
                self._paused = event.state == "paused"
            elif isinstance(event, Finished):
                self._paused = True

    def again(self) -> list[Command]:
        """Return the orders for the new process."""
        with self._lock:
            orders: list[Command] = []
            if self._started:
                orders.append(Start())
                if self._paused:
                    orders.append(Pause())
            return [*orders, *self._views.values()]

    def job_again(self, job: Job, checkpoint: Path | None) -> Job:
        """Return the job of the new process: from `checkpoint` on, with the live settings as they were."""
        if not isinstance(job, TrainJob):
            return job
        with self._lock:
            settings = tuple(self._settings.items())
        return replace(job, checkpoint=checkpoint, settings=settings, attempt=job.attempt + 1)
