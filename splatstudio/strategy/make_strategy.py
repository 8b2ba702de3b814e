"""The strategy that a training's settings name."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy import Strategy
from splatstudio.strategy.default import DefaultStrategy
from splatstudio.strategy.fast import FastStrategy, Survey
from splatstudio.strategy.mcmc import McmcStrategy


class AbsgradStrategy(DefaultStrategy):
    """The rules of `DefaultStrategy`, but absolute gradients count (Ye et al. 2024, AbsGS).

    Gradients of opposite directions, as of a Gaussian that covers too much, do not cancel then.
    """

    absgrad = True

    def follow(self, config: TrainConfig, step: int) -> None:
        """Take the settings of a training, which may have changed, for the step after `step` others."""
        super().follow(config, step)
        self.config = replace(config.densify, grow_grad=config.absgrad.grow_grad)


def make_strategy(
    scene: Scene, config: TrainConfig, *, extent: float, generator: torch.Generator, survey: Survey
) -> Strategy:
    """Return the strategy that `config` names for a training on `scene`, in the state before the first step.

    `extent` is the scene's radius in scene units. Random choices come of `generator`, on the CPU, or of the
    seed and the step.
    """
    # What a photo shows grows with its pixels, what all show more slowly than their number.
    cameras = [scene.views[index].camera for index in scene.train_indices]
    pixels = sum(camera.width * camera.height for camera in cameras)
    detail = pixels / math.sqrt(len(cameras))
    if config.strategy == "fast":
        sizes = {"extent": extent, "detail": detail, "pixels": pixels / len(cameras)}
        return FastStrategy(config, survey=survey, **sizes)
    if config.strategy == "mcmc":
        return McmcStrategy(config, extent=extent, detail=detail)
    rules = {"default": DefaultStrategy, "absgrad": AbsgradStrategy}[config.strategy]
    strategy = rules(config.densify, extent=extent, steps=config.steps, generator=generator)
    strategy.follow(config, 0)
    return strategy
