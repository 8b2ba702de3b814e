"""Settings under which a few steps of each strategy change the model."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "sh_degree": 1,
    "densify.start_step": 5,
    "densify.every": 10,
    "densify.grow_grad": 1e-4,
    "densify.reset_every": 1000,
}
MCMC = {"strategy": "mcmc", "mcmc.start_step": 5, "mcmc.every": 5, "mcmc.max_gaussians": 130}
FAST = {"strategy": "fast", "fast.every": 5}
