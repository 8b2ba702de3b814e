"""What rank 0 tells of a training: where it is, its scores, checkpoints and what stands still."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from splatstudio.checkpoints.saver import is_autosave
from splatstudio.evaluation.evaluate import Evaluation
from splatstudio.gaussians.gaussians import central_bounds
from splatstudio.models.model import Model
from splatstudio.runtime import messages
from splatstudio.runtime.sentences import checkpoint_step
from splatstudio.settings.config import TrainConfig
from splatstudio.training.plateau import AT_REST, PlateauNews
from splatstudio.training.session import Advance, Session
from splatstudio.training.trainer import Trainer

PROGRESS_SECONDS = 0.1  # at most ten Progress events a second
ERRORS_SECONDS = 1.0  # between two PhotoErrors events
RATE_SECONDS = 5.0  # the time over which steps a second are counted
LEAST_BESIDE = 0.1  # seconds; what is done after each step, as writing metrics, is a part of it
LEAST_SECONDS = 0.5  # after a pause, until which the rate before it is told: one step says little


class StepRate:
    """Steps a second over the last few seconds of training, without pauses, evaluations and saves."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()
        self._last: float | None = None
        self._before: float | None = None  # the last pause

    def restart(self, step: int) -> None:
        """Forget the steps before a pause."""
        self._before = self._last
        self._steps.clear()
        self._steps.append((time.monotonic(), step))

    def skip(self, seconds: float) -> None:
        """Leave out the `seconds` before now, in which something else was done than training."""
        if seconds > LEAST_BESIDE:
            self._steps = deque((done + seconds, step) for done, step in self._steps)

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

    def __init__(self, emit: Callable[[messages.Event], None]):
        self._emit = emit
        self._rate = StepRate()
        self._progress_due = 0.0
        self._loss: float | None = None
        self._psnr: float | None = None
        self._photo_errors: dict[str, float] = {}
        self._errors_due = 0.0

    def go_on_from(self, rows: Iterable[Mapping[str, Any]], step: int) -> None:
        """Take up the means over the `rows` of metrics.jsonl until `step`, after which a training goes on."""
        self._loss = self._psnr = None
        for row in rows:
            loss, psnr = row.get("loss"), row.get("psnr")
            if row.get("step", 0) > step:
                continue
            if isinstance(loss, float) and math.isfinite(loss):
                self._loss = running_mean(self._loss, loss)
            if isinstance(psnr, float) and math.isfinite(psnr):
                self._psnr = running_mean(self._psnr, psnr)

    def restart(self, step: int) -> None:
        """Begin again after a pause: the next step is told at once."""
        self._rate.restart(step)
        self._progress_due = 0.0

    def count(self, trainer: Trainer, advance: Advance, *, last: bool) -> None:
        """Take in a step; tell of it when it is time to, or when it is the last."""
        stats = advance.stats
        self._rate.skip(advance.seconds_beside)
        rate = self._rate.count(trainer.step)
        self._loss = running_mean(self._loss, stats.loss)
        if stats.psnr is not None and math.isfinite(stats.psnr):
            self._psnr = running_mean(self._psnr, stats.psnr)
            self._photo_errors[stats.view] = stats.psnr
        if stats.change is not None:
            self._emit(messages.Densified(trainer.step, stats.num_gaussians, stats.change))
        now = time.monotonic()
        if now >= self._progress_due or last:
            self._tell(trainer, rate)
        if now >= self._errors_due or last:
            self._tell_errors(trainer.step)

    def skip(self, seconds: float) -> None:
        """Leave the `seconds` before now out of the speed."""
        self._rate.skip(seconds)

    def tell(self, trainer: Trainer) -> None:
        """Say now where the training stands."""
        self._tell(trainer, self._rate.count(trainer.step))
        self._tell_errors(trainer.step)

    def _tell_errors(self, step: int) -> None:
        if self._photo_errors:
            self._errors_due = time.monotonic() + ERRORS_SECONDS
            self._emit(messages.PhotoErrors(step, tuple(self._photo_errors.items())))
            self._photo_errors = {}

    def _tell(self, trainer: Trainer, rate: float) -> None:
        self._progress_due = time.monotonic() + PROGRESS_SECONDS
        if self._loss is None:
            return
        left = trainer.config.steps - trainer.step
        self._emit(
            messages.Progress(
                step=trainer.step,
                total_steps=trainer.config.steps,
                loss=self._loss,
                psnr=self._psnr,
                num_gaussians=trainer.num_gaussians,
                steps_per_second=rate,
                eta_seconds=left / rate if rate > 0 else None,
            )
        )


def running_mean(mean: float | None, value: float) -> float:
    """Return the exponential mean over about 10 values: single photos differ more than steps do."""
    return value if mean is None else mean + (value - mean) * 0.1


class TrainingNews(ProgressTeller):
    """Tells of one training by `emit`, each thing once."""

    def __init__(self, emit: Callable[[messages.Event], None]):
        super().__init__(emit)
        self._offer: PlateauNews | None = None  # what was told of a score that stands still, where it holds

    def begun(self, session: Session) -> None:
        """Tell where a training begins, or goes on after its last step."""
        trainer, scene = session.trainer, session.trainer.scene
        num_train, num_test = len(scene.train_indices), len(scene.test_indices)
        self.go_on_from(session.run.metrics().rows, trainer.step)
        self._emit(
            messages.Started(trainer.step, trainer.config.steps, trainer.num_gaussians, num_train, num_test)
        )

    def advanced(self, session: Session, advance: Advance) -> None:
        """Tell what came of a step."""
        trainer = session.trainer
        if advance.evaluation is not None:
            self.evaluated(session, advance.evaluation)
        if advance.flat is not None and advance.flat.stops:
            self._emit(plateau_reached(advance.flat, trainer.config))
            self._offer = None
        self.offer(session)
        self.saved(advance.saved, advance.problem)
        if advance.stopped is not None:
            self._emit(messages.EvaluationStopped(advance.stopped))
        self.count(trainer, advance, last=session.finished)

    def evaluated(self, session: Session, evaluation: Evaluation) -> None:
        """Tell the scores of the test photos."""
        step, folder = session.trainer.step, session.run.path / "eval"
        scores = (evaluation.psnr, evaluation.ssim, len(evaluation.images))
        written = (folder / f"step_{step:08d}.json").exists()
        self._emit(messages.Evaluated(step, *scores, folder if written else None))

    def rises(self, step: int) -> None:
        """Tell who heard in an earlier process that the test score stands still that it no longer does."""
        self._emit(messages.PlateauLeft(step))

    def offer(self, session: Session) -> None:
        """Tell where the test score begins to stand still, or to rise again."""
        news = session.plateau_offer
        if news != self._offer:
            self._offer = news
            trainer = session.trainer
            self._emit(
                messages.PlateauLeft(trainer.step) if news is None else plateau_reached(news, trainer.config)
            )

    def saved(self, complete: tuple[Path, ...], problem: str | None) -> None:
        """Tell of checkpoints that became complete in the background, and of those that did not."""
        for path in complete:
            self._emit(messages.Saved(checkpoint_step(path), path, is_autosave(path)))
        if problem is not None:
            self._emit(messages.Warned(problem))

    def limit(self, trainer: Trainer, before: int) -> None:
        """Tell of a limit on the number of Gaussians that memory has set: the studio shows and keeps it."""
        limit = trainer.config.densify.max_gaussians
        if limit != before:
            self._emit(messages.SettingChanged(trainer.step, "densify.max_gaussians", limit))


def note_on_scores(trainer: Trainer) -> str | None:
    """Return a sentence where there are no scores to stop by."""
    if not trainer.config.stop_when_flat or trainer.scene.test_indices:
        return None
    return "There are no test photos whose score could stand still: all steps are trained."


def plateau_reached(news: PlateauNews, config: TrainConfig) -> messages.PlateauReached:
    """Return what is told of `news` in a training with the settings `config`."""
    waits = config.stop_when_flat and news.rates_left < AT_REST
    since, psnr, left = news.flat.since, news.flat.psnr, news.rates_left
    return messages.PlateauReached(news.step, config.steps, since, psnr, news.stops, waits, rates_left=left)


def model_loaded(model: Model, num_gaussians: int | None = None) -> messages.ModelLoaded:
    """Describe a model for a viewer that must find its first point of view.

    `num_gaussians` are those of all ranks where `model` has a part of them alone.
    """
    num_gaussians = len(model) if num_gaussians is None else num_gaussians
    center, radius = central_bounds(model.gaussians)
    return messages.ModelLoaded(model.step, num_gaussians, center, radius, model.gaussians.sh_degree)
