"""Values learnt beside the Gaussians: rows, one a photograph, with an Adam of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.99  # of the second less than usual: a photograph comes only once in an epoch
EPS = 1e-15


@dataclass(eq=False)
class LearntRows:
    """V rows of values [V, ...] with the moments of Adam (Kingma and Ba 2015) and the steps of each row.

    A step moves the rows of the photographs that it learnt from and no other, moments included.
    """

    values: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    num_steps: Tensor  # [V] int64

    @classmethod
    def starting_at(cls, values: Tensor) -> LearntRows:
        """Return rows before their first step."""
        steps = torch.zeros(len(values), dtype=torch.int64, device=values.device)
        return cls(values, torch.zeros_like(values), torch.zeros_like(values), steps)

    def __len__(self) -> int:
        return len(self.values)

    def leaf(self, rows: Sequence[int]) -> Tensor:
        """Return the values of `rows` as a leaf tensor that requires a gradient."""
        return self.values[list(rows)].requires_grad_()

    @torch.no_grad()
    def step(self, rows: Sequence[int], gradient: Tensor, lr: float, eps: float = EPS) -> None:
        """Make a step of `rows`, all different, down `gradient`, which has a row for each of them.

        Adam goes as far for a small gradient as for a large one, down to about `eps`.
        """
        chosen = list(rows)
        assert len(set(chosen)) == len(chosen) == len(gradient), "one gradient for each row"
        self.num_steps[chosen] += 1
        self.exp_avg[chosen] = BETA1 * self.exp_avg[chosen] + (1.0 - BETA1) * gradient
        self.exp_avg_sq[chosen] = BETA2 * self.exp_avg_sq[chosen] + (1.0 - BETA2) * gradient**2
        steps = self.num_steps[chosen].reshape(-1, *(1,) * (gradient.dim() - 1)).to(gradient.dtype)
        mean = self.exp_avg[chosen] / (1.0 - BETA1**steps)
        square = self.exp_avg_sq[chosen] / (1.0 - BETA2**steps)
        self.values[chosen] -= lr * mean / (square.sqrt() + eps)

    @torch.no_grad()
    def center(self) -> None:
        """Take the rows' mean from each of them: what all photographs share belongs to the model."""
        self.values -= self.values.mean(dim=0)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name: what a checkpoint keeps."""
        return {name: getattr(self, name) for name in ("values", "exp_avg", "exp_avg_sq", "num_steps")}

    @torch.no_grad()
    def take(self, rows: Sequence[int], other: dict[str, Tensor], of: Sequence[int]) -> None:
        """Take `rows` from the tensors of another table, in which they are the rows `of`.

        Raises ValueError when the tensors do not fit.
        """
        for name, tensor in self.tensors().items():
            saved = other.get(name)
            if saved is None or saved.dtype != tensor.dtype or saved.shape[1:] != tensor.shape[1:]:
                raise ValueError(f"{name} is missing or of another shape")
            tensor[list(rows)] = saved[list(of)].to(tensor.device)
