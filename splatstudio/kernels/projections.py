"""Where points fall in a picture, and how that changes with them, by the camera's model: in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera


def pinhole(points: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Return the pixels [N, 2] of camera-space `points` [N, 3] and the Jacobians [N, 2, 3] there."""
    x, y, z = points.unbind(-1)
    fx, fy, cx, cy = _intrinsics(camera)
    # Far outside the image the linearisation explodes: it is taken at most 15 % outside.
    margin_x, margin_y = 0.15 * camera.width / fx, 0.15 * camera.height / fy
    u = (x / z).clamp(-(cx / fx + margin_x), (camera.width - cx) / fx + margin_x)
    v = (y / z).clamp(-(cy / fy + margin_y), (camera.height - cy) / fy + margin_y)
    zero = torch.zeros_like(z)
    jacobians = _matrices([fx / z, zero, -fx * u / z], [zero, fy / z, -fy * v / z])
    return torch.stack([fx * x / z + cx, fy * y / z + cy], dim=-1), jacobians


def ortho(points: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Project as `pinhole` does, in parallel: distances do not count, and `camera.K` is px for each unit."""
    x, y, z = points.unbind(-1)
    fx, fy, cx, cy = _intrinsics(camera)
    zero, one = torch.zeros_like(z), torch.ones_like(z)
    jacobians = _matrices([fx * one, zero, zero], [zero, fy * one, zero])
    return torch.stack([fx * x + cx, fy * y + cy], dim=-1), jacobians


def fisheye(points: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Project as `pinhole` does, equidistantly: the distance from the centre is the angle from the axis."""
    x, y, z = points.unbind(-1)
    fx, fy, cx, cy = _intrinsics(camera)
    eps = 1e-7
    # sqrt has no gradient at 0, that is for a point on the axis.
    radius = (x * x + y * y).clamp_min(1e-30).sqrt() + eps
    scale = torch.atan2(radius, z + eps) / radius
    x2, y2 = x * x + eps, y * y
    s = x2 + y2
    q = 1 / (s + z * z)
    a = z * q / s
    b = torch.atan2(radius, z) / (radius * s)
    jacobians = _matrices(
        [fx * (x2 * a + y2 * b), fx * x * y * (a - b), -fx * x * q],
        [fy * x * y * (a - b), fy * (y2 * a + x2 * b), -fy * y * q],
    )
    return torch.stack([fx * x * scale + cx, fy * y * scale + cy], dim=-1), jacobians


def _intrinsics(camera: Camera) -> tuple[float, float, float, float]:
    K = camera.K
    return float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])


def _matrices(first_row: list[Tensor], second_row: list[Tensor]) -> Tensor:
    return torch.stack([torch.stack(first_row, dim=-1), torch.stack(second_row, dim=-1)], dim=-2)


PROJECTIONS: Mapping[str, Callable[[Tensor, Camera], tuple[Tensor, Tensor]]] = {
    "pinhole": pinhole,
    "ortho": ortho,
    "fisheye": fisheye,
}
