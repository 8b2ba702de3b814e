"""What ranks show each other: each sends what it projected to the ranks whose pictures show it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from splatstudio.distributed.ranks import Ranks


def exchange(
    rows: Tensor,
    probe: Tensor | None,
    radii: Tensor,
    ranks: Ranks,
    counts: tuple[Sequence[int], Sequence[int]],
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the rows, the probe and the radii that all ranks have for this one, by rank.

    `rows` [M, C] and `radii` [M, 2] int32 are sent in one message, `counts` says how many (of M) go to each
    rank and how many each sends to this one. `probe` [M, 2] is zeros that require a gradient, or None; what
    comes of it is zeros too. The gradients of rows and probe go back to their senders in one message, which
    every rank must let happen, by `torch.autograd.grad` of what came to it.
    """
    if ranks.num_ranks == 1:
        return rows, probe, radii
    return _Exchange.apply(rows, probe, radii, ranks, counts)  # type: ignore[return-value]


class _Exchange(torch.autograd.Function):
    # Not the functional collectives: they give no gradient at all, silently, until a module of torch that
    # nothing here imports has registered their autograd kernels.

    @staticmethod
    def forward(ctx, rows, probe, radii, ranks, counts):
        sent, received = counts
        # The radii ride along as the bits of floating point numbers.
        record = torch.cat([rows, radii.contiguous().view(rows.dtype)], dim=1)
        got = ranks.swap_rows(record, sent, received)
        got_rows = got[:, : rows.shape[1]].contiguous()
        got_radii = got[:, rows.shape[1] :].contiguous().view(torch.int32)
        got_probe = None if probe is None else rows.new_zeros((len(got), 2))
        ctx.ranks, ctx.counts, ctx.num_columns = ranks, counts, rows.shape[1]
        ctx.mark_non_differentiable(got_radii)
        return got_rows, got_probe, got_radii

    @staticmethod
    @once_differentiable
    def backward(ctx, *v_outputs):
        v_rows, v_probe, _ = v_outputs
        sent, received = ctx.counts
        gradients = v_rows if v_probe is None else torch.cat([v_rows, v_probe], dim=1)
        v = ctx.ranks.swap_rows(gradients, received, sent)
        v_probe = None if v_probe is None else v[:, ctx.num_columns :]
        return v[:, : ctx.num_columns], v_probe, None, None, None
