"""The texture of a surface: its triangles laid out flat, and what the photos show of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from splatstudio.surfaces.colors import seen_in
from splatstudio.surfaces.depth_views import SurfaceView
from splatstudio.surfaces.mesh import Mesh, Texture, Unwrapped, face_areas, vertex_normals

NO_UNWRAPPING = (
    "a texture needs xatlas, which is not installed: pip install 'splatstudio[mesh]', or omit --texture"
)
PADDING = 2  # texels between two charts
CANDIDATES_AT_ONCE = 4_000_000  # texels that may lie in a triangle
TEXELS_AT_ONCE = 500_000
# Of how straight and from how near a photo looks. The sharpest count most, so that a small error of a
# pose does not blur the picture.
SHARPNESS = 3.0


@dataclass(frozen=True, eq=False)
class Texels:
    """The P texels of a texture that lie in triangles: their numbers, row by row and ascending, [P] int64,
    the triangle of each [P], and its place between the triangle's corners, [P, 3] float64.
    """

    number: Tensor
    face: Tensor
    weights: Tensor

    def at(self, part: Tensor, values: Tensor, faces: Tensor) -> Tensor:
        """Return what lies between the `values` [V, C] of vertices at the texels `part` [n], [n, C]."""
        corners = values[faces[self.face[part]]]
        return (corners * self.weights[part][..., None].to(values.dtype)).sum(dim=1)


def can_unwrap() -> bool:
    """Return whether the package that lays triangles out flat is installed."""
    return find_spec("xatlas") is not None


def unwrapped(mesh: Mesh, size: int) -> Unwrapped:
    """Lay a mesh out flat in a texture of `size` x `size` texels.

    Raises ValueError where the package for it is missing.
    """
    if not can_unwrap():
        raise ValueError(NO_UNWRAPPING)
    import xatlas  # an extra

    atlas = xatlas.Atlas()
    low = mesh.vertices.amin(dim=0)  # float32 has few digits for what lies far away
    points = (mesh.vertices - low) / max(mesh.diagonal, 1e-300)
    atlas.add_mesh(points.float().numpy(), mesh.faces.numpy().astype(np.uint32))
    charts, packing = xatlas.ChartOptions(), xatlas.PackOptions()
    charts.max_iterations = 1  # more take longer and save few charts
    packing.resolution, packing.padding, packing.bilinear = size, PADDING, True
    atlas.generate(charts, packing, False)
    source, faces, uv = atlas[0]
    # Charts need a little more than `size` at times, and no square.
    texels = uv.astype(np.float64) * (atlas.width, atlas.height)
    return Unwrapped(
        torch.from_numpy(source.astype(np.int64)),
        torch.from_numpy(faces.astype(np.int64)),
        torch.from_numpy(texels / max(atlas.width, atlas.height)),
    )


def texels_of(flat: Unwrapped, size: int) -> Texels:
    """Return the texels of a texture of `size` x `size` whose centers lie in triangles."""
    parts = [_texels_in(*part, size) for part in _chunks(flat, size)]
    if not parts:
        nothing = torch.zeros(0, dtype=torch.int64)
        return Texels(nothing, nothing, torch.zeros(0, 3, dtype=torch.float64))
    number, face, weights = (torch.cat(column) for column in zip(*parts, strict=True))
    # On an edge that two triangles share either will do.
    order = torch.argsort(number, stable=True)
    number = number[order]
    first = torch.ones_like(number, dtype=torch.bool)
    first[1:] = number[1:] != number[:-1]
    return Texels(number[first], face[order][first], weights[order][first])


def _chunks(flat: Unwrapped, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield some triangles, [n], with their corners in texels [n, 3, 2], and the texels around each:
    the first one and how many each way, [n, 2].
    """
    corners = flat.uv[flat.faces] * size - 0.5  # the center of a texel is at a whole number
    low = corners.amin(dim=1).ceil().long().clamp(0, size - 1)
    high = corners.amax(dim=1).floor().long().clamp(0, size - 1)
    sides = (high - low + 1).clamp(min=0)
    until = torch.cumsum(sides.prod(dim=1), dim=0)
    start = done = 0
    while start < len(corners):
        end = int(torch.searchsorted(until, done + CANDIDATES_AT_ONCE, right=True))
        end = max(end, start + 1)
        yield torch.arange(start, end), corners[start:end], low[start:end], sides[start:end]
        start, done = end, int(until[end - 1])


def _texels_in(
    rows: Tensor, corners: Tensor, low: Tensor, sides: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    counts = sides.prod(dim=1)
    which = torch.repeat_interleave(torch.arange(len(rows)), counts)
    within = torch.arange(len(which)) - (torch.cumsum(counts, 0) - counts)[which]
    x = low[which, 0] + within % sides[which, 0]
    y = low[which, 1] + torch.div(within, sides[which, 0], rounding_mode="floor")
    a, b, c = corners.unbind(1)
    area = _cross(b - a, c - a)
    flat = area.abs() < 1e-12
    area = torch.where(flat, 1.0, area)[which]
    beside = torch.stack([x, y], dim=1) - a[which]
    second = _cross(beside, (c - a)[which]) / area
    third = _cross((b - a)[which], beside) / area
    weights = torch.stack([1.0 - second - third, second, third], dim=1)
    inside = (weights >= -1e-9).all(dim=1) & ~flat[which]
    return (y * size + x)[inside], rows[which[inside]], weights[inside]


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


@torch.no_grad()
def textured(
    mesh: Mesh,
    views_for: Callable[[float], Iterable[SurfaceView]],
    size: int,
    tolerance: float,
    on_view: Callable[[int], object] = lambda number: None,
) -> Mesh:
    """Return the mesh with a texture of `size` x `size` texels, blended from the views that see it.

    `views_for` gives the views for texels whose side it is told, in scene units. `tolerance` (scene units) is
    that of `colored_by`, which has colored the mesh: what no view sees has the colors of its vertices. Raises
    ValueError where the package that lays it out is missing.
    """
    assert mesh.colors is not None, "what no view sees has the colors of its vertices"
    flat = unwrapped(mesh, size)
    texels = texels_of(flat, size)
    normals = vertex_normals(mesh)
    texel_area = float(face_areas(mesh).sum()) / max(1, len(texels.number))
    total = torch.zeros(len(texels.number), 1)
    blended = torch.zeros(len(texels.number), 3)
    for number, view in enumerate(views_for(texel_area**0.5)):
        near, _, _ = seen_in(mesh.vertices, normals, view, tolerance)
        seen = torch.zeros(len(mesh.vertices), dtype=torch.bool)
        seen[near] = True
        candidates = torch.nonzero(seen[mesh.faces].any(dim=1)[texels.face]).flatten()
        for part in candidates.split(TEXELS_AT_ONCE):
            points = texels.at(part, mesh.vertices, mesh.faces)
            straight = normalize(texels.at(part, normals, mesh.faces), dim=1)
            rows, told, rgb = seen_in(points, straight, view, tolerance)
            weight = (told * texel_area).pow(SHARPNESS)[:, None]
            total[part[rows]] += weight
            blended[part[rows]] += weight * rgb
        on_view(number + 1)
    unseen = torch.nonzero(total[:, 0] <= 0).flatten()
    blended /= total.clamp(min=1e-30)
    blended[unseen] = texels.at(unseen, mesh.colors, mesh.faces)
    colors = blended.clamp(0.0, 1.0).mul(255.0).round().byte().numpy()
    return replace(mesh, texture=Texture(flat, _picture(texels.number.numpy(), colors, size)))


def _picture(number: np.ndarray, colors: np.ndarray, size: int) -> np.ndarray:
    """Return texels as a picture, [size, size, 3]; what lies in no triangle has the color of the nearest one.

    Programs that draw it smaller or between texels mix in what lies beside a chart.
    """
    from scipy.ndimage import distance_transform_edt  # takes a while to load

    picture = np.zeros((size * size, 3), np.uint8)
    outside = np.ones(size * size, bool)
    picture[number], outside[number] = colors, False
    if not len(number):
        return picture.reshape(size, size, 3)
    nearest = np.empty((2, size, size), np.int32)
    distance_transform_edt(
        outside.reshape(size, size), return_distances=False, return_indices=True, indices=nearest
    )
    return picture.reshape(size, size, 3)[nearest[0], nearest[1]]
