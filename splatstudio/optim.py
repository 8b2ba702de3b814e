"""The optimiser: Adam with a learning rate for each of the six tensors, whose rows follow the Gaussians."""

from __future__ import annotations

import torch
from torch import Tensor

from splatstudio.config import OptimConfig
from splatstudio.gaussians import Gaussians, concatenated
from splatstudio.rendering import stages_for

BETA1, BETA2 = 0.9, 0.999
EPS = 1e-15  # far below torch's default: gradients of single Gaussians are often smaller than 1e-8


def learning_rates(config: OptimConfig, *, extent: float, step: int, steps: int) -> dict[str, float]:
    """Return the learning rate of each tensor of `Gaussians`, by name.

    `step` is the number of steps done before, `steps` the length of the training, `extent` the scene's
    radius in scene units. The rate of the means falls exponentially, to `means_lr_decay` of the first at
    the end; the others are constant (Kerbl et al. 2023, section 7.1, with the figures of gsplat's `default`
    preset).
    """
    progress = min(step / max(steps, 1), 1.0)
    return {
        "means": config.means_lr * extent * config.means_lr_decay**progress,
        "quats": config.quats_lr,
        "scales": config.scales_lr,
        "opacities": config.opacities_lr,
        "sh0": config.sh0_lr,
        "shN": config.shN_lr,
    }


class SplatAdam:
    """Adam (Kingma and Ba 2015) over the six tensors; the moments have the shapes of the model.

    `exp_avg` and `exp_avg_sq` hold the running means of the gradient and of its square; `num_steps` is the
    number of updates made, common to all rows: a newborn Gaussian starts with zero moments and the bias
    correction of its elders, as in gsplat.
    """

    def __init__(self, exp_avg: Gaussians, exp_avg_sq: Gaussians, num_steps: int = 0) -> None:
        assert len(exp_avg) == len(exp_avg_sq), "both moments need a row for each Gaussian"
        self.exp_avg = exp_avg
        self.exp_avg_sq = exp_avg_sq
        self.num_steps = num_steps

    @classmethod
    def zeros(cls, gaussians: Gaussians) -> SplatAdam:
        """Return the optimiser before the first step."""
        return cls(gaussians.map(_zeros), gaussians.map(_zeros))

    def step(
        self, gaussians: Gaussians, gradients: dict[str, Tensor | None], rates: dict[str, float]
    ) -> None:
        """Update `gaussians` in place.

        A tensor whose gradient is None (SH bands not in use yet) stays as it is, and so do its moments.
        """
        assert len(gaussians) == len(self.exp_avg), "the moments belong to another number of Gaussians"
        self.num_steps += 1
        exp_avg, exp_avg_sq = self.exp_avg.tensors(), self.exp_avg_sq.tensors()
        for name, param in gaussians.detach().tensors().items():
            gradient = gradients[name]
            if gradient is None or param.numel() == 0:
                continue
            stages_for(param).adam_step(
                param,
                gradient.contiguous(),
                exp_avg[name],
                exp_avg_sq[name],
                lr=rates[name],
                beta1=BETA1,
                beta2=BETA2,
                eps=EPS,
                step=self.num_steps,
            )

    def select(self, rows: Tensor) -> None:
        """Keep the moments of `rows` alone (indices or a mask), in that order."""
        self.exp_avg, self.exp_avg_sq = self.exp_avg[rows], self.exp_avg_sq[rows]

    def append(self, newborn: Gaussians) -> None:
        """Add zero moments for `newborn` behind the present rows."""
        self.exp_avg = concatenated([self.exp_avg, newborn.map(_zeros)])
        self.exp_avg_sq = concatenated([self.exp_avg_sq, newborn.map(_zeros)])

    def forget(self, name: str) -> None:
        """Zero both moments of the tensor `name`."""
        self.exp_avg.tensors()[name].zero_()
        self.exp_avg_sq.tensors()[name].zero_()


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor, requires_grad=False, memory_format=torch.contiguous_format)
