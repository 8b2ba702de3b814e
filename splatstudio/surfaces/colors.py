"""The colors of a surface: what the photos that see it show there, and how well they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from splatstudio.surfaces.depth_views import SurfaceView
from splatstudio.surfaces.mesh import Mesh, vertex_normals

MIN_COSINE = 0.2  # between the surface's normal and the way to the camera: flatter views say little
SEEN_BY_ENOUGH = 3  # photos
# Of a vertex that so many photos saw: none and one, two, more.
RELIABILITY = ((0.84, 0.19, 0.15), (0.84, 0.19, 0.15), (0.99, 0.76, 0.25), (0.30, 0.69, 0.31))


@dataclass(frozen=True, eq=False)
class ColoredMesh:
    """A mesh with its colors, and by how much those of the photos differ from them, of 255 (root mean
    square over all vertices that two photos or more see; None: there are none).
    """

    mesh: Mesh
    residual: float | None


@torch.no_grad()
def colored_by(
    mesh: Mesh,
    views: Iterable[SurfaceView],
    tolerance: float,
    on_view: Callable[[int], object] = lambda number: None,
) -> ColoredMesh:
    """Return the mesh with the mean of the colors that views see, by how near and how straight they look.

    A view sees a vertex where its depth there is nearer than `tolerance` (scene units). A vertex that none
    sees gets the color of the nearest one that is seen, and `num_seen` 0.
    """
    num = len(mesh.vertices)
    normals = vertex_normals(mesh)
    weight, colors, squares = torch.zeros(num), torch.zeros(num, 3), torch.zeros(num, 3)
    seen = torch.zeros(num, dtype=torch.int64)
    for number, view in enumerate(views):
        rows, told, rgb = seen_in(mesh.vertices, normals, view, tolerance)
        weight[rows] += told
        colors[rows] += told[:, None] * rgb
        squares[rows] += told[:, None] * rgb * rgb
        seen[rows] += 1
        on_view(number + 1)
    total = weight.clamp(min=1e-20)[:, None]
    mean = colors / total
    spread = (squares / total - mean * mean).clamp(min=0.0).mean(dim=1)[seen >= 2]
    residual = float(spread.double().mean().sqrt()) * 255.0 if len(spread) else None
    return ColoredMesh(replace(mesh, colors=_filled(mesh.vertices, mean, seen > 0), num_seen=seen), residual)


def seen_in(
    vertices: Tensor, normals: Tensor, view: SurfaceView, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which of `vertices` [V, 3] a view sees, [n], how much each counts, [n], and its color, [n, 3].

    A view sees what it looks at from before, by `normals` [V, 3], and whose distance is that of its depth to
    within `tolerance`. What counts is how many pixels a unit of the surface has there.
    """
    camera, depth = view.depth_view.camera, view.depth_view.depth
    viewmat, K = torch.from_numpy(camera.viewmat), camera.K
    toward = torch.from_numpy(camera.position) - vertices
    distance = toward.norm(dim=1).clamp(min=1e-300)
    cosine = (normals * toward).sum(dim=1) / distance
    x, y, z = (vertices @ viewmat[:3, :3].T + viewmat[:3, 3]).unbind(-1)
    ahead = (z > 0) & (cosine > MIN_COSINE)
    z = torch.where(ahead, z, 1.0)
    u, v = x / z * K[0, 0] + K[0, 2], y / z * K[1, 1] + K[1, 2]
    inside = ahead & (u >= 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
    pixel = torch.where(inside, v.long() * camera.width + u.long(), 0)
    there = depth.flatten()[pixel]
    rows = torch.nonzero(inside & (there > 0) & ((there - z).abs() < tolerance)).flatten()
    places = torch.stack([u[rows] / camera.width, v[rows] / camera.height], dim=-1).float() * 2.0 - 1.0
    planes = view.rgb.permute(2, 0, 1)[None].float() / 255.0
    rgb = functional.grid_sample(planes, places[None, None], padding_mode="border", align_corners=False)
    pixels = cosine[rows] * (K[0, 0] / z[rows]) ** 2  # on a unit of the surface
    return rows, pixels.float(), rgb[0, :, 0].T


def _filled(vertices: Tensor, colors: Tensor, known: Tensor) -> Tensor:
    """Return the colors [V, 3] with those of the nearest `known` vertex where one is not known."""
    if bool(known.all()):
        return colors
    if not bool(known.any()):
        return torch.full_like(colors, 0.5)
    from scipy.spatial import KDTree  # takes a third of a second to load

    _, nearest = KDTree(vertices[known].numpy()).query(vertices[~known].numpy())
    filled = colors.clone()
    filled[~known] = colors[known][torch.from_numpy(np.asarray(nearest))]
    return filled


def reliability_colors(mesh: Mesh) -> Mesh:
    """Return the mesh with colors that tell how many photos saw each vertex: RELIABILITY."""
    assert mesh.num_seen is not None, "the views have been looked at"
    table = torch.tensor(RELIABILITY)
    return replace(mesh, colors=table[mesh.num_seen.clamp(max=SEEN_BY_ENOUGH)])
