"""The curves of a run that is opened again: as they were while it was trained."""

from __future__ import annotations

import numpy as np

from splatstudio.studio.history import History


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
