"""The scores of a training's test photos as they come: what is told of them, and whether it stops."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from splatstudio.settings.config import FREE_ON_RESUME, TrainConfig
from splatstudio.settings.plateau_curve import RISEN, Plateau, Score, plateau_stretch
from splatstudio.training.data.resolution import full_size_from, sh_degree_at
from splatstudio.training.data.train_views import crops

# Settings that change nothing in how a model learns; the number of steps does, by the learning rates.
NO_MATTER = frozenset(FREE_ON_RESUME) - {"steps"}
SHARE_BETWEEN = 0.03  # of the steps, at least, between two evaluations that nobody asked for
STEPS_A_PHOTO = 50  # as many as lie between two of them for each photo: one costs about one step
ROUND = (10, 15, 20, 25, 30, 40, 50, 60, 80, 100)
AT_REST = 0.7  # the last step's rates over those of now, from which on their fall is not waited for


@dataclass(frozen=True)
class PlateauNews:
    """That the test score, as evaluated after `step`, stands still, and whether the training ends for that.

    `rates_left` are the learning rates of the last step over those of then (but for the positions').
    """

    step: int
    flat: Plateau
    stops: bool
    rates_left: float

    def row(self) -> dict[str, Any]:
        """Return the line of metrics.jsonl from which `PlateauWatch` knows it again."""
        flat = self.flat
        return {"step": self.step, "flat_since": flat.since, "flat_psnr": flat.psnr, "stops": self.stops}


class PlateauWatch:
    """Judges the curve of the test PSNR with each score; a flat stretch is told once, and stops once.

    Another one is told where the score has risen by `RISEN` in between, or the user has changed a setting.
    """

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
        self._offered: tuple[int, Plateau] | None = None  # after which step, where it still holds
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
                stretch = Plateau(int(row.get("flat_since", at)), float(flat))
                self._remember(at, stretch, stops=row.get("stops") is True)
        # Whether other steps are planned from `step` on than the lines tell, which they then should.
        self.replanned = step > 0 and planned != steps
        if self.replanned:
            self.note_setting(step, "steps")

    def add(self, score: Score) -> None:
        """Take in a score, in the place of one of the same step; one that is no number is left out."""
        if not abs(score.psnr) < float("inf"):
            return
        while self._scores and self._scores[-1].step >= score.step:
            self._scores.pop()
        self._scores.append(score)
        if self._offered is not None:
            step, flat = self._offered
            later = [each.psnr for each in self._scores if each.step > step]
            # A single one may be high by chance.
            if len(later) > 1 and min(later[-2:]) > flat.psnr + RISEN:
                self._offered = None

    def note_reset(self, step: int) -> None:
        """Note that the opacities were reset, from which the score has to recover."""
        self._turned = step

    def note_setting(self, step: int, path: str) -> None:
        """Note that a setting was changed: where that matters, the scores of before tell nothing of now."""
        if path not in NO_MATTER:
            self._turned = step
            self._told = self._stopped = self._offered = None

    def offer(self, config: TrainConfig) -> PlateauNews | None:
        """Return what was told last of the score, if it still holds and did not end the training."""
        if self._offered is None:
            return None
        step, flat = self._offered
        return PlateauNews(step, flat, False, rates_left(config, step))

    def news(self, config: TrainConfig, num_photos: int) -> PlateauNews | None:
        """Return what is to be told of the newest score; None for nothing new.

        `num_photos` are there to train on. While Gaussians are added or removed by plan there is nothing to
        tell, even if a limit keeps their number. Where learning rates are planned to fall, `stop_when_flat`
        waits until they are nearly at rest: the score often rises with that once more.
        """
        settled = max(self._turned, settled_after(config, num_photos))
        flat = plateau_stretch(self._scores, config.flat, steps=config.steps, settled=settled)
        if flat is None:
            return None
        step = self._scores[-1].step
        left = rates_left(config, step)
        stops = config.stop_when_flat and left >= AT_REST and _is_new(flat, self._stopped, config)
        if not (stops or _is_new(flat, self._told, config)):
            return None
        self._remember(step, flat, stops=stops)
        return PlateauNews(step, flat, stops, left)

    def _remember(self, step: int, flat: Plateau, *, stops: bool) -> None:
        self._told = flat.psnr
        self._offered = None if stops else (step, flat)
        if stops:
            self._stopped = flat.psnr


def evaluation_interval(config: TrainConfig, num_photos: int) -> int:
    """Return the steps between two regular evaluations of `num_photos` test photos; 0: none.

    Who stops by them needs them. Where nobody asked for a number, it follows from those of steps and
    photos alone, so that it is the same on every machine.
    """
    if config.eval_every <= 0 and config.stop_when_flat:
        return max(1, round(config.steps * config.flat.share / config.flat.scores))
    if config.eval_every >= 0:
        return config.eval_every
    return _rounded_up(max(SHARE_BETWEEN * config.steps, STEPS_A_PHOTO * max(num_photos, 1)))


def _rounded_up(steps: float) -> int:
    """Return the next round number from `steps`, 10 or more, on."""
    decade = 10 ** (int(math.log10(steps)) - 1)
    return next(number * decade for number in ROUND if number * decade >= steps - 1e-6)


def rates_left(config: TrainConfig, step: int) -> float:
    """Return the learning rates (but for the positions') of the last step over those after `step`."""
    return config.optim.rest_lr_decay ** max(1.0 - step / max(config.steps, 1), 0.0)


def settled_after(config: TrainConfig, num_photos: int) -> int:
    """Return the step after which nothing but the learning rates is planned to change.

    From there on photos have their size, or are halved if ever and until the end, colors have their last
    degree, and no Gaussians are added or removed any more.
    """
    halved, coarse = crops(config), full_size_from(config)
    if halved:
        coarse = halved.stop if halved.stop < config.steps else halved.start
    last = sh_degree_at(config.steps - 1, config, num_photos)
    degree = 0 if config.init else last * config.sh_degree_every
    return max(coarse, degree, _growth_ends(config))


def _growth_ends(config: TrainConfig) -> int:
    steps, densify = config.steps, config.densify
    if not densify.enabled:
        return 0
    if config.strategy == "mcmc":
        return config.mcmc.ends(steps)
    if config.strategy == "fast":
        return max(config.mcmc.ends(steps), config.fast.thins(steps))
    return densify.ends(steps)


def _is_new(flat: Plateau, before: float | None, config: TrainConfig) -> bool:
    """Return whether a stretch is another one than that at `before` dB: the score has risen in between."""
    return before is None or flat.psnr - before > max(config.flat.gain, RISEN)
