"""What the process that trains tells of it: where it is, its scores, checkpoints and what stands still."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from splatstudio.evaluation.evaluate import Evaluation
from splatstudio.runtime.messages import Evaluated, Event, Saved, SettingChanged, Started, Warned
from splatstudio.runtime.plateau_report import PlateauLeft, plateau_reached
from splatstudio.runtime.progress import ProgressTeller
from splatstudio.runtime.reports import checkpoint_step
from splatstudio.train.plateau import PlateauNews
from splatstudio.train.session import Advance, Session
from splatstudio.train.trainer import Trainer


class TrainingNews:
    """Tells of one training by `emit`, each thing once."""

    def __init__(self, emit: Callable[[Event], None]):
        self._emit = emit
        self._progress = ProgressTeller(emit)
        self._offer: PlateauNews | None = None  # what was told of a score that stands still, where it holds

    def begun(self, session: Session) -> None:
        """Tell where a training begins, or goes on after its last step."""
        trainer, scene = session.trainer, session.trainer.scene
        num_train, num_test = len(scene.train_indices), len(scene.test_indices)
        self._emit(Started(trainer.step, trainer.config.steps, trainer.num_gaussians, num_train, num_test))

    def runs(self, trainer: Trainer) -> None:
        """Measure the speed from here on."""
        self._progress.restart(trainer.step)

    def stands_still(self, trainer: Trainer) -> None:
        """Tell exactly at which step it does."""
        self._progress.tell(trainer)

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
        self._progress.count(trainer, advance, last=session.finished)

    def evaluated(self, session: Session, evaluation: Evaluation) -> None:
        """Tell the scores of the test photographs."""
        scores = (evaluation.psnr, evaluation.ssim, len(evaluation.images))
        self._emit(Evaluated(session.trainer.step, *scores, session.run.path / "eval"))

    def rises(self, step: int) -> None:
        """Tell who heard in an earlier process that the test score stands still that it no longer does."""
        self._emit(PlateauLeft(step))

    def offer(self, session: Session) -> None:
        """Tell where the test score begins to stand still, or to rise again."""
        news = session.plateau_offer
        if news != self._offer:
            self._offer = news
            trainer = session.trainer
            self._emit(PlateauLeft(trainer.step) if news is None else plateau_reached(news, trainer.config))

    def saved(self, complete: tuple[Path, ...], problem: str | None) -> None:
        """Tell of checkpoints that became complete in the background, and of those that did not."""
        for path in complete:
            self._emit(Saved(checkpoint_step(path), path))
        if problem is not None:
            self._emit(Warned(problem))

    def limit(self, trainer: Trainer, before: int) -> None:
        """Tell of a limit on the number of Gaussians that memory has set: the studio shows and keeps it."""
        limit = trainer.config.densify.max_gaussians
        if limit != before:
            self._emit(SettingChanged(trainer.step, "densify.max_gaussians", limit))


def note_on_scores(trainer: Trainer) -> str | None:
    """Return a sentence where there are no scores to stop by."""
    if not trainer.config.stop_when_flat or trainer.scene.test_indices:
        return None
    return "There are no test photographs whose score could stand still: all steps are trained."
