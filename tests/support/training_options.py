"""Trainings of every kind that are over after a dozen steps: a device has all to do in them."""

from __future__ import annotations

from typing import Any

from splatstudio.settings.config import TrainConfig, changed

GROWTH = {
    "densify.start_step": 2,
    "densify.every": 4,
    "densify.reset_every": 8,
    "densify.grow_grad": 1e-5,
    "absgrad.grow_grad": 1e-5,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "growth": {**GROWTH, "random_background": True},
    "absgrad": {**GROWTH, "strategy": "absgrad", "antialiased": True, "order": "morton"},
    "mcmc": {"strategy": "mcmc", "mcmc.start_step": 2, "mcmc.every": 4, "shapes.opacity_weight": 0.01},
    "fast": {"strategy": "fast", "mcmc.start_step": 2, "mcmc.every": 4},
    "exposure": {"exposure.enabled": True, "exposure.grid": True},
    "poses": {"poses.enabled": True, "poses.start_step": 2},
    "sky": {"sky.enabled": True, "coarse.first": 2.0},
    "shapes": {**GROWTH, "shapes.max_scale": 0.5, "shapes.max_ratio": 5.0, "shapes.min_views_every": 4},
    "batch": {**GROWTH, "batch_size": 2, "accumulate": 2},
    "visible_only": {**GROWTH, "optim.visible_only": True},
}


def short_training(options: dict[str, Any], steps: int) -> TrainConfig:
    """Return the settings of a training of so many steps, with `options` by their dotted paths."""
    config = TrainConfig(steps=steps, sh_degree_every=4, eval_steps=(), save_steps=())
    for path, value in options.items():
        config = changed(config, path, value)
    return config
