"""Gaussians that a step leaves out at random, so that none comes to lean on others.

Where few photos say how a scene looks, Gaussians that are wrong each for itself come to show all of
these together, noise included, and no other view. After DropGaussian (Park et al. 2025) the ones that remain
are drawn with more opacity, so that there is as much of it as before, on average. Finished models are drawn
whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians, opacities_of
from splatstudio.kernels.reference_training import left_out, raised_opacities
from splatstudio.rendering.render import training_stages_for


@dataclass(frozen=True, eq=False)
class Dropout:
    """Who is left out of a step: a share `rate`, 0 to below 1, of the Gaussians with the `keys` [N] int64.

    That follows from its key and `seed` (0 to below 2^62) alone, on whatever rank it is.
    """

    rate: float
    seed: int
    keys: Tensor

    @property
    def gain(self) -> float:
        """Return by what the opacities of those that stay are multiplied."""
        return 1.0 / (1.0 - self.rate)

    @torch.no_grad()
    def left_out(self) -> Tensor:
        """Return who is left out, [N] bool."""
        return left_out(self.keys, seed=self.seed, rate=self.rate)

    def drawn(self, gaussians: Gaussians) -> Gaussians:
        """Return `gaussians` as the step draws them, differentiable in the same tensors.

        The gradient of an opacity is `gain` times that of the raised one, also where that is at its limit:
        a Gaussian that is all but opaque can still be taken back.
        """
        logits = gaussians.opacities
        stages = training_stages_for(logits)
        shown = stages.drop_out(logits.detach(), self.keys, seed=self.seed, rate=self.rate)
        if not logits.requires_grad or not torch.is_grad_enabled():
            return replace(gaussians, opacities=shown)
        return replace(gaussians, opacities=shown + (logits - logits.detach()) * self.slopes(logits))

    @torch.no_grad()
    def slopes(self, logits: Tensor) -> Tensor:
        """Return the gradients of what `drawn` makes of logits [N] with respect to these."""
        opacities = opacities_of(logits)
        raised = raised_opacities(opacities, rate=self.rate)
        slopes = self.gain * opacities * (1.0 - opacities) / (raised * (1.0 - raised))
        return slopes.masked_fill_(self.left_out(), 0.0)
