"""A tiny model of colored blobs and cameras around it; needs nothing but the package's own requirements."""

from __future__ import annotations

import numpy as np
import torch

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.gaussians.gaussians import Gaussians, rgb_to_sh0

WIDTH, HEIGHT, FOCAL = 48, 40, 45.0
NUM_VIEWS = 9  # the first and the last are test views


def blobs(seed: int = 0, num: int = 60) -> Gaussians:
    """Return `num` colored, fairly opaque Gaussians within about 1 unit of the origin."""
    generator = torch.Generator().manual_seed(seed)
    rgb = torch.rand(num, 3, generator=generator)
    return Gaussians(
        means=torch.randn(num, 3, generator=generator) * 0.5,
        quats=torch.nn.functional.normalize(torch.randn(num, 4, generator=generator), dim=1),
        scales=torch.log(0.05 + 0.15 * torch.rand(num, 3, generator=generator)),
        opacities=torch.full((num,), 2.0),
        sh0=rgb_to_sh0(rgb)[:, None, :],
        shN=torch.zeros(num, 3, 3),
    )


def ring_of_cameras(num: int = NUM_VIEWS) -> list[Camera]:
    """Return `num` cameras on a ring of radius 3, looking at the origin."""
    K = np.array([[FOCAL, 0.0, WIDTH / 2], [0.0, FOCAL, HEIGHT / 2], [0.0, 0.0, 1.0]])
    cameras = []
    for angle in np.linspace(0.0, 2.0 * np.pi, num, endpoint=False):
        position = np.array([3.0 * np.cos(angle), 3.0 * np.sin(angle), 0.8])
        viewmat = look_at(position, np.zeros(3), np.array([0.0, 0.0, 1.0]))
        cameras.append(Camera(viewmat, K, WIDTH, HEIGHT))
    return cameras
