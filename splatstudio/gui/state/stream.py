"""Live pictures for one browser: asks the worker for frames and shows them at the browser's own pace.

A stream is a thread that knows where its browser looks. A picture is asked for when the camera moves, when it
has come to rest, when the model has changed, and never when nobody can see it. While the camera moves the
resolution adapts to the time that a picture takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np
import simplejpeg
import viser
from msgspec import structs

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.trimming import Trim
from splatstudio.gui.server.viser_private import push_background_jpeg
from splatstudio.gui.state.camera_snap import CameraSnap
from splatstudio.gui.state.compare import compared, error_map, on_canvas
from splatstudio.gui.state.frame_source import FrameSource
from splatstudio.gui.state.pace import Pace
from splatstudio.gui.state.photo_cache import PhotoCache
from splatstudio.gui.state.view_settings import FrameRequest, ViewSettings, shot_for
from splatstudio.gui.state.viewpoint import Viewpoint, read_viewpoint
from splatstudio.runtime.client import ReceivedFrame
from splatstudio.runtime.messages import Frame
from splatstudio.scene.scaling import scaled

REST_SECONDS = 0.25  # without movement, after which the camera is at rest
MOVING_TARGET = 0.025  # seconds that a picture may take while the camera moves
TRAINING_TARGET = 0.05  # and at rest beside a training, whose cores it borrows
MOVING_SHARE = 1.15  # while training, the pause after a picture of a moving camera, over its own time
REFRESH_SECONDS = 0.3  # between two pictures of a camera at rest while training
REFRESH_SHARE = 30.0  # and at least this many times the picture's own time
ACK_SECONDS = 2.0  # without an answer, after which nothing more is rendered for a browser
RETRY_SECONDS = 0.25  # after a picture that did not come
LEAST_PIXELS = 320 * 180  # below, the time hardly depends on the pixels any more
MOVING_QUALITY, STILL_QUALITY = 70, 90


@dataclass(frozen=True)
class Wish:
    """A picture that a browser should get."""

    viewpoint: Viewpoint
    look: ViewSettings
    standing: tuple[int, Camera] | None  # the photograph in whose camera the browser stands
    scale: float
    moving: bool
    version: int  # of the viewpoint and the look it was wished under
    render_version: int  # the same, but for what is done after the model was rendered


class Stream:
    """The pictures of one browser. `standpoint` and `photos` are None where there is no scene."""

    def __init__(
        self,
        client: viser.ClientHandle,
        source: FrameSource,
        look: ViewSettings,
        standpoint: CameraSnap | None = None,
        photos: PhotoCache | None = None,
    ):
        self.client = client
        self.standpoint = standpoint
        self.photo_problem = ""  # why the photograph that is compared with cannot be shown
        self._source = source
        self._photos = photos
        self._look = look
        self._viewpoint = read_viewpoint(client.camera)
        self._version = self._render_version = 1
        self._moved = time.monotonic()
        self._changed = threading.Condition()
        self._closed = False
        self._on_frame: Callable[[Frame], None] | None = None
        self._on_standing: Callable[[], None] | None = None
        self._moving_pace = Pace(MOVING_TARGET, 0.5)
        self._training_pace = Pace(TRAINING_TARGET, 0.5)
        self._shown: Wish | None = None
        self._shown_step: int | None = None
        self._received: tuple[Wish, ReceivedFrame] | None = None
        self._refresh_due = self._moving_due = 0.0
        self._acknowledged: Future[None] | None = None
        self._ack_pool = ThreadPoolExecutor(1, thread_name_prefix=f"ack-{client.client_id}")
        self._thread = threading.Thread(target=self._run, name=f"view-{client.client_id}", daemon=True)
        self._thread.start()

    @property
    def look(self) -> ViewSettings:
        """Return what this browser has chosen to see."""
        return self._look

    @property
    def viewpoint(self) -> Viewpoint | None:
        """Return where this browser looks from, None before it has said so."""
        return self._viewpoint

    def listen(self, on_frame: Callable[[Frame], None], on_standing: Callable[[], None]) -> None:
        """Call `on_frame` with each frame shown, `on_standing` when a photograph's camera is entered or left.

        Both must return quickly.
        """
        self._on_frame, self._on_standing = on_frame, on_standing

    def show(self, look: ViewSettings) -> None:
        """Draw the model in another way from now on; returns at once."""
        self.change(lambda _: look)

    def change(self, alter: Callable[[ViewSettings], ViewSettings]) -> None:
        """Draw the model as `alter` makes of the present look; nobody else changes it in between."""
        with self._changed:
            before = self._look
            self._look = look = alter(before)
            self._version += 1
            if not look.draws_like(before):
                self._render_version += 1
            self._changed.notify_all()
        if before.splats and not look.splats:
            self.client.scene.set_background_image(None)

    def show_trim(self, trim: Trim) -> None:
        """Hide what `trim` leaves out from now on; returns at once."""
        self.change(lambda look: replace(look, options=replace(look.options, trim=trim)))

    def camera_moved(self) -> None:
        """Take the browser's camera as it is now; returns at once."""
        viewpoint = read_viewpoint(self.client.camera)
        if viewpoint is None:
            return
        turned = self.standpoint is not None and self.standpoint.moved(viewpoint)
        with self._changed:
            self._viewpoint = viewpoint
            self._moved = time.monotonic()
        self.invalidate()
        if turned and self._on_standing is not None:
            self._on_standing()

    def invalidate(self) -> None:
        """Show a new picture although the camera rests: the model or the way it is drawn has changed."""
        with self._changed:
            self._version += 1
            self._render_version += 1
            self._changed.notify_all()

    def wake(self) -> None:
        """ViewSettings at once whether a new picture is due."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the stream; returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._ack_pool.shutdown(wait=False, cancel_futures=True)
        self._source.forget(self.client.client_id)

    def _run(self) -> None:
        while (wish := self._next_wish()) is not None:
            shot = shot_for(wish.look, wish.viewpoint, wish.scale, wish.standing)
            alone = shot.place is not None and self._source.model_state().step is None
            received = None if alone else self._rendered(wish, shot)
            if received is None and not alone:
                # A worker that has ended answers "none" at once: without a pause this would spin.
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, RETRY_SECONDS)
                continue
            if not self._browser_is_ready():
                continue
            picture, frame = self._finished(received, shot, wish.look)
            jpeg = simplejpeg.encode_jpeg(
                picture,
                quality=MOVING_QUALITY if wish.moving else STILL_QUALITY,
                colorspace="RGB",
                colorsubsampling="420" if wish.moving else "444",
            )
            with self._changed:
                if self._closed or not self._look.splats:
                    continue
            push_background_jpeg(self.client, jpeg)
            self._acknowledged = self._ack_pool.submit(self._await_two_answers)
            self._shown, self._shown_step = wish, received.frame.step if received else None
            if self._on_frame is not None and frame is not None:
                self._on_frame(frame)
        # Once more: `close` may have come while a picture was being asked for.
        self._source.forget(self.client.client_id)

    def _rendered(self, wish: Wish, shot: FrameRequest) -> ReceivedFrame | None:
        """Return a new picture of the model, or the last one where only the comparison has changed."""
        if self._received is not None:
            before, received = self._received
            same = (before.render_version, before.scale) == (wish.render_version, wish.scale)
            current = self._source.model_state().step == received.frame.step
            if same and (current or time.monotonic() < self._refresh_due):
                return received
        received = self._source.render(self.client.client_id, shot.camera, shot.options)
        if received is not None:
            self._received = (wish, received)
            self._learn(wish, received.frame.render_seconds)
        return received

    def _finished(
        self, received: ReceivedFrame | None, shot: FrameRequest, look: ViewSettings
    ) -> tuple[np.ndarray, Frame | None]:
        """Return the canvas's picture: the model's, and the photograph's where they are compared.

        Before there is a model `received` is None, and the photograph is shown alone.
        """
        frame, image = (received.frame, received.image) if received else (None, None)
        place = shot.place
        if place is None or shot.photo is None or self._photos is None:
            assert image is not None
            return image, frame
        size = (place.width, place.height)
        image = None if image is None else scaled(image, *size)
        # A worker that shows a finished model has no photographs to compare it with; here they are.
        no_error = shot.options.mode == "error" and frame is not None and frame.legend is None
        if look.comparison.kind != "off" or no_error:
            photo = self._photos.pixels(shot.photo, size, look.options.background, self._recompose)
            self.photo_problem = photo.problem if photo is not None else ""
            if photo is not None and not photo.problem:
                if no_error and image is not None and frame is not None:
                    image, legend = error_map(image, photo.rgb)
                    frame = structs.replace(frame, legend=legend, notice=None)
                image = photo.rgb if image is None else compared(image, photo.rgb, look.comparison)
        blank = np.zeros((size[1], size[0], 3), np.uint8)
        return on_canvas(blank if image is None else image, place), frame

    def _recompose(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _learn(self, wish: Wish, seconds: float) -> None:
        now = time.monotonic()
        self._refresh_due = now + max(REFRESH_SECONDS, REFRESH_SHARE * seconds)
        self._moving_due = now + (MOVING_SHARE * seconds if self._source.model_state().training else 0.0)
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
                if not self._shows_another_run():
                    self._changed.wait(wait_seconds)
                    continue
                self._shown = self._received = None
            self.client.scene.set_background_image(None)

    def _shows_another_run(self) -> bool:
        # A photograph that is shown alone is of no run.
        model_shown = self._shown is not None and self._shown_step is not None
        return model_shown and self._source.model_state().anew

    def _due(self, now: float) -> tuple[Wish | None, float]:
        """Return the picture that is due now, or None and after how many seconds to ask again."""
        state, viewpoint, shown = self._source.model_state(), self._viewpoint, self._shown
        look = self._look
        here = self.standpoint.here if self.standpoint is not None else None
        standing = None if here is None or self.standpoint is None else (here, self.standpoint.camera(here))
        photo_alone = standing is not None and look.comparison.kind != "off"
        if viewpoint is None or not look.splats or (state.step is None and not photo_alone):
            return None, 0.5
        still_for = now - self._moved
        moving = still_for < REST_SECONDS
        pace = self._moving_pace if moving else self._training_pace
        fast = max(pace.scale, viewpoint.scale_of(LEAST_PIXELS))
        scale = min(look.max_scale, fast if moving or state.training else 1.0)
        wish = Wish(viewpoint, look, standing, scale, moving, self._version, self._render_version)
        if moving and now < self._moving_due:
            return None, self._moving_due - now
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
                self.client.local_storage.get_item("splatstudio-frame")
            except RuntimeError:
                # Gone (the stream is closed then) or storage is blocked: that too is an answer.
                return
