"""`splatstudio eval`: a model compared with the test photos, printed and written."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor

from splatstudio.cli.options import Against, PartChoice, ScoreFiles, Scores
from splatstudio.cli.terminal import console, count_progress, print_evaluation, print_scores
from splatstudio.evaluation.evaluate import SCORES, Evaluation, ImageScore, measures_for
from splatstudio.evaluation.lpips import fetch_lpips
from splatstudio.files.outputs import make_folder
from splatstudio.models.scoring import EvaluationTask, Scored, evaluate_task
from splatstudio.models.video import write_picture
from splatstudio.rendering.render import to_uint8


class ComparedPictures:
    """Writes renders and the photos that they were compared with, by the photos' names.

    A disk that refuses them ends no evaluation: what was measured is told first.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._names = set[str]()
        self._failure: OSError | None = None

    def add(self, score: ImageScore, render: Tensor, photo: Tensor) -> None:
        """Write the two pictures of a photo."""
        # Names are those in the scene's files: none leads out of the folder.
        parts = PurePosixPath(score.name.replace("\\", "/")).parts
        own = PurePosixPath(*(part for part in parts if part not in ("..", "/")))
        name = str(own.with_suffix(".png"))
        name = f"{own}.png" if name in self._names else name
        self._names.add(name)
        for kind, picture in (("renders", render), ("photos", photo)):
            file = self._folder / kind / name
            try:
                make_folder(file.parent)
                write_picture(file, to_uint8(picture).cpu().numpy())
            except OSError as error:
                self._failure = self._failure or error

    def conclude(self) -> None:
        """Say what was written; ValueError where some could not be."""
        if self._failure is not None:
            why = self._failure.strerror or self._failure
            raise ValueError(f"not all pictures could be written to {self._folder}: {why}")
        num = len(self._names)
        written = "1 render and the photo" if num == 1 else f"{num} renders and the photos"
        console.print(f"{written} that they were compared with are in {self._folder}")


def evaluated(
    path: Path, against: Against, scores: Scores, part: PartChoice, pictures: ComparedPictures | None
) -> Scored:
    """Return the scores of a model, showing how far that is; weights of LPIPS are fetched where asked.

    Raises ValueError where they cannot be, for a part of a model that was not chosen, and as `evaluate_task`.
    """
    if scores.fetch_lpips:
        for name in scores.lpips:
            fetch_lpips(name)
    measures = measures_for(scores.lpips, color_correct=scores.color_correct, flip=scores.flip)
    part.check(path)
    task = EvaluationTask(path, **vars(against), merge=part.merge, strict=part.strict)
    with count_progress("photos") as report:
        given = {} if pictures is None else {"on_image": pictures.add}
        return evaluate_task(task, measures, lambda done, total, _: report(done, total), **given)


def print_scored(scored: Scored) -> None:
    """Print the scores, and where they were written in the run's folder."""
    print_scores(scored.evaluation)
    print_evaluation(scored.evaluation)
    if scored.file is not None:
        console.print(f"Written to {scored.file}")


def write_scores(evaluation: Evaluation, files: ScoreFiles) -> None:
    """Write the scores where asked, and say where; ValueError when a file could not be written after all."""
    for file in files.write(json.dumps(evaluation.to_json(), indent=2) + "\n", evaluation.to_csv()):
        console.print(f"Written to {file}")


def scored_values(scored: Scored) -> dict[str, Any]:
    """Return the scores by documented names, with what was compared; None: not measured, or not known."""
    evaluation = scored.evaluation
    against = {} if evaluation.against is None else asdict(evaluation.against)
    return {
        "step": scored.step,
        **scores_by_name(evaluation),
        "splats": evaluation.num_gaussians,
        "seconds_per_image": evaluation.seconds_per_image,
        **against,
        "images": [{"name": image.name, **scores_by_name(image)} for image in evaluation.images],
        "part": evaluation.part,
        "notes": evaluation.notes,
        "file": scored.file,
    }


def scores_by_name(scored: object) -> dict[str, float | None]:
    """Return every score by its name, of a photo or their means; None: not measured."""
    return {name: getattr(scored, name) for name in SCORES}
