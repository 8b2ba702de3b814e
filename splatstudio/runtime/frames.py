"""Renders what the browsers look at, in a thread beside the training steps.

The thread reads the Gaussians that were published last, as they are: a step in progress may move them, no
step replaces them. Nobody looks: the thread sleeps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from splatstudio.error_text import first_line
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.rendering.render import RenderOptions
from splatstudio.runtime.channel import FrameSlots
from splatstudio.runtime.looks import ViewRequest
from splatstudio.runtime.messages import Event, Frame, SetView, Warned
from splatstudio.runtime.painter import Painter, drawn_from
from splatstudio.scene.scene import Scene

log = logging.getLogger("splatstudio.runtime")


@dataclass(frozen=True, eq=False)
class ShownModel:
    """The Gaussians on view, how to draw them, and the step they belong to (or nearly)."""

    gaussians: Gaussians
    options: RenderOptions
    step: int
    scene: Scene | None = None  # whose photographs it can be compared with
    notice: str | None = None  # what is missing in it, one sentence


def threads_beside(threads: int) -> int:
    """Return how many of `threads` render beside a training: half of them, but two where there are two.

    On two cores, 640x360 and 114 k splats, two threads bring a picture in 68 ms instead of 91 ms (median),
    for 3 % of the training's speed.
    """
    return min(threads, max(2, threads // 2))


class FrameRenderer:
    """One latest-wins request for each view, served in turn; each frame costs a slot until it is returned.

    While `training()` holds, frames are rendered by fewer threads: they shall slow a step, not stop it.
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
        self._free = set(range(slots.file.num_slots))
        self._changed = threading.Condition()
        self._closed = False
        self._warned = False
        self._thread = threading.Thread(target=self._render_all, name="frames", daemon=True)
        self._thread.start()

    def publish(self, model: ShownModel) -> None:
        """Show `model` from now on."""
        with self._changed:
            self._model = model
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
            self._fetched.append((wanted, model))
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
                with ops.limited_threads(threads_beside(threads) if self._training() else threads):
                    frame = self._render(wanted, slot, model)
            except Exception as error:
                # Whatever it is: a picture that cannot be drawn must not end the training beside it.
                self.return_slot(slot)
                self._tell(error)
                continue
            self._send(frame)

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
        picture, notice = self._painter.paint(
            model.gaussians, camera, model.options, wanted.options, model.scene
        )
        self._slots.view(slot, camera.height, camera.width)[:] = picture.image
        return Frame(
            view=wanted.view,
            seq=wanted.seq,
            slot=slot,
            width=camera.width,
            height=camera.height,
            step=model.step,
            render_seconds=time.monotonic() - start,
            legend=picture.legend,
            notice=model.notice or notice,
        )
