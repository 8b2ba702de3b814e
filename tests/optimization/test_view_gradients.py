"""The fused step of a training: the same as autograd and Adam, whoever is in sight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from step_models import RATES, TARGET, assert_same, camera_at, degree_at, fused_step, loss_of, model
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import HISTORY, add_gradients, count_seen, zero_sums
from splatstudio.kernels.stages import Projected, ProjectSettings
from splatstudio.optimization.gradients import apply_gradients, backward, draw
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.strategy.population import Population, edit, trainable


def plain_step(
    gaussians: Gaussians,
    optimizer: SplatAdam,
    step: int,
    rates: dict[str, float],
    *,
    visible_only: bool = False,
) -> Tensor:
    """Make the step by autograd and one call of Adam a tensor; return who was in sight."""
    rendering = render(gaussians, camera_at(step), RenderOptions(sh_degree=degree_at(step)))
    tensors = gaussians.tensors()
    values = torch.autograd.grad(loss_of(rendering.rgb), list(tensors.values()), allow_unused=True)
    visible = (rendering.radii > 0).all(dim=1)
    gradients: dict[str, Tensor | None] = dict(zip(tensors, values, strict=True))
    optimizer.step(gaussians, gradients, rates, visible if visible_only else None)
    return visible


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("sh_degree", [0, 1, 3])
def test_the_fused_step_is_autograd_and_adam_to_the_bit(num_threads: int, sh_degree: int) -> None:
    ours, theirs = model(sh_degree=sh_degree), model(sh_degree=sh_degree)
    one, other = SplatAdam.zeros(ours), SplatAdam.zeros(theirs)
    seen = []
    with ops.limited_threads(num_threads):
        for step in range(40):
            rates = {name: rate * 0.95**step for name, rate in RATES.items()}
            if step > 25:
                rates["shN"] = 0.5  # a rate that rises while rows are left behind
            fused_step(ours, one, step, rates)
            seen.append(plain_step(theirs, other, step, rates))
    one.flush_lazy_rows(ours)
    assert_same(ours, theirs)
    assert_same(one.exp_avg, other.exp_avg)
    assert_same(one.exp_avg_sq, other.exp_avg_sq)
    share = torch.stack(seen).float().mean(dim=1)
    assert 0.05 < share.mean() < 0.5 and share.min() == 0 and not torch.equal(ours.means, model().means)


def test_rows_left_behind_for_long_make_all_their_steps() -> None:
    ours, theirs = model(num=20), model(num=20)
    one, other = SplatAdam.zeros(ours), SplatAdam.zeros(theirs)
    away = 5  # a view that shows nothing
    for step in [9, 10, 11] + [away + 7 * 3] * (2 * HISTORY + 10) + [12]:
        fused_step(ours, one, step, RATES)
        plain_step(theirs, other, step, RATES)
    # They stayed behind, and nothing that reads them may see that.
    assert not torch.equal(one.exp_avg.shN, other.exp_avg.shN)
    one.flush_lazy_rows(ours)
    assert_same(ours, theirs)
    assert_same(one.exp_avg, other.exp_avg)
    one.flush_lazy_rows(ours)
    assert_same(ours, theirs)


def test_a_change_of_population_settles_first() -> None:
    ours, theirs = model(), model()
    groups = [Population(ours, SplatAdam.zeros(ours), {}), Population(theirs, SplatAdam.zeros(theirs), {})]
    keep = torch.rand(len(ours), generator=torch.Generator().manual_seed(3)) < 0.7
    for step in range(9, 21):
        if step == 15:
            for group in groups:
                parents = torch.tensor([2, 5])
                edit(group, keep=keep, newborn=group.gaussians.detach()[parents], parents=parents)
        fused_step(groups[0].gaussians, groups[0].optimizer, step, RATES)
        plain_step(groups[1].gaussians, groups[1].optimizer, step, RATES)
    groups[0].optimizer.flush_lazy_rows(groups[0].gaussians)
    assert_same(groups[0].gaussians, groups[1].gaussians)
    assert len(groups[0]) == int(keep.sum()) + 2


def test_visible_only_leaves_what_is_out_of_sight_alone() -> None:
    ours, theirs = model(), model()
    one, other = SplatAdam.zeros(ours), SplatAdam.zeros(theirs)
    for step in range(12):
        visible_only = step != 10  # the setting may change at any time
        before = ours.map(lambda tensor: tensor.detach().clone())
        fused_step(ours, one, step, RATES, visible_only=visible_only)
        visible = plain_step(theirs, other, step, RATES, visible_only=visible_only)
        moved = (ours.means != before.means).any(dim=1)
        assert visible_only <= (not moved[~visible].any())
    one.flush_lazy_rows(ours)
    assert_same(ours, theirs)
    assert_same(one.exp_avg_sq, other.exp_avg_sq)


def test_what_is_observed_is_the_probe_of_render() -> None:
    for absgrad in (False, True):
        options = RenderOptions(absgrad=absgrad)
        gaussians = model()
        drawing = draw(gaussians, SplatAdam.zeros(gaussians), camera_at(1), options, observed=True)
        probe = torch.zeros(len(gaussians), 2, requires_grad=True)
        loss_of(render(gaussians, camera_at(1), options, probe).rgb).backward()
        observed = backward(drawing, loss_of(drawing.rgb)).means2d
        assert observed is not None and probe.grad is not None and torch.equal(observed, probe.grad)


def test_double_precision_goes_all_the_way_by_autograd() -> None:
    precise = trainable(model(num=30).map(Tensor.double))
    optimizer = SplatAdam.zeros(precise)
    drawing = draw(precise, optimizer, camera_at(1), RenderOptions(), observed=True)
    gradients = backward(drawing, ((drawing.rgb - TARGET) ** 2).sum())
    apply_gradients(drawing, gradients, optimizer, RATES, visible_only=True)
    moved = (precise.means != model(num=30).means.double()).any(dim=1)
    visible = (drawing.radii > 0).all(dim=1)
    assert not moved[~visible].any() and visible.sum() - 2 <= moved.sum() < 30 and moved.sum() > 4
    assert gradients.means2d is not None and gradients.means2d.any()


def test_counts_of_what_was_seen() -> None:
    generator = torch.Generator().manual_seed(4)
    gradients = torch.randn(50_000, 2, generator=generator)
    radii = torch.randint(-1, 4, (50_000, 2), generator=generator, dtype=torch.int32).clamp_min(0)
    counts = torch.rand(3, 50_000, generator=generator)
    ours = counts.clone()
    with ops.limited_threads(2):
        count_seen(gradients, radii, (300, 200), ours[0], ours[1], ours[2])
        count_seen(gradients, radii, (300, 200), ours[0], ours[1], None)
    visible = (radii > 0).all(dim=1)
    norms = (gradients * torch.tensor([150.0, 100.0])).norm(dim=1) * visible
    torch.testing.assert_close(ours[0], counts[0] + norms + norms)
    assert torch.equal(ours[1], counts[1] + visible.float() + visible.float())
    radius = torch.where(visible, radii.amax(dim=1) / 300.0, 0.0)
    torch.testing.assert_close(ours[2], torch.maximum(counts[2], radius))


def test_a_drawing_holds_of_what_was_projected_but_colors_and_radii(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, StorageWeakRef] = {}
    real = SplatAdam.project

    def noted(*args: Any, **kwargs: Any) -> Projected:
        projected = real(*args, **kwargs)
        kept.update({name: StorageWeakRef(one.untyped_storage()) for name, one in vars(projected).items()})
        return projected

    monkeypatch.setattr(SplatAdam, "project", noted)
    gaussians = model()
    options = RenderOptions(absgrad=True)
    drawing = draw(gaussians, SplatAdam.zeros(gaussians), camera_at(1), options, observed=True)
    loss = loss_of(drawing.rgb)
    assert {name for name, one in kept.items() if not one.expired()} == {"colors", "radii"}
    gradients = backward(drawing, loss)
    assert [len(each) for each in gradients.projected] == [len(gaussians)] * 5
    assert gradients.means2d is not None and float(gradients.means2d.sum()) > 0


@pytest.mark.parametrize("sh_degree", [0, 1, 3])
def test_gradients_are_added_where_a_view_shows_something_alone(sh_degree: int) -> None:
    gaussians, random = model(sh_degree=sh_degree), torch.Generator().manual_seed(3)
    settings, camera = ProjectSettings(sh_degree), camera_at(2)
    projected = ops.project_raw(*gaussians.tensors().values(), camera=camera, settings=settings)
    outputs = (projected.means2d, projected.conics, projected.depths, projected.opacities, projected.colors)
    visible = (projected.radii > 0).all(dim=1)
    v = [torch.randn(output.shape, generator=random) for output in outputs]
    values = torch.autograd.grad(outputs, list(gaussians.tensors().values()), v, allow_unused=True)
    for each in v:
        each[~visible] = float("nan")  # nobody reads them
    sums = zero_sums(gaussians, settings)
    assert ("shN" in sums) == (sh_degree > 0)
    before = {name: total.normal_(generator=random).clone() for name, total in sums.items()}
    for _ in range(2):
        add_gradients(sums, gaussians, projected.radii, projected.colors, v, camera=camera, settings=settings)
    assert 0 < visible.sum() < len(visible)
    for (name, total), value in zip(sums.items(), values, strict=False):
        assert torch.equal(total[~visible], before[name][~visible])
        expected = before[name] + value + value
        assert torch.equal(total[visible], expected[visible]) and not torch.equal(total, before[name])


def test_the_operators_say_truly_what_they_change() -> None:
    gaussians = model(num=10)
    rows = list(gaussians.detach().tensors().values())
    zeros = [[torch.zeros_like(row) for row in rows] for _ in range(2)]
    drawing = draw(gaussians, SplatAdam.zeros(gaussians), camera_at(1), RenderOptions(), observed=True)
    assert drawing.projected is not None
    values = backward(drawing, loss_of(drawing.rgb)).projected
    view, options = ops.camera_numbers(camera_at(1), drawing.settings, raw=True)
    done, history = torch.zeros(10, dtype=torch.int32), torch.zeros(4, 2)
    rates = [*RATES.values(), 0.9, 0.999, 1e-15]
    seen = (drawing.radii, drawing.projected.colors.detach(), list(values))
    arguments = (rows, *zeros, *seen, view, options, rates, [0.01, 0.02], 1, done, history, 1, 45, False, 1)
    native = torch.ops.splatstudio
    torch.library.opcheck(native.project_adam.default, arguments, test_utils="test_schema")
    places, v = torch.arange(10, dtype=torch.int32), torch.rand(10, 12)
    views = ([places] * 2, [seen[1]] * 2, [v] * 2, view * 2, options * 2)
    arguments = (rows, *zeros, *views, rates, [0.01, 0.02], 1, 45, False, 1)
    torch.library.opcheck(native.project_adam_views.default, arguments, test_utils="test_schema")
    arguments = (rows[5], zeros[0][5], zeros[1][5], done, history, 1, 45, rates[-3:], 1)
    torch.library.opcheck(native.flush_lazy_adam.default, arguments, test_utils="test_schema")
    late = (done, history, 1, 45, rates[-3:], 1)
    arguments = (rows, zeros[0][5], zeros[1][5], view, options, *late)
    torch.library.opcheck(native.project_lazy.default, arguments, test_utils="test_schema")
    arguments = (zeros[0], *rows, *seen[:2], *seen[2], view, options, 1)
    torch.library.opcheck(native.project_bwd_add.default, arguments, test_utils="test_schema")
    counts = [torch.zeros(10) for _ in range(3)]
    arguments = (torch.rand(10, 2), drawing.radii, 40, 30, *counts, 1)
    torch.library.opcheck(native.count_seen.default, arguments, test_utils="test_schema")
