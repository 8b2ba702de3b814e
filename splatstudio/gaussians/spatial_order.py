"""The Morton order: neighbors in the list are neighbors in space, for compact formats and fast memory."""

from __future__ import annotations

import numpy as np

BITS = 21  # an axis; three of them fill 63 bits
# Each step spreads the bits of a number further apart, until two zeros lie between any two of them.
SPREAD = [
    (32, 0x001F00000000FFFF),
    (16, 0x001F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
]


def morton_order(means: np.ndarray) -> np.ndarray:
    """Return the rows of `means` [N, 3], finite, in the order of their interleaved coordinates' bits."""
    if len(means) == 0:
        return np.zeros(0, np.intp)
    low = means.min(axis=0).astype(np.float64)
    extent = means.max(axis=0) - low
    extent[extent == 0.0] = 1.0
    keys = np.zeros(len(means), np.uint64)
    for axis in range(3):
        cells = ((means[:, axis] - low[axis]) / extent[axis] * (2**BITS - 1)).astype(np.uint64)
        for shift, mask in SPREAD:
            cells = (cells | (cells << np.uint64(shift))) & np.uint64(mask)
        keys |= cells << np.uint64(axis)
    return np.argsort(keys, kind="stable")
