"""Settings under which a few steps of each strategy change the model, and models for single rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import Observation
from splatstudio.optimization.optim import SplatAdam
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.strategy.default import DefaultStrategy
from splatstudio.strategy.population import Population, trainable

COMMON: dict[str, Any] = {
    "sh_degree": 1,
    "densify.start_step": 5,
    "densify.every": 10,
    "densify.grow_grad": 1e-4,
    "densify.reset_every": 1000,
}
MCMC = {"strategy": "mcmc", "mcmc.start_step": 5, "mcmc.every": 5, "mcmc.max_gaussians": 130}
FAST = {"strategy": "fast", "mcmc.start_step": 5, "mcmc.every": 5, "fast.density": 2.0, "fast.thin_at": 0.02}


HIGH, LOW = 1e-3, 1e-5  # image gradients above and below the threshold


def seen(norms: list[float], *, visible: list[bool] | None = None) -> tuple[Observation, ...]:
    """Return an observation whose gradients in normalized coordinates have the given norms."""
    gradients = torch.zeros(len(norms), 2)
    gradients[:, 0] = torch.tensor(norms) / 50.0  # an image of 100 pixels: half the width
    radii = torch.tensor(visible or [True] * len(norms)).int()[:, None].expand(-1, 2) * 3
    return (Observation(gradients, radii, width=100, height=80),)


def rows(gaussians: Gaussians) -> Tensor:
    return torch.cat([t.detach().reshape(len(gaussians), -1) for t in gaussians.tensors().values()], dim=1)


def population(*, scales: list[float], opacities: list[float] | None = None) -> Population:
    """Return Gaussians of the given sizes (fractions of the extent) with recognizable rows and moments."""
    num = len(scales)
    ramp = torch.arange(1.0, num + 1)
    opacity = torch.tensor(opacities or [0.5] * num)
    gaussians = Gaussians(
        means=ramp[:, None] * torch.tensor([1.0, 10.0, 100.0]),
        quats=torch.nn.functional.normalize(ramp[:, None] + torch.tensor([1.0, 2.0, 3.0, 4.0]), dim=1),
        scales=torch.tensor(scales).log()[:, None] + torch.tensor([0.0, -1.0, -2.0]),
        opacities=torch.logit(opacity),
        sh0=ramp[:, None, None].expand(num, 1, 3) * 0.1,
        shN=ramp[:, None, None].expand(num, 3, 3) * 0.01,
    )
    gaussians = trainable(gaussians)
    moments = SplatAdam(
        gaussians.map(lambda t: torch.ones_like(t, requires_grad=False) * _column(ramp, t)),
        gaussians.map(lambda t: torch.ones_like(t, requires_grad=False) * _column(ramp, t) ** 2),
        num_steps=600,
    )
    return Population(gaussians, moments, strategy().new_counts(gaussians))


def _column(ramp: Tensor, like: Tensor) -> Tensor:
    return ramp.reshape(-1, *[1] * (like.dim() - 1))


def strategy(
    config: DensifyConfig | None = None, *, steps: int = 30_000, extent: float = 1.0
) -> DefaultStrategy:
    config = config or DensifyConfig()
    return DefaultStrategy(config, extent=extent, steps=steps, generator=torch.Generator().manual_seed(1))
