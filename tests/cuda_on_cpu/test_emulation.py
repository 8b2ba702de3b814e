"""The CUDA kernels and their binding on pretend devices; `make cuda-on-cpu` builds and runs this."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from emulated_kernels import EXTENSION, HEIGHT, NUM, OPTIONS, VIEW, WIDTH, gaussians, native
from torch import Tensor

from splatstudio.kernels import reference


def train_step(inputs: list[Tensor], target: Tensor, background: Tensor) -> list[Tensor]:
    """Run every kernel of a training step; return all that they write."""
    *projected, radii = native.project_fwd(*inputs, VIEW, OPTIONS, 1)
    lists = native.bin(*projected, radii, WIDTH, HEIGHT, 1)
    rgb, alpha, depth_sum, *state = native.raster_fwd(*lists, background, WIDTH, HEIGHT, 0.999, 1)
    value, v_rgb = native.image_loss(rgb, target, None, 0.8, 0.2, False, True, 1)
    v = native.raster_bwd(*lists, *state, rgb, alpha, depth_sum, v_rgb, None, None, NUM, 0.999, True, True, 1)
    v_means2d, v_conics, v_depths, v_opacities, v_colors, v_probe = v
    rows = (v_means2d, v_conics, v_depths, v_opacities, v_colors)
    gradients = native.project_bwd(*inputs, radii, projected[4], *rows, VIEW, OPTIONS, 1)
    return [rgb, alpha, depth_sum, value, v_probe, *gradients]


def target() -> Tensor:
    return torch.rand(HEIGHT, WIDTH, 3, generator=torch.Generator().manual_seed(5))


def step_on_host() -> list[Tensor]:
    return train_step(gaussians(), target(), torch.zeros(3))


def step_on_device(device: int) -> list[Tensor]:
    inputs = [native.to_device(tensor, device) for tensor in gaussians()]
    outputs = train_step(inputs, native.to_device(target(), device), native.to_device(torch.zeros(3), device))
    assert all(native.device_index(tensor) == device for tensor in outputs)
    return [native.to_host(tensor) for tensor in outputs]


@pytest.mark.parametrize("device", [0, 1, 3])
def test_a_step_on_any_device_leaves_the_current_device_alone(device: int) -> None:
    native.set_current_device(2)
    outputs = step_on_device(device)
    assert native.current_device() == 2
    native.set_current_device(0)
    for output, expected in zip(outputs, step_on_host(), strict=True):
        assert torch.equal(output, expected)


def test_adam_works_on_the_device_of_its_tensors() -> None:
    random = torch.Generator().manual_seed(0)
    tensors = [torch.rand(1000, generator=random) for _ in range(4)]
    on_device = [native.to_device(tensor, 3) for tensor in tensors]
    native.adam_step(*on_device, [0.1, 0.9, 0.999, 1e-8], 3, 1)
    native.adam_step(*tensors, [0.1, 0.9, 0.999, 1e-8], 3, 1)
    assert torch.equal(native.to_host(on_device[0]), tensors[0])
    assert native.current_device() == 0


def test_tensors_of_two_devices_are_refused_by_name() -> None:
    image, other = native.to_device(target(), 1), native.to_device(target(), 2)
    with pytest.raises(RuntimeError, match="target must be on cuda:1, is on cuda:2"):
        native.image_loss(image, other, None, 0.8, 0.2, False, True, 1)
    with pytest.raises(RuntimeError, match="target must be on cuda:1, is on the CPU"):
        native.image_loss(image, target(), None, 0.8, 0.2, False, True, 1)
    assert native.current_device() == 0


def run_apart(code: str, extension: str) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parent
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n" + code],
        env={**os.environ, "SPLATSTUDIO_EXTENSION": extension},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_binding_without_its_guard_is_caught() -> None:
    unguarded = str(Path(EXTENSION).with_name("unguarded.so"))
    code = f"""
import torch
torch.ops.load_library({unguarded!r})
native = torch.ops.splatstudio
tensors = [native.to_device(torch.rand(100), 1) for _ in range(4)]
native.adam_step(*tensors, [0.1, 0.9, 0.999, 1e-8], 1, 1)
"""
    result = run_apart(code, unguarded)
    assert result.returncode != 0
    assert "was launched on a stream of device 1 while device 0 is current" in result.stderr


def test_the_host_may_not_touch_device_memory() -> None:
    code = f"""
import torch
torch.ops.load_library({EXTENSION!r})
print(torch.ops.splatstudio.to_device(torch.rand(100), 1).sum())
"""
    result = run_apart(code, EXTENSION)
    assert result.returncode == 86
    assert "the host touched memory of device 1 while device 0 is current" in result.stderr


def test_the_order_of_blocks_and_threads_changes_no_bit() -> None:
    expected = step_on_host()
    for seed in range(3):
        native.set_order_seed(seed)
        outputs = step_on_host()
        native.set_order_seed(-1)
        for output, value in zip(outputs, expected, strict=True):
            assert torch.equal(output, value)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("missing barrier", "missing barrier: thread 0 waits at a barrier that other threads do not reach"),
        ("divided warp", "lanes of a warp disagree about"),
        ("part of a warp", "__shfl_xor_sync is not for all lanes of a warp"),
    ],
)
def test_the_emulator_finds_mistakes_with_barriers(fault: str, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        native.faulty(fault)


def test_a_race_shows_when_the_order_is_random() -> None:
    in_order = native.faulty("missing sync")
    seen = []
    for seed in range(3):
        native.set_order_seed(seed)
        seen.append(native.faulty("missing sync"))
        native.set_order_seed(-1)
    assert any(not torch.equal(result, in_order) for result in seen)


def test_what_a_block_shares_is_no_zeros_when_it_begins() -> None:
    assert int(native.faulty("unwritten shared")[0]) != 64


def test_a_loss_is_made_in_strips_with_the_maps_of_some_rows() -> None:
    random = torch.Generator().manual_seed(3)
    image, photo = (torch.rand(150, 70, 3, generator=random) for _ in range(2))
    native.record_launches(True)
    value, gradient = native.image_loss(image, photo, None, 0.8, 0.2, False, True, 1)
    native.record_launches(False)
    assert native.recorded_launches().count("ssim") == 5  # of ten rows of three blocks, two at a time
    exact = image.double().requires_grad_()
    expected = reference.l1_ssim(exact, photo.double(), ssim_weight=0.2)
    (wanted,) = torch.autograd.grad(expected, exact)
    assert float(value) == pytest.approx(float(expected.detach()), rel=1e-6)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-9)
    # All of a tall picture would be 36 bytes a pixel.
    assert native.loss_scratch(torch.empty(4000, 60, 3)) < 4000 * 60


def test_a_picture_without_pixels_has_no_loss() -> None:
    nothing = torch.zeros(5, 0, 3)
    value, gradient = native.image_loss(nothing, nothing, None, 1.0, 0.0, False, True, 1)
    assert float(value) == 0.0 and gradient.shape == nothing.shape
