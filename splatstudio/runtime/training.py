"""A training under orders on every rank: start, pause, resume, stop, and what the user asks for in between.

All ranks step together. Rank 0 also has the run's folder, the state that the user sees, and somebody to tell;
what it has all ranks do beside the steps (save, evaluate, show, report) each of them does by `execute`.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from splatstudio.checkpoints.checkpoint import known_photos, newest_known_checkpoint
from splatstudio.checkpoints.saver import CheckpointSaver
from splatstudio.distributed.failures import OutOfMemory
from splatstudio.distributed.ranks import Ranks
from splatstudio.error_text import reason, remedy
from splatstudio.evaluation.evaluate import AbandonedElsewhere, Evaluation, OnImage
from splatstudio.files.run import Run
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.models.model import Model
from splatstudio.rendering.sharded_view import gathered
from splatstudio.runtime import messages
from splatstudio.runtime.activity import Activity, WorkerContext
from splatstudio.runtime.agreement import Facts, agree, wait_for_run
from splatstudio.runtime.process_setup import log_of
from splatstudio.runtime.shared_views import SharedViews
from splatstudio.runtime.training_news import TrainingNews, model_loaded, note_on_scores
from splatstudio.runtime.view_renderer import ShownModel
from splatstudio.scene.load import load_training_scene
from splatstudio.scene.scene import KnownPhotos, Scene
from splatstudio.settings.config import FREE_ON_RESUME
from splatstudio.training.precision import note_on_precision
from splatstudio.training.session import (
    EvaluationAbandoned,
    Session,
    evaluate_training,
    stopped_sentence,
)
from splatstudio.training.step import TrainingDiverged
from splatstudio.training.trainer import Trainer

REPORT_SECONDS = 1.0  # between two reports of the ranks' figures
KEPT = ". The model is kept: {}, then save again."
LOST = "; the steps since the last checkpoint are lost."

log = logging.getLogger("splatstudio.runtime")


class Training(Activity):
    """The Trainer of a TrainJob on one rank, and on rank 0 the Session of its run."""

    def __init__(self, job: messages.TrainJob, context: WorkerContext):
        self._job = job
        self._context = context
        self._emit = context.emit
        # From Start on; the session on rank 0 alone.
        self._trainer: Trainer | None = None
        self._session: Session | None = None
        self._views: SharedViews | None = None
        self._figures: RankTimes | None = None
        self._saver: CheckpointSaver | None = None  # of a rank beside 0: the session has that of rank 0
        self._state: messages.State = "ready"
        self._pause_at: int | None = None  # the step after which to pause, where one was given
        self._news = TrainingNews(context.emit)
        self._report_due = 0.0
        self._leader: Facts | None = None  # rank 0, where a launcher has started the ranks
        self._in_run = False  # whether a rank beside 0 prints into the run's folder

    def begin(self) -> None:
        """Say that the worker is there; training waits for Start."""
        self._emit(messages.StateChanged("ready"))

    @property
    def running(self) -> bool:
        """Return whether there is a next step to train."""
        return self._state == "training"

    @property
    def complete(self) -> bool:
        """Return whether all steps are done; for rank 0."""
        return self._session is not None and self._session.finished

    @property
    def step(self) -> int:
        """Return the number of steps done, 0 before the start."""
        return self._trainer.step if self._trainer is not None else 0

    @property
    def shared_views(self) -> SharedViews | None:
        """Return what draws pictures of a model that lies on several ranks; None before the start."""
        return self._views

    def execute(self, command: messages.Command) -> None:
        """Carry out an order, or this rank's part of what rank 0 has all ranks do.

        What cannot be done now rank 0 answers with a Warned.
        """
        if isinstance(command, messages.Start):
            self._start(command)
        elif isinstance(command, messages.RankCommand):
            self._join_run()
            _RANK_COMMANDS[type(command)](self, command)
        elif self._trainer is None:
            self._emit(messages.OrderRefused("The training has not started yet; press Start first."))
        elif isinstance(command, (messages.UpdateSettings, messages.SetCap)):
            self._change_settings(command)
        else:
            assert self._session is not None, "rank 0 obeys"
            _ORDERS[type(command)](self, self._session, command)

    def advance(self) -> None:
        """Train one step; rank 0 tells what came of it."""
        assert self._trainer is not None and self._figures is not None
        if self._session is None:
            self._join_run()
            assert self._saver is not None
            self._saver.check_part()
            self._figures.count(self._trainer.train_step().seconds)
            return
        assert self.running
        limit = self._trainer.config.densify.max_gaussians
        try:
            advance = self._session.advance()
        finally:
            # What memory has set holds for a process that takes this one's place, too.
            self._news.limit(self._trainer, limit)
        self._figures.count(advance.stats.seconds)
        self._report()
        if advance.stats.problem is not None:
            self._emit(messages.Warned(advance.stats.problem))
        self._show()
        self._news.advanced(self._session, advance)
        if self._session.finished or (advance.flat is not None and advance.flat.stops):
            self._finish(self._session)
        elif self._pause_at is not None and self.step >= self._pause_at:
            self._pause(self._session, messages.Pause())

    def idle(self) -> None:
        """Save what a long pause might lose, and tell of saves that were under way when the steps ended."""
        if self._session is not None:
            if self._state == "paused":
                self._session.save_in_pause()
            settled = self._session.settle(wait=False)
            self._news.saved(settled.saved, settled.problem)
            if self._unsaved_end(self._session) and self._session.saved is not None:
                self._finish(self._session)  # what could not be saved at the last step has been since

    def close(self) -> None:
        """Save an unfinished training, wait for what is being written, and let the Trainer go."""
        if self._session is not None:
            if self._state in ("training", "paused"):
                self._finish(self._session, otherwise=LOST)
            self._session.close()
        if self._saver is not None:
            self._saver.close()
        if self._trainer is not None:
            self._trainer.close()

    def rescue(self, error: Exception) -> None:
        """Save the steps since the last checkpoint when `error` ends the worker.

        Only what leaves the model whole: an unreadable photo, a failing disk, too little memory for what
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
            self._emit(messages.Saved(self._session.trainer.step, saved))

    def abandon(self) -> None:
        """Let a save that waits for a rank that has gone come to its end."""
        if self._session is not None:
            self._session.abandon()

    # ---- the start, on every rank

    def _start(self, command: messages.Start) -> None:
        if self._trainer is not None:
            self._emit(messages.OrderRefused("The training has started already."))
            return
        self._change_state("loading")
        ranks = self._context.ranks()
        scene = load_training_scene(self._job.scene_path, self._job.config, self._known_photos())
        if self._context.launched and ranks.num_ranks > 1:
            self._leader = agree(ranks, self._job, scene)
        trainer = self._trainer = new_trainer(self._job, scene, ranks)
        trainer.parts.survey.alive = self._context.alive
        self._figures = RankTimes(ranks)
        if ranks.num_ranks > 1:
            self._views = SharedViews(trainer, ranks, self._context.tell)
        if ranks.rank > 0:
            self._saver = CheckpointSaver(None, ranks)
        else:
            self._begin_session(trainer, command)

    def _known_photos(self) -> KnownPhotos | None:
        """Return the photos whose lots and frame stay, of this run or the one beside which it begins.

        So the page, which shows the scene as that had it, and this process have the same.
        """
        job = self._job
        if job.checkpoint is not None or job.before is None:
            return known_photos(job.checkpoint)
        return known_photos(newest_known_checkpoint(job.before))

    def _begin_session(self, trainer: Trainer, command: messages.Start) -> None:
        """Open the run's folder, tell of it, and train; for rank 0."""
        run = self._first_run() if self._job.checkpoint is None else self._resumed_run()
        self._context.log_into(log_of(run.path))
        session = self._session = Session(
            trainer,
            run,
            saver=CheckpointSaver(run.path, trainer.ranks, self._announce_save),
            evaluator=self._evaluate_together,
        )
        session.breathe, session.saving = self._context.breathe, self._context.saving
        session.rewritten = lambda: self._context.log_into(log_of(run.path))
        self._report_due = time.monotonic() + REPORT_SECONDS
        for note in session.notes:
            log.info("%s", note)
        if trainer.halves is not None:
            log.info("ranks send each other colors and most gradients in 16 bits")
        note = note_on_precision(trainer.config.precision, trainer.ranks.num_ranks)
        notes = note, note_on_scores(trainer), trainer.start_note, trainer.parts.guide.note(trainer.config)
        for warning in filter(None, (session.lock_problem, *notes)):
            self._emit(messages.Warned(warning))
        self._show()
        self._emit(model_loaded(self._model(trainer), trainer.num_gaussians))
        self._news.begun(session)
        if session.finished:
            self._finish(session)
            return
        if self._job.checkpoint is not None and session.plateau_offer is None:
            self._news.rises(self.step)  # who was told otherwise before knows it now
        self._news.offer(session)
        self._run(session, command.pause_at)
        if command.pause_at is not None and self.step >= command.pause_at:
            self._pause(session, messages.Pause())

    def _first_run(self) -> Run:
        """Return the folder of a training from the start: a new one, or that of a process that died in it."""
        job = self._job
        if job.attempt > 0 and (job.run_dir / "run.json").exists():
            return Run.open(job.run_dir)
        config = (
            job.config if self._trainer is None else replace(job.config, model=self._trainer.config.model)
        )
        return Run.create(job.run_dir, job.scene_path, config)

    def _resumed_run(self) -> Run:
        """Return the folder of a training that goes on; it is noted where its scene is found now."""
        run, scene = Run.open(self._job.run_dir), self._job.scene_path
        if run.scene_path.exists() or scene.resolve() == run.scene_path.resolve():
            return run  # of a copy, for once
        try:
            return run.with_scene(scene)
        except OSError as error:
            self._emit(messages.Warned(f"{run.path} cannot keep that its scene is {scene}: {reason(error)}"))
            return run

    def _join_run(self) -> None:
        """Print into the run's folder, which rank 0 has made before it had others do anything.

        Raises ValueError where this machine, one of several, does not see it.
        """
        if self._session is not None or self._in_run:
            return
        self._in_run = True
        if self._context.launched:
            assert self._leader is not None, "all ranks have agreed"
            wait_for_run(self._job.run_dir, self._leader)
        self._context.log_into(log_of(self._job.run_dir))

    # ---- what all ranks do together beside the steps

    def _announce_save(self, staging: Path) -> None:
        self._context.tell(messages.WritePart(staging.resolve()))

    def _write_part(self, command: messages.WritePart) -> None:
        assert self._saver is not None and self._trainer is not None
        self._saver.write_part(command.staging, self._trainer.checkpoint())

    def _evaluate_together(self, on_image: OnImage) -> Evaluation:
        """Evaluate the model on the test photos, of which each rank takes its share; for rank 0."""
        assert self._trainer is not None
        self._context.tell(messages.EvaluateShare())
        try:
            return evaluate_training(self._trainer, on_image)
        except AbandonedElsewhere:
            raise ValueError("another rank could not compare a photo; the log says why") from None

    def _evaluate_share(self, command: messages.EvaluateShare) -> None:
        """Take part in an evaluation; rank 0 knows what became of it, and tells."""
        assert self._trainer is not None
        try:
            evaluate_training(self._trainer, self._on_image)
        except (AbandonedElsewhere, OutOfMemory):
            pass  # rank 0 knows why, and tells
        except (OSError, ValueError) as error:
            log.warning("rank %d could not evaluate: %s", self._context.ranks().rank, error)

    def _on_image(self, *_: object) -> None:
        assert self._trainer is not None
        self._trainer.fail_if_asked("evaluation")
        self._context.breathe()

    def _report(self) -> None:
        """Tell the figures of all ranks when it is time to, and there are any; for rank 0."""
        if self._views is None or time.monotonic() < self._report_due:
            return
        self._report_due = time.monotonic() + REPORT_SECONDS
        self._context.tell(messages.SendFigures())
        self._emit(messages.RanksReport(self.step, self._gather_figures(messages.SendFigures())))

    def _gather_figures(self, command: messages.SendFigures) -> tuple[messages.RankFigures, ...]:
        assert self._trainer is not None and self._figures is not None
        own = self._figures.take(len(self._trainer.live_gaussians))
        message = [own.num_gaussians, own.step_seconds, own.wait_seconds, socket.gethostname()]
        answers = self._context.ranks().all_gather_bytes(json.dumps(message).encode())
        return tuple(messages.RankFigures(rank, *json.loads(answer)) for rank, answer in enumerate(answers))

    def _whole_model(self) -> Gaussians:
        """Return the model: of one process the tensors that are trained, else a copy on the CPU; for rank 0.

        Raises OutOfMemory where a rank has no memory for its part in that.
        """
        assert self._trainer is not None
        if self._views is None:
            return self._trainer.gaussians
        self._context.tell(messages.GatherModel())
        model = gathered(self._context.ranks(), self._trainer.gaussians)
        assert model is not None, "this is rank 0"
        return model

    def _send_model(self, command: messages.GatherModel) -> None:
        assert self._trainer is not None
        try:
            gathered(self._context.ranks(), self._trainer.gaussians)
        except OutOfMemory as error:
            log.warning("no copy of the model was made: %s", error)  # rank 0 tells who asked for it

    def _share_view(self, command: messages.Command) -> None:
        assert self._views is not None
        self._views.execute(command)

    # ---- what rank 0 shows and hands out

    def model_copy(self) -> Model | None:
        """Return the model as it is now, which no later step changes; None before the start."""
        trainer = self._trainer
        if trainer is None:
            return None
        gaussians = self._whole_model().detach()
        if gaussians.means.data_ptr() == trainer.live_gaussians.means.data_ptr():
            gaussians = gaussians.map(Tensor.clone)
        return replace(self._model(trainer), gaussians=gaussians)

    def gather_views(self, requests: Sequence[messages.ViewRequest]) -> list[ShownModel]:
        """Return what each request shows of the model, of which each rank has a part."""
        assert self._views is not None, "nothing was published to look at"
        self._context.tell(messages.GatherViews(tuple(requests)))
        return self._views.gather(requests)

    def _model(self, trainer: Trainer) -> Model:
        options = trainer.display_options
        frame = trainer.scene.transform
        return Model(trainer.gaussians, frame, options, trainer.step, poses=trainer.poses)

    def _show(self) -> None:
        trainer = self._trainer
        assert trainer is not None
        self._context.publish(
            ShownModel(trainer.live_gaussians, trainer.display_options, trainer.step, trainer.scene)
        )

    # ---- the user's orders

    def _change_state(self, state: messages.State, *, unsaved: bool = False) -> None:
        self._state = state
        self._emit(messages.StateChanged(state, unsaved))

    def _run(self, session: Session, pause_at: int | None = None) -> None:
        self._pause_after(pause_at)
        self._news.restart(session.trainer.step)
        self._change_state("training")

    def _pause_after(self, step: int | None) -> None:
        if step != self._pause_at:
            self._pause_at = step
            self._emit(messages.PausesAt(step))

    def _pause(self, session: Session, command: messages.Pause) -> None:
        if self.running:
            self._news.tell(session.trainer)
            session.rest()
            self._change_state("paused")

    def _resume(self, session: Session, command: messages.Resume) -> None:
        if self.running:
            self._pause_after(None)
        else:
            self._go_on(session, None)

    def _step(self, session: Session, command: messages.Step) -> None:
        if not command.count >= 1:
            self._emit(
                messages.OrderRefused(
                    f"The number of steps to train must be at least 1, not {command.count}."
                )
            )
        elif self.running:
            self._pause_after(session.trainer.step + command.count)
        else:
            self._go_on(session, session.trainer.step + command.count)

    def _go_on(self, session: Session, pause_at: int | None) -> None:
        if self._unsaved_end(session):
            self._finish(session)
            return
        if session.finished and not session.evaluating:
            steps = session.trainer.config.steps
            self._emit(
                messages.OrderRefused(f"All {steps:,} steps are done; raise the number of steps to go on.")
            )
            return
        if self._state == "finished":
            self._news.begun(session)
        self._run(session, pause_at)

    def _stop(self, session: Session, command: messages.Stop) -> None:
        if self._state in ("training", "paused"):
            self._finish(session)

    def _unsaved_end(self, session: Session) -> bool:
        """Return whether all steps are done, but the model could not be saved."""
        # While the last step is still being evaluated it is none yet.
        return session.finished and self._state == "paused" and not session.evaluating

    def _finish(self, session: Session, *, otherwise: str = KEPT) -> None:
        """Save and tell of the end, or why it cannot be saved and what becomes of the model `otherwise`."""
        session.rest()  # it may be told to go on
        try:
            saved = session.save_if_needed()
        except OSError as error:
            self._emit(messages.Warned(f"Not saved: {reason(error)}{otherwise.format(remedy(error))}"))
            self._news.tell(session.trainer)
            self._change_state("paused", unsaved=True)
            return
        settled = session.settle()  # a save of an earlier step that was still under way
        self._news.saved(settled.saved, settled.problem)
        if saved is not None:
            self._emit(messages.Saved(session.trainer.step, saved))
        self._change_state("finished")
        self._emit(messages.Finished(session.trainer.step, session.finished, saved or session.saved))

    def _change_settings(self, command: messages.UpdateSettings | messages.SetCap) -> None:
        """Change settings on this rank; rank 0 tells."""
        if isinstance(command, messages.SetCap):
            self._set("densify.max_gaussians", command.max_gaussians)
            return
        for path, value in command.values:
            self._set(path, value)

    def _set(self, path: str, value: messages.SettingValue) -> None:
        assert self._trainer is not None
        step, session = self._trainer.step, self._session
        try:
            self._trainer.update_setting(path, value)
        except ValueError as error:
            self._emit(messages.OrderRefused(f"Not changed: {error}."))
            return
        self._emit(messages.SettingChanged(step, path, value))
        if session is None:
            return
        try:
            session.note_setting(path, value)
        except OSError as error:
            self._emit(messages.Warned(f"Changed, but not recorded in metrics.jsonl: {reason(error)}"))
        self._news.offer(session)

    def _save(self, session: Session, command: messages.Save) -> None:
        session.save_in_background()  # a later step, or `idle`, tells when it is complete

    def _evaluate(self, session: Session, command: messages.Evaluate) -> None:
        if not session.trainer.scene.test_indices:
            self._emit(
                messages.OrderRefused(
                    "There are no test photos: this scene was loaded without a held-out part."
                )
            )
            return
        if session.evaluating:
            self._emit(messages.OrderRefused("An evaluation is already in progress."))
            return
        started = time.monotonic()
        try:
            evaluation = session.evaluate()
        except EvaluationAbandoned:
            self._emit(messages.EvaluationStopped(stopped_sentence(session.trainer.step)))
            return
        except (OSError, ValueError) as error:
            self._emit(messages.OrderRefused(f"Not evaluated: {error}"))
            return
        finally:
            self._news.skip(time.monotonic() - started)
        self._news.evaluated(session, evaluation)
        if (unwritten := session.take_unwritten()) is not None:
            self._emit(messages.Warned(unwritten))
        self._news.offer(session)


class RankTimes:
    """How long a rank's steps take, and how much of that it waits for others."""

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._steps, self._seconds, self._waited = 0, 0.0, ranks.seconds

    def count(self, seconds: float) -> None:
        """Note a step of `seconds`."""
        self._steps += 1
        self._seconds += seconds

    def take(self, num_gaussians: int) -> messages.RankFigures:
        """Return the means since the last call."""
        steps = max(self._steps, 1)
        figures = messages.RankFigures(
            rank=self._ranks.rank,
            num_gaussians=num_gaussians,
            step_seconds=self._seconds / steps,
            wait_seconds=min(self._ranks.seconds - self._waited, self._seconds) / steps,
        )
        self._steps, self._seconds, self._waited = 0, 0.0, self._ranks.seconds
        return figures


def new_trainer(job: messages.TrainJob, scene: Scene, ranks: Ranks) -> Trainer:
    """Return the Trainer of this rank, with the job's live settings; all ranks call it.

    Raises what loading the checkpoint and the start of a training raise.
    """
    if job.checkpoint is not None:
        overrides = {name: getattr(job.config, name) for name in FREE_ON_RESUME}
        trainer = Trainer.resume(scene, job.checkpoint, ranks=ranks, **overrides)
    else:
        trainer = Trainer(scene, job.config, ranks=ranks)
    for path, value in job.settings:
        trainer.update_setting(path, value)
    return trainer


def _is_memory(error: Exception) -> bool:
    # torch tells by a RuntimeError of memory that it does not get.
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


# What each order does once there is a training; a new order is a method above and a line here.
_ORDERS: dict[type[messages.Command], Callable[[Training, Session, Any], None]] = {
    messages.Pause: Training._pause,
    messages.Resume: Training._resume,
    messages.Stop: Training._stop,
    messages.Step: Training._step,
    messages.Save: Training._save,
    messages.Evaluate: Training._evaluate,
}
# What each rank does when rank 0 has all of them do something beside the steps.
_RANK_COMMANDS: dict[type[messages.Command], Callable[[Training, Any], object]] = {
    messages.WritePart: Training._write_part,
    messages.EvaluateShare: Training._evaluate_share,
    messages.SendFigures: Training._gather_figures,
    messages.GatherModel: Training._send_model,
    messages.GatherViews: Training._share_view,
    messages.KeepCopy: Training._share_view,
    messages.DrawCopy: Training._share_view,
    messages.DropCopy: Training._share_view,
}
