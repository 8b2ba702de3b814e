"""What the ranks of a training do together beside its steps: rank 0 tells the others, and all take part.

Rank 0 alone decides what is done: a `Leader` announces it, and the `Follower` of each other rank lets its
`Member` do the same. What is found comes together at rank 0.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from splatstudio.checkpoints.saver import CheckpointSaver
from splatstudio.distributed import Ranks
from splatstudio.distributed.failures import OutOfMemory
from splatstudio.evaluation.evaluate import AbandonedElsewhere, Evaluation
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.render import RenderOptions
from splatstudio.rendering.sharded_view import gathered
from splatstudio.runtime.control import Turn
from splatstudio.runtime.frames import ShownModel
from splatstudio.runtime.looks import ViewRequest, decoded_looks, encoded_looks, gather_seen, shown_model
from splatstudio.runtime.ranks_report import RankFigures, RanksReport
from splatstudio.runtime.shared_frames import FrameShare, SharedFrames
from splatstudio.train.session import OnImage, evaluate_training
from splatstudio.train.trainer import Trainer

REPORT_SECONDS = 1.0  # between two reports of the ranks' figures

log = logging.getLogger("splatstudio.runtime")

Tell = Callable[[Turn, bytes], None]


class Stopwatch:
    """How long a rank's steps take, and how much of that it waits for others."""

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._since = time.perf_counter()
        self._steps, self._seconds, self._waited = 0, 0.0, ranks.seconds

    def count(self, seconds: float) -> None:
        """Note a step of `seconds`."""
        self._steps += 1
        self._seconds += seconds

    def take(self, num_gaussians: int) -> RankFigures:
        """Return the means since the last call."""
        steps = max(self._steps, 1)
        figures = RankFigures(
            rank=self._ranks.rank,
            num_gaussians=num_gaussians,
            step_seconds=self._seconds / steps,
            wait_seconds=min(self._ranks.seconds - self._waited, self._seconds) / steps,
        )
        self._steps, self._seconds, self._waited = 0, 0.0, self._ranks.seconds
        return figures


def reported(watch: Stopwatch, trainer: Trainer, ranks: Ranks) -> tuple[RankFigures, ...]:
    """Return the figures of all ranks, which all have to call it."""
    own = watch.take(len(trainer.live_gaussians))
    message = [own.num_gaussians, own.step_seconds, own.wait_seconds, socket.gethostname()]
    answers = ranks.all_gather_bytes(json.dumps(message).encode())
    return tuple(RankFigures(rank, *json.loads(answer)) for rank, answer in enumerate(answers))


class Leader:
    """Rank 0 of a training; of one process only, it does everything itself."""

    def __init__(self, trainer: Trainer, ranks: Ranks, tell: Tell):
        self._trainer = trainer
        self._ranks = ranks
        self._tell = tell
        self._watch = Stopwatch(ranks)
        self.frames = SharedFrames(FrameShare(trainer, ranks), ranks, tell) if self._several else None
        self._report_due = time.monotonic() + REPORT_SECONDS

    @property
    def _several(self) -> bool:
        return self._ranks.num_ranks > 1

    def saver(self, run_dir: Path) -> CheckpointSaver:
        """Return what writes the run's checkpoints."""

        def announce(staging: Path) -> None:
            self._tell(Turn.SAVE, str(staging.resolve()).encode())

        return CheckpointSaver(run_dir, self._ranks, announce)

    def whole_model(self) -> Gaussians:
        """Return the model: of one process the tensors that are trained, else a copy on the CPU.

        Raises OutOfMemory where a rank has no memory for its part in that.
        """
        if not self._several:
            return self._trainer.gaussians
        self._tell(Turn.COPY, b"")
        model = gathered(self._ranks, self._trainer.gaussians)
        assert model is not None, "this is rank 0"
        return model

    def evaluate(self, on_image: OnImage) -> Evaluation:
        """Evaluate the model on the test photographs, of which each rank takes its share."""
        trainer = self._trainer
        self._tell(Turn.EVALUATE, b"")
        try:
            return evaluate_training(trainer, on_image)
        except AbandonedElsewhere:
            raise ValueError("another rank could not compare a photograph; the log says why") from None

    def seen_by(self, looks: Sequence[ViewRequest]) -> list[ShownModel]:
        """Return what each of `looks` shows of the model."""
        self._tell(Turn.LOOK, encoded_looks(looks))
        trainer, models = self._trainer, []
        options, device = trainer.display_options, trainer.live_gaussians.device
        for look in looks:
            seen = gather_seen(self._ranks, trainer.live_gaussians, look, options)
            model, notice = shown_model(seen, device)
            models.append(ShownModel(model, options, trainer.step, trainer.scene, notice))
        return models

    def after_step(self, seconds: float) -> RanksReport | None:
        """Note a step of `seconds`; return the figures of all ranks when it is time to, and there are any."""
        self._watch.count(seconds)
        if not self._several or time.monotonic() < self._report_due:
            return None
        self._report_due = time.monotonic() + REPORT_SECONDS
        self._tell(Turn.REPORT, b"")
        return RanksReport(self._trainer.step, reported(self._watch, self._trainer, self._ranks))


class Member:
    """Another rank of a training: takes part in what rank 0 announces.

    `breathe` is called between the images of an evaluation.
    """

    def __init__(self, trainer: Trainer, ranks: Ranks, breathe: Callable[[], None] = lambda: None):
        self._trainer = trainer
        self._ranks = ranks
        self._breathe = breathe
        self._watch = Stopwatch(ranks)
        self._saver = CheckpointSaver(None, ranks)
        self._frames = FrameShare(trainer, ranks)

    def after_step(self, seconds: float) -> None:
        """Note a step of `seconds`."""
        self._watch.count(seconds)

    def take_part(self, turn: Turn, body: bytes) -> None:
        """Do this rank's part of what rank 0 announced."""
        if turn == Turn.SAVE:
            self._saver.write_part(Path(body.decode()), self._trainer.checkpoint())
        elif turn == Turn.COPY:
            self._copy()
        elif turn == Turn.LOOK:
            self._show(decoded_looks(body), self._trainer.display_options)
        elif turn == Turn.EVALUATE:
            self._evaluate()
        elif turn in (Turn.KEEP, Turn.DRAW, Turn.DROP):
            self._frames.take_part(turn, body)
        else:
            assert turn == Turn.REPORT, turn
            reported(self._watch, self._trainer, self._ranks)

    def close(self) -> None:
        """Wait for what is being written."""
        self._saver.close()

    def _copy(self) -> None:
        try:
            gathered(self._ranks, self._trainer.gaussians)
        except OutOfMemory as error:
            log.warning("no copy of the model was made: %s", error)  # rank 0 tells who asked for it

    def _evaluate(self) -> None:
        try:
            evaluate_training(self._trainer, self._on_image)
        except (AbandonedElsewhere, OutOfMemory):
            pass  # rank 0 knows why, and tells
        except (OSError, ValueError) as error:
            log.warning("rank %d could not evaluate: %s", self._ranks.rank, error)

    def _on_image(self, *_: object) -> None:
        self._trainer.fail_if_asked("evaluation")
        self._breathe()

    def _show(self, looks: Sequence[ViewRequest], options: RenderOptions) -> None:
        for look in looks:
            gather_seen(self._ranks, self._trainer.live_gaussians, look, options)
