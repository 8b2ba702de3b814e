"""The fused training step on a real GPU, against the CPU's: `pytest -m cuda` on a machine that has one."""

from __future__ import annotations

import pytest
import torch
from kernel_sets import close
from step_models import RATES, TARGET, camera_at, degree_at, model

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import Regularization, compute_relocation, count_seen, inject_noise
from splatstudio.optimization.gradients import apply_gradients, backward, draw
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions
from splatstudio.strategy.population import trainable

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]


def after_steps(gaussians: Gaussians, *, visible_only: bool) -> list[torch.Tensor]:
    """Return the parameters and first moments after three steps from one model, on the CPU."""
    gaussians = trainable(gaussians)
    optimizer = SplatAdam.zeros(gaussians)
    for step in (9, 10, 11):
        options = RenderOptions(sh_degree=degree_at(step))
        drawing = draw(gaussians, optimizer, camera_at(step), options, observed=True)
        assert drawing.projected is not None, "autograd went past what was projected"
        loss = ((drawing.rgb - TARGET.to(drawing.rgb)) ** 2).sum()
        weights = Regularization(opacity=3.0, scale=5.0)
        gradients = backward(drawing, loss)
        apply_gradients(
            drawing, gradients, optimizer, RATES, visible_only=visible_only, regularization=weights
        )
    optimizer.flush_lazy_rows(gaussians)
    values = [*gaussians.detach().tensors().values(), *optimizer.exp_avg.tensors().values()]
    return [value.cpu() for value in values]


@pytest.mark.parametrize("visible_only", [False, True])
def test_the_fused_step_is_that_of_the_cpu(visible_only: bool) -> None:
    expected = after_steps(model(), visible_only=visible_only)
    for index in range(torch.cuda.device_count()):
        ours = after_steps(model().to(f"cuda:{index}"), visible_only=visible_only)
        # Adam's first steps move by the gradient's sign alone: what is around 0 may go either way.
        for mine, theirs in zip(ours, expected, strict=True):
            assert close(mine, theirs) or (mine - theirs).abs().gt(2e-4).float().mean() < 0.02


def test_counts_are_those_of_the_cpu() -> None:
    generator = torch.Generator().manual_seed(4)
    gradients = torch.randn(5000, 2, generator=generator)
    radii = torch.randint(-1, 4, (5000, 2), generator=generator, dtype=torch.int32)
    counts = torch.rand(3, 5000, generator=generator)
    ours = counts.cuda()
    count_seen(gradients, radii, (300, 200), counts[0], counts[1], counts[2])
    count_seen(gradients.cuda(), radii.cuda(), (300, 200), ours[0], ours[1], ours[2])
    assert close(ours.cpu(), counts)


def test_noise_and_parts_are_those_of_the_cpu() -> None:
    gaussians = model(5000).detach()
    ours = gaussians.to("cuda")
    for each in (gaussians, ours):
        inject_noise(each, amount=0.7, min_opacity=0.3, seed=2**62 + 9)
        places = torch.arange(4999, -1, -1, device=each.device)
        inject_noise(each, amount=0.7, min_opacity=0.3, seed=3, places=places)
    assert not torch.equal(gaussians.means, model(5000).means) and close(ours.means.cpu(), gaussians.means)
    opacities, copies = gaussians.opacities.sigmoid(), torch.arange(5000) % 50 + 2
    parts = zip(
        compute_relocation(opacities.cuda(), copies.cuda()),
        compute_relocation(opacities, copies),
        strict=True,
    )
    assert all(close(mine.cpu(), theirs) for mine, theirs in parts)
