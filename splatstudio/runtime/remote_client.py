"""One who watches a training over a socket: what is sent there, and which numbers its orders have here."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from splatstudio.formats.free_path import free_path
from splatstudio.runtime.channel import MAX_FRAME_PIXELS, Outbox
from splatstudio.runtime.handshake import read_object, shut
from splatstudio.runtime.messages import (
    CancelJob,
    Command,
    DropView,
    Evaluate,
    Event,
    Export,
    Frame,
    JobCommand,
    Pause,
    Progress,
    RenderPath,
    Resume,
    Save,
    SetCap,
    SetView,
    Snapshot,
    Step,
    Stop,
    UpdateSettings,
)
from splatstudio.runtime.plain_form import from_plain, plain

_STEERING = (Pause, Resume, Step, Stop, Save, Evaluate, SetCap, UpdateSettings)
_LOOKING = (SetView, DropView, Export, RenderPath, Snapshot, CancelJob)
ORDERS: dict[str, type[Command]] = {order.__name__: order for order in (*_STEERING, *_LOOKING)}
WRITABLE = ("exports", "renders")  # folders of the run that orders from outside may write into
MAX_VIEWS = 64  # of one spectator
MAX_WAITING = 500  # events for one who is slow: then the oldest are left out
UNANSWERED_SECONDS = 10.0  # after which a picture is no longer waited for
JPEG_QUALITY = 90


def order_in(line: bytes) -> Command:
    """Return the order that a line holds; ValueError when it holds none."""
    values = read_object(line)
    name = values.pop("order", None)
    kind = ORDERS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError("this is no order")
    try:
        command = from_plain(kind, values)
    except RecursionError as error:
        raise ValueError("this is nested too deeply") from error
    if isinstance(command, SetView) and not command.camera.width * command.camera.height <= MAX_FRAME_PIXELS:
        raise ValueError("this view is too large")
    return command


def order_line(command: Command) -> bytes:
    """Return the line that `order_in` reads."""
    return json.dumps({"order": type(command).__name__, **plain(command)}).encode() + b"\n"


def within_run(command: JobCommand, run_dir: Path) -> JobCommand:
    """Return a task with where it writes: a new file in a folder of the run that is meant for such.

    Raises ValueError with one sentence for any other place.
    """
    assert isinstance(command, (Export, RenderPath, Snapshot)), command
    asked = command.path if isinstance(command, Export) else command.output
    root = run_dir.resolve()
    path = (root / asked).resolve()  # where links lead out, too
    folders = [root / name for name in WRITABLE]
    if not any(folder in path.parents for folder in folders):
        where = " or ".join(map(str, folders))
        raise ValueError(f"{asked} is not written: from outside only files in {where} can be")
    path = free_path(path)
    if isinstance(command, Export):
        return replace(command, path=path)
    return replace(command, output=path)


@dataclass(frozen=True, eq=False)
class _Picture:
    frame: Frame
    image: np.ndarray
    view: int  # its number here


class RemoteClient:
    """Sends on a thread of its own, and lets no more pictures be drawn than are read at the other end."""

    def __init__(self, client: socket.socket, frames: bool, obey: Callable[[Command], None]):
        self._client = client
        self._frames = frames
        self._obey = obey
        self._lock = threading.Lock()
        self._owed: dict[int, float] = {}  # views that are being drawn, and since when
        self._next: OrderedDict[int, SetView] = OrderedDict()  # the newest wish of each, to be drawn after
        self._outbox = Outbox(self, "spectator", MAX_WAITING)  # type: ignore[arg-type]

    def tell(self, event: Event) -> None:
        """Send an event; never waits."""
        self._outbox.put(event, "progress" if isinstance(event, Progress) else None)

    def show(self, frame: Frame, image: np.ndarray, view: int) -> None:
        """Send a picture of the view of this number here, in place of an older one of it; never waits."""
        self._outbox.put(_Picture(frame, image, view), ("frame", view))

    def look(self, wanted: SetView) -> None:
        """Have a view drawn, as soon as the picture of it before has been read."""
        if not self._frames:
            return
        with self._lock:
            since = self._owed.get(wanted.view)
            if since is not None and time.monotonic() - since < UNANSWERED_SECONDS:
                self._next[wanted.view] = wanted
                return
            self._owed[wanted.view] = time.monotonic()
        self._obey(wanted)

    def look_away(self, view: int) -> None:
        """Forget a view, by its number here."""
        with self._lock:
            self._owed.pop(view, None)
            self._next.pop(view, None)

    def flush(self, seconds: float) -> None:
        """Wait for what is left to be sent."""
        self._outbox.flush(seconds)

    def drop(self) -> None:
        """Let it go."""
        self._outbox.close()
        shut(self._client)

    def send(self, message: Any) -> None:
        """Write a message to the socket; for the outbox. Raises OSError where nobody reads."""
        try:
            if isinstance(message, _Picture):
                self._send_picture(message)
            else:
                self._client.sendall(event_line(message))
        except OSError:
            shut(self._client)
            raise

    def _send_picture(self, picture: _Picture) -> None:
        image = np.ascontiguousarray(picture.image)
        jpeg = simplejpeg.encode_jpeg(image, quality=JPEG_QUALITY, colorspace="RGB", fastdct=True)
        header = {"event": "Frame", **plain(picture.frame), "bytes": len(jpeg)}
        self._client.sendall(json.dumps(header).encode() + b"\n" + jpeg)
        self._draw_next(picture.view)

    def _draw_next(self, view: int) -> None:
        """Have what waits for a picture to be sent drawn now."""
        with self._lock:
            self._owed.pop(view, None)
            wanted = self._next.pop(view, None)
            if wanted is not None:
                self._owed[view] = time.monotonic()
        if wanted is not None:
            self._obey(wanted)


def event_line(event: Event) -> bytes:
    """Return an event as a line of JSON."""
    return json.dumps({"event": type(event).__name__, **plain(event)}).encode() + b"\n"


class Numbers:
    """Views and tasks of all spectators: each counts its own from 1, and here every number is one's alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = count(1)
        self._views: OrderedDict[int, tuple[RemoteClient, int]] = OrderedDict()
        self._jobs: dict[int, tuple[RemoteClient, int]] = {}

    def view_of(self, spectator: RemoteClient, view: int) -> tuple[int, int | None]:
        """Return the number here of a spectator's view, and that of one to forget where it has too many."""
        with self._lock:
            known = [number for number, owner in self._views.items() if owner[0] is spectator]
            for number in known:
                if self._views[number][1] == view:
                    return number, None
            left = None
            if len(known) >= MAX_VIEWS:
                left = known[0]
                del self._views[left]
            number = next(self._count)
            self._views[number] = (spectator, view)
            return number, left

    def looker(self, number: int) -> tuple[RemoteClient | None, int]:
        """Return who looks at a view, and its number there."""
        with self._lock:
            return self._views.get(number, (None, 0))

    def drop_view(self, spectator: RemoteClient, view: int) -> int | None:
        """Forget a view, and return its number here."""
        with self._lock:
            number = _number(self._views, spectator, view)
            if number is not None:
                del self._views[number]
            return number

    def new_job(self, spectator: RemoteClient, job: int) -> int:
        """Return the number here of a spectator's new task."""
        with self._lock:
            number = next(self._count)
            self._jobs[number] = (spectator, job)
            return number

    def job_of(self, spectator: RemoteClient, job: int) -> int | None:
        """Return the number here of a task that has not ended."""
        with self._lock:
            return _number(self._jobs, spectator, job)

    def asker(self, number: int, *, ended: bool) -> tuple[RemoteClient | None, int]:
        """Return who asked for a task, and its number there; one that has `ended` is forgotten."""
        with self._lock:
            return (self._jobs.pop if ended else self._jobs.get)(number, (None, 0))

    def forget(self, spectator: RemoteClient) -> list[int]:
        """Forget a spectator, and return the numbers of its views; its tasks go on."""
        with self._lock:
            views = [number for number, owner in self._views.items() if owner[0] is spectator]
            for number in views:
                del self._views[number]
            self._jobs = {number: owner for number, owner in self._jobs.items() if owner[0] is not spectator}
            return views


def _number(owned: dict[int, tuple[RemoteClient, int]], spectator: RemoteClient, theirs: int) -> int | None:
    return next((number for number, owner in owned.items() if owner == (spectator, theirs)), None)
