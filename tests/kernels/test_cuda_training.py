"""The fused training step on a real GPU, against the CPU's: `pytest -m cuda` on a machine that has one."""

from __future__ import annotations

import pytest
import torch
from kernel_sets import close
from op_cases import camera_of
from step_models import RATES, TARGET, camera_at, degree_at, model

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import (
    Regularization,
    area_means,
    bilateral_grid,
    compute_relocation,
    count_seen,
    depth_error,
    drop_out,
    inject_noise,
)
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


def test_depths_of_points_are_judged_as_on_the_cpu() -> None:
    camera, random = camera_of(), torch.Generator().manual_seed(2)
    alpha, depth_sum = torch.rand(2, camera.height, camera.width, generator=random)
    mask = torch.rand(alpha.shape, generator=random) < 0.8
    places = (torch.rand(50_000, 3, generator=random) - 0.3) * torch.tensor([1.0, 1.0, 5.0])
    rotation, center = (torch.from_numpy(each).float() for each in (camera.viewmat[:3, :3], camera.position))
    points = center + places @ rotation
    expected, ours = (
        [each.requires_grad_() for each in (alpha.to(device), depth_sum.to(device))]
        for device in ("cpu", "cuda")
    )

    def found(maps: list[torch.Tensor]) -> list[torch.Tensor]:
        device = maps[0].device
        error = depth_error(
            maps[0], maps[1], points.to(device), camera=camera, mask=mask.to(device), unit=3.0
        )
        return [error.detach(), *torch.autograd.grad(0.5 * error, maps)]

    for mine, theirs in zip(found(ours), found(expected), strict=True):
        assert bool(theirs.any()) and close(mine.cpu(), theirs)


def test_who_is_left_out_of_a_step_is_so_on_the_cpu() -> None:
    logits, keys = 3.0 * torch.randn(9000), torch.arange(9000) * 7919
    expected = drop_out(logits, keys, seed=2**62 - 3, rate=0.3)
    ours = drop_out(logits.cuda(), keys.cuda(), seed=2**62 - 3, rate=0.3).cpu()
    assert torch.equal(ours == -20.0, expected == -20.0) and close(ours, expected)


def test_photos_become_floats_of_any_size_as_on_the_cpu() -> None:
    photo = torch.randint(256, (123, 457, 3), dtype=torch.uint8)
    for width, height in ((457, 123), (100, 40), (457, 60)):
        for image in (photo, photo.float()):
            expected = area_means(image, width=width, height=height)
            assert close(area_means(image.cuda(), width=width, height=height).cpu(), expected)


def test_colors_under_a_grid_of_maps_learn_as_on_the_cpu_and_the_same_each_time() -> None:
    rgb, grid = 1.4 * torch.rand(270, 480, 3) - 0.2, 0.2 * torch.randn(12, 2, 4, 4)
    v_colors = torch.randn(270, 480, 3)

    def found(device: str) -> list[torch.Tensor]:
        leaves = [each.to(device).requires_grad_() for each in (rgb, grid)]
        colors = bilateral_grid(leaves[0], leaves[1])
        return [colors.detach(), *torch.autograd.grad(colors, leaves, v_colors.to(device))]

    ours, again, expected = found("cuda"), found("cuda"), found("cpu")
    for mine, other, theirs in zip(ours, again, expected, strict=True):
        assert torch.equal(mine, other) and close(mine.cpu(), theirs)
