"""The CUDA kernels on a real GPU against the float64 reference data: `pytest -m cuda` where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import oracle_checks
import pytest
import torch
from oracle_checks import ABSGRAD_SCENES, GRADIENT_SCENES, KINDS, LOSS_PAIRS, SCENES, SSIM_PAIRS, each

from splatstudio.kernels import ops

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]

NATIVE = KINDS["native"]


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """Let torch make the tensors of the oracle's tests on the GPU."""
    with torch.device("cuda"):
        yield


@each(SCENES)
def test_projection(path: Path) -> None:
    oracle_checks.check_projection(path, NATIVE)


@each(SCENES)
def test_image(path: Path) -> None:
    oracle_checks.check_image(path, NATIVE)


@each(GRADIENT_SCENES)
def test_gradients_of_the_colors(path: Path) -> None:
    oracle_checks.check_gradients_of_the_colors(path, NATIVE)


@each(GRADIENT_SCENES)
def test_gradients_of_colors_alpha_and_depth(path: Path) -> None:
    oracle_checks.check_gradients_of_colors_alpha_and_depth(path, NATIVE)


@each(ABSGRAD_SCENES)
def test_absolute_gradients(path: Path) -> None:
    oracle_checks.check_absolute_gradients(path, NATIVE)


@pytest.mark.parametrize("padding", ["same", "valid"])
@each(SSIM_PAIRS)
def test_ssim(path: Path, padding: str) -> None:
    oracle_checks.check_ssim(path, padding, NATIVE)


@pytest.mark.parametrize("ssim_weight", [0.2, 1.0])
@each(LOSS_PAIRS)
def test_l1_ssim(path: Path, ssim_weight: float) -> None:
    oracle_checks.check_l1_ssim(path, ssim_weight, NATIVE)
