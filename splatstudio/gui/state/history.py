"""The curves of a training, thinned to what a plot can show."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.checkpoints.checkpoint import newest_known_checkpoint
from splatstudio.evaluation.evaluate import Evaluation, evaluation_from_json
from splatstudio.files.inputs import read_input
from splatstudio.files.run import Run, newest_scores, score_files
from splatstudio.runtime.messages import Densified, Evaluated, Event, PlateauReached, Progress, Started
from splatstudio.runtime.sentences import checkpoint_step
from splatstudio.runtime.training_news import RATE_SECONDS, plateau_reached, running_mean
from splatstudio.settings.config import TrainConfig
from splatstudio.training.plateau import PlateauWatch
from splatstudio.training.session import METRICS_EVERY

MAX_PLOT_POINTS = 600  # all of them are sent again whenever one is added


class Curve:
    """Values over steps. When there are too many, every second one is dropped and fewer are taken.

    One thread may add while others read: they see every step with its own value.
    """

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._every = 1
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._points)

    @property
    def last(self) -> float:
        """Return the newest value, NaN where there is none."""
        with self._lock:
            return self._points[-1][1] if self._points else float("nan")

    @property
    def newest(self) -> float | None:
        """Return the same, None where there is none."""
        return self.last if len(self) else None

    @property
    def last_step(self) -> float:
        """Return the step of the newest value, NaN where there is none."""
        with self._lock:
            return self._points[-1][0] if self._points else float("nan")

    def of(self, step: int) -> float | None:
        """Return the value of exactly this step, None where there is none."""
        with self._lock:
            return next((value for at, value in reversed(self._points) if at == step), None)

    def at(self, step: int) -> float | None:
        """Return the newest value of `step` or before, None where there is none."""
        with self._lock:
            return next((value for at, value in reversed(self._points) if at <= step), None)

    def add(self, step: int, value: float) -> None:
        """Append a value; steps that were made again after a resume replace the old ones."""
        with self._lock:
            points = self._points
            while points and points[-1][0] >= step:
                points.pop()
            if points and step - points[-1][0] < self._every:
                return
            points.append((step, value))
            if len(points) > MAX_PLOT_POINTS:
                del points[1:-1:2]
                self._every = max(self._every * 2, 2)

    def insert(self, step: int, value: float) -> None:
        """Put in the value of a step that may lie before others."""
        with self._lock:
            self._points = sorted({**dict(self._points), step: value}.items())

    def cut(self, step: int) -> None:
        """Drop what comes after a step, from which a training goes on."""
        with self._lock:
            while self._points and self._points[-1][0] > step:
                self._points.pop()

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values, float64."""
        with self._lock:
            points = list(self._points)
        return np.array([step for step, _ in points], float), np.array([value for _, value in points], float)


class History:
    """How a training developed: its curves over the steps, and where the model was densified."""

    def __init__(self) -> None:
        self.loss = Curve()
        self.train_psnr = Curve()
        self.test_psnr = Curve()
        self.num_gaussians = Curve()
        self.rate = Curve()  # steps a second
        self.densified = Curve()  # the number of splats after each densification
        self.resets = Curve()  # the loss where the opacities were reset

    def follow(self, event: Event) -> None:
        """Take in an event of the worker."""
        if isinstance(event, Started):
            # What came after an older checkpoint, or before the first one, is made again.
            self.cut(event.step)
        elif isinstance(event, Progress):
            self.loss.add(event.step, event.loss)
            self.num_gaussians.add(event.step, event.num_gaussians)
            self.rate.add(event.step, event.steps_per_second)
            if event.psnr is not None:
                self.train_psnr.add(event.step, event.psnr)
        elif isinstance(event, Densified):
            if event.change.opacities_reset:
                self.resets.add(event.step, self.loss.last)
            if event.change.num_changed:
                self.densified.add(event.step, event.num_gaussians)
        elif isinstance(event, Evaluated):
            self.test_psnr.add(event.step, event.psnr)

    def cut(self, step: int) -> None:
        """Drop what comes after a step: the training goes on from there."""
        curves = (self.loss, self.train_psnr, self.test_psnr, self.num_gaussians, self.rate)
        for curve in (*curves, self.densified, self.resets):
            curve.cut(step)

    def load(self, rows: Iterable[dict]) -> None:
        """Take up the lines of an earlier part's metrics.jsonl, smoothed as while it was trained."""
        means: dict[str, float] = {}
        rate = LoggedRate()
        for row in rows:
            step = int(row["step"])
            for name, curve in (("loss", self.loss), ("psnr", self.train_psnr)):
                if isinstance(row.get(name), (int, float)):
                    means[name] = running_mean(means.get(name), float(row[name]))
                    curve.add(step, means[name])
            for name, curve in (("test_psnr", self.test_psnr), ("num_gaussians", self.num_gaussians)):
                if isinstance(row.get(name), (int, float)):
                    curve.add(step, float(row[name]))
            change = row.get("densified")
            if isinstance(change, dict):
                if change.get("opacities_reset"):
                    self.resets.add(step, self.loss.last)
                changed = any(change.get(name) for name in ("cloned", "split", "pruned", "relocated"))
                if changed and len(self.num_gaussians):
                    self.densified.add(step, self.num_gaussians.last)
            if isinstance(row.get("elapsed_s"), (int, float)):
                steps_per_second = rate.count(step, float(row["elapsed_s"]))
                if steps_per_second is not None:
                    self.rate.add(step, steps_per_second)


def history_of(run_dir: Path, rows: Iterable[dict]) -> History:
    """Return the curves of a run by the `rows` of its metrics.jsonl, and by its files in eval/.

    An evaluation that somebody asked for is in those files alone.
    """
    history = History()
    history.load(rows)
    for step, file in score_files(run_dir).items():
        if history.test_psnr.of(step) is None and (found := scores_in(file)) is not None:
            history.test_psnr.insert(step, found[1].psnr)
    return history


class LoggedRate:
    """Steps a second over the last few seconds, as StepRate counts them, by the times of metrics.jsonl."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()

    def count(self, step: int, elapsed: float) -> float | None:
        """Note that `step` was done after `elapsed` seconds; return the rate, None for the first."""
        steps = self._steps
        # Each part of a training counts its own seconds.
        if steps and not (elapsed > steps[-1][0] and step > steps[-1][1]):
            steps.clear()
        steps.append((elapsed, step))
        while len(steps) > 2 and elapsed - steps[0][0] > RATE_SECONDS:
            steps.popleft()
        start, first = steps[0]
        return (step - first) / (elapsed - start) if len(steps) > 1 else None


@dataclass(frozen=True, eq=False)
class RunSoFar:
    """A run as it was left. Of steps that are lost, as no checkpoint has them, there is nothing in it."""

    history: History
    flat: PlateauReached | None  # that its test score stands still, where it goes on and does
    scores: Path | None  # the newest file in eval/
    last_step: int  # what the run's files tell of later ones is lost


def run_so_far(run: Run, config: TrainConfig, resume_step: int | None) -> RunSoFar:
    """Return what is known of a run that goes on from `resume_step` (None: it does not) with `config`."""
    rows, last, news = run.metrics().rows, _last_step(run), None
    history = history_of(run.path, rows)
    history.cut(last)
    if resume_step is not None:
        news = PlateauWatch(rows, resume_step, planned=run.config.steps, steps=config.steps).offer(config)
    flat = None if news is None else plateau_reached(news, config)
    return RunSoFar(history, flat, newest_scores(run.path, last), last)


def _last_step(run: Run) -> int:
    """Return the last step of which a run has something: its newest checkpoint's, else what it noted."""
    checkpoint = newest_known_checkpoint(run.path)
    if checkpoint is not None:
        return checkpoint_step(checkpoint)
    rows = run.metrics().rows
    return rows[-1].get("step", 0) + METRICS_EVERY - 1 if rows else 0


def scores_in(file: Path) -> tuple[int, Evaluation] | None:
    """Return the step and the scores that lie in eval/step_N.json; None where it is gone or damaged."""
    try:
        values = json.loads(read_input(file))
        return int(values["step"]), evaluation_from_json(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def evaluated_in(file: Path) -> Evaluated | None:
    """Return what eval/step_N.json of a run tells; None where it is gone or damaged."""
    if (found := scores_in(file)) is None:
        return None
    step, scores = found
    return Evaluated(step, scores.psnr, scores.ssim, len(scores.images), file.parent)
