"""A triangle mesh, and what is done to one: pieces dropped, holes closed, triangles saved, samples taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

TAUBIN = (0.5, -0.53)  # of the way to the neighbors: there, and a little more back
NO_SIMPLIFICATION = (
    "fewer triangles need fast-simplification, which is not installed: pip install 'splatstudio[mesh]', or"
    " omit --triangles"
)


@dataclass(frozen=True, eq=False)
class Unwrapped:
    """A mesh laid out flat: each vertex is there once for each chart that it is on.

    `source` [U] int64 is the vertex that each was, `faces` [T, 3] int64 are the triangles in the order of the
    mesh's, and `uv` [U, 2] float64 the places in the texture, 0..1; v grows downward, as in a picture.
    """

    source: Tensor
    faces: Tensor
    uv: Tensor


@dataclass(frozen=True, eq=False)
class Texture:
    """The picture [S, S, 3] uint8 that a mesh has on it, and where each triangle lies in it."""

    flat: Unwrapped
    picture: np.ndarray


@dataclass(frozen=True, eq=False)
class Mesh:
    """V vertices and T triangles, counterclockwise as seen from outside.

    `colors` [V, 3] float32 are 0..1 as on a screen; `num_seen` [V] int64 is how many photos saw each.
    These and the texture are empty until they are known.
    """

    vertices: Tensor  # [V, 3] float64
    faces: Tensor  # [T, 3] int64
    colors: Tensor | None = None
    num_seen: Tensor | None = None
    texture: Texture | None = None
    name: str = "surface"  # of the object, for other programs

    @property
    def num_triangles(self) -> int:
        """Return how many triangles there are."""
        return len(self.faces)

    @property
    def diagonal(self) -> float:
        """Return the length of the diagonal of the box around the mesh; 0 of an empty one."""
        if not len(self.vertices):
            return 0.0
        return float((self.vertices.amax(dim=0) - self.vertices.amin(dim=0)).norm())

    def transformed(self, similarity: np.ndarray) -> Mesh:
        """Return the mesh after every point p became `similarity` [4, 4] @ p."""
        matrix = torch.from_numpy(np.asarray(similarity, np.float64))
        return replace(self, vertices=self.vertices @ matrix[:3, :3].T + matrix[:3, 3])


def face_areas(mesh: Mesh) -> Tensor:
    """Return the area of each triangle, [T]."""
    return 0.5 * _crosses(mesh).norm(dim=1)


def face_normals(mesh: Mesh) -> Tensor:
    """Return the unit normal of each triangle, [T, 3]; 0 of one without an area."""
    return torch.nn.functional.normalize(_crosses(mesh), dim=1, eps=1e-300)


def vertex_normals(mesh: Mesh) -> Tensor:
    """Return the unit normal of each vertex, [V, 3]: the mean of its triangles by their areas."""
    crosses = _crosses(mesh)
    total = torch.zeros_like(mesh.vertices)
    for corner in range(3):
        total.index_add_(0, mesh.faces[:, corner], crosses)
    return torch.nn.functional.normalize(total, dim=1, eps=1e-300)


def _crosses(mesh: Mesh) -> Tensor:
    a, b, c = (mesh.vertices[mesh.faces[:, corner]] for corner in range(3))
    return torch.linalg.cross(b - a, c - a)


def pieces(mesh: Mesh) -> Tensor:
    """Return the number of each triangle's piece, [T]; triangles that share a vertex are in one."""
    from scipy.sparse import coo_matrix  # takes a while to load
    from scipy.sparse.csgraph import connected_components

    a, b, c = mesh.faces.numpy().T
    starts, ends = np.concatenate([a, b]), np.concatenate([b, c])
    num = len(mesh.vertices)
    joined = coo_matrix((np.ones(len(starts), bool), (starts, ends)), shape=(num, num))
    _, label = connected_components(joined, directed=False)
    return torch.from_numpy(label.astype(np.int64))[mesh.faces[:, 0]]


def without_islands(mesh: Mesh, min_share: float) -> Mesh:
    """Return the mesh without the pieces whose area is below `min_share` (0..1) of the largest one's."""
    if mesh.num_triangles == 0 or min_share <= 0:
        return mesh
    piece = pieces(mesh)
    area = torch.zeros(int(piece.max()) + 1, dtype=torch.float64).index_add_(0, piece, face_areas(mesh))
    return kept(mesh, (area >= min_share * area.max())[piece])


def kept(mesh: Mesh, faces: Tensor) -> Mesh:
    """Return the mesh of the triangles where `faces` [T] bool is True, and of their vertices alone."""
    used, renumbered = torch.unique(mesh.faces[faces], return_inverse=True)
    colors = None if mesh.colors is None else mesh.colors[used]
    seen = None if mesh.num_seen is None else mesh.num_seen[used]
    return Mesh(mesh.vertices[used], renumbered.view(-1, 3), colors, seen)


@torch.no_grad()
def smoothed(mesh: Mesh, rounds: int) -> Mesh:
    """Return the mesh with its vertices moved toward their neighbors and back again, `rounds` times.

    What is finer than a few triangles goes, larger shapes keep their size (Taubin 1995, "A Signal Processing
    Approach to Fair Surface Design"). On the edge of a hole the neighbors are those on the edge.
    """
    if rounds <= 0 or mesh.num_triangles == 0:
        return mesh
    starts, ends = _neighbors(mesh)
    num = len(mesh.vertices)
    count = torch.bincount(starts, minlength=num).clamp(min=1)[:, None]
    vertices = mesh.vertices.clone()
    for factor in TAUBIN * rounds:
        mean = torch.zeros_like(vertices).index_add_(0, starts, vertices[ends]) / count
        vertices = vertices + factor * (mean - vertices)
    return replace(mesh, vertices=vertices)


def _neighbors(mesh: Mesh) -> tuple[Tensor, Tensor]:
    """Return each edge both ways, its start and its end; of a vertex on a hole those on the hole alone."""
    edges = torch.cat([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]])
    num = len(mesh.vertices)
    keys = torch.minimum(*edges.T) * num + torch.maximum(*edges.T)
    keys, times = torch.unique(keys, return_counts=True)
    one, other, open_edge = keys // num, keys % num, times == 1
    starts, ends = torch.cat([one, other]), torch.cat([other, one])
    on_hole = torch.zeros(num, dtype=torch.bool)
    on_hole[one[open_edge]] = on_hole[other[open_edge]] = True
    kept = ~on_hole[starts] | torch.cat([open_edge, open_edge])
    return starts[kept], ends[kept]


def boundary_loops(mesh: Mesh) -> list[list[int]]:
    """Return the vertices around each hole, in the order of its triangles' edges."""
    edges = torch.cat([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]])
    num = len(mesh.vertices)
    keys, there = edges[:, 0] * num + edges[:, 1], edges[:, 1] * num + edges[:, 0]
    follows: dict[int, list[int]] = {}
    for start, end in edges[~torch.isin(keys, there)].tolist():
        follows.setdefault(start, []).append(end)
    loops: list[list[int]] = []
    while follows:
        path, place = [], {}
        at: int | None = next(iter(follows))
        while at is not None:
            if at in place:  # a vertex that is passed twice ends a loop of its own
                loops.append(path[place[at] :])
                for vertex in loops[-1]:
                    del place[vertex]
                del path[-len(loops[-1]) :]
            place[at] = len(path)
            path.append(at)
            ends = follows.get(at)
            at = ends.pop() if ends else None
        for vertex in path:
            if not follows.get(vertex):
                follows.pop(vertex, None)
    return loops


def watertight(mesh: Mesh) -> Mesh:
    """Return the mesh with its holes closed, each by triangles around the middle of its edge.

    Nobody has seen what closes a hole: `num_seen` of a new vertex is 0, its color the mean of the edge's.
    """
    loops = [loop for loop in boundary_loops(mesh) if len(loop) > 2]
    if not loops:
        return mesh
    num, added, middles = len(mesh.vertices), [], []
    for loop in loops:
        around = torch.tensor(loop)
        center = torch.full_like(around, num + len(middles))
        added.append(torch.stack([around.roll(-1), around, center], dim=1))
        middles.append(around)
    vertices = torch.stack([mesh.vertices[around].mean(dim=0) for around in middles])
    colors, seen = mesh.colors, mesh.num_seen
    if colors is not None:
        colors = torch.cat([colors, torch.stack([colors[around].mean(dim=0) for around in middles])])
    if seen is not None:
        seen = torch.cat([seen, torch.zeros(len(middles), dtype=seen.dtype)])
    return Mesh(torch.cat([mesh.vertices, vertices]), torch.cat([mesh.faces, *added]), colors, seen)


def can_simplify() -> bool:
    """Return whether fast-simplification is installed."""
    return find_spec("fast_simplification") is not None


def simplified(mesh: Mesh, num_triangles: int) -> Mesh:
    """Return the mesh with about `num_triangles` triangles at most, without colors.

    By quadric edge collapse (Garland and Heckbert 1997), as fast-simplification does it. Raises ValueError
    where that is not installed.
    """
    if mesh.num_triangles <= num_triangles:
        return mesh
    if not can_simplify():
        raise ValueError(NO_SIMPLIFICATION)
    import fast_simplification

    # It counts in float32: around the middle, and of size 1.
    middle, size = mesh.vertices.mean(dim=0), mesh.diagonal
    points = ((mesh.vertices - middle) / size).float().numpy()
    vertices, faces, *_ = fast_simplification.simplify(
        points, mesh.faces.int().numpy(), target_count=num_triangles
    )
    fewer = Mesh(
        torch.from_numpy(np.array(vertices, np.float64)) * size + middle,
        torch.from_numpy(np.array(faces, np.int64)),
    )
    a, b, c = fewer.faces.unbind(-1)
    return kept(fewer, (a != b) & (b != c) & (c != a))


def sampled(mesh: Mesh, num: int) -> tuple[Tensor, Tensor]:
    """Return `num` points spread evenly over the surface, [num, 3], and their triangles [num].

    The same mesh has the same points, one without an area has none.
    """
    areas = face_areas(mesh)
    if not float(areas.sum()) > 0:
        return mesh.vertices.new_zeros(0, 3), mesh.faces.new_zeros(0)
    generator = torch.Generator().manual_seed(0)
    ends = areas.cumsum(0)
    at = torch.rand(num, generator=generator, dtype=torch.float64) * ends[-1]
    face = torch.searchsorted(ends, at).clamp(max=len(areas) - 1)
    u, v = torch.rand(2, num, generator=generator, dtype=torch.float64)
    over = u + v > 1
    u, v = torch.where(over, 1 - u, u), torch.where(over, 1 - v, v)
    a, b, c = (mesh.vertices[mesh.faces[face, corner]] for corner in range(3))
    return a + u[:, None] * (b - a) + v[:, None] * (c - a), face
