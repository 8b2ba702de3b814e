"""A training with its run folder: each step, and what the configuration says is due after it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from splatstudio.evaluate import Evaluation, evaluate, write_evaluation
from splatstudio.rendering import options_for_display
from splatstudio.run import Run
from splatstudio.trainer import StepStats, Trainer

METRICS_EVERY = 10  # steps between two lines of metrics.jsonl: fine enough for a plot, small on disk


@dataclass(frozen=True)
class Advance:
    """What one call of `Session.advance` did."""

    stats: StepStats
    evaluation: Evaluation | None = None
    saved: Path | None = None
    problem: str | None = None  # one sentence: what was due and failed


class Session:
    """Steps a Trainer, writes metrics, and evaluates and saves when that is due.

    After the last step the model is evaluated and saved whatever the configuration lists: work is never lost.
    """

    def __init__(self, trainer: Trainer, run: Run):
        self.trainer = trainer
        self.run = run
        self._started = time.monotonic()
        self._saved_step = -1
        self._failing = False  # whether something could not be written or evaluated since the last metrics

    @property
    def finished(self) -> bool:
        """Say whether the planned number of steps is done."""
        return self.trainer.step >= self.trainer.config.steps

    def advance(self) -> Advance:
        """Train one step, then evaluate and save where the configuration asks for it.

        What fails then (a full disk, an unreadable test photograph) is told in `Advance.problem`, once until
        it works again; the training goes on. Raises what `Trainer.train_step` raises.
        """
        stats = self.trainer.train_step()
        evaluation = saved = problem = None
        try:
            self._append_metrics(stats)
            if stats.step in self.trainer.config.save_steps or self.finished:
                saved = self.save()
            due = stats.step in self.trainer.config.eval_steps or self.finished
            if due and self.trainer.scene.test_indices:
                evaluation = self.evaluate()
        except (OSError, ValueError) as error:
            told, self._failing = self._failing, True
            problem = None if told else _problem(stats.step, error)
        return Advance(stats, evaluation, saved, problem)

    def _append_metrics(self, stats: StepStats) -> None:
        if stats.step % METRICS_EVERY and not self.finished:
            return
        self.run.append_metrics(
            {
                "step": stats.step,
                "loss": stats.loss,
                "psnr": stats.psnr,
                "view": stats.view,
                "num_gaussians": stats.num_gaussians,
                "elapsed_s": round(time.monotonic() - self._started, 3),
            }
        )
        self._failing = False

    def evaluate(self) -> Evaluation:
        """Evaluate the test photographs now; the result goes to `eval/` and the metrics."""
        trainer = self.trainer
        evaluation = evaluate(trainer.gaussians, trainer.scene, options=options_for_display(trainer.config))
        write_evaluation(self.run.path, trainer.step, evaluation)
        self.run.append_metrics(
            {"step": trainer.step, "test_psnr": evaluation.psnr, "test_ssim": evaluation.ssim}
        )
        return evaluation

    def save(self) -> Path:
        """Write a checkpoint of this step now and return its folder."""
        path = self.trainer.save(self.run.path)
        self._saved_step = self.trainer.step
        return path

    def save_if_needed(self) -> Path | None:
        """Write a checkpoint unless this very step has one; return its folder if it was written."""
        return self.save() if self.trainer.step not in (0, self._saved_step) else None


def _problem(step: int, error: Exception) -> str:
    what = "could not be written" if isinstance(error, OSError) else "could not be evaluated"
    return f"Step {step} {what}: {error}. Checkpoints already written are safe, and the training goes on."
