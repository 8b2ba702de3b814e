"""What is behind everything: a colour by viewing direction, in spherical harmonics of the world."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splatstudio.camera import Camera
from splatstudio.gaussians import SH_C0
from splatstudio.reference import sh_basis


@dataclass(frozen=True)
class Sky:
    """A learnt background; `coefficients` [(degree + 1)^2][3], of which 0 is mid-grey."""

    coefficients: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, coefficients: Tensor) -> Sky:
        """Return the sky of a tensor [(degree + 1)^2, 3]."""
        return cls(tuple(tuple(row) for row in coefficients.detach().cpu().tolist()))

    @property
    def mean_color(self) -> tuple[float, float, float]:
        """Return the mean over all directions, RGB, within 0..1."""
        red, green, blue = (min(max(0.5 + SH_C0 * value, 0.0), 1.0) for value in self.coefficients[0])
        return red, green, blue

    def over(self, rgb: Tensor, alpha: Tensor, camera: Camera) -> Tensor:
        """Return a picture [H, W, 3] that was drawn over black, with alpha [H, W], over this sky."""
        return over_sky(rgb, alpha, rgb.new_tensor(self.coefficients), camera)


def over_sky(rgb: Tensor, alpha: Tensor, coefficients: Tensor, camera: Camera) -> Tensor:
    """Return `rgb` [H, W, 3] over the sky of `coefficients` [(degree + 1)^2, 3]; differentiable in all three.

    `rgb` was drawn over black with `alpha` [H, W]. The sky's colours are at least 0.
    """
    degree = {1: 0, 4: 1, 9: 2, 16: 3}[len(coefficients)]
    left_over = 1.0 - alpha[..., None]
    if degree == 0:
        directions = rgb.new_tensor([[0.0, 0.0, 1.0]])
    else:
        directions = torch.as_tensor(viewing_directions(camera)).to(rgb).reshape(-1, 3)
    colors = (sh_basis(degree, directions) @ coefficients + 0.5).clamp_min(0.0)
    return rgb + left_over * colors.reshape(*(1, 1) if degree == 0 else rgb.shape[:2], 3)


def viewing_directions(camera: Camera) -> np.ndarray:
    """Return the world directions, unit, [H, W, 3] float64, in which the pixels of a camera look."""
    fx, fy, cx, cy = camera.K[0, 0], camera.K[1, 1], camera.K[0, 2], camera.K[1, 2]
    x = (np.arange(camera.width) + 0.5 - cx)[None, :] / fx
    y = (np.arange(camera.height) + 0.5 - cy)[:, None] / fy
    x, y = np.broadcast_arrays(x, y)
    if camera.model == "pinhole":
        rays = np.stack([x, y, np.ones_like(x)], axis=-1)
    elif camera.model == "fisheye":  # equidistant: the distance from the principal point is the angle
        angle = np.sqrt(x * x + y * y)
        rays = np.stack([x * np.sinc(angle / np.pi), y * np.sinc(angle / np.pi), np.cos(angle)], axis=-1)
    else:
        rays = np.stack([np.zeros_like(x), np.zeros_like(x), np.ones_like(x)], axis=-1)
    rays = rays / np.linalg.norm(rays, axis=-1, keepdims=True)
    return rays @ camera.viewmat[:3, :3]
