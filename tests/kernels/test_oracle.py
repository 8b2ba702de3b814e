"""Every backend against float64 reference data: projection, images, SSIM and all gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracle_checks
import pytest
import torch
from backends import backend_module
from oracle_checks import ABSGRAD_SCENES, GRADIENT_SCENES, KINDS, LOSS_PAIRS, SCENES, SSIM_PAIRS, Kind, each

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@each_kind
@each(SCENES)
def test_projection(path: Path, kind: Kind) -> None:
    oracle_checks.check_projection(path, kind)


@each_kind
@each(SCENES)
def test_image(path: Path, kind: Kind) -> None:
    oracle_checks.check_image(path, kind)


@each_kind
@each(GRADIENT_SCENES)
def test_gradients_of_the_colors(path: Path, kind: Kind) -> None:
    oracle_checks.check_gradients_of_the_colors(path, kind)


@each_kind
@each(GRADIENT_SCENES)
def test_gradients_of_colors_alpha_and_depth(path: Path, kind: Kind) -> None:
    oracle_checks.check_gradients_of_colors_alpha_and_depth(path, kind)


@each_kind
@each(ABSGRAD_SCENES)
def test_absolute_gradients(path: Path, kind: Kind) -> None:
    oracle_checks.check_absolute_gradients(path, kind)


@each_kind
@pytest.mark.parametrize("padding", ["same", "valid"])
@each(SSIM_PAIRS)
def test_ssim(path: Path, padding: str, kind: Kind) -> None:
    oracle_checks.check_ssim(path, padding, kind)


@pytest.mark.parametrize("name", ["reference64", "reference32"])
@each(SSIM_PAIRS)
def test_ssim_map(path: Path, name: str) -> None:
    kind, data = KINDS[name], oracle_checks.load(path)
    image, target = oracle_checks.image_pair(data, kind.dtype)
    similarity = backend_module("reference").ssim_map(image, target, padding="same")
    oracle_checks.assert_near(
        oracle_checks.array(similarity), data["ssim_map"], 1e-3 * kind.strictness, "map"
    )
    (similarity * torch.tensor(data["w_map"], dtype=kind.dtype)).sum().backward()
    expected = data["grad_w_map"]
    oracle_checks.assert_near(
        oracle_checks.array(image.grad),
        expected,
        1e-3 * max(np.abs(expected).max(), 1.0) * kind.strictness,
        "gradient",
    )


@each_kind
@pytest.mark.parametrize("ssim_weight", [0.2, 1.0])
@each(LOSS_PAIRS)
def test_l1_ssim(path: Path, ssim_weight: float, kind: Kind) -> None:
    oracle_checks.check_l1_ssim(path, ssim_weight, kind)
