"""The curves of a training, thinned to what a plot can show."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

MAX_PLOT_POINTS = 600  # all of them are sent again whenever one is added


class Curve:
    """Values over steps. When there are too many, every second one is dropped and fewer are taken.

    One thread may add while others read: they see every step with its own value.
    """

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []
        self._every = 1
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._points)

    def add(self, step: int, value: float) -> None:
        """Append a value; steps that were made again after a resume replace the old ones."""
        with self._lock:
            points = self._points
            while points and points[-1][0] >= step:
                points.pop()
            if points and step - points[-1][0] < self._every:
                return
            points.append((step, value))
            if len(points) > MAX_PLOT_POINTS:
                del points[1:-1:2]
                self._every = max(self._every * 2, 2)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values, float64."""
        with self._lock:
            points = list(self._points)
        return np.array([step for step, _ in points], float), np.array([value for _, value in points], float)


class History:
    """Loss and PSNR of a training, with the evaluations of the test photographs."""

    def __init__(self) -> None:
        self.loss = Curve()
        self.train_psnr = Curve()
        self.test_psnr = Curve()

    def load(self, rows: Iterable[dict]) -> None:
        """Take up the lines of an earlier part's metrics.jsonl."""
        for row in rows:
            for name, curve in (
                ("loss", self.loss),
                ("psnr", self.train_psnr),
                ("test_psnr", self.test_psnr),
            ):
                if isinstance(row.get(name), (int, float)):
                    curve.add(int(row["step"]), float(row[name]))
