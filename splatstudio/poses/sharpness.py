"""How sharp a picture is, to compare those of one capture."""

from __future__ import annotations

import numpy as np


def sharpness_of(gray: np.ndarray) -> float:
    """Return the variance of the second derivatives of a picture [H, W] uint8, in its sharpest quarter.

    That counts alone: a sharp subject before a blurred background is sharp.
    """
    pixels = gray.astype(np.float32)
    around = pixels[1:-1, :-2] + pixels[1:-1, 2:] + pixels[:-2, 1:-1] + pixels[2:, 1:-1]
    second = around - 4 * pixels[1:-1, 1:-1]
    rows, columns = (np.array_split(np.arange(size), 4) for size in second.shape)
    tiles = [float(second[np.ix_(r, c)].var()) for r in rows for c in columns if len(r) and len(c)]
    return float(np.mean(sorted(tiles)[-4:])) if tiles else 0.0
