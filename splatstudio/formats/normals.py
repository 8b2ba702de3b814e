"""Which way the surface that a Gaussian lies on faces."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians, unit_quats
from splatstudio.kernels.reference import rotation_matrices

CHUNK = 65_536


@torch.no_grad()
def normals_of(gaussians: Gaussians, eyes: np.ndarray) -> Tensor:
    """Return unit normals [N, 3] float32 on the CPU: the shortest axis of each Gaussian.

    It points to the side of the nearest of `eyes` [E, 3], the places in the Gaussians' frame from which the
    surface was seen. Where there are none, it points away from the middle of the model (the median of its
    centres), which is right for an object and wrong for a room. Raises ValueError for a centre that is not
    finite.
    """
    num = len(gaussians)
    means = gaussians.means.detach().float().cpu()
    wrong = torch.nonzero(~means.isfinite())
    if len(wrong):
        row, axis = wrong[0].tolist()
        raise ValueError(f"there are no normals: 'means' of splat {row} is {float(means[row, axis])}")
    normals = torch.empty(num, 3)
    nearest = KDTree(eyes) if len(eyes) else None
    middle = means.median(dim=0).values if num else means
    for start in range(0, num, CHUNK):
        rows = slice(start, min(start + CHUNK, num))
        axes = rotation_matrices(unit_quats(gaussians.quats.detach()[rows].float().cpu()))
        shortest = gaussians.scales.detach()[rows].argmin(dim=1).cpu()
        normal = axes[torch.arange(len(axes)), :, shortest]
        if nearest is not None:
            _, eye = nearest.query(means[rows].numpy())
            towards = torch.from_numpy(eyes[eye]).float() - means[rows]
        else:
            towards = means[rows] - middle
        behind = (normal * towards).sum(dim=1, keepdim=True) < 0.0
        normals[rows] = torch.where(behind, -normal, normal)
    return normals
