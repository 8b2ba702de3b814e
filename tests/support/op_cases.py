"""Random inputs of the operators, and how far results are apart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera, CameraModel, look_at

MODELS: tuple[CameraModel, ...] = ("pinhole", "ortho", "fisheye")


PROJECTED = ("means2d", "conics", "depths", "opacities", "colors")


def camera_of(model: CameraModel = "pinhole", width: int = 75, height: int = 50) -> Camera:
    """Return a camera 4 units in front of the origin."""
    focal = {"pinhole": 80.0, "ortho": 18.0, "fisheye": 70.0}[model]
    K = np.array([[focal, 0, width / 2 + 1.3], [0, 1.1 * focal, height / 2 - 0.7], [0, 0, 1]])
    viewmat = look_at(np.array([0.4, -0.3, -4.0]), np.zeros(3), np.array([0.1, -1.0, 0.0]))
    return Camera(viewmat, K, width, height, model)


def gaussians_of(num: int, seed: int = 0, sh_degree: int = 3) -> list[Tensor]:
    """Return means, quats, scales, opacities, sh0 and shN of random Gaussians around the origin."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return [
        normal(num, 3),
        normal(num, 4),
        (0.7 * normal(num, 3) - 2.5).exp(),
        (1.5 * normal(num)).sigmoid(),
        normal(num, 1, 3),
        0.3 * normal(num, (sh_degree + 1) ** 2 - 1, 3),
    ]


def leaves_of(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    difference = (ours - theirs).detach()
    return float(difference.norm() / theirs.detach().norm().clamp_min(1e-12))


def random_like(tensor: Tensor, seed: int) -> Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))


def with_kernels(instructions: str, calls: Sequence[str], path: Path) -> dict[str, list[Tensor]]:
    """Return the tensors that functions of test modules give in a process with a set of instructions."""
    modules = ", ".join(sorted({call.partition(".")[0] for call in calls}))
    made = ", ".join(f"{call!r}: [tensor.detach() for tensor in {call}]" for call in calls)
    script = (
        f"import gc, sys, torch, {modules}; from splatstudio.kernels import ops;"
        f"torch.save({{{made}}}, sys.argv[1]); print(ops.native_version()); gc.freeze()"
    )
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    environment = {**os.environ, "SPLATSTUDIO_CPU": instructions, "PYTHONPATH": folders}
    command = [sys.executable, "-c", script, str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.stdout.strip() == instructions, result.stderr
    return torch.load(path, weights_only=True)
