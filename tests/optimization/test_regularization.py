"""The weights of the mean opacity and of the mean scale in a training's loss."""

from __future__ import annotations

import pytest
import torch
from step_models import RATES, assert_same, camera_at, fused_step, loss_of, model
from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import Regularization
from splatstudio.optimization.gradients import apply_gradients, backward, draw
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions, render

BOTH = Regularization(opacity=300.0, scale=500.0)


def fused_moments(
    gaussians: Gaussians, regularization: Regularization, *, visible_only: bool = False
) -> Gaussians:
    """Return the first moments after one fused step: a tenth of the gradient."""
    optimizer = SplatAdam.zeros(gaussians)
    drawing = draw(gaussians, optimizer, camera_at(1), RenderOptions(), observed=True)
    gradients = backward(drawing, loss_of(drawing.rgb))
    apply_gradients(
        drawing, gradients, optimizer, RATES, visible_only=visible_only, regularization=regularization
    )
    optimizer.flush_lazy_rows(gaussians)
    return optimizer.exp_avg


def loss_with(gaussians: Gaussians, regularization: Regularization) -> Tensor:
    return (
        loss_of(render(gaussians, camera_at(1), RenderOptions()).rgb)
        + regularization.opacity * gaussians.opacities.sigmoid().mean()
        + regularization.scale * gaussians.scales.exp().mean()
    )


# 203 Gaussians are no whole number of vectors, 32 and 3 less than two chunks.
@pytest.mark.parametrize("num", [3, 32, 203])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_both_steps_follow_the_gradient_of_the_loss_as_written(num: int, num_threads: int) -> None:
    gaussians = model(num)
    values = torch.autograd.grad(loss_with(gaussians, BOTH), list(gaussians.tensors().values()))
    expected = dict(zip(gaussians.tensors(), values, strict=True))
    values = torch.autograd.grad(loss_with(gaussians, Regularization()), list(gaussians.tensors().values()))
    without: dict[str, Tensor | None] = dict(zip(gaussians.tensors(), values, strict=True))
    plain = SplatAdam.zeros(gaussians)
    plain.step(model(num), without, RATES, regularization=BOTH)
    with ops.limited_threads(num_threads):
        fused = fused_moments(model(num), BOTH)
    for name, gradient in expected.items():
        for moments in (plain.exp_avg, fused):
            torch.testing.assert_close(10.0 * moments.tensors()[name], gradient, rtol=2e-5, atol=1e-5)
    # It is no rounding error that is compared, and reaches also those that are out of sight.
    for name in ("opacities", "scales"):
        own = without[name]
        assert own is not None and ((expected[name] - own).abs() > 1e-3).all()
        assert num < 100 or ((own == 0) & (fused.tensors()[name] != 0)).any()


def test_weights_of_0_change_no_bit_and_each_weight_its_own_tensor_alone() -> None:
    bare = fused_moments(model(), Regularization())
    optimizer, gaussians = SplatAdam.zeros(model()), model()
    fused_step(gaussians, optimizer, 9, RATES)
    again, ours = SplatAdam.zeros(model()), model()
    drawing = draw(ours, again, camera_at(9), RenderOptions(), observed=True)
    apply_gradients(
        drawing,
        backward(drawing, loss_of(drawing.rgb)),
        again,
        RATES,
        regularization=Regularization(0.0, 0.0),
    )
    assert_same(ours, gaussians)
    for regularization, changed in [
        (Regularization(opacity=1.0), "opacities"),
        (Regularization(scale=1.0), "scales"),
    ]:
        moments = fused_moments(model(), regularization).tensors()
        different = [
            name for name, tensor in bare.tensors().items() if not torch.equal(tensor, moments[name])
        ]
        assert different == [changed]


def test_visible_only_leaves_what_is_out_of_sight_alone() -> None:
    gaussians = model()
    drawing = draw(gaussians, SplatAdam.zeros(gaussians), camera_at(1), RenderOptions(), observed=True)
    hidden = ~(drawing.radii > 0).all(dim=1)
    moments = fused_moments(gaussians, BOTH, visible_only=True)
    assert hidden.any() and not moments.opacities[hidden].any() and not moments.scales[hidden].any()
    assert moments.opacities[~hidden].all() and moments.scales[~hidden].all()


def test_what_no_picture_asks_for_fades_and_shrinks() -> None:
    gaussians = model()
    optimizer = SplatAdam.zeros(gaussians)
    before = gaussians.map(lambda tensor: tensor.detach().clone())
    nothing: dict[str, Tensor | None] = dict.fromkeys(gaussians.tensors())
    for _ in range(20):
        optimizer.step(gaussians, nothing, RATES, regularization=BOTH)
    assert (gaussians.opacities < before.opacities).all() and (gaussians.scales < before.scales).all()
    assert torch.equal(gaussians.means, before.means) and torch.equal(gaussians.shN, before.shN)
