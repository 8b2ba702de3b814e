"""The strategy that a training's settings name."""

from __future__ import annotations

from dataclasses import replace

import torch

from splatstudio.config import TrainConfig
from splatstudio.strategy import Strategy
from splatstudio.strategy.default import DefaultStrategy


class AbsgradStrategy(DefaultStrategy):
    """The rules of `DefaultStrategy`, but absolute gradients count (Ye et al. 2024, AbsGS).

    Gradients of opposite directions, as of a Gaussian that covers too much, do not cancel then.
    """

    absgrad = True

    def follow(self, config: TrainConfig) -> None:
        """Take the settings of a training, which may have changed since the last step."""
        super().follow(config)
        self.config = replace(config.densify, grow_grad=config.absgrad.grow_grad)


def make_strategy(config: TrainConfig, *, extent: float, generator: torch.Generator) -> Strategy:
    """Return the strategy that `config` names, in the state before the first step.

    `extent` is the scene's radius in scene units; every random choice comes of `generator`, on the CPU.
    """
    rules = {"default": DefaultStrategy, "absgrad": AbsgradStrategy}[config.strategy]
    strategy = rules(config.densify, extent=extent, steps=config.steps, generator=generator)
    strategy.follow(config)
    return strategy
