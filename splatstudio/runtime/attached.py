"""A training that runs elsewhere, in the place of one of this machine's own: the same orders, events, frames.

It goes on when this side leaves. When the line breaks, because a rank has died or the network has, it is
dialled again and again: the launcher starts the ranks anew, and they are found at the same address.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simplejpeg

from splatstudio.error_text import as_sentence
from splatstudio.runtime import messages
from splatstudio.runtime.channel import MAX_FRAME_PIXELS
from splatstudio.runtime.handshake import MAX_ANSWER, Line, dial_again, shut
from splatstudio.runtime.messages import (
    CancelJob,
    Close,
    Command,
    DropView,
    Event,
    Failed,
    Finished,
    Frame,
    Job,
    JobCancelled,
    JobCommand,
    JobDone,
    JobFailed,
    SetView,
    StateChanged,
    Warned,
)
from splatstudio.runtime.plain_form import from_plain
from splatstudio.runtime.plateau_report import PlateauLeft, PlateauReached
from splatstudio.runtime.ranks_report import RanksReport
from splatstudio.runtime.remote_client import ORDERS, order_line
from splatstudio.runtime.supervisor import Listener

MAX_JPEG = 1 << 25  # bytes
DETACH_SECONDS = 2.0

log = logging.getLogger(__name__)

EVENTS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind not in (Event, Frame)
} | {"RanksReport": RanksReport, "PlateauReached": PlateauReached, "PlateauLeft": PlateauLeft}


@dataclass(frozen=True)
class AttachedPlan:
    """Where the training runs, instead of here: `line` is the first connection, `dialled` gives another one.

    That raises Unreachable where nobody answers for now, and ValueError where nobody will.
    """

    line: Line
    dialled: Callable[[], Line]

    def supervise(self, job: Job, log_path: Callable[[], Path], listener: Listener) -> AttachedRun:
        """Return what stands between a training and `listener`; see `Supervisor`."""
        return AttachedRun(self, job, listener)


class AttachedRun:
    """What a Supervisor is to processes of this machine. Methods may be called from any thread."""

    def __init__(self, plan: AttachedPlan, job: Job, listener: Listener):
        self.job = job
        self._plan = plan
        self._listener = listener
        self._line: Line | None = plan.line
        self._sending = threading.Lock()
        self._views: dict[int, SetView] = {}  # the newest of each, for a training that was started again
        self._jobs: set[int] = set()
        self._left = threading.Event()
        self._finished = False
        self._thread = threading.Thread(target=self._run, name="attached", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Say whether it has been started and has not ended."""
        return self._thread.is_alive()

    @property
    def pids(self) -> tuple[int, ...]:
        """Return no process ids: there is no process here."""
        return ()

    @property
    def will_pause(self) -> None:
        """Return None: orders that are given while the line is broken are not kept."""
        return None

    def send(self, command: Command) -> None:
        """Give an order; Close only leaves, and the training goes on. What cannot arrive is told of."""
        if isinstance(command, Close):
            self.kill()
            return
        if type(command) not in ORDERS.values():
            return  # Start: it has been started
        with self._sending:
            if isinstance(command, SetView):
                self._views[command.view] = command
            elif isinstance(command, DropView):
                self._views.pop(command.view, None)
            elif isinstance(command, JobCommand):
                self._jobs.add(command.job)
            sent = self._write(command)
        if sent or isinstance(command, (SetView, DropView, CancelJob)):
            return
        if isinstance(command, JobCommand):
            self._end_jobs("There is no connection to the training; ask for it again when there is.")
        else:
            name = type(command).__name__
            self._listener.receive(Warned(f"{name}: there is no connection to the training just now."))

    def kill(self, *, quietly: bool = False) -> None:
        """Leave at once; the training goes on."""
        self._left.set()
        if (line := self._line) is not None:
            shut(line.socket)  # who sends there, to one who does not read, holds the lock
        with self._sending:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def join(self, timeout: float) -> None:
        """Wait until it has been left, `timeout` seconds at most."""
        if self.alive and threading.current_thread() is not self._thread:
            self._thread.join(min(timeout, DETACH_SECONDS))

    def _write(self, command: Command) -> bool:
        if self._line is None:
            return False
        try:
            self._line.socket.sendall(order_line(command))
        except OSError:
            # Half of an order may be under way: who reads from here notices, and dials again.
            shut(self._line.socket)
            return False
        return True

    def _run(self) -> None:
        line: Line | None = self._plan.line
        while line is not None and not self._left.is_set():
            try:
                self._listen(line)
            except (OSError, ValueError, RecursionError) as error:
                log.info("the line broke: %s", error)
            with self._sending:
                self._line = None
            line.close()
            self._end_jobs("The connection to the training broke before it was complete.")
            line = None if self._left.is_set() or self._finished else self._dial_again()
        if self._finished or self._left.is_set():
            self._listener.receive(StateChanged("ended"))

    def _dial_again(self) -> Line | None:
        """Return another line to the training; None where this side has left, or has given up."""
        self._listener.receive(StateChanged("restarting"))
        self._listener.receive(Warned("The connection to the training broke; it is tried again."))
        try:
            line = dial_again(self._plan.dialled, self._left)
        except ValueError as error:
            if not self._left.is_set():
                why = as_sentence(str(error))
                self._listener.receive(Failed(f"{why} What it has saved is in its run folder.", 0, None, why))
            return None
        with self._sending:
            if self._left.is_set():
                line.close()
                return None
            self._line = line
            for wanted in self._views.values():
                self._write(wanted)
        return line

    def _listen(self, line: Line) -> None:
        """Hand on what is told until the line breaks; OSError or ValueError where it does not end well."""
        while text := line.answers.readline(MAX_ANSWER):
            values = json.loads(text)
            if not isinstance(values, dict):
                raise ValueError("this is no event")
            name = values.pop("event", None)
            if name == "Frame":
                self._take_frame(line, values)
                continue
            kind = EVENTS.get(name) if isinstance(name, str) else None
            if kind is None:
                raise ValueError(f"there is no event {name!r:.40}")
            event = from_plain(kind, values)
            if isinstance(event, (JobDone, JobFailed, JobCancelled)):
                with self._sending:
                    self._jobs.discard(event.job)
            elif isinstance(event, (Finished, StateChanged)):
                # A launched training leaves at its end; until then a broken line is a broken line.
                self._finished = isinstance(event, Finished) or event.state == "finished"
            self._listener.receive(event)

    def _take_frame(self, line: Line, values: dict[str, Any]) -> None:
        num_bytes = values.pop("bytes", None)
        frame = from_plain(Frame, values)
        if type(num_bytes) is not int or not 0 < num_bytes <= MAX_JPEG:
            raise ValueError("this is no picture")
        jpeg = line.answers.read(num_bytes)
        if len(jpeg) < num_bytes:
            raise ConnectionError("the picture was cut off")
        # Known before it is unpacked: a few bytes can stand for gigabytes.
        height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
        if (height, width) != (frame.height, frame.width) or frame.width * frame.height > MAX_FRAME_PIXELS:
            raise ValueError("this picture has another size")
        self._listener.take_frame(frame, simplejpeg.decode_jpeg(jpeg, colorspace="RGB"))

    def _end_jobs(self, sentence: str) -> None:
        with self._sending:
            jobs, self._jobs = self._jobs, set()
        for job in sorted(jobs):
            self._listener.receive(JobFailed(job, sentence))
