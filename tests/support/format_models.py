"""Models for the tests of file formats, and what a format may change of them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import KDTree

from splatstudio.gaussians.gaussians import SH_C0, Gaussians
from splatstudio.kernels.reference import rotation_matrices


def model(num: int, degree: int = 3, *, seed: int = 0, extent: float = 4.0, offset: float = 0.0) -> Gaussians:
    """Return Gaussians as a training makes them, none at the place of another."""
    generator = np.random.default_rng(seed)
    side = int(np.ceil(num ** (1 / 3)))
    cells = np.stack(np.meshgrid(*[np.arange(side)] * 3), axis=-1).reshape(-1, 3)
    cells = generator.permutation(cells)[:num] + generator.uniform(0.2, 0.8, (num, 3))

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(generator.normal(size=(num, *shape)).astype(np.float32))

    return Gaussians(
        means=torch.from_numpy(((cells / side - 0.5) * 2 * extent + offset).astype(np.float32)),
        quats=normal(4),
        scales=normal(3) - 4.0,
        opacities=2.0 * normal(),
        sh0=normal(1, 3),
        shN=normal((degree + 1) ** 2 - 1, 3) * 0.2,
    )


@dataclass(frozen=True)
class Precision:
    """How far a format may move the values of a Gaussian, and the range to which it may clamp them first.

    `opacity` and `color` are in 0..1, `sh` a coefficient.
    """

    means: float
    rotation: float = 0.006
    scale: float = 1e-5
    scale_range: tuple[float, float] = (-np.inf, np.inf)
    opacity: float = 1e-6
    color: float = 1e-6
    color_range: tuple[float, float] = (-np.inf, np.inf)
    sh: float | None = 1e-6  # None: not kept at all
    sh_range: tuple[float, float] = (-np.inf, np.inf)


def in_order_of(actual: Gaussians, expected: Gaussians) -> Gaussians:
    """Return the rows of `actual` that lie where those of `expected` lie; each must have one of its own."""
    tree = KDTree(actual.means.double().numpy())
    index = np.asarray(tree.query(expected.means.double().numpy())[1])
    assert len(actual) == len(expected) and len(np.unique(index)) == len(expected)
    return actual[torch.from_numpy(index)]


def assert_kept(actual: Gaussians, expected: Gaussians, precision: Precision) -> None:
    """Check that `actual` is `expected` within what the format keeps; the order may differ."""
    actual = in_order_of(actual, expected)
    for name, tensor in actual.tensors().items():
        assert tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.isfinite().all(), name
    close(actual.means, expected.means, precision.means)
    rotations = rotation_matrices(actual.quats), rotation_matrices(expected.quats)
    close(rotations[0], rotations[1], precision.rotation)
    close(actual.scales, expected.scales.clamp(*precision.scale_range), precision.scale)
    close(actual.opacities.sigmoid(), expected.opacities.sigmoid(), precision.opacity)
    colors = actual.sh0 * SH_C0 + 0.5, expected.sh0 * SH_C0 + 0.5
    close(colors[0], colors[1].clamp(*precision.color_range), precision.color)
    if precision.sh is None:
        assert actual.sh_degree == 0
    else:
        close(actual.shN, expected.shN.clamp(*precision.sh_range), precision.sh)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


def precision_of(ending: str, gaussians: Gaussians) -> Precision:
    """Return what the format of this ending says that it keeps of a model."""
    farthest = float(gaussians.means.abs().max())
    extent = float((gaussians.means.max(dim=0).values - gaussians.means.min(dim=0).values).max())
    rounding = 2.0**-23 * farthest  # of float32
    if ending == ".compressed.ply":
        # The bounds of a group may span all that there is.
        scales, colors = gaussians.scales.clamp(-20, 20), gaussians.sh0 * SH_C0
        return Precision(
            means=0.51 / 1023 * extent + rounding,
            scale=0.51 / 1023 * float(scales.max() - scales.min()) + 1e-5,
            scale_range=(-20.0, 20.0),
            opacity=1.01 / 255,
            color=0.51 / 255 * float(colors.max() - colors.min()) + 1e-5,
            sh=1.01 / 32,
            sh_range=(-4.0, 4.0),
        )
    if ending == ".spz":
        return Precision(
            means=max(2.0**-15 * extent, 2.0**-22 * farthest, 2.0**-25) + rounding,
            scale=0.51 / 16,
            scale_range=(-10.0, 255 / 16 - 10),
            opacity=1.01 / 255,
            color=0.51 / 255 * SH_C0 / 0.15,
            color_range=(0.5 - SH_C0 / 0.3, 0.5 + SH_C0 / 0.3),
            sh=8.6 / 128,
            sh_range=(-1.0, 127 / 128),
        )
    if ending == ".splat":
        return Precision(
            means=0.0,
            rotation=0.03,  # readers disagree on the middle of a byte, by half of its step
            scale_range=(-87.3, 88.0),
            opacity=0.51 / 255,
            color=0.51 / 255,
            color_range=(0.0, 1.0),
            sh=None,
        )
    if ending == ".sog":
        # A logarithm in 16 bits: steps grow with the distance from the origin. Codebooks have 256 values.
        logs = gaussians.means.sign() * gaussians.means.abs().log1p()
        step = float((logs.max(dim=0).values - logs.min(dim=0).values).max()) / 65_535
        colors = gaussians.sh0 * SH_C0
        coefficients = gaussians.shN if gaussians.shN.numel() else torch.zeros(1)
        return Precision(
            means=0.51 * step * (1.0 + farthest) + rounding,
            rotation=0.018,
            scale=float(gaussians.scales.max() - gaussians.scales.min()) / 100 + 1e-5,
            opacity=0.51 / 255,
            color=float(colors.max() - colors.min()) / 100 + 1e-5,
            sh=float(coefficients.max() - coefficients.min()) / 100 + 1e-5,
        )
    assert ending in (".ply", ".pt")
    return Precision(means=0.0, rotation=1e-6)


def converted(program: str, source: Path, target: Path, *options: str) -> Path:
    """Let splat-transform turn `source` into `target`; return `target`."""
    command = [program, "-q", "-w", *options, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and target.exists(), done.stderr + done.stdout
    return target
