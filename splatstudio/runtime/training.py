"""A training under orders: start, pause, resume, stop, and what the user asks for in between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from splatstudio.files.run import Run
from splatstudio.models.model import Model
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.crew import Leader
from splatstudio.runtime.frames import ShownModel
from splatstudio.runtime.log_file import log_of
from splatstudio.runtime.looks import ViewRequest
from splatstudio.runtime.messages import (
    Command,
    Evaluate,
    Finished,
    Pause,
    Resume,
    Save,
    Saved,
    SetCap,
    SettingChanged,
    Start,
    State,
    StateChanged,
    Step,
    Stop,
    TrainJob,
    UpdateSettings,
    Warned,
)
from splatstudio.runtime.model_loaded import model_loaded
from splatstudio.runtime.receipts import PausesAt
from splatstudio.runtime.shared_frames import SharedFrames
from splatstudio.runtime.trainers import trainer_of
from splatstudio.runtime.training_news import TrainingNews, note_on_scores
from splatstudio.train.precision import note_on_precision
from splatstudio.train.session import EvaluationAbandoned, Session
from splatstudio.train.trainer import Trainer, TrainingDiverged

log = logging.getLogger("splatstudio.runtime")

KEPT = ". The model is kept: make room on the disk, then save again."
LOST = "; the steps since the last checkpoint are lost."


class Training:
    """The Trainer of a TrainJob with its run folder, and the state that the user sees."""

    def __init__(self, job: TrainJob, desk: WorkerContext):
        self._job = job
        self._desk = desk
        self._emit = desk.emit
        self._session: Session | None = None
        self._leader: Leader | None = None  # with the session
        self._state: State = "ready"
        self._pause_at: int | None = None  # the step after which to pause, where one was given
        self._news = TrainingNews(desk.emit)

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
        if self._session is None or self._leader is None:
            return None
        gaussians = self._leader.whole_model().detach()
        if gaussians.means.data_ptr() == self._session.trainer.live_gaussians.means.data_ptr():
            gaussians = gaussians.map(Tensor.clone)
        return replace(self._model(self._session.trainer), gaussians=gaussians)

    def shared_frames(self) -> SharedFrames | None:
        """Return what draws pictures of a model that lies on several ranks; None before the start."""
        return None if self._leader is None else self._leader.frames

    def seen_by(self, looks: Sequence[ViewRequest]) -> list[ShownModel]:
        """Return what each of `looks` shows of the model, of which each rank has a part."""
        assert self._leader is not None, "nothing was published to look at"
        return self._leader.seen_by(looks)

    def execute(self, command: Command) -> None:
        """Carry out one order; what cannot be done now is answered with a Warned."""
        if isinstance(command, Start):
            self._start(command)
        elif self._session is None:
            self._emit(Warned("The training has not started yet; press Start first."))
        else:
            _ORDERS[type(command)](self, self._session, command)

    def advance(self) -> None:
        """Train one step and tell what came of it."""
        assert self._session is not None and self.running
        limit = self._session.trainer.config.densify.max_gaussians
        try:
            advance = self._session.advance()
        finally:
            # What memory has set holds for a process that takes this one's place, too.
            self._news.limit(self._session.trainer, limit)
        assert self._leader is not None
        if (report := self._leader.after_step(advance.stats.seconds)) is not None:
            self._emit(report)
        if advance.stats.problem is not None:
            self._emit(Warned(advance.stats.problem))
        self._show(self._session)
        self._news.advanced(self._session, advance)
        if self._session.finished or (advance.flat is not None and advance.flat.stops):
            self._finish(self._session)
        elif self._pause_at is not None and self.step >= self._pause_at:
            self._pause(self._session, Pause())

    def idle(self) -> None:
        """Tell of a save that was under way when the steps ended."""
        if self._session is not None:
            settled = self._session.settle(wait=False)
            self._news.saved(settled.saved, settled.problem)
            if self._unsaved_end(self._session) and self._session.saved is not None:
                self._finish(self._session)  # what could not be saved at the last step has been since

    def close(self) -> None:
        """Save an unfinished training and let the Trainer go."""
        if self._session is None:
            return
        if self._state in ("training", "paused"):
            self._finish(self._session, otherwise=LOST)
        self._session.close()
        self._session.trainer.close()

    def rescue(self, error: Exception) -> None:
        """Save the steps since the last checkpoint when `error` ends the worker.

        Only what leaves the model whole: an unreadable photograph, a failing disk, too little memory for what
        does not change the model. After any other error nothing in memory can be trusted.
        """
        told = isinstance(error, (ValueError, OSError)) and not isinstance(error, TrainingDiverged)
        if self._session is None or not self._session.trainer.whole or not (told or _is_memory(error)):
            return
        try:
            saved = self._session.save_if_needed()
        except (OSError, MemoryError):
            log.exception("the model could not be saved")
            return
        if saved is not None:
            self._emit(Saved(self._session.trainer.step, saved))

    def _change_state(self, state: State, *, unsaved: bool = False) -> None:
        self._state = state
        self._emit(StateChanged(state, unsaved))

    def _start(self, command: Start) -> None:
        if self._session is not None:
            self._emit(Warned("The training has started already."))
            return
        self._change_state("loading")
        job = self._job
        trainer = trainer_of(job, self._desk.ranks())
        trainer.alive = self._desk.alive
        run = self._first_run() if job.checkpoint is None else Run.open(job.run_dir)
        self._desk.log_into(log_of(run.path))
        leader = self._leader = Leader(trainer, self._desk.ranks(), self._desk.tell)
        session = self._session = Session(
            trainer, run, saver=leader.saver(run.path), evaluator=leader.evaluate
        )
        session.breathe, session.saving = self._desk.breathe, self._desk.saving
        for note in session.notes:
            log.info("%s", note)
        if trainer.halves is not None:
            log.info("ranks send each other colours and most gradients in 16 bits")
        note = note_on_precision(trainer.config.precision, trainer.ranks.num_ranks)
        for warning in filter(None, (session.lock_problem, note, note_on_scores(trainer))):
            self._emit(Warned(warning))
        self._show(session)
        self._emit(model_loaded(self._model(trainer), trainer.num_gaussians))
        self._news.begun(session)
        if session.finished:
            self._finish(session)
        else:
            if self._job.checkpoint is not None and session.plateau_offer is None:
                self._news.rises(self.step)  # who was told otherwise before knows it now
            self._news.offer(session)
            self._run(session, command.pause_at)
            if command.pause_at is not None and self.step >= command.pause_at:
                self._pause(session, Pause())

    def _first_run(self) -> Run:
        """Return the folder of a training from the start: a new one, or that of a process that died in it."""
        job = self._job
        if job.attempt > 0 and (job.run_dir / "run.json").exists():
            return Run.open(job.run_dir)
        return Run.create(job.run_dir, job.scene_path, job.config)

    def _run(self, session: Session, pause_at: int | None = None) -> None:
        self._pause_after(pause_at)
        self._news.runs(session.trainer)
        self._change_state("training")

    def _pause_after(self, step: int | None) -> None:
        if step != self._pause_at:
            self._pause_at = step
            self._emit(PausesAt(step))

    def _pause(self, session: Session, command: Pause) -> None:
        if self.running:
            self._news.stands_still(session.trainer)
            session.rest()
            self._change_state("paused")

    def _resume(self, session: Session, command: Resume) -> None:
        if self.running:
            self._pause_after(None)
        else:
            self._go_on(session, None)

    def _step(self, session: Session, command: Step) -> None:
        if not command.count >= 1:
            self._emit(Warned(f"The number of steps to train must be at least 1, not {command.count}."))
        elif self.running:
            self._pause_after(session.trainer.step + command.count)
        else:
            self._go_on(session, session.trainer.step + command.count)

    def _go_on(self, session: Session, pause_at: int | None) -> None:
        if self._unsaved_end(session):
            self._finish(session)
            return
        if session.finished:
            steps = session.trainer.config.steps
            self._emit(Warned(f"All {steps:,} steps are done; raise the number of steps to go on."))
            return
        if self._state == "finished":
            self._news.begun(session)
        self._run(session, pause_at)

    def _stop(self, session: Session, command: Stop) -> None:
        if self._state in ("training", "paused"):
            self._finish(session)

    def _unsaved_end(self, session: Session) -> bool:
        """Say whether all steps are done, but the model could not be saved."""
        return session.finished and self._state == "paused"

    def _finish(self, session: Session, *, otherwise: str = KEPT) -> None:
        """Save and tell of the end, or why it cannot be saved and what becomes of the model `otherwise`."""
        session.rest()  # it may be told to go on
        try:
            saved = session.save_if_needed()
        except OSError as error:
            self._emit(Warned(f"Not saved: {error}{otherwise}"))
            self._change_state("paused", unsaved=True)
            return
        settled = session.settle()  # a save of an earlier step that was still under way
        self._news.saved(settled.saved, settled.problem)
        if saved is not None:
            self._emit(Saved(session.trainer.step, saved))
        self._change_state("finished")
        self._emit(Finished(session.trainer.step, session.finished, saved or session.saved))

    def _update_settings(self, session: Session, command: UpdateSettings) -> None:
        for path, value in command.values:
            self._set(session, path, value)

    def _set_cap(self, session: Session, command: SetCap) -> None:
        self._set(session, "densify.max_gaussians", command.max_gaussians)

    def _set(self, session: Session, path: str, value: Any) -> None:
        step = session.trainer.step
        try:
            session.trainer.update_setting(path, value)
        except ValueError as error:
            self._emit(Warned(f"Not changed: {error}"))
            return
        self._emit(SettingChanged(step, path, value))
        try:
            session.note_setting(path, value)
        except OSError as error:
            self._emit(Warned(f"Changed, but not noted in metrics.jsonl: {error}"))
        self._news.offer(session)

    def _save(self, session: Session, command: Save) -> None:
        session.save_in_background()  # a later step, or `idle`, tells when it is complete

    def _evaluate(self, session: Session, command: Evaluate) -> None:
        if not session.trainer.scene.test_indices:
            self._emit(
                Warned("There are no test photographs: this scene was loaded without a held-out part.")
            )
            return
        if session.evaluating:
            self._emit(Warned("An evaluation is under way already."))
            return
        try:
            evaluation = session.evaluate()
        except EvaluationAbandoned:
            self._emit(Warned("The evaluation was broken off."))
            return
        except (OSError, ValueError) as error:
            self._emit(Warned(f"Not evaluated: {error}"))
            return
        self._news.evaluated(session, evaluation)
        self._news.offer(session)

    def _model(self, trainer: Trainer) -> Model:
        options = trainer.display_options
        frame = trainer.scene.transform
        return Model(trainer.gaussians, frame, options, trainer.step, poses=trainer.poses)

    def _show(self, session: Session) -> None:
        trainer = session.trainer
        self._desk.publish(
            ShownModel(trainer.live_gaussians, trainer.display_options, trainer.step, trainer.scene)
        )


def _is_memory(error: Exception) -> bool:
    # torch tells by a RuntimeError of memory that it does not get.
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


# What each order does once there is a training; a new order is a method above and a line here.
_ORDERS: dict[type[Command], Callable[[Training, Session, Any], None]] = {
    Pause: Training._pause,
    Resume: Training._resume,
    Stop: Training._stop,
    Step: Training._step,
    UpdateSettings: Training._update_settings,
    SetCap: Training._set_cap,
    Save: Training._save,
    Evaluate: Training._evaluate,
}
