"""A training with its run folder: each step, and what the configuration says is due after it."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from splatstudio.checkpoints.checkpoint import Checkpoint, checkpoint_folders
from splatstudio.checkpoints.manifest import step_of
from splatstudio.checkpoints.saver import CheckpointSaver, SaveResult
from splatstudio.distributed.failures import OutOfMemory
from splatstudio.error_text import reason
from splatstudio.evaluation.evaluate import ComparedWith, Evaluation, OnImage, evaluate
from splatstudio.files.outputs import make_folder, refuse_leading_out
from splatstudio.files.run import Run, RunLock, newest_step, refuse_gone_on
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.plateau_curve import Score
from splatstudio.training.figures import Figures
from splatstudio.training.plateau import PlateauNews, PlateauWatch, evaluation_interval
from splatstudio.training.step import StepStats
from splatstudio.training.trainer import Trainer

SAFE = "Checkpoints already written are safe"
PAUSE_SAVE_SECONDS = 10.0  # of a pause, after which it is no short one
PAUSE_RETRY_SECONDS = 60.0  # until a save in a pause that failed is tried again
FIRST_SAVE_SECONDS = 60.0  # after which an autosave comes at the earliest
LOST = "lost"  # the folder below eval/ for scores of a model that no checkpoint has
METRICS_EVERY = 10  # steps between two lines of metrics.jsonl: fine enough for a plot, small on disk

Evaluator = Callable[[OnImage], Evaluation]


def stopped_sentence(step: int) -> str:
    """Return what is told of an evaluation that made way for what the user asked for."""
    return f"The evaluation of step {step:,} made way for what you asked for; none of it was kept."


class EvaluationAbandoned(Exception):
    """Raised between two images of an evaluation, by who has something to do that cannot wait."""


def evaluate_training(trainer: Trainer, on_image: OnImage) -> Evaluation:
    """Evaluate the model of a training; all ranks call it, and it raises what `evaluate` raises."""
    options, ranks = trainer.display_options, trainer.ranks
    return evaluate(trainer.gaussians, trainer.scene, ranks=ranks, options=options, on_image=on_image)


@dataclass(frozen=True)
class Advance:
    """What one call of `Session.advance` did."""

    stats: StepStats
    evaluation: Evaluation | None = None
    flat: PlateauNews | None = None  # that the test score stands still, where that is new
    saved: tuple[Path, ...] = ()  # checkpoints that became complete, of this step or of earlier ones
    problem: str | None = None  # one sentence: what was due and failed
    unsaved: str | None = (
        None  # one sentence: why the last step has no checkpoint; `save_if_needed` tries again
    )
    stopped: str | None = None  # a sentence: an evaluation that was due made way for the user's orders
    seconds_beside: float = 0.0  # that evaluating and saving took, after the step


@dataclass(frozen=True)
class Settled:
    """What became of the checkpoints that were written in the background."""

    saved: tuple[Path, ...] = ()
    problem: str | None = None  # a sentence for each that failed


class Session:
    """Steps a Trainer, writes metrics, and evaluates and saves when that is due.

    Checkpoints that are due, by step or by time, are written while the training goes on; after the last step
    the model is evaluated and saved, whatever the configuration lists, before `advance` returns: work is
    never lost. A session holds the lock of its run folder until `close`.
    """

    def __init__(
        self,
        trainer: Trainer,
        run: Run,
        *,
        clock: Callable[[], float] = time.monotonic,
        saver: CheckpointSaver | None = None,
        evaluator: Evaluator | None = None,
    ):
        """Take the run's lock; ValueError, naming the holder, when the run is being trained already.

        Where the trainer has a part of the model alone, `saver` and `evaluator` know the others. An
        `evaluator` raises OutOfMemory, on all ranks alike, where there is no memory for it.
        """
        self._clock = clock
        self.trainer = trainer
        # Called after each image of an evaluation; it may raise EvaluationAbandoned.
        self.breathe: Callable[[], None] = lambda: None
        # Called when the run's folder was deleted and is there again: its log is another file.
        self.rewritten: Callable[[], None] = lambda: None
        self._deleted = ""  # a sentence about that, until `advance` tells it
        # Called before whatever may wait for a disk: it can take longer than a step ever does.
        self.saving: Callable[[], None] = lambda: None
        self._evaluating = False
        self.run = run
        for folder in ("ckpts", "eval", "logs"):  # now, and not when hours of training cannot be saved
            refuse_leading_out(run.path / folder)
        known = newest_step(run.path)
        self._lock = RunLock(run.path)
        try:  # who had the lock until now may have saved a later step than the trainer has read
            refuse_gone_on(run.path, known)
        except ValueError:
            self._lock.release()
            raise
        self._lost_note = _set_lost_scores_aside(run.path, trainer.step)
        self._saver = CheckpointSaver(run.path) if saver is None else saver
        self._evaluator = evaluator or partial(evaluate_training, trainer)
        self._began = clock()  # later by as long as it has rested
        self._resting_since: float | None = None
        self._saved_after = 0.0  # seconds of training before the last checkpoint was begun
        self._saved_step = -1  # of the newest checkpoint that was asked for, complete or under way
        self._kept_step = trainer.step  # of the newest of all of them, or the one that it goes on from
        self._pause_save_at = math.inf
        self._saved_config: TrainConfig | None = None  # and its settings, which are kept in it alone
        self._told: list[SaveResult] = []  # taken, and to be reported by the next `advance`
        self._watch = PlateauWatch(
            run.metrics().rows, trainer.step, planned=run.config.steps, steps=trainer.config.steps
        )
        self._replanned_at = trainer.step if self._watch.replanned else None  # until it is in the metrics
        self._figures = Figures(run)
        self._unwritten: str | None = None
        self._failing = False  # whether figures or scores could not be had or written since the last metrics
        self._unsaved = False  # whether the last save failed, which is told
        self._untidy = False  # or worked, but could not delete an older one

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know about how the run was found."""
        left_by = self._lock.left_by
        left = f"{left_by} left this run without ending properly; its lock is taken over."
        return tuple(filter(None, ("" if left_by is None else left, self._lost_note)))

    @property
    def lock_problem(self) -> str | None:
        """Return what the user must see to where the run's disk cannot keep a second training out."""
        if self._lock.held:
            return None
        return f"The disk of {self.run.path} knows no locks: train into it with one program at a time."

    @property
    def evaluating(self) -> bool:
        """Return whether an evaluation is in progress, as `breathe` may ask."""
        return self._evaluating

    @property
    def finished(self) -> bool:
        """Return whether the planned number of steps is done."""
        return self.trainer.step >= self.trainer.config.steps

    @property
    def saved(self) -> Path | None:
        """Return the checkpoint of this step with these settings, None where there is none on the disk."""
        step = self.trainer.step
        if step != self._saved_step or self._saved_config != self.trainer.config or self._saver.busy:
            return None
        try:
            return next((path for path in checkpoint_folders(self.run.path) if step_of(path) == step), None)
        except OSError:  # it was written, and the disk does not answer now
            return self.run.path / "ckpts" / f"step_{step:08d}"

    def advance(self) -> Advance:
        """Train one step, then evaluate and save where the configuration asks for it.

        What fails then (a full disk, an unreadable test photo) is told in `Advance.problem`: each save
        that was asked for, all else once until it works again; the training goes on. A last step that cannot
        be saved is told in `Advance.unsaved`. Raises what `Trainer.train_step` raises.
        """
        if self._resting_since is not None:
            self._began += self._clock() - self._resting_since
            self._resting_since = None
        stats = self.trainer.train_step()
        trained = self._clock()
        evaluation, flat, problems, unsaved, stopped = None, None, [], None, None
        if stats.change is not None and stats.change.opacities_reset:
            self._watch.note_reset(stats.step)
        rewritten, late = False, self._figures.waiting
        try:
            rewritten = self._append_metrics(stats)
        except (OSError, ValueError) as error:  # the model is saved all the same
            problems.append(_problem(stats.step, error, self._well))
        try:
            if self.finished:
                self._take(wait=True)
                unsaved = self._save_last()
            elif rewritten or stats.step in self.trainer.config.save_steps:
                self.save_in_background()
            elif self._autosave_due():
                self._autosave()
            if self._evaluation_due() and self.trainer.scene.test_indices:
                evaluation = self.evaluate()
                problems += filter(None, [self.take_unwritten()])
                flat = None if self.finished else self._flat_news()
                if flat is not None:
                    self._figures.add(flat.row())
        except (OSError, ValueError) as error:
            problems.append(_problem(stats.step, error, self._well))
        except EvaluationAbandoned:
            stopped = stopped_sentence(stats.step)
        told = self._failing
        self._failing = told or bool(problems)
        settled = self.settle(wait=False)
        problems = [*([] if told else problems), *([settled.problem] if settled.problem else [])]
        problems = [*self._news_of_the_run(late), *problems]
        beside, problem = self._clock() - trained, " ".join(dict.fromkeys(problems)) or None
        return Advance(stats, evaluation, flat, settled.saved, problem, unsaved, stopped, beside)

    def _news_of_the_run(self, late: bool) -> list[str]:
        """Return a sentence on a run that was made again, and on figures that came `late`, each once."""
        deleted, self._deleted = self._deleted, ""
        written = late and not self._figures.waiting
        in_time = "The figures that could not be written before are written now." if written else ""
        return [sentence for sentence in (deleted, in_time) if sentence]

    def rest(self) -> None:
        """Count no time until the next step, neither in metrics.jsonl nor toward an autosave."""
        if self._resting_since is None:
            self._resting_since = self._clock()
            self._pause_save_at = self._resting_since + PAUSE_SAVE_SECONDS

    def settle(self, *, wait: bool = True) -> Settled:
        """Return what became of saves since this or `advance` last told it, waiting for one under way.

        That a save fails is told each time where it was asked for, of autosaves once until one works.
        """
        self._take(wait=wait)
        results, self._told = self._told, []
        problems = [_save_problem(result, self._well) for result in results if result.error is not None]
        saved = tuple(result.path for result in results if result.path is not None)
        return Settled(saved, " ".join(problems) or None)

    def evaluate(self) -> Evaluation:
        """Evaluate the test photos now; the result goes to `eval/` and the metrics.

        Raises EvaluationAbandoned when `breathe` does, and ValueError where there is no memory for it or
        nothing to compare with: nothing is written then. What cannot be written `take_unwritten` tells.
        """
        trainer = self.trainer
        self._evaluating = True
        try:
            evaluation = self._evaluator(self._on_image)
        except OutOfMemory as error:  # one on which all agree; else the others are in the midst of it
            several = trainer.ranks.num_ranks > 1
            where = f" on rank {', '.join(map(str, error.ranks))}" if several else ""
            raise ValueError(f"there is no memory for it{where}") from None
        finally:
            self._evaluating = False
        self._watch.add(Score(trainer.step, evaluation.psnr, trainer.num_gaussians))
        config = trainer.config
        split = config.test_every, config.test_images
        against = ComparedWith(trainer.scene.path.resolve(), config.downscale, *split)
        evaluation = replace(evaluation, against=against)
        try:
            self._figures.add_scores(trainer.step, evaluation)
        except OSError as error:  # they are known all the same
            self._unwritten = _problem(trainer.step, error, self._well)
        return evaluation

    def take_unwritten(self) -> str | None:
        """Return a sentence where the scores of the last evaluation could not be written yet, once."""
        told, self._unwritten = self._unwritten, None
        return told

    @property
    def plateau_offer(self) -> PlateauNews | None:
        """Return that the test score stands still, while that holds and the training is not to end for it."""
        return self._watch.offer(self.trainer.config)

    def _flat_news(self) -> PlateauNews | None:
        return self._watch.news(self.trainer.config, len(self.trainer.scene.train_indices))

    def _on_image(self, *_: object) -> None:
        self.trainer.fail_if_asked("evaluation")
        self.breathe()

    def note_setting(self, path: str, value: Any) -> None:
        """Note in the metrics that a setting has another `value` from here on; OSError when that fails."""
        step = self.trainer.step
        self._watch.note_setting(step, path)
        self._figures.add({"step": step, "setting": path, "value": value})

    def save_in_pause(self) -> None:
        """Begin an autosave where it has rested for a while since steps that no checkpoint has.

        The next one would be due after minutes of training, and a pause may last a night.
        """
        step, now = self.trainer.step, self._clock()
        rests = self._resting_since is not None and self.trainer.config.save_minutes > 0
        if not rests or step in (0, self._kept_step) or now < self._pause_save_at or self._saver.busy:
            return
        self._pause_save_at = now + PAUSE_RETRY_SECONDS
        try:
            self._autosave()
        except OSError as error:  # the run's folder is gone, and cannot be made again
            self._note(SaveResult(step, None, error, autosave=True))

    def _autosave(self) -> None:
        self._take(wait=True)
        self._saver.start(replace(self._checkpoint(), autosave=True))

    def save_in_background(self) -> None:
        """Begin to write a checkpoint of this step; a later `advance` tells when it is complete.

        A save that is still under way is waited for.
        """
        self._take(wait=True)
        self._saved_step = self.trainer.step
        try:
            checkpoint = self._checkpoint()
        except OSError as error:  # the run's folder is gone, and cannot be made again
            self._note(SaveResult(self.trainer.step, None, error))
            return
        self._saver.start(checkpoint)

    def save(self) -> Path:
        """Write a checkpoint of this step now and return its folder; OSError when that fails.

        A run that was deleted meanwhile is made again.
        """
        self._take(wait=True)
        result = self._saver.save(self._checkpoint())
        self._remember_save(result)
        if result.path is None:
            assert result.error is not None
            raise result.error
        self._saved_step = self.trainer.step
        with suppress(OSError):  # the disk takes something again
            self._figures.write()
        if result.error is not None:
            self._told.append(SaveResult(result.step, None, result.error))
        return result.path

    def save_if_needed(self) -> Path | None:
        """Write a checkpoint unless this very step has one with these settings; return its folder if written.

        One of this step that is under way is waited for and returned; one that has been deleted since it was
        complete counts for none. Raises OSError when it fails.
        """
        self._take(wait=True)
        step = self.trainer.step
        # An autosave would be replaced by a later one; what is asked for stays.
        complete = [told for told in self._told if told.path and told.step == step and not told.autosave]
        if complete and self._saved_config == self.trainer.config:
            self._told.remove(complete[0])
            return complete[0].path
        return self.save() if step > 0 and self.saved is None else None

    def abandon(self) -> None:
        """Let a save under way end without the ranks that have gone."""
        self._saver.give_up()

    def close(self) -> None:
        """Wait for the save under way, and let the run go."""
        self._saver.close()
        with suppress(OSError):  # it was told when it happened
            self._figures.write()
        self._lock.release()

    def _checkpoint(self) -> Checkpoint:
        self.saving()
        self._make_run_again()
        self._saved_after, self._kept_step = self._seconds, self.trainer.step
        self._saved_config = self.trainer.config
        return self.trainer.checkpoint()

    @property
    def _seconds(self) -> float:
        """Return how long the training has taken so far, without rests."""
        return (self._clock() if self._resting_since is None else self._resting_since) - self._began

    def _autosave_due(self) -> bool:
        # A disk that takes longer than the time between two saves is not waited for.
        # At first as soon as what would be lost is as much as what was saved.
        seconds = self.trainer.config.save_minutes * 60.0
        wait = min(seconds, max(FIRST_SAVE_SECONDS, self._saved_after))
        return seconds > 0 and self._seconds - self._saved_after >= wait and not self._saver.busy

    def _evaluation_due(self) -> bool:
        config, step = self.trainer.config, self.trainer.step
        interval = evaluation_interval(config, len(self.trainer.scene.test_indices))
        regular = interval > 0 and step % interval == 0
        return regular or step in config.eval_steps or self.finished

    def _append_metrics(self, stats: StepStats) -> bool:
        """Write the figures of a step where they are due; return whether the run was deleted before."""
        change = stats.change
        if stats.step % METRICS_EVERY and change is None and not self.finished:
            return False
        rewritten, rows = self._make_run_again(), list[dict[str, Any]]()
        if self._replanned_at is not None:
            steps = self.trainer.config.steps
            rows.append({"step": self._replanned_at, "setting": "steps", "value": steps})
            self._replanned_at = None
        rows.append(
            {
                "step": stats.step,
                "loss": stats.loss,
                "psnr": stats.psnr,
                "view": stats.view,
                "num_gaussians": stats.num_gaussians,
                "elapsed_s": round(self._seconds, 3),
                **({} if change is None else {"densified": asdict(change)}),
            }
        )
        self._figures.add(*rows)
        self._failing = False
        return rewritten

    def _make_run_again(self) -> bool:
        """Write the run's folder and run.json where they were deleted; return whether they were.

        Else the checkpoints to come would lie in a folder that is no run. Raises OSError where that is not
        possible, or somebody else trains there now.
        """
        deleted = not (self.run.path / "run.json").exists()
        if self._lock.in_place and not deleted:
            return False
        if deleted:
            self.run.write()
            if self.trainer.config.steps != self.run.config.steps:
                self._replanned_at = self.trainer.step  # the line that told it is gone
        if not self._lock.in_place:
            self._lock.release()
            try:
                self._lock = RunLock(self.run.path)
            except ValueError as error:
                raise OSError(errno.EBUSY, str(error)) from error
        if deleted:
            self._deleted = (
                f"The run folder {self.run.path} was deleted or moved away while it trained, with what was in"
                " it. It is made again, and this step is saved into it."
            )
            self.rewritten()
        return deleted

    def _take(self, *, wait: bool) -> None:
        if wait and self._saver.busy:
            self.saving()
        result = self._saver.take(wait=wait)
        if result is not None:
            self._note(result)

    def _save_last(self) -> str | None:
        """Save the last step; return why not, where that fails."""
        try:
            result = self._saver.save(self._checkpoint())
        except OSError as error:
            result = SaveResult(self.trainer.step, None, error)
        if result.error is not None and result.path is None:
            return f"Step {result.step} could not be written: {reason(result.error)}. {SAFE}."
        self._note(result)
        return None

    @property
    def _well(self) -> str:
        """Return what to say to comfort."""
        return f"{SAFE}." if self.finished else f"{SAFE}, and the training goes on."

    def _note(self, result: SaveResult) -> None:
        told_before = self._unsaved if result.path is None else self._untidy
        self._remember_save(result)
        self._told.append(replace(result, error=None) if result.autosave and told_before else result)
        if result.autosave:
            return
        if result.path is not None:
            self._saved_step = max(self._saved_step, result.step)
        elif result.step == self._saved_step:
            self._saved_step = -1

    def _remember_save(self, result: SaveResult) -> None:
        """Remember how the last save went."""
        self._unsaved = result.path is None
        if result.path is not None:
            self._untidy = result.error is not None
        elif result.step == self._kept_step:
            self._kept_step = -1


def _problem(step: int, error: Exception, well: str) -> str:
    """Return what to say when the figures of a step could not be had or written."""
    what = f"The figures of step {step} could not be written"
    if not isinstance(error, OSError):
        what = f"Step {step} could not be evaluated"
    return f"{what}: {reason(error)}. {well}"


def _save_problem(result: SaveResult, well: str) -> str:
    assert result.error is not None
    why = reason(result.error)
    if result.path is None:
        return f"Step {result.step} could not be written: {why}. {well}"
    return f"Step {result.step} is saved, but an older checkpoint could not be deleted: {why}. {well}"


def _set_lost_scores_aside(run_dir: Path, step: int) -> str:
    """Move scores of steps after `step`, from which a training goes on, to eval/lost/; return a sentence.

    It is "" where there are none. Those of a checkpoint that is there stay: it can still be looked at.
    """
    try:
        moved = _scores_moved(run_dir, step)
    except OSError as error:
        return f"Scores of steps after {step:,}, which are lost, stay in eval/: {reason(error)}."
    if not moved:
        return ""
    return f"Scores of steps after {step:,}, which no checkpoint has, are put into {moved[0].parent}."


def _scores_moved(run_dir: Path, step: int) -> list[Path]:
    folder = run_dir / "eval"
    kept = {step_of(checkpoint) for checkpoint in checkpoint_folders(run_dir)}
    moved: list[Path] = []
    for file in sorted(folder.glob("step_*.*")):
        digits = file.stem.removeprefix("step_")
        if digits.isdecimal() and int(digits) > step and int(digits) not in kept:
            make_folder(folder / LOST)
            moved.append(file.replace(folder / LOST / file.name))
    return moved
