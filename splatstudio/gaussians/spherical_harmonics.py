"""The color of a Gaussian by the direction from which it is seen: in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def shade(directions: Tensor, sh: Tensor) -> Tensor:
    """Return the colors [N, 3] of the coefficients `sh` [N, K, 3] seen along `directions` [N, 3].

    The directions point from the camera to the Gaussian and may have any length. Colors are at least 0.
    """
    degree = {1: 0, 4: 1, 9: 2, 16: 3}[sh.shape[1]]
    basis = sh_basis(degree, directions / directions.norm(dim=-1, keepdim=True))
    return ((basis[:, :, None] * sh).sum(dim=1) + 0.5).clamp_min(0.0)


def sh_basis(degree: int, directions: Tensor, dim: int = -1) -> Tensor:
    """Return the real spherical harmonics [N, (degree + 1)^2] of unit `directions` [N, 3], degree 0..3.

    Order l * l + l + m with the Condon-Shortley sign, as in usual PLY files; `dim` 0: [(degree + 1)^2, N].
    """
    x, y, z = directions.unbind(-1)
    basis = [torch.full_like(x, 0.282094791773878)]
    if degree >= 1:
        basis += [-0.488602511902920 * y, 0.488602511902920 * z, -0.488602511902920 * x]
    xx, yy, zz = x * x, y * y, z * z
    if degree >= 2:
        basis += [
            1.092548430592079 * x * y,
            -1.092548430592079 * y * z,
            0.315391565252520 * (3 * zz - 1),
            -1.092548430592079 * x * z,
            0.546274215296040 * (xx - yy),
        ]
    if degree >= 3:
        basis += [
            -0.590043589926644 * y * (3 * xx - yy),
            2.890611442640554 * x * y * z,
            -0.457045799464466 * y * (5 * zz - 1),
            0.373176332590115 * z * (5 * zz - 3),
            -0.457045799464466 * x * (5 * zz - 1),
            1.445305721320277 * z * (xx - yy),
            -0.590043589926644 * x * (xx - 3 * yy),
        ]
    return torch.stack(basis, dim=dim)
