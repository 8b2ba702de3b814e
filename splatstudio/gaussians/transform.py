"""Gaussians in another frame: moved, turned and scaled, with the view-dependent color turned along."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import similarity_scale
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.sky import Sky
from splatstudio.gaussians.spherical_harmonics import sh_basis


def transformed(gaussians: Gaussians, similarity: np.ndarray) -> Gaussians:
    """Return the Gaussians after every point p of the world became `similarity` @ p.

    `similarity` is [4, 4]: a rotation times a positive scale, and a shift. A camera that is transformed alike
    sees the same picture. Raises ValueError for a matrix that is something else.
    """
    similarity = np.asarray(similarity, dtype=np.float64)
    scale, rotation = _decomposed(similarity)
    means = gaussians.means.detach()
    linear = torch.from_numpy(similarity[:3, :3].copy()).to(means.device)
    shift = torch.from_numpy(similarity[:3, 3].copy()).to(means.device)
    return Gaussians(
        # In float64, since a scene far from its origin would lose its detail to the shift.
        means=(means.double() @ linear.T + shift).to(means),
        quats=_turned_quats(gaussians.quats.detach(), rotation),
        scales=gaussians.scales.detach() + math.log(scale),
        opacities=gaussians.opacities.detach().clone(),
        sh0=gaussians.sh0.detach().clone(),
        shN=_turned_sh(gaussians.shN.detach(), rotation, gaussians.sh_degree),
    )


def transformed_sky(sky: Sky, similarity: np.ndarray) -> Sky:
    """Return the sky after the world was moved, turned and scaled by `similarity` [4, 4]."""
    _, rotation = _decomposed(np.asarray(similarity, dtype=np.float64))
    coefficients = torch.tensor(sky.coefficients, dtype=torch.float64)
    degree = math.isqrt(len(coefficients)) - 1
    higher = _turned_sh(coefficients[None, 1:], rotation, degree)[0]
    return Sky.of(torch.cat([coefficients[:1], higher]))


def _decomposed(similarity: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the scale and the rotation [3, 3] of a [4, 4] similarity."""
    linear = similarity[:3, :3]
    scale = similarity_scale(similarity) if np.isfinite(similarity).all() else math.nan
    if not scale > 0:
        raise ValueError("splats can only be moved, turned and scaled: this transform mirrors or flattens")
    rotation = linear / scale
    if not np.abs(rotation @ rotation.T - np.eye(3)).max() < 1e-4:
        raise ValueError("splats can only be moved, turned and scaled: this transform shears or stretches")
    return scale, rotation


def _turned_quats(quats: Tensor, rotation: np.ndarray) -> Tensor:
    """Return the quaternions (wxyz, [N, 4]) of `rotation` after those of `quats`; their lengths stay."""
    from scipy.spatial.transform import Rotation  # takes half a second to load

    a, b, c, d = (float(value) for value in np.roll(Rotation.from_matrix(rotation).as_quat(), 1))
    left = [[a, -b, -c, -d], [b, a, -d, c], [c, d, a, -b], [d, -c, b, a]]
    return quats @ quats.new_tensor(left).T


def _turned_sh(shN: Tensor, rotation: np.ndarray, degree: int) -> Tensor:
    """Return the coefficients [N, K-1, 3] of the same colors around axes turned by `rotation`."""
    turned = shN.clone()
    for band in range(1, degree + 1):
        rows = slice(band * band - 1, (band + 1) ** 2 - 1)
        turned[:, rows] = sh_band_matrix(band, rotation).to(shN) @ shN[:, rows]
    return turned


def sh_band_matrix(band: int, rotation: np.ndarray) -> Tensor:
    """Return the orthogonal matrix [2l+1, 2l+1] float64 that turns the coefficients of band l by `rotation`.

    The basis of a band at turned directions is a linear map of the basis at the directions themselves; the
    map is solved for from more directions than it has unknowns, which is exact up to rounding.
    """
    angles = torch.arange(64, dtype=torch.float64)
    height = (2.0 * angles + 1.0) / 64.0 - 1.0  # a spiral that covers the sphere evenly
    around = angles * (math.pi * (3.0 - math.sqrt(5.0)))
    radius = (1.0 - height**2).sqrt()
    directions = torch.stack([radius * around.cos(), radius * around.sin(), height], dim=1)
    rows = slice(band * band, (band + 1) ** 2)
    here = sh_basis(band, directions)[:, rows]
    there = sh_basis(band, directions @ torch.from_numpy(np.ascontiguousarray(rotation)).T)[:, rows]
    return torch.linalg.lstsq(here, there).solution.T
