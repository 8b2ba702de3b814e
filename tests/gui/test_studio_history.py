"""The curves of a run that is opened again, as while it was trained; and the speed around a pause."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from splatstudio.gui.state.history import History
from splatstudio.gui.state.status import Status, followed
from splatstudio.runtime.messages import Progress, StateChanged
from splatstudio.runtime.training_news import StepRate


def rows_of(num: int, elapsed: np.ndarray, first: int = 10) -> list[dict]:
    """Return lines of metrics.jsonl whose single photographs differ by 6 dB, and a test score beside each."""
    swing = np.where(np.arange(num) % 2, 3.0, -3.0)
    return [
        {
            "step": first + 10 * i,
            "loss": 0.1 + 0.01 * float(swing[i]),
            "psnr": 25.0 + float(swing[i]),
            "test_psnr": 25.0 + float(swing[i]),
            "num_gaussians": 100 + i,
            "elapsed_s": float(elapsed[i]),
        }
        for i in range(num)
    ]


def test_curves_of_an_opened_run_are_smoothed_as_while_it_was_trained() -> None:
    history = History()
    # Ten steps take 1 s on average, 0.2 s or 1.8 s each.
    history.load(rows_of(100, np.cumsum(np.where(np.arange(100) % 2, 0.2, 1.8))))
    for curve, middle, swing in ((history.train_psnr, 25.0, 3.0), (history.loss, 0.1, 0.03)):
        late = curve.arrays()[1][40:]
        assert np.abs(late - middle).max() < 0.15 * swing, "single photographs are not drawn as they are"
    assert np.ptp(history.test_psnr.arrays()[1]) == 6.0, "test scores are what they are"
    assert history.num_gaussians.arrays()[1].tolist() == list(range(100, 200))
    assert np.abs(history.rate.arrays()[1][10:] - 10.0).max() < 2.0, (
        "counted over seconds, not from line to line"
    )


def test_the_speed_of_a_later_part_is_counted_by_its_own_seconds() -> None:
    history = History()
    history.load(rows_of(20, np.arange(1, 21) * 100.0) + rows_of(20, np.arange(1, 21) * 1.0, first=210))
    steps, rates = history.rate.arrays()
    assert np.allclose(rates[steps <= 200], 0.1) and np.allclose(rates[steps > 210], 10.0)
    assert 210 not in steps, "no speed between the parts"


def test_the_speed_after_a_pause_is_not_that_of_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("splatstudio.runtime.progress.time", SimpleNamespace(monotonic=lambda: now))
    rate = StepRate()
    rate.restart(0)
    told: list[float] = []
    for step in range(1, 101):
        now += 0.1
        told.append(rate.count(step))
    now += 60.0
    rate.restart(100)
    told.append(rate.count(100))
    for step in range(101, 151):
        now += 0.001 if step == 101 else 0.2  # the first picture was there already
        told.append(rate.count(step))
    assert min(told) > 4.9 and max(told) < 11.0
    assert abs(told[99] - 10.0) < 0.5 and abs(told[-1] - 5.0) < 0.3


def test_who_pauses_reads_no_speed() -> None:
    status = followed(Status(), StateChanged("training"))
    progress = Progress(7, 20, 0.1, 25.0, 60, 4.0, 3.0, 2.0)
    assert followed(status, progress).steps_per_second == 4.0
    paused = followed(followed(status, StateChanged("paused")), progress)
    assert paused.step == 7 and paused.steps_per_second is None and paused.eta_seconds is None
