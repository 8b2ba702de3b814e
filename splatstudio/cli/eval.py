"""`splatstudio eval`: a model compared with the test photographs, printed and written."""

from __future__ import annotations

import json
from collections.abc import Sequence

from splatstudio.cli.options import ScoreFiles
from splatstudio.cli.terminal import console, count_progress, print_evaluation, print_scores
from splatstudio.evaluation.evaluate import Measures, measures_for
from splatstudio.evaluation.lpips import fetch_lpips
from splatstudio.models.scoring import EvaluationTask, evaluate_task


def measures_wanted(lpips: Sequence[str], *, fetch: bool, color_correct: bool) -> Measures:
    """Return what to measure, after weights of LPIPS that are missing were fetched where that was asked.

    Raises ValueError when they cannot be.
    """
    if fetch:
        for name in lpips:
            fetch_lpips(name)
    return measures_for(lpips, color_correct=color_correct)


def evaluate_and_print(task: EvaluationTask, measures: Measures, files: ScoreFiles) -> None:
    """Evaluate, print the scores, and write them where asked.

    Whether a part of a model may be judged alone, and whether `files` can be written, is for the caller to
    check before the work begins. Raises ValueError as `evaluate_task`, and when a file could not be written
    after all.
    """
    with count_progress("photographs") as report:
        scored = evaluate_task(task, measures, lambda done, total, _: report(done, total))
    evaluation = scored.evaluation
    print_scores(evaluation)
    print_evaluation(evaluation)
    if scored.file is not None:
        console.print(f"Written to {scored.file}")
    for file in files.write(json.dumps(evaluation.to_json(), indent=2) + "\n", evaluation.to_csv()):
        console.print(f"Written to {file}")
