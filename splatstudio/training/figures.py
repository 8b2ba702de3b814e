"""The figures of a training on the disk: metrics and scores, kept for as long as the disk takes none."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

from splatstudio.evaluation.evaluate import Evaluation, write_evaluation
from splatstudio.files.run import Run

MOST_ROWS = 10_000  # that wait for the disk; of more the oldest are lost


class Figures:
    """Writes the metrics and scores of a run; what cannot be written waits, and is written with the next."""

    def __init__(self, run: Run):
        self._run = run
        self._rows: deque[dict[str, Any]] = deque(maxlen=MOST_ROWS)
        self._scores: dict[int, Evaluation] = {}

    @property
    def waiting(self) -> bool:
        """Return whether anything could not be written yet."""
        return bool(self._rows or self._scores)

    def add(self, *rows: dict[str, Any]) -> None:
        """Write lines of metrics.jsonl, and what waits; OSError where these lines cannot be written now."""
        self._rows += rows
        self._write_rows()
        with suppress(OSError):  # what waits was told when it came
            self._write_scores()

    def add_scores(self, step: int, evaluation: Evaluation) -> None:
        """Write an evaluation of the model after `step` to eval/ and the metrics.

        Raises OSError where one of both cannot be written now.
        """
        self._scores[step] = evaluation
        self._rows.append({"step": step, "test_psnr": evaluation.psnr, "test_ssim": evaluation.ssim})
        self.write()

    def write(self) -> None:
        """Write what waits; OSError where not all of it can be written now."""
        try:
            self._write_rows()
        finally:  # the one may be written where the other is not
            self._write_scores()

    def _write_rows(self) -> None:
        if self._rows:
            self._run.append_metrics(*self._rows)
            self._rows.clear()

    def _write_scores(self) -> None:
        for step in list(self._scores):
            write_evaluation(self._run.path, step, self._scores[step])
            del self._scores[step]
