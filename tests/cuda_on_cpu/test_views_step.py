"""The step on several views at once, on pretend devices: that of Adam on the sums of their gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from emulated_kernels import native
from fused_steps import NO_WEIGHTS, NUM, RATES, USED, WEIGHTS, State, camera_of, settings_of, state_of
from torch import Tensor

from splatstudio.cameras.camera import CameraModel
from splatstudio.kernels.ops import camera_numbers
from splatstudio.kernels.stages import ProjectSettings

BATCH = [rate * 3**0.5 for rate in RATES[:6]] + [0.9**3, 0.999**3, 1e-15 / 3**0.5]


MODELS: tuple[CameraModel, ...] = ("pinhole", "ortho", "fisheye")
EYES = (0.0, 0.9, -0.7)  # where three cameras are, sideways


@dataclass(frozen=True, eq=False)
class View:
    """A view of a model: its rows, and the same of all Gaussians."""

    numbers: tuple[list[float], list[int]]  # of the camera
    places: Tensor
    colors: Tensor
    v: Tensor
    whole: State


def views_of(settings: ProjectSettings, model: CameraModel = "pinhole") -> list[View]:
    """Return three views of the model."""
    views = []
    for number, sideways in enumerate(EYES):
        camera = camera_of(model)
        viewmat = camera.viewmat.copy()
        viewmat[0, 3] += sideways
        camera = replace(camera, viewmat=viewmat)
        whole = state_of(camera, settings)  # the same Gaussians
        whole = replace(whole, v_projected=[(number + 1.5) * v for v in whole.v_projected])
        rows = (whole.radii > 0).all(dim=1).nonzero().squeeze(1)
        places = torch.full((NUM,), -1, dtype=torch.int32)
        places[rows] = torch.arange(len(rows), dtype=torch.int32)
        columns = [v.view(NUM, -1) for v in whole.v_projected]
        v = torch.cat([*columns, torch.full((NUM, 2), math.nan)], dim=1)[rows]  # two that nobody reads
        numbers = camera_numbers(camera, settings, raw=True)
        views.append(View(numbers, places, whole.colors[rows], v, whole))
    return views


def step_views(
    state: State, views: list[View], *, visible_only: bool = False, weights: list[float] = NO_WEIGHTS
) -> None:
    """Make the step in place, on the device of the state."""
    device = native.device_index(state.radii)
    rows = [[getattr(view, name) for view in views] for name in ("places", "colors", "v")]
    if device >= 0:
        rows = [[native.to_device(tensor, device) for tensor in tensors] for tensors in rows]
    cameras = [number for view in views for number in view.numbers[0]]
    options = [option for view in views for option in view.numbers[1]]
    used = used_at(options[3])
    moving = (state.params, state.exp_avg, state.exp_avg_sq)
    native.project_adam_views(*moving, *rows, cameras, options, BATCH, weights, 6, used, visible_only, 1)


def used_at(sh_degree: int) -> int:
    return (0, USED, USED, 45)[sh_degree]


def step_on_sums(state: State, views: list[View], *, visible_only: bool) -> Tensor:
    """Make the step in place, a view and a tensor after the other; return who was in sight."""
    sums, seen = [torch.zeros_like(param) for param in state.params], torch.zeros(NUM, dtype=torch.bool)
    for view in views:
        whole = view.whole
        seen |= (whole.radii > 0).all(dim=1)
        given = (whole.radii, whole.colors, *whole.v_projected, *view.numbers, 1)
        native.project_bwd_add(sums, *state.params, *given)
    for k in range(6 if views[0].numbers[1][3] > 0 else 5):
        tensors = [state.params[k], sums[k], state.exp_avg[k], state.exp_avg_sq[k]]
        moving = [tensor[seen].contiguous() for tensor in tensors] if visible_only else tensors
        native.adam_step(*moving, [BATCH[k], *BATCH[6:]], 6, 1)
        if visible_only:
            for tensor, moved in zip(tensors, moving, strict=True):
                tensor[seen] = moved
    return seen


@pytest.mark.parametrize("visible_only", [False, True])
@pytest.mark.parametrize(("sh_degree", "antialiased"), [(0, True), (1, False), (2, True), (3, False)])
@pytest.mark.parametrize("model", MODELS)
def test_it_is_the_step_on_the_sums_to_the_bit(
    model: CameraModel, sh_degree: int, antialiased: bool, visible_only: bool
) -> None:
    settings = settings_of(sh_degree, antialiased)
    before, views = state_of(camera_of(), settings), views_of(settings, model)
    ours, theirs = before.copied(), before.copied()
    step_views(ours, views, visible_only=visible_only)
    seen = step_on_sums(theirs, views, visible_only=visible_only)
    assert 10 < seen.sum() < NUM - 5
    for mine, other, old in zip(ours.moving(), theirs.moving(), before.moving(), strict=True):
        assert torch.equal(mine, other)
        assert not visible_only or torch.equal(mine[~seen], old[~seen])
    assert not torch.equal(ours.params[0], before.params[0])


def test_on_another_device_and_in_any_order_of_blocks_it_is_the_same() -> None:
    settings = settings_of(3)
    views, expected = views_of(settings), state_of(camera_of(), settings)
    step_views(expected, views, weights=WEIGHTS)
    for seed in (-1, 0, 1):
        there = state_of(camera_of(), settings).on(2)
        native.set_order_seed(seed)
        step_views(there, views, weights=WEIGHTS)
        native.set_order_seed(-1)
        for mine, other in zip(there.mapped(native.to_host).moving(), expected.moving(), strict=True):
            assert torch.equal(mine, other)


def test_one_view_is_the_step_of_one_view() -> None:
    settings = settings_of(3)
    (view, *_), one = views_of(settings), state_of(camera_of(), settings)
    other = one.copied()
    step_views(one, [view], weights=WEIGHTS, visible_only=True)
    moving = (other.params, other.exp_avg, other.exp_avg_sq, view.whole.radii, view.whole.colors)
    given = (*moving, view.whole.v_projected, *view.numbers, BATCH, WEIGHTS, 6)
    native.project_adam(*given, torch.zeros(NUM, dtype=torch.int32), torch.zeros(128, 2), 1, 45, True, 1)
    for mine, theirs in zip(one.moving(), other.moving(), strict=True):
        assert torch.equal(mine, theirs)


def test_columns_above_those_in_use_are_never_touched() -> None:
    settings = settings_of(1)
    state = state_of(camera_of(), settings)
    for tensors in (state.params, state.exp_avg, state.exp_avg_sq):
        tensors[5].view(NUM, 45)[:, USED:] = math.nan
    step_views(state, views_of(settings))
    for tensors in (state.params, state.exp_avg, state.exp_avg_sq):
        rows = tensors[5].view(NUM, 45)
        assert rows[:, :USED].isfinite().all() and rows[:, USED:].isnan().all()
