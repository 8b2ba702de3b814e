"""A training under orders: start, pause, resume, stop, and what the user asks for in between."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from splatstudio.model import Model
from splatstudio.rendering import options_for_display
from splatstudio.run import Run
from splatstudio.scene import load_scene
from splatstudio.session import Advance, Session
from splatstudio.trainer import Trainer, TrainingDiverged
from splatstudio.worker.export import model_loaded
from splatstudio.worker.frames import ShownModel
from splatstudio.worker.messages import (
    Command,
    Evaluate,
    Evaluated,
    Event,
    Finished,
    Pause,
    PhotoErrors,
    Progress,
    Resume,
    Save,
    Saved,
    Start,
    Started,
    State,
    StateChanged,
    Stop,
    TrainJob,
    UpdateSettings,
    Warned,
)

PROGRESS_SECONDS = 0.1  # at most ten Progress events a second
ERRORS_SECONDS = 1.0  # between two PhotoErrors events
RATE_SECONDS = 5.0  # the time over which steps a second are counted

log = logging.getLogger("splatstudio.worker")


class StepRate:
    """Steps a second over the last few seconds of training, pauses left out."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()

    def restart(self, step: int) -> None:
        """Forget what was before a pause."""
        self._steps.clear()
        self._steps.append((time.monotonic(), step))

    def count(self, step: int) -> float:
        """Note that `step` is done now and return the rate."""
        now = time.monotonic()
        self._steps.append((now, step))
        while len(self._steps) > 2 and now - self._steps[0][0] > RATE_SECONDS:
            self._steps.popleft()
        start, first = self._steps[0]
        return (step - first) / max(now - start, 1e-9)


class Training:
    """The Trainer of a TrainJob with its run folder, and the state that the user sees."""

    def __init__(
        self,
        job: TrainJob,
        emit: Callable[[Event], None],
        publish: Callable[[ShownModel], None],
        log_into: Callable[[Path], None],
    ):
        self._job = job
        self._emit = emit
        self._publish = publish
        self._log_into = log_into
        self._session: Session | None = None
        self._state: State = "ready"
        self._rate = StepRate()
        self._started = time.monotonic()
        self._progress_due = 0.0
        self._loss: float | None = None
        self._psnr: float | None = None
        self._photo_errors: dict[str, float] = {}
        self._errors_due = 0.0

    def begin(self) -> None:
        """Say that the worker is there; training waits for Start."""
        self._emit(StateChanged("ready"))

    @property
    def running(self) -> bool:
        """Say whether there is a next step to train."""
        return self._state == "training"

    @property
    def step(self) -> int:
        """Return the number of steps done, 0 before the start."""
        return self._session.trainer.step if self._session else 0

    def model_copy(self) -> Model | None:
        """Return the model as it is now, which no later step changes; None before the start."""
        if self._session is None:
            return None
        model = self._model(self._session.trainer)
        return replace(model, gaussians=model.gaussians.detach().map(Tensor.clone))

    def execute(self, command: Command) -> None:
        """Carry out one order; what cannot be done now is answered with a Warned."""
        if isinstance(command, Start):
            self._start()
        elif self._session is None:
            self._emit(Warned("The training has not started yet; press Start first."))
        elif isinstance(command, Pause):
            self._pause(self._session)
        elif isinstance(command, Resume):
            self._resume(self._session)
        elif isinstance(command, Stop):
            self._stop(self._session)
        elif isinstance(command, UpdateSettings):
            self._update_settings(self._session, command)
        elif isinstance(command, Save):
            self._save(self._session)
        elif isinstance(command, Evaluate):
            self._evaluate(self._session)
        else:
            raise AssertionError(f"unknown command {command}")

    def advance(self) -> None:
        """Train one step and tell what came of it."""
        assert self._session is not None and self.running
        advance = self._session.advance()
        self._show(self._session)
        self._report(self._session, advance)
        if self._session.finished:
            self._finish(self._session, completed=True)

    def close(self) -> None:
        """Save an unfinished training and let the Trainer go."""
        if self._session is None:
            return
        if self._state in ("training", "paused"):
            self._stop(self._session)
        self._session.trainer.close()

    def rescue(self, error: Exception) -> None:
        """Save the steps since the last checkpoint when `error` ends the worker.

        Only what leaves the model whole: an unreadable photograph, a failing disk.
        """
        whole = isinstance(error, (ValueError, OSError)) and not isinstance(error, TrainingDiverged)
        if self._session is None or not whole:
            return
        try:
            saved = self._session.save_if_needed()
        except OSError:
            log.exception("the model could not be saved")
            return
        if saved is not None:
            self._emit(Saved(self._session.trainer.step, saved))

    def _change_state(self, state: State) -> None:
        self._state = state
        self._emit(StateChanged(state))

    def _start(self) -> None:
        if self._session is not None:
            self._emit(Warned("The training has started already."))
            return
        self._change_state("loading")
        job = self._job
        scene = load_scene(job.scene_path, downscale=job.config.downscale, test_every=job.config.test_every)
        if job.checkpoint is not None:
            trainer = Trainer.resume(scene, job.checkpoint, steps=job.config.steps)
            run = Run.open(job.run_dir)
        else:
            trainer = Trainer(scene, job.config)
            run = Run.create(job.run_dir, job.scene_path, job.config)
        self._log_into(run.path / "logs" / "worker.log")
        session = self._session = Session(trainer, run)
        self._show(session)
        self._emit(model_loaded(self._model(trainer)))
        self._announce(session)
        if session.finished:
            self._finish(session, completed=True)
        else:
            self._run(session)

    def _announce(self, session: Session) -> None:
        trainer, scene = session.trainer, session.trainer.scene
        num_train, num_test = len(scene.train_indices), len(scene.test_indices)
        self._emit(Started(trainer.step, trainer.config.steps, len(trainer.gaussians), num_train, num_test))

    def _run(self, session: Session) -> None:
        self._rate.restart(session.trainer.step)
        self._progress_due = 0.0
        self._change_state("training")

    def _pause(self, session: Session) -> None:
        if self.running:
            # The step at which it stands still is told exactly.
            self._emit_progress(session.trainer, self._rate.count(session.trainer.step))
            self._change_state("paused")

    def _resume(self, session: Session) -> None:
        if session.finished:
            steps = session.trainer.config.steps
            self._emit(Warned(f"All {steps:,} steps are done; raise the number of steps to go on."))
        elif not self.running:
            if self._state == "finished":
                self._announce(session)
            self._run(session)

    def _stop(self, session: Session) -> None:
        if self._state in ("training", "paused"):
            self._finish(session, completed=False)

    def _finish(self, session: Session, *, completed: bool) -> None:
        try:
            saved = session.save_if_needed()
        except OSError as error:
            self._emit(
                Warned(f"Not saved: {error}. The model is kept: make room on the disk, then press Save.")
            )
            self._change_state("paused")
            return
        if saved is not None:
            self._emit(Saved(session.trainer.step, saved))
        self._change_state("finished")
        self._emit(Finished(session.trainer.step, completed, saved))

    def _update_settings(self, session: Session, command: UpdateSettings) -> None:
        for path, value in command.values:
            try:
                session.trainer.update_setting(path, value)
            except ValueError as error:
                self._emit(Warned(f"Not changed: {error}"))
                continue
            try:
                session.run.append_metrics({"step": session.trainer.step, "setting": path, "value": value})
            except OSError as error:
                self._emit(Warned(f"Changed, but not noted in metrics.jsonl: {error}"))

    def _save(self, session: Session) -> None:
        try:
            path = session.save()
        except OSError as error:
            self._emit(Warned(f"Not saved: {error}. Earlier checkpoints are untouched."))
            return
        self._emit(Saved(session.trainer.step, path))

    def _evaluate(self, session: Session) -> None:
        if not session.trainer.scene.test_indices:
            self._emit(
                Warned("There are no test photographs: this scene was loaded without a held-out part.")
            )
            return
        try:
            evaluation = session.evaluate()
        except (OSError, ValueError) as error:
            self._emit(Warned(f"Not evaluated: {error}"))
            return
        self._emit_evaluated(session, evaluation.psnr, evaluation.ssim, len(evaluation.images))

    def _emit_evaluated(self, session: Session, psnr: float, ssim: float, num_images: int) -> None:
        self._emit(Evaluated(session.trainer.step, psnr, ssim, num_images, session.run.path / "eval"))

    def _model(self, trainer: Trainer) -> Model:
        options = options_for_display(trainer.config)
        return Model(trainer.gaussians, trainer.scene.transform, options, trainer.step)

    def _show(self, session: Session) -> None:
        trainer = session.trainer
        self._publish(ShownModel(trainer.gaussians, options_for_display(trainer.config), trainer.step))

    def _report(self, session: Session, advance: Advance) -> None:
        trainer, stats = session.trainer, advance.stats
        rate = self._rate.count(trainer.step)
        self._loss = _running_mean(self._loss, stats.loss)
        if stats.psnr is not None and math.isfinite(stats.psnr):
            self._psnr = _running_mean(self._psnr, stats.psnr)
            self._photo_errors[stats.view] = stats.psnr
        if advance.evaluation is not None:
            scores = advance.evaluation
            self._emit_evaluated(session, scores.psnr, scores.ssim, len(scores.images))
        if advance.saved is not None:
            self._emit(Saved(trainer.step, advance.saved))
        if advance.problem is not None:
            self._emit(Warned(advance.problem))
        if time.monotonic() >= self._progress_due or session.finished:
            self._emit_progress(trainer, rate)
        if self._photo_errors and (time.monotonic() >= self._errors_due or session.finished):
            self._errors_due = time.monotonic() + ERRORS_SECONDS
            self._emit(PhotoErrors(trainer.step, tuple(self._photo_errors.items())))
            self._photo_errors = {}

    def _emit_progress(self, trainer: Trainer, rate: float) -> None:
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
                num_gaussians=len(trainer.gaussians),
                steps_per_second=rate,
                eta_seconds=left / rate if rate > 0 else None,
                elapsed_seconds=now - self._started,
            )
        )


def _running_mean(mean: float | None, value: float) -> float:
    """Return the exponential mean over about 10 values: single photographs differ more than steps do."""
    return value if mean is None else mean + (value - mean) * 0.1
