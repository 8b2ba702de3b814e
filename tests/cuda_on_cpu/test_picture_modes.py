"""The kernels of the viewer's modes on pretend devices; tests/kernels/test_modes.py says what they draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emulated_kernels import HEIGHT, NUM, OPTIONS, VIEW, WIDTH, gaussians, native
from torch import Tensor

from splatstudio.kernels import ops, reference_modes
from splatstudio.kernels.stages import Projected, RasterSettings


def pictures(rows: list[Tensor], background: Tensor, surfaces: Tensor | None = None) -> list[Tensor]:
    """Return what every kernel of the modes writes; all from tensors of one device."""
    projected = Projected(*native.project_fwd(*rows, VIEW, OPTIONS, 1))
    settings = RasterSettings(WIDTH, HEIGHT, background)
    normals, own = native.splat_shapes(*rows[:3], projected.radii, VIEW, OPTIONS, 1)
    median = ops.rasterize_median(projected, settings)
    solid = ops.rasterize_solid(projected, own if surfaces is None else surfaces, settings)
    return [normals, own, median.depth, median.count, solid.rgb, solid.depth, ops.to_uint8(solid.rgb)]


def on_host() -> list[Tensor]:
    return pictures(gaussians(), torch.tensor([0.2, 0.5, 0.9]))


@pytest.mark.parametrize("device", [1, 3])
def test_every_mode_works_where_its_tensors_are(device: int) -> None:
    native.set_current_device(2)
    rows = [native.to_device(tensor, device) for tensor in gaussians()]
    outputs = pictures(rows, native.to_device(torch.tensor([0.2, 0.5, 0.9]), device))
    assert native.current_device() == 2
    native.set_current_device(0)
    assert all(native.device_index(output) == device for output in outputs)
    expected = on_host()
    assert all(torch.equal(native.to_host(a), b) for a, b in zip(outputs, expected, strict=True))
    depth, count = expected[2], expected[3]
    assert count.max() > 3 and (depth > 0).any() and expected[6].float().std() > 10


def test_the_order_of_blocks_and_threads_changes_no_bit_of_a_mode() -> None:
    expected = on_host()
    for seed in range(2):
        native.set_order_seed(seed)
        outputs = on_host()
        native.set_order_seed(-1)
        assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))


def test_more_splats_than_a_batch_are_all_looked_at() -> None:
    means, quats, scales, opacities, sh0, shN = (row.repeat_interleave(10, dim=0) for row in gaussians())
    rows = [means, quats, scales + 0.7, torch.full_like(opacities, -4.5), sh0, shN]
    background = torch.tensor([0.2, 0.5, 0.9])
    _, surfaces, depth, count, rgb, solid_depth, _ = pictures(rows, background)
    projected = Projected(*native.project_fwd(*rows, VIEW, OPTIONS, 1))
    settings = RasterSettings(WIDTH, HEIGHT, background)
    median = reference_modes.rasterize_median(projected, settings)
    solid = reference_modes.rasterize_solid(projected, surfaces, settings)
    expected = (median.depth, median.count, solid.rgb, solid.depth)
    assert count.max() > 256 and (depth > 0).any()
    # A splat of just 1/255 may fall on either side by rounding.
    for ours, theirs in zip((depth, count, rgb, solid_depth), expected, strict=True):
        assert (ours - theirs).abs().gt(1e-3).float().mean() < 0.02


def test_tensors_of_another_device_are_refused_by_name() -> None:
    rows = [native.to_device(tensor, 1) for tensor in gaussians()]
    background = native.to_device(torch.zeros(3), 1)
    with pytest.raises(RuntimeError, match="surfaces must be on cuda:1, is on the CPU"):
        pictures(rows, background, torch.zeros(NUM, 4))
    with pytest.raises(RuntimeError, match="background must be on cuda:1, is on cuda:2"):
        pictures(rows, native.to_device(torch.zeros(3), 2))
    projected = Projected(*native.project_fwd(*rows, VIEW, OPTIONS, 1))
    twice = replace(projected, radii=native.to_device(torch.zeros(NUM, 2, dtype=torch.int32), 3))
    with pytest.raises(RuntimeError, match="radii must be on cuda:1, is on cuda:3"):
        native.splat_shapes(*rows[:3], twice.radii, VIEW, OPTIONS, 1)
    with pytest.raises(RuntimeError, match="image has the wrong data type"):
        native.to_uint8(torch.zeros(3, dtype=torch.float64), 1)
    assert native.current_device() == 0
