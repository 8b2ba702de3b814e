"""What a step of a training did, as all who follow it are told."""

from __future__ import annotations

from dataclasses import dataclass

from splatstudio.strategy import Change

PSNR_EVERY = 10  # steps between two measurements of PSNR, for which the loss has no use


class TrainingDiverged(FloatingPointError, ValueError):
    """The training cannot go on: its loss is no longer a number, or no Gaussians are left."""


@dataclass(frozen=True)
class StepStats:
    """What one training step did."""

    step: int  # steps done, with this one
    loss: float
    num_gaussians: int
    seconds: float
    view: str  # name of the photograph
    sh_degree: int  # highest degree in use
    psnr: float | None = None  # dB on this photograph before the step; measured every PSNR_EVERY steps
    change: Change | None = None  # what the strategy changed; None: no rule was due
    problem: str | None = None  # a sentence on what went wrong and was survived
