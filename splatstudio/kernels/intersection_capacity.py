"""How much memory the lists of a picture get before a GPU has counted what will be in them."""

from __future__ import annotations

import math

import torch

from splatstudio.kernels import ops

MARGIN = 1.25  # of the largest number that a picture has needed
LEAST_MARGIN = 1.1  # below it more is taken in time, before a picture does not fit
LARGEST = 2**31 - 2  # the kernels count instances in 32 bits
LOOK_BACK = 1000  # pictures, after each of which room that is no longer needed goes


class IntersectionCapacity:
    """The room for the instances (a visible Gaussian in a tile) of one training's pictures.

    With a size the host need not wait for their number before it can queue the rest of a picture. It is
    the most that the last LOOK_BACK pictures, or up to twice as many, have needed, and a margin; a picture
    that needs more is to be drawn again.
    """

    def __init__(self) -> None:
        """Begin without a size: the host waits for the number of the first picture."""
        self.size: int | None = None
        self._num_pictures = 0
        self._most = self._most_before = 0  # that was needed since LOOK_BACK last passed, and before that

    def held(self, needed: int) -> bool:
        """Return whether the picture just drawn, of `needed` instances, had room; have room for more now.

        Where it had not, the next has, and waits for its number where no room would do.
        """
        fitted = self.size is None or needed <= self.size
        self._most = max(self._most, needed)
        self._num_pictures += 1
        if self.size is None or needed * LEAST_MARGIN > self.size:
            self.size = _with_margin(needed)
        if self._num_pictures % LOOK_BACK == 0:
            self.size = min(self.size, _with_margin(max(self._most, self._most_before)))
            self._most_before, self._most = self._most, 0
        if needed > LARGEST:
            self.size = None  # whoever waits for the number is told what is wrong
        return fitted

    def forget(self) -> None:
        """Begin again, where memory was short: the next picture takes no more than it needs."""
        self.size = None
        self._most = self._most_before = 0


def _with_margin(needed: int) -> int:
    return min(math.ceil(needed * MARGIN), LARGEST)


def intersection_capacity_for(device: torch.device) -> IntersectionCapacity | None:
    """Return the room of a training on `device`; None on the CPU, which knows the number."""
    return IntersectionCapacity() if ops.has_kernel("bin_within", device.type) else None
