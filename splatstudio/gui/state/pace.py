"""How large the pictures may be so that they come in time."""

from __future__ import annotations

import math

MIN_SCALE = 0.15


class Pace:
    """The share of the canvas's pixels a side at which a picture takes about `target` seconds."""

    def __init__(self, target: float, scale: float):
        self._target = target
        self.scale = scale

    def measured(self, scale: float, seconds: float) -> None:
        """Learn from a picture that took `seconds` at `scale`."""
        wanted = scale * math.sqrt(self._target / max(seconds, 1e-4))
        # Part of the time does not depend on the pixels: small steps, not the whole way.
        self.scale = min(1.0, max(MIN_SCALE, self.scale + 0.4 * (wanted - self.scale)))
