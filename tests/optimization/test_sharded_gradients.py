"""A model on several ranks is one model: pictures, gradients and steps are those of one process."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from rank_pool import RankPool
from sharded_tasks import (
    RATES,
    Case,
    Outcome,
    camera_of,
    collect,
    descend_case,
    descend_in_runs,
    descend_without_memory,
    draw_views,
    give_up_in_round_two,
    model,
    options_of,
    shot_of,
)
from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians, concatenated
from splatstudio.kernels.ops_training import MOST_VIEWS, Regularization
from splatstudio.optimization.losses import photometric
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.strategy.population import trainable

NOTHING = 100  # a view that sees nothing

CASES = [
    Case((250, 250), (((0,), (1,)),)),
    Case((500, 0), (((0,), (1,)),), antialiased=True),
    Case((17, 483), (((0, 1), (NOTHING, 2)),), absgrad=True),
    Case((0, 100, 200), (((0,), (), (3,)), ((4,), (5,), (NOTHING,))), masked=True),
    Case((30, 0, 7, 200), (((0,), (1,), (NOTHING,), (3, 4)),), absgrad=True, antialiased=True),
    Case((200,), (((0, 1, 2),), ((3,),)), absgrad=True),
    Case((120, 80), (((NOTHING,), (NOTHING + 1,)),)),
    Case((70, 130), (((0, 1, 2, 3, 4), (5, 6, 7, 8)),)),  # more views than the optimizer's kernel takes
]
SEVERAL = [case for case in CASES if len(case.sizes) > 1]


def views_of(case: Case) -> list[int]:
    """Return the views of all ranks in the order of the losses."""
    return [view for one in case.views for views in one for view in views]


def alone(case: Case) -> tuple[list[float], list[Tensor], Gaussians, list[Tensor], Tensor]:
    """Return losses, pictures, gradients, screen gradients and the exposure's, by plain autograd."""
    gaussians = trainable(model(sum(case.sizes)))
    exposure = torch.tensor([1.1, 0.9, 1.0], requires_grad=True)
    losses, pictures, gradients2d = [], [], []
    for view in views_of(case):
        shot = shot_of(view, masked=case.masked)
        options = options_of(case)
        options = RenderOptions(2, case.antialiased, shot.background, absgrad=case.absgrad)
        probe = torch.zeros_like(gaussians.means[:, :2], requires_grad=True)
        rendering = render(gaussians, shot.camera, options, probe)
        loss = photometric(rendering.rgb * exposure, shot.target, ssim_weight=0.2, mask=shot.mask)
        depth_sum = rendering.depth * rendering.alpha.clamp_min(1e-10)
        loss = loss + 0.01 * rendering.alpha.mean() + 0.01 * depth_sum.mean()
        loss.backward()
        losses.append(float(loss.detach()))
        pictures.append(rendering.rgb.detach())
        gradients2d.append(torch.zeros_like(probe) if probe.grad is None else probe.grad)
    gradients = gaussians.map(lambda tensor: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad)
    assert exposure.grad is not None
    return losses, pictures, gradients, gradients2d, exposure.grad


def assert_close(ours: Tensor, theirs: Tensor, relative: float, name: str) -> None:
    assert ours.shape == theirs.shape, name
    scale = float(theirs.abs().max()) if theirs.numel() else 0.0
    worst = float((ours - theirs).abs().max()) if theirs.numel() else 0.0
    assert worst <= relative * scale, f"{name}: {worst} of {scale}"


def joined(outcomes: list[Outcome], name: str) -> Tensor:
    parts = []
    for outcome in outcomes:
        gradient = outcome.gradients[name]
        assert gradient is not None
        parts.append(gradient)
    return torch.cat(parts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sizes}")
def test_pictures_and_gradients_are_those_of_one_process(pool: RankPool, case: Case) -> None:
    outcomes = pool.run(len(case.sizes), descend_case, case)
    losses, pictures, gradients, gradients2d, v_exposure = alone(case)
    views = views_of(case)
    for rank, outcome in enumerate(outcomes):
        assert outcome.losses == pytest.approx(losses, rel=1e-6)
        own = [view for one in case.views for view in one[rank]]
        for view, picture in zip(own, outcome.pictures, strict=True):
            expected = pictures[views.index(view)]
            assert float((picture - expected).abs().max()) <= 1e-6, f"view {view} on rank {rank}"
        assert_close(outcome.exposure, v_exposure, 1e-5, "exposure")
    sees_any = any(view < NOTHING for view in views)
    for name, expected in gradients.tensors().items():
        assert (float(expected.abs().max()) > 0) == sees_any, name
        assert_close(joined(outcomes, name), expected, 1e-5, name)
    for number, expected in enumerate(gradients2d):
        together = torch.cat([outcome.gradients2d[number] for outcome in outcomes])
        assert_close(together, expected, 1e-5, f"gradients2d of view {views[number]}")


@pytest.mark.parametrize("num_runs", [2, 3])
@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: f"{case.sizes}")
def test_runs_that_come_late_make_the_same_steps_to_the_bit(
    pool: RankPool, case: Case, num_runs: int
) -> None:
    case = replace(case, steps=2, regularization=Regularization(0.01, 0.02))
    whole = pool.run(len(case.sizes), descend_case, case)
    in_runs = pool.run(len(case.sizes), descend_in_runs, case, num_runs)
    few = sum(map(len, (views for one in case.views for views in one))) <= MOST_VIEWS
    for (ours, num_late), theirs in zip(in_runs, whole, strict=True):
        assert num_late == case.steps * len(case.views) * (num_runs if few else 1)
        assert ours.losses == theirs.losses
        pairs = [(ours.gaussians, theirs.gaussians), (ours.exp_avg, theirs.exp_avg)]
        for one, other in pairs:
            for name, tensor in one.tensors().items():
                assert torch.equal(tensor, other.tensors()[name]), name
        for one, other in zip(ours.gradients2d, theirs.gradients2d, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("visible_only", [False, True])
def test_steps_are_those_of_one_process(pool: RankPool, visible_only: bool) -> None:
    more = {"visible_only": visible_only, "regularization": Regularization(0.01, 0.02), "steps": 3}
    case = Case((90, 0, 40), (((0,), (1,), (2,)),), **more)
    outcomes = pool.run(3, descend_case, case)
    one = pool.run(1, descend_case, Case((130,), (((0, 1, 2),),), **more))[0]
    together = concatenated([outcome.gaussians for outcome in outcomes])
    for name, tensor in one.gaussians.tensors().items():
        moved = (tensor - model(130).tensors()[name]).abs().max()
        assert float(moved) > 0.5 * RATES[name] * math.sqrt(3)
        # Where a gradient is next to nothing its sign, and with it Adam's step, is rounding.
        wrong = (together.tensors()[name] - tensor).abs() > 0.02 * RATES[name]
        assert float(wrong.float().mean()) < 0.01, name


def test_ranks_draw_each_its_own_views(pool: RankPool) -> None:
    views = ((0, NOTHING), (), (1, 2, 3))
    parts = pool.run(3, draw_views, (20, 100, 0), views)
    whole = pool.run(1, draw_views, (120,), ((0, NOTHING, 1, 2, 3),))[0]
    for ours, theirs in zip([picture for part in parts for picture in part], whole, strict=True):
        assert torch.equal(ours, theirs)


def test_rank_0_gets_the_model_and_what_a_camera_sees_of_it(pool: RankPool) -> None:
    (whole, seen), (none, nothing) = pool.run(2, collect, (50, 70), 1)
    assert none is None and nothing is None
    for name, tensor in model(120).tensors().items():
        assert torch.equal(whole.tensors()[name], tensor)
    assert 0 < len(seen) < 120 and seen.shN.shape == (len(seen), 0, 3)
    ours, theirs = (render(each, camera_of(1)).rgb for each in (seen, model(120)))
    assert float((ours - theirs).abs().max()) < 1e-6


@pytest.mark.parametrize("failing", [0, 2])
def test_all_ranks_leave_out_what_one_has_no_memory_to_project(pool: RankPool, failing: int) -> None:
    case = Case((30, 40, 50), (((0,), (1,), (2,)), ((3,), (4,), ())))
    assert pool.run(3, descend_without_memory, case, failing) == [((failing,), True)] * 3
    assert pool.run(3, descend_without_memory, case, -1) == [((), False)] * 3


def test_a_step_that_is_given_up_leaves_nothing_under_way(pool: RankPool) -> None:
    case = Case((30, 40), (((0,), (1,)), ((2,), (3,))))
    assert pool.run(2, give_up_in_round_two, case, 1) == [((1,), 2, 2)] * 2
