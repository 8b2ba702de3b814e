"""What is told of a training step by step: rate, loss and PSNR, at a pace that a page can follow."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from splatstudio.runtime.messages import Densified, Event, PhotoErrors, Progress
from splatstudio.train.session import Advance
from splatstudio.train.trainer import Trainer

PROGRESS_SECONDS = 0.1  # at most ten Progress events a second
ERRORS_SECONDS = 1.0  # between two PhotoErrors events
RATE_SECONDS = 5.0  # the time over which steps a second are counted
LEAST_SECONDS = 0.5  # after a pause, until which the rate before it is told: one step says little


class StepRate:
    """Steps a second over the last few seconds of training, pauses left out."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()
        self._last: float | None = None
        self._before: float | None = None  # the last pause

    def restart(self, step: int) -> None:
        """Forget the steps before a pause."""
        self._before = self._last
        self._steps.clear()
        self._steps.append((time.monotonic(), step))

    def count(self, step: int) -> float:
        """Note that `step` is done now and return the rate."""
        now = time.monotonic()
        self._steps.append((now, step))
        while len(self._steps) > 2 and now - self._steps[0][0] > RATE_SECONDS:
            self._steps.popleft()
        start, first = self._steps[0]
        if self._before is not None and now - start < LEAST_SECONDS:
            return self._before
        self._last = (step - first) / max(now - start, 1e-9)
        return self._last


class ProgressTeller:
    """Emits Progress and PhotoErrors, not at every step, and what changed the number of Gaussians."""

    def __init__(self, emit: Callable[[Event], None]):
        self._emit = emit
        self._rate = StepRate()
        self._started = time.monotonic()
        self._progress_due = 0.0
        self._loss: float | None = None
        self._psnr: float | None = None
        self._photo_errors: dict[str, float] = {}
        self._errors_due = 0.0

    def restart(self, step: int) -> None:
        """Begin anew after a pause: the next step is told at once."""
        self._rate.restart(step)
        self._progress_due = 0.0

    def count(self, trainer: Trainer, advance: Advance, *, last: bool) -> None:
        """Take in a step; tell of it when it is time to, or when it is the last."""
        stats = advance.stats
        rate = self._rate.count(trainer.step)
        self._loss = running_mean(self._loss, stats.loss)
        if stats.psnr is not None and math.isfinite(stats.psnr):
            self._psnr = running_mean(self._psnr, stats.psnr)
            self._photo_errors[stats.view] = stats.psnr
        if stats.change is not None:
            self._emit(Densified(trainer.step, stats.num_gaussians, stats.change))
        now = time.monotonic()
        if now >= self._progress_due or last:
            self._tell(trainer, rate)
        if now >= self._errors_due or last:
            self._tell_errors(trainer.step)

    def tell(self, trainer: Trainer) -> None:
        """Say now where the training stands."""
        self._tell(trainer, self._rate.count(trainer.step))
        self._tell_errors(trainer.step)

    def _tell_errors(self, step: int) -> None:
        if self._photo_errors:
            self._errors_due = time.monotonic() + ERRORS_SECONDS
            self._emit(PhotoErrors(step, tuple(self._photo_errors.items())))
            self._photo_errors = {}

    def _tell(self, trainer: Trainer, rate: float) -> None:
        now = time.monotonic()
        self._progress_due = now + PROGRESS_SECONDS
        if self._loss is None:
            return
        left = trainer.config.steps - trainer.step
        self._emit(
            Progress(
                step=trainer.step,
                total_steps=trainer.config.steps,
                loss=self._loss,
                psnr=self._psnr,
                num_gaussians=trainer.num_gaussians,
                steps_per_second=rate,
                eta_seconds=left / rate if rate > 0 else None,
                elapsed_seconds=now - self._started,
            )
        )


def running_mean(mean: float | None, value: float) -> float:
    """Return the exponential mean over about 10 values: single photographs differ more than steps do."""
    return value if mean is None else mean + (value - mean) * 0.1
