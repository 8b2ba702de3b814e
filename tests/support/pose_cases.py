"""Gaussians and their gradients of which a camera's place has a gradient."""

from __future__ import annotations

import torch
from blob_models import ring_of_cameras
from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops_training, reference_training

CAMERA = ring_of_cameras()[2]


Case = tuple[Gaussians, dict[str, Tensor | None], Tensor]  # a model, its gradients, the radii [N, 2]


def case(num: int = 9000, device: str = "cpu", degree: int = 3) -> Case:
    """Return Gaussians of which two fifths are out of sight, and have no numbers there."""
    random = torch.Generator().manual_seed(2)
    shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh0": (1, 3)}
    shapes["shN"] = ((degree + 1) ** 2 - 1, 3)
    seen = torch.rand(num, generator=random) > 0.4
    values: dict[str, Tensor] = {}
    gradients: dict[str, Tensor | None] = {}
    for name, shape in shapes.items():
        value, gradient = (torch.randn(num, *shape, generator=random) for _ in range(2))
        value[~seen] = float("nan")
        gradient[~seen] = 0.0
        values[name], gradients[name] = value.to(device), gradient.to(device)
    radii = torch.randint(1, 9, (num, 2), generator=random, dtype=torch.int32)
    radii[~seen, 1] = 0
    return Gaussians(**values), gradients, radii.to(device)


def twist(stages, one: Case, degree: int = 3) -> Tensor:
    gaussians, gradients, radii = one
    return stages.pose_gradient(gaussians, gradients, camera=CAMERA, sh_degree=degree, radii=radii)


def check(one: Case, degree: int) -> Tensor:
    found, expected = twist(ops_training, one, degree), twist(reference_training, one, degree)
    assert found.dtype == torch.float64 and found.device == one[0].device
    # Of numbers of both signs, of which each has the precision of a float.
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * scale)
    return found
