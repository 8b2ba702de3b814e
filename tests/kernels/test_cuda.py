"""The CUDA kernels on a real GPU, against the CPU's: `pytest -m cuda` on a machine that has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from blob_models import blobs, ring_of_cameras
from kernel_sets import close
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.rendering.render import RenderOptions, render

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]


def devices() -> list[str]:
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())]


def step(gaussians: Gaussians, camera: Camera, options: RenderOptions) -> list[Tensor]:
    """Return picture, alpha, depth, loss and all gradients of one step, on the CPU."""
    leaf = gaussians.map(lambda tensor: tensor.clone().requires_grad_())
    probe = torch.zeros_like(leaf.means[:, :2], requires_grad=True)
    rendering = render(leaf, camera, options, probe)
    random = torch.Generator().manual_seed(3)
    target = torch.rand(rendering.rgb.shape, generator=random).to(rendering.rgb)
    loss = ops.l1_ssim(rendering.rgb, target, ssim_weight=0.2)
    (loss + 0.1 * rendering.depth.mean() + 0.1 * rendering.alpha.mean()).backward()
    gradients = [tensor.grad for tensor in (*leaf.tensors().values(), probe)]
    values = [rendering.rgb, rendering.alpha, rendering.depth, loss, *gradients]
    return [value.detach().cpu() for value in values if value is not None]


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("absgrad", [False, True])
def test_a_step_is_that_of_the_cpu(antialiased: bool, absgrad: bool) -> None:
    gaussians, options = blobs(num=500), RenderOptions(antialiased=antialiased, absgrad=absgrad)
    for camera in ring_of_cameras()[:3]:
        expected = step(gaussians, camera, options)
        for device in devices():
            for ours, theirs in zip(step(gaussians.to(device), camera, options), expected, strict=True):
                assert close(ours, theirs)


def test_two_runs_give_the_same_bits() -> None:
    gaussians, camera = blobs(num=500).to("cuda"), ring_of_cameras()[0]
    first, second = (step(gaussians, camera, RenderOptions()) for _ in range(2))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))


def test_nothing_to_see_is_a_picture_of_the_background() -> None:
    empty = blobs(num=1)[torch.zeros(0, dtype=torch.long)].to("cuda")
    options = RenderOptions(background=(0.2, 0.4, 0.6))
    rgb = render(empty, ring_of_cameras()[0], options).rgb
    assert torch.equal(rgb, rgb.new_tensor(options.background).expand_as(rgb))


def test_numbers_that_are_not_finite_reach_no_pixel() -> None:
    gaussians = blobs(num=300)
    gaussians.means[::7] = float("nan")
    gaussians.scales[1::7] = float("inf")
    gaussians.opacities[2::7] = float("nan")
    rgb = render(gaussians.to("cuda"), ring_of_cameras()[0]).rgb
    assert torch.isfinite(rgb).all()
    assert close(rgb.cpu(), render(gaussians, ring_of_cameras()[0]).rgb)


def test_adam_is_that_of_the_cpu() -> None:
    random = torch.Generator().manual_seed(0)
    tensors = [torch.rand(100_003, generator=random) for _ in range(4)]
    on_gpu = [tensor.cuda() for tensor in tensors]
    for values in (tensors, on_gpu):
        ops.adam_step(*values, lr=0.01, beta1=0.9, beta2=0.999, eps=1e-15, step=7)
    assert all(close(ours.cpu(), theirs) for ours, theirs in zip(on_gpu, tensors, strict=True))


def in_stream(stream: torch.cuda.Stream, work: Callable[[], list[Tensor]]) -> list[Tensor]:
    with torch.cuda.stream(stream):
        return work()


def test_two_streams_do_not_disturb_each_other() -> None:
    camera, models = ring_of_cameras()[0], [blobs(seed, 400).to("cuda") for seed in (1, 2)]
    expected = [step(model, camera, RenderOptions()) for model in models]
    streams = [torch.cuda.Stream() for _ in models]
    torch.cuda.synchronize()
    for _ in range(5):
        for model, stream, values in zip(models, streams, expected, strict=True):
            ours = in_stream(stream, lambda model=model: step(model, camera, RenderOptions()))
            assert all(torch.equal(a, b) for a, b in zip(ours, values, strict=True))


def test_another_device_than_the_current_one_works_and_stays_not_current() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    expected = step(blobs().to("cuda:0"), ring_of_cameras()[0], RenderOptions())
    torch.cuda.set_device(0)
    ours = step(blobs().to("cuda:1"), ring_of_cameras()[0], RenderOptions())
    assert torch.cuda.current_device() == 0
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
