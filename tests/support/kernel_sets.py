"""How near the values of the CUDA kernels and of the CPU's are to each other."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = 2e-4  # of the largest value: sums over pixels have another order
# The two sets round the exponential differently, which may move single alphas across 1/255 and so a few
# pixels, and a few Gaussians' gradients, by more.
OUTLIERS = 0.005


def close(ours: Tensor, theirs: Tensor) -> bool:
    """Return whether all but few values of one set of kernels are those of the other."""
    scale = float(theirs.abs().max()) or 1.0
    far = (ours - theirs).abs() > TOLERANCE * scale
    return bool(torch.isfinite(ours).all()) and float(far.double().mean()) <= OUTLIERS
