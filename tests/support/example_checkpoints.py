"""A checkpoint with one of everything, for the tests of files and folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from blob_models import blobs

from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
)
from splatstudio.optimization.optim import SplatAdam
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.population import Population, trainable


def example(step: int = 120, seed: int = 0) -> Checkpoint:
    """Return a checkpoint whose every number is its own."""
    generator = torch.Generator().manual_seed(seed)
    gaussians = blobs(seed)
    moments = [gaussians.map(lambda t: torch.rand(t.shape, generator=generator)) for _ in range(2)]
    return Checkpoint(
        step=step,
        config=TrainConfig(steps=777, background=(0.25, 0.5, 0.1)),
        population=Population(
            trainable(gaussians),
            SplatAdam(moments[0], moments[1], num_steps=step),
            {"grad2d": torch.rand(60, generator=generator), "visible": torch.arange(60.0)},
        ),
        scene_path=Path("/scenes/garden"),
        scene_transform=np.linspace(0.1, 1.0, 16).reshape(4, 4),
        rng_state=generator.get_state(),
        upcoming=("b.jpg", "ä.jpg"),
    )
