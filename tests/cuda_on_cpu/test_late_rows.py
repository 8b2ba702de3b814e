"""Rows of shN out of sight miss steps, and make them when they are seen again: on the emulated kernels."""

from __future__ import annotations

import math

import pytest
import torch
from emulated_kernels import native
from fused_steps import NO_WEIGHTS, RATES, USED, State, camera_of, flush, nothing_late, settings_of, state_of
from torch import Tensor

from splatstudio.kernels.ops import camera_numbers

BETAS = RATES[6:]
CAMERA, SETTINGS = camera_of(), settings_of()
NUMBERS = camera_numbers(CAMERA, SETTINGS, raw=True)
OPEN = (torch.tensor([3]), 4, torch.tensor(0.5))
SHUT = (torch.tensor([5]), 4, torch.tensor(0.5))


def history_of(num_steps: int, first: int = 6, *, falling: float = 1.0) -> Tensor:
    """Return the rates of so many steps of shN: size and root, as `adam_rate` makes them."""
    rows = torch.zeros(128, 2)
    for k in range(num_steps):
        rate, step = RATES[5] * falling**k, first + k
        rows[k] = torch.tensor([rate / (1 - 0.9**step), 1 / math.sqrt(1 - 0.999**step)])
    return rows


def dense_steps(s: State, num_steps: int, first: int = 6, *, falling: float = 1.0) -> list[Tensor]:
    """Return shN and its moments after steps without a gradient, each made in time."""
    rows = [tensors[5].view(-1, 45)[:, :USED].contiguous() for tensors in (s.params, s.exp_avg, s.exp_avg_sq)]
    for k in range(num_steps):
        rates = [RATES[5] * falling**k, *BETAS]
        native.adam_step(rows[0], torch.zeros_like(rows[0]), *rows[1:], rates, first + k, 1)
    return rows


def shN_of(s: State) -> list[Tensor]:
    return [tensors[5].view(-1, 45)[:, :USED] for tensors in (s.params, s.exp_avg, s.exp_avg_sq)]


@pytest.mark.parametrize("num_steps", [1, 7, 128])
@pytest.mark.parametrize("falling", [1.0, 0.5])
def test_steps_that_were_missed_are_those_made_in_time_to_the_bit(num_steps: int, falling: float) -> None:
    s = state_of(CAMERA, SETTINGS)
    s.exp_avg[5][3], s.exp_avg_sq[5][3] = 0.0, 0.0  # a newborn
    expected = dense_steps(s, num_steps, falling=falling)
    steps_done, _ = nothing_late(s)
    flush(s, (steps_done, history_of(num_steps, falling=falling)), num_late=num_steps)
    assert all(torch.equal(a, b) for a, b in zip(shN_of(s), expected, strict=True))


def test_only_what_is_missing_is_made() -> None:
    s = state_of(CAMERA, SETTINGS)
    half = dense_steps(s, 3)
    for mine, theirs in zip(shN_of(s), half, strict=True):
        mine[::2] = theirs[::2]
    whole = dense_steps(state_of(CAMERA, SETTINGS), 5)
    steps_done, _ = nothing_late(s)
    steps_done[::2] = 3
    flush(s, (steps_done, history_of(5)), num_late=5)
    assert all(torch.equal(a, b) for a, b in zip(shN_of(s), whole, strict=True))


@pytest.mark.parametrize("gate", [(), OPEN, SHUT])
@pytest.mark.parametrize("seed", [-1, 4])
def test_who_is_seen_again_is_colored_as_if_never_late(gate: tuple, seed: int) -> None:
    made = 5 if gate is SHUT else 6
    s, dense = state_of(CAMERA, SETTINGS), state_of(CAMERA, SETTINGS)
    rows = dense_steps(dense, made)
    for mine, theirs in zip(shN_of(dense), rows, strict=True):
        mine[:] = theirs
    expected = native.project_fwd(*dense.params, *NUMBERS, 1)
    before = s.copied()
    steps_done, _ = nothing_late(s)
    late = (steps_done, history_of(6), 6, USED, BETAS, 1, *gate)
    native.set_order_seed(seed)
    projected = native.project_lazy(s.params, s.exp_avg[5], s.exp_avg_sq[5], *NUMBERS, *late)
    native.set_order_seed(-1)
    assert all(torch.equal(a, b) for a, b in zip(projected, expected, strict=True))
    assert not torch.equal(projected[4], native.project_fwd(*before.params, *NUMBERS, 1)[4])
    seen = (projected[5] > 0).all(dim=1)
    assert 10 < seen.sum() < len(seen) - 10
    assert steps_done.eq(made).logical_or(~seen).all() and steps_done[~seen].eq(0).all()
    for mine, theirs, old in zip(shN_of(s), rows, shN_of(before), strict=True):
        assert torch.equal(mine[seen], theirs[seen]) and torch.equal(mine[~seen], old[~seen])


@pytest.mark.parametrize("device", [0, 3])
def test_late_rows_of_another_device_make_their_steps_there(device: int) -> None:
    here = state_of(CAMERA, SETTINGS)
    there = here.on(device)
    steps_done, _ = nothing_late(there)
    late = (history_of(4), 4, USED, BETAS, 1)
    ours = native.project_lazy(
        there.params, there.exp_avg[5], there.exp_avg_sq[5], *NUMBERS, steps_done, *late
    )
    steps_done, _ = nothing_late(here)
    theirs = native.project_lazy(
        here.params, here.exp_avg[5], here.exp_avg_sq[5], *NUMBERS, steps_done, *late
    )
    assert all(torch.equal(native.to_host(a), b) for a, b in zip(ours, theirs, strict=True))
    with pytest.raises(RuntimeError, match="steps_done must be on"):
        native.project_lazy(there.params, there.exp_avg[5], there.exp_avg_sq[5], *NUMBERS, steps_done, *late)


def test_a_step_leaves_who_is_out_of_sight_behind() -> None:
    s = state_of(CAMERA, SETTINGS)
    before, (steps_done, history) = s.copied(), nothing_late(s)
    moving = (s.params, s.exp_avg, s.exp_avg_sq, s.radii, s.colors, s.v_projected)
    native.project_adam(*moving, *NUMBERS, RATES, NO_WEIGHTS, 6, steps_done, history, 1, USED, False, 1)
    seen = (s.radii > 0).all(dim=1)
    assert torch.equal(steps_done, seen.int()) and torch.equal(history, history_of(1))
    for mine, old in zip(shN_of(s), shN_of(before), strict=True):
        assert torch.equal(mine[~seen], old[~seen]) and not torch.equal(mine[seen], old[seen])
    assert not torch.equal(s.params[4][~seen], before.params[4][~seen]), "the rest makes every step"


def test_a_history_that_cannot_be_is_refused() -> None:
    s = state_of(CAMERA, SETTINGS)
    steps_done, history = nothing_late(s)
    with pytest.raises(RuntimeError, match="the history is too short"):
        flush(s, (steps_done, history[:3]), num_late=4)
    with pytest.raises(RuntimeError, match="table of floats of the CPU"):
        flush(s, (steps_done, history.double()), num_late=4)
    with pytest.raises(RuntimeError, match="steps_done must have size"):
        flush(s, (steps_done[:-1], history), num_late=4)
