"""The scores of a training's test photographs as they come: what is told of them, and whether it stops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from splatstudio.config import FREE_ON_RESUME, TrainConfig
from splatstudio.flat_curve import Flat, Score, flat_stretch
from splatstudio.resolution import sh_degree_at

# Settings that change nothing in how a model learns; the number of steps does, by the learning rates.
NO_MATTER = frozenset(FREE_ON_RESUME) - {"steps"}
AT_REST = 0.7  # the last step's rates over those of now, from which on their fall is not waited for


@dataclass(frozen=True)
class FlatNews:
    """That the test score stands still, and whether the training is to end for that.

    `rates_left` are the learning rates of the last step over those of now (but for the positions').
    """

    flat: Flat
    stops: bool
    rates_left: float

    def row(self, step: int) -> dict[str, Any]:
        """Return the line of metrics.jsonl from which `ScoreWatch` knows it again."""
        return {"step": step, "flat_since": self.flat.since, "flat_psnr": self.flat.psnr, "stops": self.stops}


class ScoreWatch:
    """Judges the curve of the test PSNR with each score; a flat stretch is told once, and stops once."""

    def __init__(
        self, rows: Iterable[dict[str, Any]] = (), step: int = 0, *, planned: int = 0, steps: int = 0
    ):
        """Begin with the lines `rows` of metrics.jsonl up to `step`, where a training goes on.

        At its first beginning `planned` steps were meant, now `steps` are.
        """
        self._scores: list[Score] = []
        self._turned = 0  # step of the last reset of the opacities or change of a setting
        self._told: float | None = None  # dB of the stretch that was told last, and of that which stopped
        self._stopped: float | None = None
        num_gaussians = 0
        for row in rows:
            at = row.get("step", 0)
            if at > step:
                break
            change, num = row.get("densified"), row.get("num_gaussians")
            test, flat = row.get("test_psnr"), row.get("flat_psnr")
            num_gaussians = num if isinstance(num, int) else num_gaussians
            if isinstance(change, dict) and change.get("opacities_reset"):
                self.note_reset(at)
            if isinstance(setting := row.get("setting"), str):
                self.note_setting(at, setting)
                planned = row.get("value", planned) if setting == "steps" else planned
            if isinstance(test, (int, float)):
                self.add(Score(at, float(test), num_gaussians))
            if isinstance(flat, (int, float)):
                self._remember(float(flat), stops=row.get("stops") is True)
        if step > 0 and planned != steps:
            self.note_setting(step, "steps")

    def add(self, score: Score) -> None:
        """Take in a score, in the place of one of the same step; one that is no number is left out."""
        if not abs(score.psnr) < float("inf"):
            return
        while self._scores and self._scores[-1].step >= score.step:
            self._scores.pop()
        self._scores.append(score)

    def note_reset(self, step: int) -> None:
        """Note that the opacities were reset, from which the score has to recover."""
        self._turned = step

    def note_setting(self, step: int, path: str) -> None:
        """Note that a setting was changed: where that matters, the scores of before tell nothing of now."""
        if path not in NO_MATTER:
            self._turned = step

    def news(self, config: TrainConfig, num_photos: int) -> FlatNews | None:
        """Return what is to be told of the newest score; None for nothing new.

        `num_photos` are there to train on. Where learning rates are planned to fall, `stop_when_flat` waits
        until they are nearly at rest: the score often rises with that once more.
        """
        settled = max(self._turned, settled_after(config, num_photos))
        flat = flat_stretch(self._scores, config.flat, steps=config.steps, settled=settled)
        if flat is None:
            return None
        left = rates_left(config, self._scores[-1].step)
        stops = config.stop_when_flat and left >= AT_REST and _is_new(flat, self._stopped, config)
        if not (stops or _is_new(flat, self._told, config)):
            return None
        self._remember(flat.psnr, stops=stops)
        return FlatNews(flat, stops, left)

    def _remember(self, psnr: float, *, stops: bool) -> None:
        self._told = psnr
        if stops:
            self._stopped = psnr


def evaluation_interval(config: TrainConfig) -> int:
    """Return the steps between two regular evaluations; 0: none. Who stops by them needs them."""
    if config.eval_every == 0 and config.stop_when_flat:
        return max(1, round(config.steps * config.flat.share / config.flat.scores))
    return config.eval_every


def rates_left(config: TrainConfig, step: int) -> float:
    """Return the learning rates (but for the positions') of the last step over those after `step`."""
    return config.optim.rest_lr_decay ** max(1.0 - step / max(config.steps, 1), 0.0)


def settled_after(config: TrainConfig, num_photos: int) -> int:
    """Return the step after which, by plan, photographs have their size and colours their last degree."""
    coarse = int(config.coarse.until * config.steps) if config.coarse.first > 1.0 else 0
    last = sh_degree_at(config.steps - 1, config, num_photos)
    degree = 0 if config.init else last * config.sh_degree_every
    return max(coarse, degree)


def _is_new(flat: Flat, before: float | None, config: TrainConfig) -> bool:
    """Say whether a stretch is another one than that at `before` dB: the score has risen in between."""
    return before is None or flat.psnr - before > config.flat.gain
