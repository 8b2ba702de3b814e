"""What is behind everything: a color by viewing direction, in spherical harmonics of the world."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera, CameraModel
from splatstudio.devices.transfer import to_device
from splatstudio.gaussians.gaussians import SH_C0
from splatstudio.gaussians.spherical_harmonics import sh_basis


@dataclass(frozen=True)
class Sky:
    """A learned background; `coefficients` [(degree + 1)^2][3], of which 0 is mid-gray."""

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

    `rgb` was drawn over black with `alpha` [H, W]. The sky's colors are at least 0.
    """
    degree = {1: 0, 4: 1, 9: 2, 16: 3}[len(coefficients)]
    left_over = 1.0 - alpha[..., None]
    if degree == 0:
        colors = (SH_C0 * coefficients + 0.5).clamp_min(0.0)
        return rgb + left_over * colors
    # A row for each channel and each term: all that is done to them is done to whole rows of memory.
    basis = sh_basis(degree, viewing_directions(camera, rgb.device).T, dim=0).to(rgb)
    colors = (coefficients.T @ basis + 0.5).clamp_min(0.0)
    return rgb + left_over * colors.reshape(3, *rgb.shape[:2]).permute(1, 2, 0)


def viewing_directions(camera: Camera, device: torch.device) -> Tensor:
    """Return the world directions, unit, [3, H * W] float32, in which the pixels of a camera look."""
    rays = _rays(
        np.asarray(camera.K, np.float64).tobytes(), camera.width, camera.height, camera.model, device
    )
    turn = torch.as_tensor(camera.viewmat[:3, :3].T.copy()).to(rays.dtype)
    return to_device(turn, device) @ rays


@lru_cache(maxsize=4)  # cameras of one capture differ in where they stand, not in their rays
def _rays(K: bytes, width: int, height: int, model: CameraModel, device: torch.device) -> Tensor:
    """Return the unit directions [3, H * W] in a camera's axes; `K` as it lies in memory."""
    (fx, _, cx), (_, fy, cy), _ = np.frombuffer(K).reshape(3, 3).tolist()
    x = (np.arange(width) + 0.5 - cx)[None, :] / fx
    y = (np.arange(height) + 0.5 - cy)[:, None] / fy
    x, y = np.broadcast_arrays(x, y)
    if model == "pinhole":
        rays = np.stack([x, y, np.ones_like(x)])
    elif model == "fisheye":  # equidistant: the distance from the principal point is the angle
        angle = np.sqrt(x * x + y * y)
        rays = np.stack([x * np.sinc(angle / np.pi), y * np.sinc(angle / np.pi), np.cos(angle)])
    else:
        rays = np.stack([np.zeros_like(x), np.zeros_like(x), np.ones_like(x)])
    rays = rays / np.linalg.norm(rays, axis=0)
    return to_device(torch.as_tensor(rays.reshape(3, -1), dtype=torch.float32), device)
