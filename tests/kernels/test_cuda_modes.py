"""The viewer's modes on a real GPU, against the CPU's: `pytest -m cuda` on a machine that has one."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras

from splatstudio.kernels import ops
from splatstudio.rendering.mode_pictures import draw_mode
from splatstudio.rendering.modes import DrawnMode
from splatstudio.rendering.render import RenderOptions, to_uint8

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]


@pytest.mark.parametrize("mode", get_args(DrawnMode))
def test_a_mode_is_that_of_the_cpu(mode: DrawnMode) -> None:
    gaussians, options = blobs(num=500), RenderOptions(background=(0.2, 0.5, 0.9))
    for camera in ring_of_cameras()[:2]:
        expected = draw_mode(mode, gaussians, camera, options).image.astype(int)
        for index in range(torch.cuda.device_count()):
            image = draw_mode(mode, gaussians.to(f"cuda:{index}"), camera, options).image
            # A splat of just 1/255 may fall on either side by rounding.
            assert (np.abs(image - expected) > 2).mean() < 0.02


def test_bytes_are_those_of_the_cpu() -> None:
    image = 2.0 * torch.rand(33, 47, 3, generator=torch.Generator().manual_seed(1)) - 0.5
    image[3, 4] = float("nan")
    assert torch.equal(to_uint8(image.cuda()).cpu(), to_uint8(image))
