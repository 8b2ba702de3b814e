"""Live pictures for each browser: asks the worker for frames and shows them at the browser's own pace.

Each browser has a stream: a thread that knows where that browser looks. A picture is asked for when the
camera moves, when it has come to rest, when the model has changed, and never when nobody can see it. While
the camera moves the resolution adapts to the time that a picture takes.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

import simplejpeg
import viser

from splatstudio.camera import Camera
from splatstudio.studio.viewpoint import Viewpoint, read_viewpoint
from splatstudio.studio.viser_private import push_background_jpeg
from splatstudio.worker.client import ReceivedFrame

REST_SECONDS = 0.25  # without movement, after which the camera is at rest
MOVING_TARGET = 0.08  # seconds that a picture may take while the camera moves
TRAINING_TARGET = 0.05  # and at rest beside a training, whose cores it borrows
REFRESH_SECONDS = 0.3  # between two pictures of a camera at rest while training
REFRESH_SHARE = 5.0  # and at least this many times the picture's own time
ACK_SECONDS = 2.0  # without an answer, after which nothing more is rendered for a browser
RETRY_SECONDS = 0.25  # after a picture that did not come
FRAME_SECONDS = 10.0  # a worker that needs longer has another problem
MIN_SCALE = 0.15
MOVING_QUALITY, STILL_QUALITY = 70, 90


@dataclass(frozen=True)
class Wish:
    """A picture that a browser should get."""

    viewpoint: Viewpoint
    scale: float
    moving: bool
    version: int  # of the viewpoint and the settings it was wished under


class Pace:
    """The share of the canvas's pixels a side at which a picture takes about `target` seconds."""

    def __init__(self, target: float, scale: float):
        self._target = target
        self.scale = scale

    def measured(self, scale: float, seconds: float) -> None:
        """Learn from a picture that took `seconds` at `scale`."""
        wanted = scale * math.sqrt(self._target / max(seconds, 1e-4))
        # Part of the time does not depend on the pixels: small steps, not the whole way.
        self.scale = min(1.0, max(MIN_SCALE, self.scale + 0.4 * (wanted - self.scale)))


@dataclass(frozen=True)
class ModelState:
    """What of the model matters to a stream: whether there is one, its step, and whether it trains now."""

    step: int | None
    training: bool


class FrameSource(Protocol):
    """Where pictures come from. The streams know nothing else of the worker."""

    def model_state(self) -> ModelState:
        """Return the state of the model; `step` None: there is nothing to see yet."""
        ...

    def render(self, view: int, camera: Camera) -> ReceivedFrame | None:
        """Return a picture of the model, None when there was none within FRAME_SECONDS."""
        ...

    def forget(self, view: int) -> None:
        """Note that nobody looks at this view any more."""
        ...


class Stream:
    """The pictures of one browser."""

    def __init__(self, client: viser.ClientHandle, source: FrameSource, max_scale: Callable[[], float]):
        self._client = client
        self._source = source
        self._max_scale = max_scale
        self._viewpoint = read_viewpoint(client.camera)
        self._version = 1
        self._moved = time.monotonic()
        self._changed = threading.Condition()
        self._closed = False
        self._hidden = False
        self._moving_pace = Pace(MOVING_TARGET, 0.5)
        self._training_pace = Pace(TRAINING_TARGET, 0.5)
        self._shown: Wish | None = None
        self._shown_step = -1
        self._refresh_due = 0.0
        self._acknowledged: Future[None] | None = None
        self._ack_pool = ThreadPoolExecutor(1, thread_name_prefix=f"ack-{client.client_id}")
        self._thread = threading.Thread(target=self._run, name=f"view-{client.client_id}", daemon=True)
        self._thread.start()

    def camera_moved(self) -> None:
        """Take the browser's camera as it is now; returns at once."""
        viewpoint = read_viewpoint(self._client.camera)
        if viewpoint is None:
            return
        with self._changed:
            self._viewpoint = viewpoint
            self._version += 1
            self._moved = time.monotonic()
            self._changed.notify_all()

    def invalidate(self) -> None:
        """Show a new picture although the camera rests: the model or the way it is drawn has changed."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def wake(self) -> None:
        """Look at once whether a new picture is due."""
        with self._changed:
            self._changed.notify_all()

    def hide(self, hidden: bool) -> None:
        """Take the pictures away, or bring them back."""
        with self._changed:
            self._hidden = hidden
            self._version += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End the stream; returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._ack_pool.shutdown(wait=False, cancel_futures=True)
        self._source.forget(self._client.client_id)

    def _run(self) -> None:
        while (wish := self._next_wish()) is not None:
            camera = wish.viewpoint.camera(wish.scale)
            received = self._source.render(self._client.client_id, camera)
            if received is None:
                # A worker that has ended answers "none" at once: without a pause this would spin.
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, RETRY_SECONDS)
                continue
            if not self._browser_is_ready():
                continue
            jpeg = simplejpeg.encode_jpeg(
                received.image,
                quality=MOVING_QUALITY if wish.moving else STILL_QUALITY,
                colorspace="RGB",
                colorsubsampling="420" if wish.moving else "444",
            )
            with self._changed:
                if self._closed or self._hidden:
                    continue
            push_background_jpeg(self._client, jpeg)
            self._acknowledged = self._ack_pool.submit(self._await_two_answers)
            self._note(wish, received)

    def _note(self, wish: Wish, received: ReceivedFrame) -> None:
        seconds = received.frame.render_seconds
        self._shown, self._shown_step = wish, received.frame.step
        self._refresh_due = time.monotonic() + max(REFRESH_SECONDS, REFRESH_SHARE * seconds)
        if wish.moving:
            self._moving_pace.measured(wish.scale, seconds)
        elif self._source.model_state().training:
            self._training_pace.measured(wish.scale, seconds)

    def _next_wish(self) -> Wish | None:
        """Wait until a picture is due and return it; None at the end."""
        while True:
            with self._changed:
                if self._closed:
                    return None
                wish, wait_seconds = self._due(time.monotonic())
                if wish is not None:
                    return wish
                self._changed.wait(wait_seconds)

    def _due(self, now: float) -> tuple[Wish | None, float]:
        """Return the picture that is due now, or None and after how many seconds to ask again."""
        state, viewpoint, shown = self._source.model_state(), self._viewpoint, self._shown
        if state.step is None or viewpoint is None or self._hidden:
            return None, 0.5
        still_for = now - self._moved
        moving = still_for < REST_SECONDS
        pace = self._moving_pace if moving else self._training_pace
        scale = min(self._max_scale(), pace.scale if moving or state.training else 1.0)
        wish = Wish(viewpoint, scale, moving, self._version)
        if shown is None or shown.version != self._version:
            return wish, 0.0
        if moving:
            return None, REST_SECONDS - still_for
        if shown.moving or shown.scale < scale - 0.05:
            return wish, 0.0
        if state.step != self._shown_step:
            return (wish, 0.0) if now >= self._refresh_due else (None, self._refresh_due - now)
        return None, 0.2 if state.training else 0.5

    def _browser_is_ready(self) -> bool:
        """Wait until the browser has shown the last picture; False when this one is out of date by then."""
        if self._acknowledged is None:
            return True
        answered, _ = wait([self._acknowledged], timeout=ACK_SECONDS)
        if answered:
            return True
        # A tab in the background or a broken line: nothing is rendered until it answers.
        while not self._closed:
            answered, _ = wait([self._acknowledged], timeout=0.5)
            if answered:
                break
        return False

    def _await_two_answers(self) -> None:
        """Wait until the browser has taken up and then decoded the picture.

        A browser answers in order: the first answer says that it began to decode, the second, at least one
        redraw later, that it is done. Sent faster, pictures replace each other before any is seen.
        """
        for _ in range(2):
            try:
                self._client.local_storage.get_item("splatstudio-frame")
            except RuntimeError:
                # Gone (the stream is closed then) or storage is blocked: that too is an answer.
                return


class Viewport:
    """The streams of all browsers."""

    def __init__(self, server: viser.ViserServer, source: FrameSource):
        self._source = source
        self._streams: dict[int, Stream] = {}
        self._lock = threading.Lock()
        self._max_scale = 1.0
        self._hidden = False
        server.on_client_connect(self._connect)
        server.on_client_disconnect(self._disconnect)

    @property
    def num_viewers(self) -> int:
        """Return the number of browsers that are connected."""
        return len(self._streams)

    def set_max_scale(self, scale: float) -> None:
        """Limit the pictures to `scale` times the window's pixels a side."""
        self._max_scale = scale
        self.invalidate()

    def invalidate(self) -> None:
        """Draw everybody's picture again."""
        for stream in self._all():
            stream.invalidate()

    def model_changed(self) -> None:
        """Let the streams see whether the model's new state asks for a new picture."""
        for stream in self._all():
            stream.wake()

    def hide(self, hidden: bool) -> None:
        """Take the pictures of the model away, or bring them back."""
        self._hidden = hidden
        for stream in self._all():
            stream.hide(hidden)

    def close(self) -> None:
        """End all streams."""
        for stream in self._all():
            stream.close()

    def _all(self) -> list[Stream]:
        with self._lock:
            return list(self._streams.values())

    async def _connect(self, client: viser.ClientHandle) -> None:
        stream = Stream(client, self._source, lambda: self._max_scale)
        stream.hide(self._hidden)
        with self._lock:
            self._streams[client.client_id] = stream

        # On the event loop, so that movements arrive in order; it only takes notes.
        @client.camera.on_update
        async def _(_: viser.CameraHandle) -> None:
            stream.camera_moved()

    async def _disconnect(self, client: viser.ClientHandle) -> None:
        with self._lock:
            stream = self._streams.pop(client.client_id, None)
        if stream is not None:
            stream.close()
