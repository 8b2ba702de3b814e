"""Trainings that are saved and resumed, and how they are compared."""

from __future__ import annotations

import torch

from splatstudio.checkpoints.checkpoint import Checkpoint
from splatstudio.checkpoints.manifest import named_tensors
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.trainer import Trainer

# Densifies at steps 20, 30, 40 and resets at 35: everything happens within a few steps.
BUSY = DensifyConfig(start_step=15, every=10, reset_every=35, grow_grad=1e-5, stop_step=60)
CONFIG = TrainConfig(steps=200, sh_degree=2, sh_degree_every=15, densify=BUSY, random_background=True)


def run(trainer: Trainer, num_steps: int) -> list[float]:
    return [trainer.train_step().loss for _ in range(num_steps)]


def assert_same(ours: Checkpoint, theirs: Checkpoint) -> None:
    """Compare parameters, moments, the strategy's counts, the random state and what is drawn already."""
    tensors, others = (named_tensors(one.population) for one in (ours, theirs))
    assert tensors.keys() == others.keys() and any(name.startswith("counts.") for name in tensors)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, others[name]), name
    assert ours.population.optimizer.num_steps == theirs.population.optimizer.num_steps
    assert torch.equal(ours.rng_state, theirs.rng_state)
    assert (ours.step, ours.upcoming, ours.config) == (theirs.step, theirs.upcoming, theirs.config)
