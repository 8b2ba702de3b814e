"""What the search for races in the emulated kernels takes for one, and that the kernels have none."""

from __future__ import annotations

import pytest
import torch
from emulated_kernels import EXTENSION, native
from op_cases import camera_of, gaussians_of

from splatstudio.kernels import ops
from splatstudio.kernels.stages import ProjectSettings, RasterSettings

pytestmark = pytest.mark.skipif(
    not EXTENSION.endswith("races.so"),
    reason="needs the kernels whose accesses are watched: make cuda-on-cpu",
)


def test_what_is_ordered_is_no_race() -> None:
    assert int(native.faulty("ordered warp")[0]) == 1
    assert int(native.faulty("ordered block")[0]) == 32
    native.faulty("added in one step")


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        ("missing sync", "shared memory that thread 63 read"),
        ("shuffle as barrier", "shared memory that thread"),
        ("warp for block", "shared memory that thread"),
        ("blocks in one place", "of block 1 writes global memory that another block wrote"),
        ("look at a sum", "reads global memory that thread 0 wrote"),
    ],
)
def test_what_nothing_orders_is_a_race(kernel: str, told: str) -> None:
    with pytest.raises(RuntimeError, match="emulator: race in") as caught:
        native.faulty(kernel)
    assert told in str(caught.value) and "addr2line: +0x" in str(caught.value)
    # What comes after is not taken for it.
    assert torch.equal(native.to_uint8(torch.ones(2, 2, 3), 1), torch.full((2, 2, 3), 255, dtype=torch.uint8))


def test_a_list_of_several_buckets_and_batches_has_no_race() -> None:
    # Pixels are finished between two buckets, and left out of the next.
    camera = camera_of("pinhole", 16, 16)
    means, quats, scales, opacities, *colors = gaussians_of(1200, seed=11)
    tensors = [tensor.requires_grad_() for tensor in (means, quats, scales, opacities, *colors)]
    projected = ops.project(*tensors, camera=camera, settings=ProjectSettings())
    assert int((projected.radii > 0).all(1).sum()) > 256
    drawn = ops.rasterize(projected, RasterSettings(16, 16, torch.zeros(3)))
    (drawn.rgb.sum() + drawn.alpha.sum() + drawn.depth_sum.sum()).backward()
    assert all(tensor.grad is not None and bool(tensor.grad.isfinite().all()) for tensor in tensors)


def test_a_tile_without_splats_has_no_race() -> None:
    camera = camera_of("pinhole", 160, 16)
    tensors = [tensor.requires_grad_() for tensor in gaussians_of(2, seed=11)]
    projected = ops.project(*tensors, camera=camera, settings=ProjectSettings())
    drawn = ops.rasterize(projected, RasterSettings(160, 16, torch.zeros(3)))
    tiles = drawn.alpha.reshape(16, 10, 16).amax(dim=(0, 2))
    assert bool((tiles == 0).any()), "no tile is empty"
    drawn.rgb.sum().backward()
