"""Renders what clients look at, in a thread beside the training steps.

The thread reads the Gaussians that were published last, as they are: a step in progress may move them, no
step replaces them. Nobody looks: the thread sleeps. On a GPU its work has a queue of its own that goes before
the steps' and waits only until what was published has been written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.accelerator import current_stream, is_accelerator, recorded_event, urgent_stream
from splatstudio.error_text import first_line
from splatstudio.evaluation.evaluate import target_for
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.sky import Sky
from splatstudio.gaussians.trimming import hidden
from splatstudio.kernels import ops
from splatstudio.rendering.mode_pictures import (
    Picture,
    camera_at_photo,
    draw_mode,
    error_picture,
    photo_in_view,
    scaled,
)
from splatstudio.rendering.render import RenderOptions
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.messages import Event, Frame, SetView, ViewOptions, ViewRequest, Warned
from splatstudio.scene.scene import Scene

log = logging.getLogger("splatstudio.runtime")


@dataclass(frozen=True, eq=False)
class _Target:
    """A photo as a render of it should look, and what it depends on."""

    scene: Scene
    index: int
    behind: tuple[tuple[float, float, float], Sky | None] | None  # None: the photo has no alpha
    rgb: Tensor  # [H, W, 3]
    mask: Tensor | None  # [H, W] bool


@dataclass(frozen=True)
class Painted:
    """A picture of the camera's size, and why it is not the one asked for (None: it is).

    `kept` is the number of splats that the view's filter keeps.
    """

    picture: Picture
    notice: str | None
    kept: int


class Painter:
    """Draws models as views ask for it; keeps the photo that was compared with last."""

    def __init__(self) -> None:
        self._target: _Target | None = None

    def paint(
        self,
        gaussians: Gaussians,
        camera: Camera,
        options: RenderOptions,
        wanted: ViewOptions,
        scene: Scene | None = None,
    ) -> Painted:
        """Return what a view shows.

        `options` are the model's own. Without a `scene`, or without the photo, "error" shows colors.
        """
        notice = None
        if wanted.splat_scale > 0:
            gaussians = scaled(gaussians, wanted.splat_scale)
        else:
            notice = f"Splats cannot be drawn {wanted.splat_scale} times as large; choose a number above 0."
        stand = drawn_from(camera, wanted, scene)
        behind = stand.position - stand.viewmat[2, :3]
        had_any = len(gaussians) > 0
        gaussians, kept = hidden(gaussians, wanted.trim, behind.tolist())
        if had_any and kept == 0:
            notice = "The filter hides all splats that are here: Filter in the Export tab changes it."
        options = asked_for(options, wanted)
        if wanted.mode != "error":
            return Painted(draw_mode(wanted.mode, gaussians, camera, options), notice, kept)
        try:
            target = self._photo(scene, wanted.photo, options, gaussians.device)
        except ValueError as error:
            colors = draw_mode("color", gaussians, camera, options)
            return Painted(colors, f"No error to show: {error}", kept)
        photo = target.scene.views[target.index].camera
        camera = camera_at_photo(camera, photo)
        rgb, shown = photo_in_view(target.rgb, target.mask, photo, camera)
        return Painted(error_picture(gaussians, camera, options, rgb, shown), notice, kept)

    def _photo(
        self, scene: Scene | None, index: int | None, options: RenderOptions, device: torch.device
    ) -> _Target:
        """Return a photo of the scene; ValueError says what is missing."""
        if scene is None:
            raise ValueError("this model was opened without the photos of its scene")
        if index is None:
            raise ValueError("choose a photo to compare with")
        if not 0 <= index < len(scene.views):
            raise ValueError(f"the scene has no photo number {index}; it has {len(scene.views):,}")
        kept, behind = self._target, (options.background, options.sky)
        same = kept is not None and kept.scene is scene and kept.index == index
        if kept is not None and same and kept.behind in (None, behind):
            return kept
        photo = scene.photo(index)
        rgb, mask = target_for(photo, scene.views[index].camera, options, device)
        self._target = _Target(scene, index, None if photo.alpha is None else behind, rgb, mask)
        return self._target


def drawn_from(camera: Camera, wanted: ViewOptions, scene: Scene | None) -> Camera:
    """Return the camera that a view is drawn from: a comparison stands where its photo was taken."""
    if wanted.mode != "error" or scene is None or wanted.photo is None:
        return camera
    if not 0 <= wanted.photo < len(scene.views):
        return camera
    return camera_at_photo(camera, scene.views[wanted.photo].camera)


def asked_for(options: RenderOptions, wanted: ViewOptions) -> RenderOptions:
    """Return the options of a model with what a view asks for in place of its own."""
    return replace(
        options,
        background=wanted.background,
        sky=options.sky if wanted.sky else None,
        near=options.near if wanted.near is None else wanted.near,
        far=options.far if wanted.far is None else wanted.far,
        antialiased=options.antialiased if wanted.antialiased is None else wanted.antialiased,
        sh_degree=options.sh_degree if wanted.sh_degree is None else max(0, wanted.sh_degree),
    )


@dataclass(frozen=True, eq=False)
class ShownModel:
    """The Gaussians on view, how to draw them, and the step they belong to (or nearly)."""

    gaussians: Gaussians
    options: RenderOptions
    step: int
    scene: Scene | None = None  # whose photos it can be compared with
    notice: str | None = None  # what is missing in it, one sentence
    written: torch.Event | None = None  # on a GPU: from when on its tensors can be read

    def with_event(self, before: ShownModel | None) -> ShownModel:
        """Return the model with the event: that of the one `before` where both have the same Gaussians."""
        device = self.gaussians.device
        if not is_accelerator(device):
            return self
        if before is not None and before.gaussians.means.data_ptr() == self.gaussians.means.data_ptr():
            return replace(self, written=before.written)
        return replace(self, written=recorded_event(current_stream(device)))


def threads_beside(threads: int) -> int:
    """Return how many of `threads` render beside a training: half of them, but two where there are two.

    On two cores, 640x360 and 114 k splats, two threads bring a picture in 68 ms instead of 91 ms (median),
    for 3 % of the training's speed.
    """
    return min(threads, max(2, threads // 2))


class ViewRenderer:
    """One latest-wins request for each view, served in turn; each frame costs a slot until it is returned.

    While `training()` holds, frames are rendered by fewer threads: they may slow a step, not stop it.
    """

    def __init__(
        self,
        slots: FrameSlots,
        send: Callable[[Event], None],
        training: Callable[[], bool],
        fetch: Callable[[], None] | None = None,
    ):
        """Wait for a model and for somebody who looks.

        `fetch`: the model is spread over several processes. It is called, on any thread, when somebody looks;
        what `take_wanted` returns then is to be gathered and given to `show`.
        """
        self._slots = slots
        self._send = send
        self._training = training
        self._model: ShownModel | None = None
        self._wanted: OrderedDict[int, SetView] = OrderedDict()
        self._fetch = fetch
        self._fetched: deque[tuple[SetView, ShownModel]] = deque()
        self._painter = Painter()
        self._stream: torch.Stream | None = None  # on a GPU
        self._free = set(range(slots.file.num_slots))
        self._changed = threading.Condition()
        self._closed = False
        self._warned = False
        self._thread = threading.Thread(target=self._render_all, name="frames", daemon=True)
        self._thread.start()

    def publish(self, model: ShownModel) -> None:
        """Show `model` from now on."""
        with self._changed:
            self._model = model.with_event(self._model)
            self._changed.notify_all()

    def request(self, wanted: SetView) -> None:
        """Render `wanted` as soon as it is its turn, instead of an older request of the same view."""
        with self._changed:
            # An update keeps the view's place in the queue: a view that moves does not starve.
            self._wanted[wanted.view] = wanted
            self._changed.notify_all()
        if self._fetch is not None:
            self._fetch()

    def take_wanted(self) -> list[tuple[SetView, ViewRequest]]:
        """Return the requests that can be drawn next, and what each looks at; they wait no more."""
        with self._changed:
            if self._model is None:
                return []
            taken: list[tuple[SetView, ViewRequest]] = []
            while self._wanted and len(self._fetched) + len(taken) < len(self._free):
                _, wanted = self._wanted.popitem(last=False)
                camera = drawn_from(wanted.camera, wanted.options, self._model.scene)
                taken.append((wanted, ViewRequest(camera, wanted.options)))
            return taken

    def show(self, wanted: SetView, model: ShownModel) -> None:
        """Draw what was gathered for a request of `take_wanted`."""
        with self._changed:
            self._fetched.append((wanted, model.with_event(None)))
            self._changed.notify_all()

    def drop(self, view: int) -> None:
        """Forget a view."""
        with self._changed:
            self._wanted.pop(view, None)

    def return_slot(self, slot: int) -> None:
        """Take the credit for `slot` back."""
        with self._changed:
            self._free.add(slot)
            self._changed.notify_all()
            waiting = bool(self._wanted)
        if self._fetch is not None and waiting:
            self._fetch()

    def close(self) -> None:
        """End the thread after the frame in progress."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _render_all(self) -> None:
        torch.set_grad_enabled(False)  # holds for this thread alone
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._free and self._is_drawable()))
                if self._closed:
                    return
                wanted, model = self._next()
                slot = self._free.pop()
            threads = ops.num_threads()
            try:
                limit = threads_beside(threads) if self._training() else threads
                with ops.limited_threads(limit), self._beside_the_steps(model):
                    frame = self._render(wanted, slot, model)
            except Exception as error:
                # Whatever it is: a picture that cannot be drawn must not end the training beside it.
                self.return_slot(slot)
                self._tell(error)
                continue
            self._send(frame)

    @contextmanager
    def _beside_the_steps(self, model: ShownModel) -> Iterator[None]:
        """Let a GPU draw the model before it goes on with steps that wait for their turn."""
        if model.written is None:
            yield
            return
        if self._stream is None or self._stream.device != model.gaussians.device:
            self._stream = urgent_stream(model.gaussians.device)
        self._stream.wait_event(model.written)
        with self._stream:
            yield

    def _is_drawable(self) -> bool:
        return bool(self._fetched if self._fetch is not None else self._wanted and self._model)

    def _next(self) -> tuple[SetView, ShownModel]:
        if self._fetch is not None:
            return self._fetched.popleft()
        assert self._model is not None
        return self._wanted.popitem(last=False)[1], self._model

    def _tell(self, error: Exception) -> None:
        log.exception("a view could not be drawn")
        if self._warned:
            return  # a view asks many times a second
        self._warned = True
        why = first_line(error)
        self._send(
            Warned(f"A view could not be drawn: {why}. Everything else goes on; the log has the details.")
        )

    def _render(self, wanted: SetView, slot: int, model: ShownModel) -> Frame:
        start = time.monotonic()
        camera = wanted.camera
        painted = self._painter.paint(model.gaussians, camera, model.options, wanted.options, model.scene)
        # From a GPU into the slot itself: in memory that is new for each picture every page is missing first.
        image = torch.from_numpy(self._slots.view(slot, camera.height, camera.width))
        image.copy_(painted.picture.pixels)
        return Frame(
            view=wanted.view,
            seq=wanted.seq,
            slot=slot,
            width=camera.width,
            height=camera.height,
            step=model.step,
            render_seconds=time.monotonic() - start,
            legend=painted.picture.legend,
            notice=model.notice or painted.notice,
            # Of a model on several ranks what is here is what this picture needs, not all of it.
            kept=painted.kept if self._fetch is None else None,
        )
