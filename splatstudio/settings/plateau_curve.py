"""When the curve of the test photos' PSNR has become flat: the settings of that, and the rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from splatstudio.settings.setting import documented, setting

RISEN = 0.1  # dB above a score that stood still: it does no longer
STEADY = 0.01  # share by which the number of Gaussians may change while the curve is judged
EARLIEST = 1 / 3  # of the steps, before which no curve counts as flat
COVERED = 0.75  # share of the time in question that the scores must span
WIDER = 1.25  # each longer time that is tried where scores are noisy, over the one before
FALLS = 2.0  # standard errors from which on a fall counts as one, however noisy the scores are
NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation, of normal noise


@documented
@dataclass(frozen=True)
class PlateauConfig:
    """When the test PSNR counts as flat: you are told, and with stop_when_flat the training ends."""

    gain: float = setting(
        0.05, "It is flat if it gains less than this over flat.share of the steps, dB; 0: never.", 0, 10
    )
    share: float = setting(
        0.15, "Share of the steps that is considered, or more if scores are noisy.", 0.01, 1
    )
    scores: int = setting(5, "Least number of evaluations in that time; with fewer, it is extended.", 4)


@dataclass(frozen=True)
class Score:
    """The test photos' mean PSNR in dB after `step`, and how many Gaussians there were."""

    step: int
    psnr: float
    num_gaussians: int


@dataclass(frozen=True)
class Plateau:
    """A stretch in which the score stands still: from the step `since` on, at `psnr` dB."""

    since: int
    psnr: float


def plateau_stretch(
    scores: Sequence[Score], rules: PlateauConfig, *, steps: int, settled: int
) -> Plateau | None:
    """Return the flat stretch with which `scores` end, None where they still rise or too little is known.

    `scores` are by rising step, `steps` is the planned length of the training, and up to the step `settled`
    something else than the learning rates was going to change. What counts are the last scores with a steady
    number of Gaussians: a line through those of the last `rules.share` of the steps (its slope the median of
    all pairs' slopes, Theil 1950 and Sen 1968, so that single scores do not decide) must rise by less than
    `rules.gain` in that time, and so must it with its standard error added. Where that is more than half of
    the gain and it is not clear that the score falls, a longer time is looked at: a few noisy scores may lie
    on a line by chance, so that the noise is also taken from twice as many scores as the line is. The best of
    the newer half must not be above that of the older half by more, either.
    """
    if not scores or scores[-1].step < EARLIEST * steps:
        return None
    steady = _steady_since(scores, settled)
    at = np.array([score.step for score in scores[steady:]], np.float64)
    psnr = np.array([score.psnr for score in scores[steady:]], np.float64)
    time = span = rules.share * steps
    while rules.scores <= len(at):
        first = min(int(np.searchsorted(at, at[-1] - span)), len(at) - rules.scores)
        if at[-1] - at[first] < COVERED * span:  # more time than there is, or scores that lie too close
            return None
        noise = _noise(psnr[max(2 * first - len(at), 0) :])
        slope, error = line_through(at[first:], psnr[first:], noise)
        if error * time <= 0.5 * rules.gain or (slope + FALLS * error) * time < 0.0:
            rises = not (slope + error) * time < rules.gain or _is_better(psnr[first:], rules.gain)
            return None if rises else _stretch(at, psnr, first, rules.gain)
        span *= WIDER
    return None


def line_through(x: np.ndarray, y: np.ndarray, noise: float = 0.0) -> tuple[float, float]:
    """Return the slope of a line through points [N], N at least 3, and its standard error.

    `noise` is the standard deviation of `y` that is counted with where the points lie closer to the line.
    """
    earlier, later = np.triu_indices(len(x), 1)
    slope = float(np.median((y[later] - y[earlier]) / (x[later] - x[earlier])))
    rest = y - slope * x
    deviation = max(NORMAL_MAD * float(np.median(np.abs(rest - np.median(rest)))), noise)
    # Few points lie nearer to their own line than to the true one.
    deviation *= (len(x) / (len(x) - 2)) ** 0.5
    return slope, deviation / float(np.sqrt(((x - x.mean()) ** 2).sum()))


def _noise(psnr: np.ndarray) -> float:
    """Return the standard deviation of single scores, by how each differs from the one before."""
    change = np.diff(psnr)
    return NORMAL_MAD * float(np.median(np.abs(change - np.median(change)))) / 2.0**0.5


def _steady_since(scores: Sequence[Score], settled: int) -> int:
    """Return the place of the first score from which on the number of Gaussians stays what it is."""
    low = high = scores[-1].num_gaussians
    place = len(scores)
    while place > 0 and scores[place - 1].step > settled:
        num = scores[place - 1].num_gaussians
        low, high = min(low, num), max(high, num)
        if high - low > STEADY * high:
            break
        place -= 1
    return place


def _is_better(psnr: np.ndarray, gain: float) -> bool:
    """Return whether the newer half has risen above the older one's best, single scores left aside."""
    smooth = _medians(psnr)
    half = len(smooth) // 2
    return bool(smooth[half:].max() - smooth[:half].max() > gain)


def _stretch(at: np.ndarray, psnr: np.ndarray, first: int, gain: float) -> Plateau:
    level = float(np.median(psnr[first:]))
    reached = np.flatnonzero(_medians(psnr) >= level - gain)
    return Plateau(int(at[reached[0]]), level)


def _medians(psnr: np.ndarray) -> np.ndarray:
    """Return for each score the median of it and its two neighbors; at the ends that of three, too."""
    inner = np.median(np.stack([psnr[:-2], psnr[1:-1], psnr[2:]]), axis=0)
    return np.concatenate([inner[:1], inner, inner[-1:]])
