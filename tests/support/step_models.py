"""Models, cameras and losses for the tests of a single step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import Gradients, RenderOutput, apply_gradients, backward, draw
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions
from splatstudio.strategy.population import trainable

RATES = {"means": 1e-3, "quats": 2e-3, "scales": 3e-3, "opacities": 4e-3, "sh0": 5e-3, "shN": 6e-3}
TARGET = torch.rand(30, 40, 3, generator=torch.Generator().manual_seed(9))


def model(num: int = 203, sh_degree: int = 3) -> Gaussians:
    generator = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return trainable(
        Gaussians(
            means=2.0 * normal(num, 3),
            quats=normal(num, 4),
            scales=0.5 * normal(num, 3) - 2.0,
            opacities=normal(num),
            sh0=normal(num, 1, 3),
            shN=0.1 * normal(num, (sh_degree + 1) ** 2 - 1, 3),
        )
    )


def camera_at(step: int) -> Camera:
    """Return a camera between the Gaussians that sees some of them, by turns others; now and then none."""
    angle = 2.4 * step
    away = 100.0 if step % 7 == 5 else 0.0
    eye = np.array([0.3, away, -0.2])
    target = eye + np.array([np.cos(angle), 0.2, np.sin(angle)])
    K = np.array([[40.0, 0, 20.0], [0, 40.0, 15.0], [0, 0, 1]])
    return Camera(look_at(eye, target, np.array([0.0, -1.0, 0.0])), K, 40, 30)


def degree_at(step: int) -> int:
    return min(step // 3, 3)


def loss_of(rgb: Tensor) -> Tensor:
    return ((rgb - TARGET) ** 2).sum()


def fused_step(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    step: int,
    rates: dict[str, float],
    *,
    visible_only: bool = False,
) -> tuple[RenderOutput, Gradients]:
    options = RenderOptions(sh_degree=degree_at(step))
    drawing = draw(gaussians, optimizer, camera_at(step), options, observed=True)
    gradients = backward(drawing, loss_of(drawing.rgb))
    apply_gradients(drawing, gradients, optimizer, rates, visible_only=visible_only)
    return drawing, gradients


def assert_same(ours: Gaussians, theirs: Gaussians) -> None:
    for name, tensor in ours.tensors().items():
        assert torch.equal(tensor, theirs.tensors()[name]), name
