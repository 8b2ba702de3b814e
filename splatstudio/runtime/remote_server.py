"""A training that a launcher started, watched and steered over a socket: lines of JSON, after a handshake.

Nothing that comes over the line is ever run or unpickled: an order is one of `ORDERS`, whose fields are
checked, and what is written goes into two folders of the run. See `handshake` and `plain_form`.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import BinaryIO

import numpy as np

from splatstudio.runtime.handshake import (
    MAX_HELLO,
    Caller,
    RunCard,
    checked,
    greeting,
    keep_alive,
    limit_sending,
    shut,
)
from splatstudio.runtime.messages import (
    CancelJob,
    Command,
    DropView,
    Event,
    Failed,
    Frame,
    JobCancelled,
    JobCommand,
    JobDone,
    JobFailed,
    JobProgress,
    Progress,
    SettingChanged,
    SetView,
    Started,
    StateChanged,
)
from splatstudio.runtime.plateau_report import PlateauLeft, PlateauReached
from splatstudio.runtime.receipts import PausesAt, Receipt
from splatstudio.runtime.remote_client import Numbers, RemoteClient, order_in, within_run

MAX_LINE = 1 << 24  # bytes: an export names the cameras of all photographs
MAX_CLIENTS = 8
MAX_STRANGERS = 32  # who have not shown the token yet
HELLO_SECONDS = 10.0  # for the token to be shown
FLUSH_SECONDS = 2.0  # at the end, for the last words to all
ACCEPT_SECONDS = 1.0  # after a connection that failed

log = logging.getLogger("splatstudio.runtime")

_OF_JOBS = (JobProgress, JobDone, JobCancelled, JobFailed)


class RemoteServer:
    """Hands events and pictures on to who has the token, and orders from them to `obey`.

    All of it is on threads of its own: who is slow, or gone, keeps nobody waiting.
    """

    def __init__(
        self,
        host: str,
        port: int,
        obey: Callable[[Command], None],
        card: Callable[[], RunCard],
        token: str | None = None,
    ):
        """Listen; OSError when the address cannot be had. `port` 0: any free one; `token` None: a new one.

        `card` says what is trained; it is called when somebody comes.
        """
        # Of hexadecimal digits: a word that begins with a dash would be taken for an option.
        self.token = token or secrets.token_hex(16)
        self._obey = obey
        self._card = card
        self._spectators: list[RemoteClient] = []
        self._numbers = Numbers()
        self._last: dict[object, Event] = {}  # the newest event of each kind, for who comes later
        self._lock = threading.Lock()
        self._closed = False
        self._strangers = threading.BoundedSemaphore(MAX_STRANGERS)
        self._socket = socket.create_server((host, port))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, name="steering", daemon=True).start()

    @property
    def num_spectators(self) -> int:
        """Return how many watch."""
        with self._lock:
            return len(self._spectators)

    def tell(self, event: Event) -> None:
        """Hand an event on; that of a task only to who asked for it."""
        if isinstance(event, (Receipt, PausesAt, Frame)):
            return  # for the training's own process alone
        if isinstance(event, _OF_JOBS):
            spectator, job = self._numbers.asker(event.job, ended=not isinstance(event, JobProgress))
            if spectator is not None:
                spectator.tell(replace(event, job=job))
            return
        with self._lock:
            key = kind_of(event)
            self._last.pop(key, None)  # told again in the order in which it happened
            self._last[key] = event
            began = self._last.get(Started)
            if isinstance(event, Progress) and isinstance(began, Started):
                # Who comes later finds it there by now, and drops nothing that is known of the steps before.
                now = {"total_steps": event.total_steps, "num_gaussians": event.num_gaussians}
                self._last[Started] = replace(began, step=event.step, **now)
            spectators = list(self._spectators)
        for spectator in spectators:
            spectator.tell(event)

    def show(self, frame: Frame, image: np.ndarray) -> None:
        """Hand a picture, [height, width, 3] uint8, on to who looks there."""
        spectator, view = self._numbers.looker(frame.view)
        if spectator is not None:
            spectator.show(replace(frame, view=view, slot=0), image, frame.view)

    def close(self) -> None:
        """Let everybody go, once they have been told what there was to tell."""
        self._closed = True
        shut(self._socket)  # else the thread that waits there keeps the port
        self._socket.close()
        with self._lock:
            spectators = list(self._spectators)
        deadline = time.monotonic() + FLUSH_SECONDS
        for spectator in spectators:
            spectator.flush(max(0.0, deadline - time.monotonic()))
            spectator.drop()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                # Who called has gone again, or too many files are open: that passes.
                log.warning("nobody could be let in: %s", error)
                time.sleep(ACCEPT_SECONDS)
                continue
            if not self._strangers.acquire(blocking=False):
                client.close()
                continue
            name = f"steering-{address[0]}"
            try:
                threading.Thread(target=self._serve, args=(client,), name=name, daemon=True).start()
            except RuntimeError as error:  # the machine has no more threads: no reason to end a training
                log.warning("nobody could be let in: %s", error)
                self._strangers.release()
                client.close()

    def _serve(self, client: socket.socket) -> None:
        spectator: RemoteClient | None = None
        try:
            with client.makefile("rb") as lines:
                caller = self._let_in(client, lines)
                if caller is None:
                    return
                spectator = self._welcome(client, caller)
                while line := lines.readline(MAX_LINE):
                    self._take(line, spectator)
        except (OSError, ValueError, RuntimeError) as error:  # the last: there are no more threads
            log.info("who watched is let go: %s", error)
        finally:
            if spectator is not None:
                self._forget(spectator)
            shut(client)
            client.close()

    def _let_in(self, client: socket.socket, lines: BinaryIO) -> Caller | None:
        """Return what a caller wants who knows the token; None for others, who are told why not.

        Raises OSError or ValueError for what is no answer.
        """
        # One that sends a byte now and then must not hold a place for ever.
        watch = threading.Timer(HELLO_SECONDS, shut, (client,))
        watch.daemon = True
        try:
            watch.start()
            keep_alive(client)
            limit_sending(client)
            nonce, line = greeting()
            client.sendall(line)
            try:
                caller, proof = checked(lines.readline(MAX_HELLO), self.token, nonce)
                if self.num_spectators >= MAX_CLIENTS:
                    raise ValueError(f"{MAX_CLIENTS} watch this training already")
            except ValueError as error:
                client.sendall(json.dumps({"refused": str(error)}).encode() + b"\n")
                return None
            watch.cancel()  # to read what it is told may take longer, where the line is slow
            card = json.dumps(asdict(self._card()), default=str)
            client.sendall(json.dumps({"proof": proof}).encode() + b"\n" + card.encode() + b"\n")
        finally:
            watch.cancel()
            self._strangers.release()
        return caller

    def _welcome(self, client: socket.socket, caller: Caller) -> RemoteClient:
        spectator = RemoteClient(client, caller.frames, self._obey)
        with self._lock:
            for event in self._last.values():
                spectator.tell(event)
            self._spectators.append(spectator)
        return spectator

    def _forget(self, spectator: RemoteClient) -> None:
        with self._lock:
            self._spectators.remove(spectator)
        spectator.drop()
        for view in self._numbers.forget(spectator):
            self._obey(DropView(view))

    def _take(self, line: bytes, spectator: RemoteClient) -> None:
        """Obey a line; ValueError when it is no order."""
        command = order_in(line)
        if isinstance(command, SetView):
            view, left = self._numbers.view_of(spectator, command.view)
            if left is not None:
                spectator.look_away(left)
                self._obey(DropView(left))
            spectator.look(replace(command, view=view))
            return
        log.info("told from outside: %.300s", command)
        if isinstance(command, DropView):
            view = self._numbers.drop_view(spectator, command.view)
            if view is not None:
                spectator.look_away(view)
            command = None if view is None else DropView(view)
        elif isinstance(command, CancelJob):
            job = self._numbers.job_of(spectator, command.job)
            command = None if job is None else CancelJob(job)
        elif isinstance(command, JobCommand):
            try:
                command = within_run(command, self._card().run_dir)
            except ValueError as error:
                spectator.tell(JobFailed(command.job, str(error)))
                return
            command = replace(command, job=self._numbers.new_job(spectator, command.job))
        if command is not None:
            self._obey(command)


def kind_of(event: Event) -> object:
    """Return the key under which a newer event takes the place of an older one, for who comes later."""
    if isinstance(event, SettingChanged):
        return ("setting", event.path)
    if isinstance(event, Failed):
        return StateChanged
    if isinstance(event, PlateauLeft):
        return PlateauReached
    return type(event)
