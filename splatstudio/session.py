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
    problem: str | None = None  # one sentence: what was due and could not be written


class Session:
    """Steps a Trainer, writes metrics, and evaluates and saves when that is due.

    After the last step the model is evaluated and saved whatever the configuration lists: work is never lost.
    """

    def __init__(self, trainer: Trainer, run: Run):
        self.trainer = trainer
        self.run = run
        self._started = time.monotonic()
        self._saved_step = -1
        self._refused = False  # whether the last metrics or checkpoint could not be written

    @property
    def finished(self) -> bool:
        """Say whether the planned number of steps is done."""
        return self.trainer.step >= self.trainer.config.steps

    def advance(self) -> Advance:
        """Train one step, then evaluate and save where the configuration asks for it.

        What cannot be written (a full disk) is told in `Advance.problem`, once until writing works again; the
        training goes on.
        """
        stats = self.trainer.train_step()
        try:
            return self._keep(stats)
        except OSError as error:
            told, self._refused = self._refused, True
            return Advance(stats, problem=None if told else _refusal(stats.step, error))

    def _keep(self, stats: StepStats) -> Advance:
        step, config = stats.step, self.trainer.config
        if step % METRICS_EVERY == 0 or self.finished:
            self.run.append_metrics(
                {
                    "step": step,
                    "loss": stats.loss,
                    "psnr": stats.psnr,
                    "num_gaussians": stats.num_gaussians,
                    "elapsed_s": round(time.monotonic() - self._started, 3),
                }
            )
            self._refused = False
        saved = self.save() if step in config.save_steps or self.finished else None
        due = step in config.eval_steps or self.finished
        evaluation = self.evaluate() if due and self.trainer.scene.test_indices else None
        return Advance(stats, evaluation, saved)

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


def _refusal(step: int, error: OSError) -> str:
    return (
        f"Step {step} could not be written: {error}. Earlier checkpoints are safe and the training goes on; "
        "make room on the disk, then save."
    )
