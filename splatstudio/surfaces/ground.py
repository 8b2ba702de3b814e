"""The ground below a model: the plane on which things stand, as a rectangle that catches their shadows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splatstudio.surfaces.mesh import Mesh, face_areas, face_normals

SHADOW_CATCHER = "shadow_catcher"  # the name of the object, by which other programs' users find it
# Degrees by which the ground, and a triangle of it, may lean: up is only known from how cameras were held.
STEEPEST = 30.0
NEAR = 0.01  # of the diagonal: a triangle so near to a plane lies in it
PLANES = 300  # that are tried
LEAST_SHARE = 0.1  # of what is level must lie in the ground
# A table may be larger than the floor around it: the lowest plane counts that has this share of the largest's
# area.
LOWER_SHARE = 0.5
REFINEMENTS = 3
NO_GROUND = (
    "no ground was found: nothing level is large enough; where the scene does not stand upright, name it with"
    " --scene FOLDER"
)
OUTERMOST, MARGIN = 0.01, 0.05  # share of the vertices beyond the rectangle; of its sides, around it


@dataclass(frozen=True, eq=False)
class Ground:
    """A plane: the points p with normal . p = height; the normal [3] float64 points up.

    `share` is how much of the level surface lies in it, `tilt` its angle to the scene's up, degrees.
    """

    normal: Tensor
    height: float
    share: float
    tilt: float


def find_ground(mesh: Mesh, up: np.ndarray) -> Ground:
    """Return the ground of a mesh by random sampling (Fischler and Bolles 1981, RANSAC), each time the same.

    `up` [3] is where the scene's up is. Raises ValueError where nothing level is large enough.
    """
    above = torch.from_numpy(np.asarray(up, np.float64) / np.linalg.norm(up))
    normals = face_normals(mesh)
    level = normals @ above > float(np.cos(np.radians(STEEPEST)))
    areas = face_areas(mesh)[level]
    middles = mesh.vertices[mesh.faces[level]].mean(dim=1)
    planes = _sampled_planes(middles, areas, above, NEAR * mesh.diagonal)
    if not planes:
        raise ValueError(NO_GROUND)
    largest = max(area for area, _, _ in planes)
    if largest < LEAST_SHARE * float(areas.sum()):
        raise ValueError(NO_GROUND)
    large = [plane for plane in planes if plane[0] >= LOWER_SHARE * largest]
    center = middles.mean(dim=0)
    # How high each passes the middle of the scene, along the scene's up.
    _, normal, height = min(
        large, key=lambda plane: (plane[2] - float(plane[1] @ center)) / float(plane[1] @ above)
    )
    for _ in range(REFINEMENTS):
        near = (middles @ normal - height).abs() < NEAR * mesh.diagonal
        normal, height = _fitted(middles[near], areas[near], above)
    near = (middles @ normal - height).abs() < NEAR * mesh.diagonal
    tilt = float(torch.rad2deg(torch.acos((normal @ above).clamp(-1.0, 1.0))))
    return Ground(normal, height, float(areas[near].sum() / areas.sum()), tilt)


def _sampled_planes(
    middles: Tensor, areas: Tensor, above: Tensor, tolerance: float
) -> list[tuple[float, Tensor, float]]:
    """Return planes through three triangles each: how much area lies in it, its normal and its height."""
    if len(middles) < 3 or not float(areas.sum()) > 0:
        return []
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(areas.float(), 3 * PLANES, replacement=True, generator=generator).view(-1, 3)
    steepest = float(np.cos(np.radians(STEEPEST)))
    planes = []
    for a, b, c in middles[drawn]:
        normal = torch.linalg.cross(b - a, c - a)
        length = float(normal.norm())
        if not length > 0:
            continue
        normal = normal / length * (1.0 if float(normal @ above) > 0 else -1.0)
        if float(normal @ above) < steepest:
            continue
        height = float(normal @ a)
        inside = (middles @ normal - height).abs() < tolerance
        planes.append((float(areas[inside].sum()), normal, height))
    return planes


def _fitted(points: Tensor, weights: Tensor, above: Tensor) -> tuple[Tensor, float]:
    """Return the normal and the height of the plane with the least squares of distances."""
    share = weights / weights.sum()
    center = share @ points
    away = points - center
    _, axes = torch.linalg.eigh((away * share[:, None]).T @ away)
    normal = axes[:, 0] * (1.0 if float(axes[:, 0] @ above) > 0 else -1.0)
    return normal, float(normal @ center)


def ground_rectangle(mesh: Mesh, ground: Ground) -> Mesh:
    """Return the rectangle of the ground below a mesh, two triangles that are seen from above."""
    normal = ground.normal
    axis = torch.eye(3, dtype=torch.float64)[int(normal.abs().argmin())]
    right = torch.nn.functional.normalize(torch.linalg.cross(axis, normal), dim=0)
    ahead = torch.linalg.cross(normal, right)
    places = mesh.vertices @ torch.stack([right, ahead], dim=1)
    # Not `torch.quantile`, which takes 16 million values at most.
    ends = torch.from_numpy(np.quantile(places.numpy(), [OUTERMOST, 1.0 - OUTERMOST], axis=0))
    low, high = ends - MARGIN * (ends[1] - ends[0]) * torch.tensor([[1.0], [-1.0]])
    corners = [(low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1])]
    vertices = torch.stack([x * right + y * ahead + ground.height * normal for x, y in corners])
    return Mesh(vertices, torch.tensor([[0, 1, 2], [0, 2, 3]]), name=SHADOW_CATCHER)
