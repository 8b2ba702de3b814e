"""What the disk tells of a run that is opened: how it came to the model that is there, and its scores."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from splatstudio.checkpoints.checkpoint import newest_known_checkpoint
from splatstudio.evaluation.evaluate import evaluation_from_json
from splatstudio.files.run import Run
from splatstudio.gui.state.history import History
from splatstudio.runtime.messages import Evaluated, PlateauReached
from splatstudio.runtime.sentences import checkpoint_step
from splatstudio.runtime.training_news import plateau_reached
from splatstudio.settings.config import TrainConfig
from splatstudio.train.plateau import PlateauWatch
from splatstudio.train.session import METRICS_EVERY


@dataclass(frozen=True, eq=False)
class RunSoFar:
    """A run as it was left. Of steps that are lost, as no checkpoint has them, there is nothing in it."""

    history: History
    flat: PlateauReached | None  # that its test score stands still, where it goes on and does
    scores: Path | None  # the newest file in eval/
    last_step: int  # what the run's files tell of later ones is lost


def run_so_far(run: Run, config: TrainConfig, resume_step: int | None) -> RunSoFar:
    """Return what is known of a run that goes on from `resume_step` (None: it does not) with `config`."""
    history = History()
    history.load(run.metrics().rows)
    last = _last_step(run)
    history.cut(last)
    return RunSoFar(history, _offer(run, config, resume_step), newest_scores(run.path, last), last)


def _last_step(run: Run) -> int:
    """Return the last step of which a run has something: its newest checkpoint's, else what it noted."""
    checkpoint = newest_known_checkpoint(run.path, report=lambda _: None)  # told where the run is opened
    if checkpoint is not None:
        return checkpoint_step(checkpoint)
    rows = run.metrics().rows
    return rows[-1].get("step", 0) + METRICS_EVERY - 1 if rows else 0


def newest_scores(run_dir: Path, last_step: int | None = None) -> Path | None:
    """Return the newest file in eval/ of the steps until `last_step`, None: of all; None: there is none.

    What a later step left there is of a model that is lost: the training had to go back behind it.
    """
    named = ((file.stem.removeprefix("step_"), file) for file in (run_dir / "eval").glob("step_*.json"))
    steps = {int(digits): file for digits, file in named if digits.isdecimal()}
    kept = [step for step in steps if last_step is None or step <= last_step]
    return steps[max(kept)] if kept else None


def evaluated_in(file: Path) -> Evaluated | None:
    """Return what eval/step_N.json of a run tells; None where it is gone or damaged."""
    try:
        values = json.loads(file.read_bytes())
        scores = evaluation_from_json(values)
        return Evaluated(int(values["step"]), scores.psnr, scores.ssim, len(scores.images), file.parent)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _offer(run: Run, config: TrainConfig, step: int | None) -> PlateauReached | None:
    """Return that the test score of a run stands still, where it goes on from `step` with `config`.

    None where it does not, or does not go on.
    """
    if step is None:
        return None
    watch = PlateauWatch(run.metrics().rows, step, planned=run.config.steps, steps=config.steps)
    news = watch.offer(config)
    return None if news is None else plateau_reached(news, config)
