"""Values learnt besides the Gaussians: rows, one a photograph, with an Adam of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.devices.transfer import to_device
from splatstudio.kernels.ops_training import StepGate

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
        steps = values.new_zeros(len(values), dtype=torch.int64)
        return cls(values, torch.zeros_like(values), torch.zeros_like(values), steps)

    def __len__(self) -> int:
        return len(self.values)

    def leaf(self, rows: Sequence[int]) -> Tensor:
        """Return the values of `rows` as a leaf tensor that requires a gradient."""
        return self.values.index_select(0, self._at(rows)).requires_grad_()

    @torch.no_grad()
    def step(
        self,
        rows: Sequence[int],
        gradient: Tensor,
        lr: float,
        eps: float = EPS,
        *,
        gate: StepGate | None = None,
    ) -> None:
        """Make a step of `rows`, all different, down `gradient`, which has a row for each of them.

        Adam goes as far for a small gradient as for a large one, down to about `eps`. A `gate` may keep
        everything from changing.
        """
        assert len(set(rows)) == len(rows) == len(gradient), "one gradient for each row"
        at = self._at(rows)
        before = {name: tensor.index_select(0, at) for name, tensor in self.tensors().items()}
        num_steps = before["num_steps"] + 1
        exp_avg = BETA1 * before["exp_avg"] + (1.0 - BETA1) * gradient
        exp_avg_sq = BETA2 * before["exp_avg_sq"] + (1.0 - BETA2) * gradient**2
        steps = num_steps.reshape(-1, *(1,) * (gradient.dim() - 1)).to(gradient.dtype)
        mean = exp_avg / (1.0 - BETA1**steps)
        square = exp_avg_sq / (1.0 - BETA2**steps)
        values = before["values"] - lr * mean / (square.sqrt() + eps)
        after = {"values": values, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "num_steps": num_steps}
        for name, tensor in self.tensors().items():
            tensor.index_copy_(0, at, _through(gate, after[name], before[name]))

    @torch.no_grad()
    def center(self, gate: StepGate | None = None) -> None:
        """Take the rows' mean from each of them: what all photographs share belongs to the model.

        A `gate` may keep them from changing.
        """
        self.values.copy_(_through(gate, self.values - self.values.mean(dim=0), self.values))

    def _at(self, rows: Sequence[int]) -> Tensor:
        """Return `rows` as indices on the device of the values, for which nobody waits."""
        return to_device(torch.tensor(list(rows), dtype=torch.int64, device="cpu"), self.values.device)

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


def _through(gate: StepGate | None, after: Tensor, before: Tensor) -> Tensor:
    """Return what is left where a gate, if there is one, is open or shut: `after` or `before`."""
    return after if gate is None else torch.where(gate.opened, after, before)
