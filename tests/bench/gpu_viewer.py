"""Pictures for a browser beside a training, as the worker draws them, and what they cost the training."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpu_report import Clock
from gpu_workloads import Workload

from splatstudio.rendering.render import RenderOptions
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.messages import Event, Frame, SetView
from splatstudio.runtime.view_renderer import ShownModel, ViewRenderer

FRAMES_PER_SECOND = 20
ROUNDS = 3
PATIENCE = 60.0  # s to wait for one picture


@dataclass(frozen=True)
class ViewerFigures:
    """Medians: a picture until it lies in shared memory, and the training's speed with over without."""

    paused: float  # ms
    training: float  # ms
    slowdown: float  # 0.05: the training is slower by 5 %
    frames_per_second: float  # that came, of FRAMES_PER_SECOND that were asked for


class Viewer:
    """Asks a ViewRenderer for pictures of a workload and takes the time."""

    def __init__(self, workload: Workload):
        self._camera = workload.camera
        self._slots = FrameSlots.create(2, 3 * workload.camera.width * workload.camera.height)
        self._events: queue.Queue[tuple[float, Event]] = queue.Queue()
        self.training = False
        self._renderer = ViewRenderer(self._slots, self._take, lambda: self.training)
        self._renderer.publish(ShownModel(workload.gaussians.detach(), RenderOptions(), 0))
        self._seq = 0

    def _take(self, event: Event) -> None:
        self._events.put((time.perf_counter(), event))
        if isinstance(event, Frame):
            self._renderer.return_slot(event.slot)

    def picture(self) -> float:
        """Return the milliseconds from a request to the picture."""
        started, seq = time.perf_counter(), self._seq
        self._seq += 1
        self._renderer.request(SetView(0, seq, self._camera))
        while True:
            at, event = self._events.get(timeout=PATIENCE)
            if not isinstance(event, Frame):
                raise RuntimeError(f"the viewer drew no picture: {event}")
            if event.seq == seq:
                return 1000.0 * (at - started)

    @contextmanager
    def looking(self) -> Iterator[list[float]]:
        """Ask for FRAMES_PER_SECOND pictures a second in a thread; yields the list of their milliseconds."""
        times: list[float] = []
        errors: list[Exception] = []
        over = threading.Event()

        def look() -> None:
            next_at = time.perf_counter()
            try:
                while not over.wait(max(0.0, next_at - time.perf_counter())):
                    next_at = max(next_at + 1 / FRAMES_PER_SECOND, time.perf_counter())
                    times.append(self.picture())
            except (RuntimeError, queue.Empty) as error:
                errors.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield times
        finally:
            over.set()
            thread.join()
        if errors:
            raise errors[0]

    def close(self) -> None:
        """End the renderer's thread and give its memory back."""
        self._renderer.close()
        self._slots.close()


def measure_viewer(
    workload: Workload, step: Callable[[], object], clock: Clock, seconds: float
) -> ViewerFigures:
    """Draw the workload paused and beside a training of `step`s, about `seconds` in all."""
    stretch = seconds / (2 * ROUNDS + 1)
    viewer = Viewer(workload)
    try:
        viewer.picture()
        paused = [viewer.picture()]
        end = time.perf_counter() + stretch
        while time.perf_counter() < end:
            paused.append(viewer.picture())
        viewer.training = True
        step()
        alone, beside, drawn = [], [], []
        for _ in range(ROUNDS):  # in turns, so that drift cancels
            alone.append(_steps_a_second(step, clock, stretch))
            with viewer.looking() as times:
                beside.append(_steps_a_second(step, clock, stretch))
            drawn.extend(times)
    finally:
        viewer.close()
    return ViewerFigures(
        paused=statistics.median(paused),
        training=statistics.median(drawn),
        slowdown=1.0 - statistics.median(beside) / statistics.median(alone),
        frames_per_second=len(drawn) / (ROUNDS * stretch),
    )


def _steps_a_second(step: Callable[[], object], clock: Clock, seconds: float) -> float:
    clock.wait()
    started, num = time.perf_counter(), 0
    while num == 0 or time.perf_counter() < started + seconds:
        step()
        num += 1
    clock.wait()
    return num / (time.perf_counter() - started)
