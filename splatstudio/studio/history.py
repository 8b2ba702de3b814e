"""The curves of a training, thinned to what a plot can show."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

MAX_PLOT_POINTS = 600  # all of them are sent again whenever one is added


class Curve:
    """Values over steps. When there are too many, every second one is dropped and fewer are taken."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._every = 1

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, value: float) -> None:
        """Append a value; steps that were made again after a resume replace the old ones."""
        while self._steps and self._steps[-1] >= step:
            self._steps.pop()
            self._values.pop()
        if self._steps and step - self._steps[-1] < self._every:
            return
        self._steps.append(step)
        self._values.append(value)
        if len(self._steps) > MAX_PLOT_POINTS:
            del self._steps[1:-1:2], self._values[1:-1:2]
            self._every = max(self._every * 2, 2)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values, float64."""
        return np.array(self._steps, float), np.array(self._values, float)


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
