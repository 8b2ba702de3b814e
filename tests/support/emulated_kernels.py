"""The CUDA kernels on pretend devices, as `make cuda-on-cpu` builds them, and a small cloud for them."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

EXTENSION = os.environ.get("SPLATSTUDIO_EXTENSION", "")
if not EXTENSION.endswith(("emulated.so", "races.so")):
    pytest.skip("needs the emulation: run `make cuda-on-cpu`", allow_module_level=True)

torch.ops.load_library(EXTENSION)
native = torch.ops.splatstudio

WIDTH, HEIGHT, NUM = 45, 37, 60
VIEW = [1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 4, 0, 0, -4, 40, 40, WIDTH / 2, HEIGHT / 2, 0.01, 1e10]
OPTIONS = [WIDTH, HEIGHT, 0, 1, 0, 1]


def gaussians(seed: int = 0) -> list[Tensor]:
    """Return means, quats, log scales, logit opacities, sh0 and shN of a small cloud before the camera."""
    random = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random)

    return [
        0.7 * normal(NUM, 3),
        normal(NUM, 4),
        0.3 * normal(NUM, 3) - 1.5,
        normal(NUM),
        0.5 * normal(NUM, 1, 3),
        0.2 * normal(NUM, 3, 3),
    ]
