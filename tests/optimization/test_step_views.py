"""The step on several views' gradients at once: that of their sum, whoever is in sight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from step_models import RATES, assert_same, fused_step, model
from view_rows import cameras_of_step, in_runs, shown_rows, summed

from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import MOST_VIEWS, Regularization
from splatstudio.kernels.stages import ProjectSettings
from splatstudio.optimization.optim import SplatAdam


@pytest.mark.parametrize("visible_only", [False, True])
@pytest.mark.parametrize(
    ("num_threads", "sh_degree", "runs"), [(1, 3, 1), (3, 3, 2), (2, 1, 1), (1, 0, 3), (1, 2, 2)]
)
def test_it_is_the_step_on_the_sums_to_the_bit(
    num_threads: int, sh_degree: int, runs: int, visible_only: bool
) -> None:
    ours, theirs = model(sh_degree=sh_degree), model(sh_degree=sh_degree)
    one, other = SplatAdam.zeros(ours), SplatAdam.zeros(theirs)
    in_sight = []
    with ops.limited_threads(num_threads):
        for step in range(12):
            settings = ProjectSettings(min(step // 3, sh_degree), antialiased=step % 2 == 1)
            if step in (7, 8):  # which leave rows behind
                for gaussians, optimizer in ((ours, one), (theirs, other)):
                    fused_step(gaussians, optimizer, step, RATES)
            views = shown_rows(ours, cameras_of_step(step), settings, seed=step, more=step % 3)
            one.flush_lazy_rows(ours)
            gradients, visible = summed(ours, views, settings)
            one.step_views(ours, in_runs(views, runs), RATES, settings=settings, visible_only=visible_only)
            other.step(theirs, gradients, RATES, visible if visible_only else None, batch_size=len(views))
            in_sight.append(visible)
    assert_same(ours, theirs)
    assert_same(one.exp_avg, other.exp_avg)
    assert_same(one.exp_avg_sq, other.exp_avg_sq)
    assert one.num_steps == other.num_steps == 14
    assert 0.1 < torch.stack(in_sight).float().mean() < 0.9


def test_the_regularization_is_that_of_the_step_on_the_sums() -> None:
    ours, theirs = model(), model()
    one, other = SplatAdam.zeros(ours), SplatAdam.zeros(theirs)
    settings, weights = ProjectSettings(2), Regularization(30.0, 50.0)
    views = shown_rows(ours, cameras_of_step(0), settings, seed=1)
    gradients, _ = summed(theirs, views, settings)
    one.step_views(ours, in_runs(views, 1), RATES, settings=settings, regularization=weights)
    other.step(theirs, gradients, RATES, regularization=weights, batch_size=len(views))
    for name, tensor in one.exp_avg.tensors().items():
        assert torch.allclose(tensor, other.exp_avg.tensors()[name], rtol=1e-4, atol=1e-7), name
    bare = SplatAdam.zeros(model())
    bare.step_views(model(), in_runs(views, 1), RATES, settings=settings)
    assert not torch.equal(bare.exp_avg.scales, one.exp_avg.scales)
    halves, apart = model(), SplatAdam.zeros(model())
    apart.step_views(halves, in_runs(views, 2), RATES, settings=settings, regularization=weights)
    assert_same(halves, ours)


def test_a_rank_without_gaussians_makes_it_too() -> None:
    none = model(num=0)
    optimizer, settings = SplatAdam.zeros(none), ProjectSettings(1)
    runs = in_runs(shown_rows(none, cameras_of_step(0), settings, seed=1), 2)
    optimizer.step_views(none, runs, RATES, settings=settings, regularization=Regularization(1.0, 1.0))
    assert optimizer.num_steps == 1


def test_it_refuses_what_its_kernel_cannot_hold() -> None:
    gaussians, settings = model(num=20), ProjectSettings(1)
    optimizer = SplatAdam.zeros(gaussians)
    views = shown_rows(gaussians, cameras_of_step(0)[:1] * (MOST_VIEWS + 1), settings, seed=1)
    optimizer.step_views(gaussians, in_runs(views[:MOST_VIEWS], 1), RATES, settings=settings)
    with pytest.raises(RuntimeError, match="a step is of 1 to 8 views, not of 9"):
        optimizer.step_views(gaussians, in_runs(views, 1), RATES, settings=settings)
    other = replace(views[0], camera=replace(views[0].camera, model="ortho"))
    with pytest.raises(RuntimeError, match="cameras of one model"):
        optimizer.step_views(gaussians, in_runs([views[0], other], 1), RATES, settings=settings)
