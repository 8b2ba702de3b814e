"""What is told when the score of the test photographs stands still."""

from __future__ import annotations

from dataclasses import dataclass

from splatstudio.runtime.messages import Event
from splatstudio.settings.config import TrainConfig
from splatstudio.train.plateau import AT_REST, PlateauNews


@dataclass(frozen=True)
class PlateauReached(Event):
    """The test score, evaluated after `step` of `total_steps`, has stood still since `since`, at `psnr` dB.

    `stops`: the training ends here for that; else nothing happens. `waits`: it will, once the learning rates
    are nearly at rest. `rates_left` are those of the last step over those of now.
    """

    step: int
    total_steps: int
    since: int
    psnr: float
    stops: bool
    waits: bool
    rates_left: float


@dataclass(frozen=True)
class PlateauLeft(Event):
    """The last PlateauReached holds no longer after `step`: the score rose, or a setting was changed."""

    step: int


def plateau_reached(news: PlateauNews, config: TrainConfig) -> PlateauReached:
    """Return what is told of `news` in a training with the settings `config`."""
    waits = config.stop_when_flat and news.rates_left < AT_REST
    since, psnr, left = news.flat.since, news.flat.psnr, news.rates_left
    return PlateauReached(news.step, config.steps, since, psnr, news.stops, waits, rates_left=left)


def plateau_words(event: PlateauReached) -> str:
    """Return what stands still, and since when, without a full stop."""
    return f"The test score has been flat since step {event.since:,} ({event.psnr:.1f} dB)"


def plateau_advice(event: PlateauReached) -> str:
    """Return what the user may want to know before he stops, one or two sentences; "" where that is nothing.

    Where learning rates fall to the planned end, the score often rises with that once more.
    """
    if event.rates_left >= AT_REST:
        return ""
    fall = f"The learning rates still fall to {100 * event.rates_left:.0f} % of now by step"
    # So many steps that these would be done to 85 %.
    shorter = -(-event.step // 85) * 100
    advice = f"{fall} {event.total_steps:,}, which may lift it once more"
    if not event.waits and shorter < 0.95 * event.total_steps:
        return f"{advice}; with {shorter:,} steps planned they do so sooner."
    return f"{advice}."


def stopped_sentence(event: PlateauReached) -> str:
    """Return why a training has ended before its last step."""
    return (
        f"Stopped at step {event.step:,}: test score flat since step {event.since:,} ({event.psnr:.1f} dB)."
    )


def plateau_sentence(event: PlateauReached, how_to_stop: str) -> str:
    """Return what a line of text tells of it; `how_to_stop` is one sentence."""
    if event.stops:
        return stopped_sentence(event)
    if event.waits:
        how_to_stop = "The training stops when they are nearly at rest."
    return " ".join(filter(None, (f"{plateau_words(event)}.", plateau_advice(event), how_to_stop)))
