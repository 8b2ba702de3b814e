"""How much memory the lists of a picture get before a GPU has counted what will be in them."""

from __future__ import annotations

import math

import torch

from splatstudio import ops

MARGIN = 1.25  # of the largest number that a picture has needed
LEAST_MARGIN = 1.1  # below it more is taken in time, before a picture does not fit
LARGEST = 2**31 - 2  # the kernels count instances in 32 bits


class InstanceRoom:
    """The room for the instances (a visible Gaussian in a tile) of one training's pictures.

    With a size the host need not wait for their number before it can queue the rest of a picture. It is
    the most that was needed before, and a margin; a picture that needs more is to be drawn again.
    """

    def __init__(self) -> None:
        """Begin without a size: the host waits for the number of the first picture."""
        self.size: int | None = None

    def held(self, needed: int) -> bool:
        """Return whether the picture just drawn, of `needed` instances, had room; have room for more now.

        Where it had not, the next has, and waits for its number where no room would do.
        """
        fitted = self.size is None or needed <= self.size
        if self.size is None or needed * LEAST_MARGIN > self.size:
            self.size = min(math.ceil(needed * MARGIN), LARGEST)
        if needed > LARGEST:
            self.size = None  # whoever waits for the number is told what is wrong
        return fitted


def room_for(device: torch.device) -> InstanceRoom | None:
    """Return the room of a training on `device`; None on the CPU, which knows the number."""
    return InstanceRoom() if ops.has_kernel("bin_within", device.type) else None
