"""What only a training needs, on pretend devices: the fused optimizer and a strategy's counts."""

from __future__ import annotations

import math

import pytest
import torch
from emulated_kernels import native
from fused_steps import (
    NO_WEIGHTS,
    NUM,
    RATES,
    USED,
    WEIGHTS,
    State,
    camera_of,
    nothing_late,
    settings_of,
    state_of,
    step,
)
from torch import Tensor

from splatstudio.cameras.camera import Camera, CameraModel
from splatstudio.kernels import reference
from splatstudio.kernels.ops import camera_numbers
from splatstudio.kernels.stages import ProjectSettings


def plain_step(s: State, camera: Camera, settings: ProjectSettings, weights: list[float]) -> State:
    """Return the state after the same step by autograd and the plain-torch Adam, in double precision."""
    leaves = [param.double().requires_grad_() for param in s.params]
    means, quats, scales, opacities, sh0, shN = leaves
    activated = (means, quats, scales.exp(), opacities.sigmoid(), sh0, shN)
    p = reference.project(*activated, camera=camera, settings=settings)
    outputs = (p.means2d, p.conics, p.depths, p.opacities, p.colors)
    visible = (s.radii > 0).all(dim=1)
    loss = sum(
        (out[visible] * v[visible].double()).sum() for out, v in zip(outputs, s.v_projected, strict=True)
    )
    loss = loss + weights[0] * opacities.sigmoid().mean() + weights[1] * scales.exp().mean()
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    after = s.mapped(Tensor.double)
    for k, grad in enumerate(grads):
        if grad is None or (k == 5 and settings.sh_degree == 0):  # at degree 0 shN makes no step
            continue
        tensors = (after.params[k], grad, after.exp_avg[k], after.exp_avg_sq[k])
        reference.adam_step(*tensors, lr=RATES[k], beta1=0.9, beta2=0.999, eps=1e-15, step=6)
    return after


@pytest.mark.parametrize("model", ["pinhole", "ortho", "fisheye"])
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("sh_degree", [0, 1, 3])
@pytest.mark.parametrize("weights", [NO_WEIGHTS, WEIGHTS])
def test_the_step_is_that_of_autograd_and_adam(
    model: CameraModel, antialiased: bool, sh_degree: int, weights: list[float]
) -> None:
    camera, settings = camera_of(model), settings_of(sh_degree, antialiased)
    state = state_of(camera, settings)
    visible = (state.radii > 0).all(dim=1)
    assert 10 < visible.sum() < NUM - 10
    expected = plain_step(state, camera, settings, weights)
    ours = state.copied()
    step(ours, camera, settings, weights=weights, used=(0, USED, 0, 45)[sh_degree])
    for mine, theirs, before in zip(ours.moving(), expected.moving(), state.moving(), strict=True):
        scale = theirs.abs().max()
        assert torch.allclose(mine.double(), theirs, rtol=2e-4, atol=float(2e-6 * scale))
        assert (sh_degree == 0 and mine.shape[-2:] == (15, 3)) or not torch.equal(mine, before)


def test_visible_only_leaves_the_others_alone() -> None:
    camera, settings = camera_of(), settings_of()
    state = state_of(camera, settings)
    visible = (state.radii > 0).all(dim=1)
    dense, ours = state.copied(), state.copied()
    step(dense, camera, settings, weights=WEIGHTS)
    step(ours, camera, settings, weights=WEIGHTS, visible_only=True)
    for mine, all_of_them, before in zip(ours.moving(), dense.moving(), state.moving(), strict=True):
        assert torch.equal(mine[~visible], before[~visible])
        assert torch.equal(mine[visible], all_of_them[visible])


def test_columns_above_those_in_use_are_never_touched() -> None:
    camera, settings = camera_of(), settings_of(1)
    state = state_of(camera, settings)
    for tensors in (state.params, state.exp_avg, state.exp_avg_sq):
        tensors[5].view(NUM, 45)[:, USED:] = math.nan
    step(state, camera, settings)
    for tensors in (state.params, state.exp_avg, state.exp_avg_sq):
        rows = tensors[5].view(NUM, 45)
        assert rows[:, :USED].isfinite().all() and rows[:, USED:].isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_odd_numbers_stay_with_their_gaussian(bad: float) -> None:
    camera, settings = camera_of(), settings_of(3)
    params = state_of(camera, settings).params
    for k, tensor in enumerate(params):
        tensor.view(NUM, -1)[20 * k, -1] = bad
    params[1][133] = 0.0  # a quaternion without a direction
    params[1][134] = 1e-30  # one whose gradient overflows
    projected = native.project_fwd(*params, *camera_numbers(camera, settings, raw=True), 1)
    state = state_of(camera, settings)
    state = State(
        params, state.exp_avg, state.exp_avg_sq, projected[5], projected[4], state.v_projected
    ).copied()
    before = state.copied()
    step(state, camera, settings, used=45)
    for mine, old in zip(state.params, before.params, strict=True):
        rows = old.view(NUM, -1).isfinite().all(dim=1)
        assert mine.view(NUM, -1)[rows].isfinite().all() and rows.sum() >= NUM - 1
    for moment in (*state.exp_avg, *state.exp_avg_sq):
        assert moment.isfinite().all()


def test_a_model_of_nothing_makes_its_step() -> None:
    camera, settings = camera_of(), settings_of()
    step(state_of(camera, settings, num=0), camera, settings, weights=WEIGHTS)


def test_the_order_of_blocks_and_threads_changes_no_bit_of_a_step() -> None:
    camera, settings = camera_of(), settings_of(3)
    expected = state_of(camera, settings)
    for seed in (-1, 0, 1, 2):
        state = state_of(camera, settings)
        native.set_order_seed(seed)
        step(state, camera, settings, weights=WEIGHTS, used=45)
        native.set_order_seed(-1)
        if seed == -1:
            expected = state
        assert all(torch.equal(a, b) for a, b in zip(state.moving(), expected.moving(), strict=True))


@pytest.mark.parametrize("device", [0, 2])
def test_the_step_works_where_its_tensors_are(device: int) -> None:
    camera, settings = camera_of(), settings_of(3)
    state = state_of(camera, settings)
    there = state.on(device)
    step(there, camera, settings, used=45)
    step(state, camera, settings, used=45)
    for ours, theirs in zip(there.moving(), state.moving(), strict=True):
        assert torch.equal(native.to_host(ours), theirs)
    assert native.current_device() == 0


def test_what_a_step_is_given_is_checked_by_name() -> None:
    camera, settings = camera_of(), settings_of()
    state = state_of(camera, settings)
    before = state.copied()
    there = state.on(1)
    there.exp_avg[2] = native.to_device(state.exp_avg[2], 2)
    with pytest.raises(RuntimeError, match="exp_avg must be on cuda:1, is on cuda:2"):
        step(there, camera, settings)
    with pytest.raises(RuntimeError, match="more coefficients used than stored"):
        step(state, camera, settings, used=46)
    state.v_projected[1] = state.v_projected[1].t().contiguous().t()
    with pytest.raises(RuntimeError, match="v_conics must be contiguous"):
        step(state, camera, settings)
    state.v_projected[1] = state.v_projected[1].double()
    with pytest.raises(RuntimeError, match="v_conics has the wrong data type"):
        step(state, camera, settings)
    assert all(torch.equal(a, b) for a, b in zip(state.moving(), before.moving(), strict=True))


@pytest.mark.parametrize("with_radius", [False, True])
def test_counts_on_another_device_and_in_any_order(with_radius: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    gradients = torch.randn(700, 2, generator=generator)
    gradients[5] = math.nan  # of who is seen: that is the strategy's to judge
    radii = torch.randint(-1, 4, (700, 2), generator=generator, dtype=torch.int32)
    radii[5] = 2
    counts = torch.rand(3, 700, generator=generator)
    expected = counts.clone()
    native.count_seen(gradients, radii, 300, 200, expected[0], expected[1], expected[2], 1)
    visible = (radii > 0).all(dim=1)
    assert torch.equal(expected[1], counts[1] + visible) and 100 < visible.sum() < 600
    assert not torch.equal(expected[2], counts[2]) and torch.equal(expected[:, ~visible], counts[:, ~visible])
    there = [native.to_device(row.contiguous(), 3) for row in counts]
    native.set_order_seed(1)
    seen = (native.to_device(gradients, 3), native.to_device(radii, 3), 300, 200)
    native.count_seen(*seen, *there[:2], there[2] if with_radius else None, 1)
    native.set_order_seed(-1)
    if not with_radius:
        expected[2] = counts[2]
    for ours, theirs in zip(there, expected, strict=True):
        torch.testing.assert_close(native.to_host(ours), theirs, rtol=0, atol=0, equal_nan=True)
    native.count_seen(gradients[:0], radii[:0], 300, 200, counts[0, :0], counts[1, :0], None, 1)


def test_noise_and_parts_on_another_device_and_in_any_order() -> None:
    state = state_of(camera_of(), settings_of(), num=700)
    rows = [*state.params[:3], state.params[3] - 3.0]
    opacities, copies = torch.rand(700), torch.arange(700) % 50 + 2
    there = [native.to_device(row, 2) for row in rows]
    before, places = rows[0].clone(), torch.arange(700).flip(0)
    native.inject_noise(*rows, 0.5, 0.005, 99, 1)
    native.inject_noise(*rows, 0.5, 0.005, 7, 1, places)
    expected = native.compute_relocation(opacities, copies, 1)
    native.set_order_seed(3)
    native.inject_noise(*there, 0.5, 0.005, 99, 1)
    native.inject_noise(*there, 0.5, 0.005, 7, 1, native.to_device(places, 2))
    parts = native.compute_relocation(native.to_device(opacities, 2), native.to_device(copies, 2), 1)
    native.set_order_seed(-1)
    assert torch.equal(native.to_host(there[0]), rows[0]) and not torch.equal(rows[0], before)
    for ours, theirs in zip(parts, expected, strict=True):
        assert torch.equal(native.to_host(ours), theirs)
    assert native.current_device() == 0
    with pytest.raises(RuntimeError, match="quats must be on cuda:2, is on the CPU"):
        native.inject_noise(there[0], rows[1], *there[2:], 0.5, 0.005, 99, 1)
    with pytest.raises(RuntimeError, match="copies has the wrong data type"):
        native.compute_relocation(opacities, copies.int(), 1)


def test_the_operators_say_truly_what_they_change() -> None:
    camera, settings = camera_of(), settings_of()
    s = state_of(camera, settings, num=10)
    view = camera_numbers(camera, settings, raw=True)
    late = nothing_late(s)
    moving = (s.params, s.exp_avg, s.exp_avg_sq, s.radii, s.colors, s.v_projected)
    arguments = (*moving, *view, RATES, WEIGHTS, 6, *late, 1, USED, False, 1)
    torch.library.opcheck(native.project_adam.default, arguments, test_utils="test_schema")
    missed = (s.exp_avg[5], s.exp_avg_sq[5])
    steps = (*late, 1, USED, RATES[6:], 1, torch.tensor([3]), 4, torch.tensor(0.5))
    torch.library.opcheck(
        native.project_lazy.default, (s.params, *missed, *view, *steps), test_utils="test_schema"
    )
    torch.library.opcheck(
        native.flush_lazy_adam.default, (s.params[5], *missed, *steps), test_utils="test_schema"
    )
    counts = [torch.zeros(10) for _ in range(3)]
    arguments = (torch.rand(10, 2), s.radii, 40, 30, *counts, 1)
    torch.library.opcheck(native.count_seen.default, arguments, test_utils="test_schema")
