"""Live pictures for one browser: asks the worker for frames and shows them at the browser's own pace.

A stream is a thread that knows where its browser looks. A picture is asked for when the camera moves, when it
has come to rest, when the model has changed, and never when nobody can see it. While the camera moves the
resolution adapts to the time that a picture takes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import simplejpeg
import viser
from msgspec import structs

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.gui.server.viser_private import end_opening, push_background_jpeg
from splatstudio.gui.state.photos import (
    CanvasPlace,
    Comparison,
    PhotoCache,
    compared,
    error_map,
    on_canvas,
    place_of,
)
from splatstudio.gui.state.viewpoint import MIN_SIDE, CameraSnap, Viewpoint, read_viewpoint
from splatstudio.runtime.channel.frame_slots import MAX_FRAME_PIXELS
from splatstudio.runtime.messages import Frame, ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame
from splatstudio.scene.scaling import scaled
from splatstudio.scene.scene import Scene

FRAME_SECONDS = 10.0  # a worker that needs longer has another problem

MIN_SCALE = 0.15

REST_SECONDS = 0.25  # without movement, after which the camera is at rest
MOVING_TARGET_SECONDS = 0.025  # seconds that a picture may take while the camera moves
TRAINING_TARGET_SECONDS = 0.05  # and at rest beside a training, whose cores it borrows
MOVING_PAUSE_FACTOR = 1.15  # while training, the pause after a picture of a moving camera, over its own time
REFRESH_SECONDS = 0.3  # between two pictures of a camera at rest while training
REFRESH_PAUSE_FACTOR = 30.0  # and at least this many times the picture's own time
ACK_SECONDS = 2.0  # without an answer, after which nothing more is rendered for a browser
ARRIVED = 1e-3  # of the distance to what it looks at: how far from a place one still is there
ARRIVAL_SECONDS = 6.0  # until a browser that never came to its first view is shown what it sees
LEAVING_SECONDS = 5.0  # until a browser that cannot be sent anything is known to have left
RETRY_SECONDS = 0.25  # after a picture that did not come
LEAST_PIXELS = 320 * 180  # below, the time hardly depends on the pixels any more
MOVING_QUALITY, STILL_QUALITY = 70, 90
FIRST_VIEW = -1  # the number under which pictures are asked for of whose browser no stream is there yet


@dataclass(frozen=True)
class ModelState:
    """What of the model matters to a stream: whether there is one, its step, and whether it trains now.

    `anew`: there is none, and the one that was seen last is of a run that was left.
    """

    step: int | None
    training: bool
    anew: bool = False


class FrameSource(Protocol):
    """Where pictures come from. The streams know nothing else of the worker."""

    def model_state(self) -> ModelState:
        """Return the state of the model; `step` None: there is nothing to see yet."""
        ...

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        """Return a picture of the model, None when there was none within FRAME_SECONDS."""

    def render_beside(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        """Return a picture of a model that is compared with, None where there is none."""
        return None

    def forget(self, view: int) -> None:
        """Note that nobody looks at this view any more."""


class PictureScale:
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
class ViewSettings:
    """What a browser has chosen. `max_scale` limits the pictures to that times the window's pixels a side.

    Of a model that is compared with as many columns are seen at the left: `beside_split`, 0..1.
    """

    options: ViewOptions = field(default_factory=ViewOptions)
    comparison: Comparison = field(default_factory=Comparison)
    max_scale: float = 1.0
    splats: bool = True  # whether the model is shown at all
    beside_split: float = 0.5

    @property
    def wants_photo(self) -> bool:
        """Return whether there is something to see only from a photo's camera."""
        return self.comparison.kind != "off" or self.options.mode == "error"

    def draws_like(self, other: ViewSettings) -> bool:
        """Return whether a picture that was rendered for `other` will do: the model is drawn the same way."""
        comparison = replace(other.comparison, kind=self.comparison.kind)
        return replace(self, comparison=comparison, beside_split=other.beside_split) == other


@dataclass(frozen=True, eq=False)
class FrameRequest:
    """A picture to be rendered. `place` is where it goes among the canvas's pixels, None: it fills them."""

    camera: Camera
    options: ViewOptions
    photo: int | None = None
    place: CanvasPlace | None = None


def frame_request(
    settings: ViewSettings, viewpoint: Viewpoint, scale: float, standing: tuple[int, Camera] | None
) -> FrameRequest:
    """Return what to render at `scale` times the canvas's pixels a side.

    `standing` is the photo, and its camera, in which the browser stands. Only there it can be compared
    with the model, and is then given its own intrinsics and size, whatever shape the canvas has.
    """
    if standing is None or not settings.wants_photo:
        options = settings.options
        if options.mode == "error":
            options = replace(options, mode="color")
        return FrameRequest(viewpoint.camera(scale), options)
    index, camera = standing
    # At the canvas's full size also where the model is rendered with fewer pixels: the photo is sharp.
    place = place_of(camera, viewpoint, settings.max_scale)
    share = min(1.0, scale / settings.max_scale, math.sqrt(MAX_FRAME_PIXELS / (place.width * place.height)))
    width, height = (max(MIN_SIDE, int(n * share)) for n in (place.width, place.height))
    options = replace(settings.options, photo=index)
    if settings.comparison.kind == "difference":
        options = replace(options, mode="color")
    return FrameRequest(camera.resized(width, height), options, index, place)


@dataclass(frozen=True)
class PictureOrder:
    """A picture that a browser should get."""

    viewpoint: Viewpoint
    settings: ViewSettings
    standing: tuple[int, Camera] | None  # the photo in whose camera the browser stands
    scale: float
    moving: bool
    version: int  # of the viewpoint and the settings it was ordered under
    render_version: int  # the same, but for what is done after the model was rendered


class Stream:
    """The pictures of one browser. `camera_snap` and `photos` are None where there is no scene."""

    def __init__(
        self,
        client: viser.ClientHandle,
        source: FrameSource,
        settings: ViewSettings,
        camera_snap: CameraSnap | None = None,
        photos: PhotoCache | None = None,
        is_expected: Callable[[Viewpoint], bool] = lambda _: True,
    ):
        """Show pictures in a browser, from when it looks from where it is expected to on."""
        self.client = client
        self.camera_snap = camera_snap
        self.photo_problem = ""  # why the photo that is compared with cannot be shown
        self._source = source
        self._photos = photos
        self.settings = settings  # what this browser has chosen to see; `change` replaces it
        self.viewpoint: Viewpoint | None = None  # before the browser has come to where it is to begin
        self._is_expected = is_expected
        self._opened = time.monotonic()
        self._opening_ended = False
        self._version = self._render_version = 1
        self._moved = time.monotonic()
        self._changed = threading.Condition()
        self._closed = False
        self.frame: Frame | None = None  # that was shown last
        # Called when a frame has another legend, or a photo's camera is entered or left.
        self.on_news: Callable[[], None] = lambda: None
        self.on_kept: Callable[[Trim, int], None] = lambda trim, num: None  # see `Viewport.on_kept`
        self._moving_pace = PictureScale(MOVING_TARGET_SECONDS, 0.5)
        self._training_pace = PictureScale(TRAINING_TARGET_SECONDS, 0.5)
        self._shown: PictureOrder | None = None
        self._shown_step: int | None = None
        self._received: tuple[PictureOrder, ReceivedFrame] | None = None
        self._beside: tuple[PictureOrder, ReceivedFrame] | None = None  # of the model compared with
        self._refresh_due = self._moving_due = 0.0
        self._acknowledged: Future[None] | None = None
        self._ack_pool = ThreadPoolExecutor(1, thread_name_prefix=f"ack-{client.client_id}")
        self._arrive(read_viewpoint(client.camera))
        self._thread = threading.Thread(target=self._run, name=f"view-{client.client_id}", daemon=True)
        self._thread.start()

    def change(self, alter: Callable[[ViewSettings], ViewSettings]) -> None:
        """Draw the model as `alter` makes of the present settings; nobody else changes it in between."""
        with self._changed:
            before = self.settings
            self.settings = settings = alter(before)
            self._changes(drawn=not settings.draws_like(before))
        if before.splats and not settings.splats:
            self.client.scene.set_background_image(None)

    def camera_moved(self) -> None:
        """Take the browser's camera as it is now; returns at once."""
        viewpoint = read_viewpoint(self.client.camera)
        if viewpoint is None or (self.viewpoint is None and not self._arrive(viewpoint)):
            return
        turned = self.camera_snap is not None and self.camera_snap.moved(viewpoint)
        with self._changed:
            self.viewpoint = viewpoint
            self._moved = time.monotonic()
        self.invalidate()
        if turned:
            self.on_news()

    def _arrive(self, viewpoint: Viewpoint | None) -> bool:
        """Take the first viewpoint; return whether it is one that the user should see.

        A page that is opened first tells two or three places of viser's own.
        """
        late = time.monotonic() - self._opened > ARRIVAL_SECONDS
        if viewpoint is None or not (late or self._is_expected(viewpoint)):
            return False
        self.viewpoint = viewpoint
        return True

    def _end_opening(self) -> None:
        """Uncover the page, once: there is something to see, or nothing yet to wait for."""
        if not (self._opening_ended or self._closed):
            self._opening_ended = True
            end_opening(self.client)

    def invalidate(self) -> None:
        """Show a new picture although the camera rests: the model or the way it is drawn has changed."""
        self._changes(drawn=True)

    def _changes(self, *, drawn: bool) -> None:
        """Order another picture; `drawn`: of the model, too, not only of the photo beside it."""
        with self._changed:
            self._version += 1
            self._render_version += drawn
            self._changed.notify_all()

    def wake(self) -> None:
        """Look at once whether a new picture is due."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the stream; returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._source.forget(self.client.client_id)

    def _run(self) -> None:
        try:
            self._show_pictures()
        except RuntimeError:
            # What a picture is sent by may be gone before the browser is known to have left.
            with self._changed:
                if not self._changed.wait_for(lambda: self._closed, LEAVING_SECONDS):
                    raise
        finally:
            self._ack_pool.shutdown(wait=False, cancel_futures=True)
            # Once more: `close` may have come while a picture was being asked for.
            self._source.forget(self.client.client_id)

    def _show_pictures(self) -> None:
        while (order := self._next_order()) is not None:
            request = frame_request(order.settings, order.viewpoint, order.scale, order.standing)
            alone = request.place is not None and self._source.model_state().step is None
            received = None if alone else self._rendered(order, request)
            if received is None and not alone:
                # A worker that has ended answers "none" at once: without a pause this would spin.
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, RETRY_SECONDS)
                continue
            beside = None if request.place is not None else self._rendered_beside(order, request)
            if not self._browser_is_ready():
                continue
            picture, frame = self._finished(received, request, order.settings)
            if beside is not None:
                other = scaled(beside.image, picture.shape[1], picture.shape[0])
                picture = compared(picture, other, Comparison("split", order.settings.beside_split))
            jpeg = _encoded(picture, moving=order.moving)
            with self._changed:
                if self._closed or not self.settings.splats:
                    continue
            push_background_jpeg(self.client, jpeg)
            self._acknowledged = self._ack_pool.submit(self._await_two_answers)
            self._shown, self._shown_step = order, received.frame.step if received else None
            if frame is not None:
                before, self.frame = self.frame, frame
                if frame.kept is not None:
                    self.on_kept(request.options.trim, frame.kept)
                if before is None or (before.legend, before.notice) != (frame.legend, frame.notice):
                    self.on_news()

    def _rendered(self, order: PictureOrder, request: FrameRequest) -> ReceivedFrame | None:
        """Return a new picture of the model, or the last one where only the comparison has changed."""
        if self._received is not None:
            before, received = self._received
            same = (before.render_version, before.scale) == (order.render_version, order.scale)
            current = self._source.model_state().step == received.frame.step
            if same and (current or time.monotonic() < self._refresh_due):
                return received
        received = self._source.render(self.client.client_id, request.camera, request.options)
        if received is not None:
            self._received = (order, received)
            self._schedule_next(order, received.frame.render_seconds)
        return received

    def _rendered_beside(self, order: PictureOrder, request: FrameRequest) -> ReceivedFrame | None:
        """Return the picture of the model that is compared with, the last one where that is the same."""
        if self._beside is not None:
            before, beside = self._beside
            if (before.render_version, before.scale) == (order.render_version, order.scale):
                return beside
        beside = self._source.render_beside(self.client.client_id, request.camera, request.options)
        self._beside = None if beside is None else (order, beside)
        return beside

    def _finished(
        self, received: ReceivedFrame | None, request: FrameRequest, settings: ViewSettings
    ) -> tuple[np.ndarray, Frame | None]:
        """Return the canvas's picture: the model's, and the photo's where they are compared.

        Before there is a model `received` is None, and the photo is shown alone.
        """
        frame, image = (received.frame, received.image) if received else (None, None)
        place = request.place
        if place is None or request.photo is None or self._photos is None:
            assert image is not None
            return image, frame
        size = (place.width, place.height)
        image = None if image is None else scaled(image, *size)
        # A worker that shows a finished model has no photos to compare it with; here they are.
        no_error = request.options.mode == "error" and frame is not None and frame.legend is None
        if settings.comparison.kind != "off" or no_error:
            photo = self._photos.pixels(
                request.photo, size, settings.options.background, partial(self._changes, drawn=False)
            )
            problem = photo.problem if photo is not None else ""
            if problem != self.photo_problem:
                self.photo_problem = problem
                self.on_news()
            if photo is not None and not photo.problem:
                if no_error and image is not None and frame is not None:
                    image, legend = error_map(image, photo.rgb)
                    frame = structs.replace(frame, legend=legend, notice=None)
                image = photo.rgb if image is None else compared(image, photo.rgb, settings.comparison)
        blank = np.zeros((size[1], size[0], 3), np.uint8)
        return on_canvas(blank if image is None else image, place), frame

    def _schedule_next(self, order: PictureOrder, seconds: float) -> None:
        now = time.monotonic()
        self._refresh_due = now + max(REFRESH_SECONDS, REFRESH_PAUSE_FACTOR * seconds)
        self._moving_due = now + (
            MOVING_PAUSE_FACTOR * seconds if self._source.model_state().training else 0.0
        )
        if order.moving:
            self._moving_pace.measured(order.scale, seconds)
        elif self._source.model_state().training:
            self._training_pace.measured(order.scale, seconds)

    def _next_order(self) -> PictureOrder | None:
        """Wait until a picture is due and return it; None at the end."""
        while True:
            with self._changed:
                if self._closed:
                    return None
                order, wait_seconds = self._due(time.monotonic())
                if order is not None:
                    return order
                if not self._shows_another_run():
                    self._changed.wait(wait_seconds)
                    continue
                self._shown = self._received = None
            self.client.scene.set_background_image(None)

    def _shows_another_run(self) -> bool:
        # A photo that is shown alone is of no run.
        model_shown = self._shown is not None and self._shown_step is not None
        return model_shown and self._source.model_state().anew

    def _due(self, now: float) -> tuple[PictureOrder | None, float]:
        """Return the picture that is due now, or None and after how many seconds to ask again."""
        if self.viewpoint is None and not self._arrive(read_viewpoint(self.client.camera)):
            return None, 0.25
        state, viewpoint, shown = self._source.model_state(), self.viewpoint, self._shown
        settings = self.settings
        here = self.camera_snap.here if self.camera_snap is not None else None
        standing = None if here is None or self.camera_snap is None else (here, self.camera_snap.camera(here))
        photo_alone = standing is not None and settings.comparison.kind != "off"
        if viewpoint is None or not settings.splats or (state.step is None and not photo_alone):
            self._end_opening()
            return None, 0.5
        still_for = now - self._moved
        moving = still_for < REST_SECONDS
        pace = self._moving_pace if moving else self._training_pace
        fast = max(pace.scale, viewpoint.scale_of(LEAST_PIXELS))
        scale = min(settings.max_scale, fast if moving or state.training else 1.0)
        order = PictureOrder(
            viewpoint, settings, standing, scale, moving, self._version, self._render_version
        )
        if moving and now < self._moving_due:
            return None, self._moving_due - now
        if shown is None or shown.version != self._version:
            return order, 0.0
        if moving:
            return None, REST_SECONDS - still_for
        if shown.moving or shown.scale < scale - 0.05:
            return order, 0.0
        if state.step != self._shown_step:
            return (order, 0.0) if now >= self._refresh_due else (None, self._refresh_due - now)
        return None, 0.2 if state.training else 0.5

    def _browser_is_ready(self) -> bool:
        """Wait until the browser has shown the last picture; False when this one is out of date by then."""
        if self._acknowledged is None or wait([self._acknowledged], timeout=ACK_SECONDS).done:
            return True
        # A tab in the background or a broken line: nothing is rendered until it answers.
        while not self._closed and not wait([self._acknowledged], timeout=0.5).done:
            pass
        return False

    def _await_two_answers(self) -> None:
        """Wait until the browser has taken up and then decoded the picture.

        A browser answers in order: the first answer says that it began to decode, the second, at least one
        redraw later, that it is done. Sent faster, pictures replace each other before any is seen.
        """
        for _ in range(2):
            try:
                self.client.local_storage.get_item("splatstudio-frame")
            except RuntimeError:
                # Gone (the stream is closed then) or storage is blocked: that too is an answer.
                break
        self._end_opening()


def _encoded(picture: np.ndarray, *, moving: bool) -> bytes:
    """Return a picture [H, W, 3] uint8 as JPEG."""
    quality, subsampling = (MOVING_QUALITY, "420") if moving else (STILL_QUALITY, "444")
    return simplejpeg.encode_jpeg(picture, quality=quality, colorspace="RGB", colorsubsampling=subsampling)


class Viewport:
    """The streams of all browsers, as they come and go. `scene` None: there is only a model."""

    def __init__(self, server: viser.ViserServer, source: FrameSource, scene: Scene | None = None):
        self._server = server
        self._source = source
        self._scene = scene
        self._streams: dict[int, Stream] = {}
        self._left: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=16)  # where, looking at what
        self._lock = threading.Lock()
        self._draws_first = threading.Lock()  # one first picture at a time
        self._listeners: list[tuple[Callable[[Stream], None], Callable[[Stream], None]]] = []
        self.photos = PhotoCache(scene) if scene is not None else None
        self.trim = KEEP_ALL  # what all browsers hide
        self.on_kept: Callable[[Trim, int], None] = lambda trim, num: None  # told how many splats it keeps
        self.beside_slider = ""  # what moves the line between two models, by its id in the page
        self.beside_split = 0.5  # where all browsers see the line between two models
        server.on_client_connect(self._connect)
        server.on_client_disconnect(self._disconnect)

    @property
    def num_viewers(self) -> int:
        """Return the number of browsers that are connected."""
        return len(self._streams)

    def stream(self, client: viser.ClientHandle) -> Stream | None:
        """Return the stream of a browser, None when it has just left."""
        with self._lock:
            return self._streams.get(client.client_id)

    def first_picture(self, viewpoint: Viewpoint) -> bytes | None:
        """Return what a browser will see that has just come, as JPEG; None while there is no model."""
        if self._source.model_state().step is None:
            return None
        settings = ViewSettings(options=ViewOptions(trim=self.trim))
        request = frame_request(settings, viewpoint, settings.max_scale, None)
        with self._draws_first:
            received = self._source.render(FIRST_VIEW, request.camera, request.options)
            self._source.forget(FIRST_VIEW)
        return None if received is None else _encoded(received.image, moving=False)

    def listen(self, on_open: Callable[[Stream], None], on_close: Callable[[Stream], None]) -> None:
        """Call `on_open` with the stream of each browser, `on_close` with that of one that leaves.

        Both are called on viser's event loop, and for who is there already at once; they must return quickly.
        """
        self._listeners.append((on_open, on_close))
        # A page that was left open may have come back before all of this one was built.
        for stream in self._all():
            on_open(stream)

    def invalidate(self) -> None:
        """Draw everybody's picture again."""
        for stream in self._all():
            stream.invalidate()

    def show_trim(self, trim: Trim) -> None:
        """Hide what `trim` leaves out in all browsers, also in those that come later."""
        self.trim = trim
        for stream in self._all():
            stream.change(lambda settings: replace(settings, options=replace(settings.options, trim=trim)))

    def show_beside(self, split: float) -> None:
        """Move the line to a model that is compared with: in all browsers, also those that come later."""
        self.beside_split = split
        for stream in self._all():
            stream.change(lambda settings: replace(settings, beside_split=split))

    def model_changed(self) -> None:
        """Let the streams see whether the model's new state asks for a new picture."""
        for stream in self._all():
            stream.wake()

    def close(self) -> None:
        """End all streams."""
        for stream in self._all():
            stream.close()
        if self.photos is not None:
            self.photos.close()

    def _all(self) -> list[Stream]:
        with self._lock:
            return list(self._streams.values())

    async def _connect(self, client: viser.ClientHandle) -> None:
        camera_snap = CameraSnap(client, self._scene) if self._scene is not None else None
        settings = ViewSettings(beside_split=self.beside_split)
        stream = Stream(client, self._source, settings, camera_snap, self.photos, self._is_expected)
        stream.on_kept = lambda trim, num: self.on_kept(trim, num)
        with self._lock:
            self._streams[client.client_id] = stream
        for on_open, _on_close in self._listeners:
            on_open(stream)

        # On the event loop, so that movements arrive in order; it only takes notes.
        @client.camera.on_update
        async def _(_: viser.CameraHandle) -> None:
            stream.camera_moved()

    def _is_expected(self, viewpoint: Viewpoint) -> bool:
        """Whether a browser that has just come looks from the first view, or from where one was that left.

        The page of a browser whose line was cut comes back as another, and stands where it stood.
        """
        first = self._server.initial_camera
        places = [(np.asarray(first.position), np.asarray(first.look_at)), *self._left]
        return any(
            np.linalg.norm(viewpoint.position - position) <= ARRIVED * np.linalg.norm(position - target)
            for position, target in places
        )

    async def _disconnect(self, client: viser.ClientHandle) -> None:
        with self._lock:
            stream = self._streams.pop(client.client_id, None)
        if stream is not None:
            stream.close()
            if stream.viewpoint is not None:
                self._left.append((stream.viewpoint.position, np.asarray(client.camera.look_at)))
            for _, on_close in self._listeners:
                on_close(stream)
