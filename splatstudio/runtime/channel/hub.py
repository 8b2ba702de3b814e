"""Between one training and all who watch it: page, terminal and remote page are the same kind of client.

Each client counts its views and tasks from 1; here every number is one client's alone. What all clients hear
is kept, the newest of each kind, for who comes later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from splatstudio.runtime import messages

MAX_VIEWS = 64  # of one client; of more the oldest are dropped

_OF_TASKS = (messages.JobProgress, messages.JobDone, messages.JobCancelled, messages.JobFailed)


class HubClient(Protocol):
    """Who watches a training; both methods must return quickly."""

    def receive(self, event: messages.Event) -> None:
        """Take an event; of tasks only those of its own."""

    def take_frame(self, frame: messages.Frame, image: np.ndarray) -> None:
        """Take a picture of a view of its own, [height, width, 3] uint8, which belongs to the client."""


class HubConnection:
    """A client's place at the hub."""

    def __init__(self, hub: Hub, client: HubClient):
        self._hub = hub
        self.client = client
        self.views: dict[int, int] = {}  # the client's number of each view, by the hub's; in order of use

    def send(self, command: messages.Command) -> None:
        """Give an order; never waits."""
        self._hub.obey(self, command)

    def close(self) -> None:
        """Leave: the views are dropped, tasks go on."""
        self._hub.forget(self)


class Hub:
    """Hands the orders of all clients to one training, and its news to them; for any thread."""

    def __init__(self, obey: Callable[[messages.Command], None]):
        self._obey = obey
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._connections: list[HubConnection] = []
        self._views: dict[int, HubConnection] = {}
        self._tasks: dict[int, tuple[HubConnection, int]] = {}
        self._last: dict[object, messages.Event] = {}  # the newest event of each kind

    def connect(self, client: HubClient) -> HubConnection:
        """Let a client in, and tell it what has been told so far."""
        connection = HubConnection(self, client)
        with self._lock:
            for event in self._last.values():
                client.receive(event)
            self._connections.append(connection)
        return connection

    def forget(self, connection: HubConnection) -> None:
        """Let a client go; its tasks go on."""
        with self._lock:
            if connection in self._connections:
                self._connections.remove(connection)
            views, connection.views = list(connection.views), {}
            for view in views:
                del self._views[view]
            self._tasks = {job: owner for job, owner in self._tasks.items() if owner[0] is not connection}
        for view in views:
            self._obey(messages.DropView(view))

    def obey(self, connection: HubConnection, command: messages.Command) -> None:
        """Hand a client's order on, with the numbers that it has here."""
        if isinstance(command, messages.SetView):
            view, dropped = self._view_number(connection, command.view)
            if dropped is not None:
                self._obey(messages.DropView(dropped))
            self._obey(replace(command, view=view))
        elif isinstance(command, messages.DropView):
            with self._lock:
                known = {own: view for view, own in connection.views.items()}.get(command.view)
                if known is None:
                    return
                del connection.views[known], self._views[known]
            self._obey(messages.DropView(known))
        elif isinstance(command, messages.CancelJob):
            with self._lock:
                jobs = [job for job, owner in self._tasks.items() if owner == (connection, command.job)]
            for job in jobs:
                self._obey(messages.CancelJob(job))
        elif isinstance(command, messages.JobCommand):
            with self._lock:
                job = next(self._numbers)
                self._tasks[job] = (connection, command.job)
            self._obey(replace(command, job=job))
        else:
            self._obey(command)

    def receive(self, event: messages.Event) -> None:
        """Hand an event on; that of a task only to who asked for it."""
        if isinstance(event, (messages.Receipt, messages.PausesAt, messages.Frame)):
            return  # for the training's own process alone
        if isinstance(event, _OF_TASKS):
            with self._lock:
                ended = not isinstance(event, messages.JobProgress)
                owner = self._tasks.pop(event.job, None) if ended else self._tasks.get(event.job)
            if owner is not None:
                owner[0].client.receive(replace(event, job=owner[1]))
            return
        with self._lock:
            self._keep(event)
            connections = list(self._connections)
        for connection in connections:
            connection.client.receive(event)

    def take_frame(self, frame: messages.Frame, image: np.ndarray) -> None:
        """Hand a picture on to who looks there."""
        with self._lock:
            connection = self._views.get(frame.view)
            view = None if connection is None else connection.views.get(frame.view)
        if connection is not None and view is not None:
            connection.client.take_frame(replace(frame, view=view, slot=0), image)

    def _view_number(self, connection: HubConnection, view: int) -> tuple[int, int | None]:
        """Return the number here of a client's view, and that of one to drop where it has too many."""
        with self._lock:
            for number, own in connection.views.items():
                if own == view:
                    # At the end: the one that is dropped is the one that nobody has asked for for longest.
                    connection.views[number] = connection.views.pop(number)
                    return number, None
            dropped = None
            if len(connection.views) >= MAX_VIEWS:
                dropped = next(iter(connection.views))
                del connection.views[dropped], self._views[dropped]
            number = next(self._numbers)
            connection.views[number], self._views[number] = view, connection
            return number, dropped

    def _keep(self, event: messages.Event) -> None:
        if isinstance(event, messages.OrderRefused):
            return
        kind = _kind_of(event)
        self._last.pop(kind, None)  # told again in the order in which it happened
        self._last[kind] = event
        began = self._last.get(messages.Started)
        if isinstance(event, messages.Progress) and isinstance(began, messages.Started):
            # Who comes later finds it there by now, and drops nothing that is known of the steps before.
            now = {"total_steps": event.total_steps, "num_gaussians": event.num_gaussians}
            self._last[messages.Started] = replace(began, step=event.step, **now)


def _kind_of(event: messages.Event) -> object:
    """Return the key under which a newer event takes the place of an older one, for who comes later."""
    if isinstance(event, messages.SettingChanged):
        return ("setting", event.path)
    if isinstance(event, messages.Failed):
        return messages.StateChanged
    if isinstance(event, messages.PlateauLeft):
        return messages.PlateauReached
    return type(event)
