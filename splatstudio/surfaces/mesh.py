"""A triangle mesh, and what is done to one: pieces dropped, holes closed, triangles saved, samples taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

TAUBIN = (0.5, -0.53)  # of the way to the neighbors: there, and a little more back
SIMPLIFICATIONS = 5  # at most, one after another
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
    # It counts in float32: around the middle, and of size 1.
    middle, size = mesh.vertices.mean(dim=0), mesh.diagonal
    fewer = Mesh((mesh.vertices - middle) / size, mesh.faces)
    for _ in range(SIMPLIFICATIONS):  # one of them stops above the number where edges are hard to collapse
        before = fewer.num_triangles
        fewer = manifold(_collapsed(fewer, num_triangles))
        if fewer.num_triangles <= num_triangles or fewer.num_triangles > 0.99 * before:
            break
    return Mesh(fewer.vertices * size + middle, fewer.faces)


def _collapsed(mesh: Mesh, num_triangles: int) -> Mesh:
    import fast_simplification

    vertices, faces, *_ = fast_simplification.simplify(
        mesh.vertices.float().numpy(), mesh.faces.int().numpy(), target_count=num_triangles
    )
    return Mesh(torch.from_numpy(np.array(vertices, np.float64)), torch.from_numpy(np.array(faces, np.int64)))


def manifold(mesh: Mesh) -> Mesh:
    """Return the mesh with at most two triangles on each edge and one fan of them around each vertex.

    What collapsed edges leave is mended: triangles that name a vertex twice and pairs that lie on each other
    go, and where surfaces touch in an edge or a vertex, each gets that of its own. Without colors.
    """
    faces = _without_folds(mesh.faces)
    while True:
        edges = _half_edges(faces)
        pairs = _pairs(mesh.vertices, edges)
        # A triangle that finds no partner where others meet: what it leaves is a hole like others.
        alone = edges.is_shared.index_fill(0, pairs.reshape(-1), False)
        if not bool(alone.any()):
            break
        faces = faces[torch.ones(len(faces), dtype=torch.bool).index_fill(0, edges.face[alone], False)]
    return _without_double_edges(_with_own_vertices(mesh.vertices, faces, edges, pairs))


@dataclass(frozen=True, eq=False)
class _HalfEdges:
    """The three sides of T triangles, [3 T] each."""

    start: Tensor
    end: Tensor
    across: Tensor  # the triangle's third vertex
    face: Tensor
    corner: tuple[Tensor, Tensor]  # of the triangle at the start and at the end, 0..3 T
    is_shared: Tensor  # whether another triangle has the same two vertices


def _half_edges(faces: Tensor) -> _HalfEdges:
    corners = torch.arange(3 * len(faces)).view(-1, 3)
    start, end = faces.reshape(-1), faces.roll(-1, dims=1).reshape(-1)
    keys = torch.minimum(start, end) << 32 | torch.maximum(start, end)
    _, which, times = torch.unique(keys, return_inverse=True, return_counts=True)
    return _HalfEdges(
        start,
        end,
        faces.roll(-2, dims=1).reshape(-1),
        corners.reshape(-1) // 3,
        (corners.reshape(-1), corners.roll(-1, dims=1).reshape(-1)),
        times[which] > 1,
    )


def _with_own_vertices(vertices: Tensor, faces: Tensor, edges: _HalfEdges, pairs: Tensor) -> Mesh:
    """Return the mesh whose triangles share a vertex where pairs of half edges lead from one to the other."""
    from scipy.sparse import coo_matrix  # takes a while to load
    from scipy.sparse.csgraph import connected_components

    starts, ends = edges.corner
    one = torch.cat([starts[pairs[0]], ends[pairs[0]]]).numpy()
    other = torch.cat([ends[pairs[1]], starts[pairs[1]]]).numpy()
    joined = coo_matrix((np.ones(len(one), bool), (one, other)), shape=(3 * len(faces),) * 2)
    num_fans, fan = connected_components(joined, directed=False)
    fans = torch.from_numpy(fan.astype(np.int64))
    source = torch.zeros(num_fans, dtype=torch.int64)
    source[fans] = faces.reshape(-1)
    return Mesh(vertices[source], fans.view(-1, 3))


def _without_double_edges(mesh: Mesh) -> Mesh:
    """Return the mesh with a vertex in the middle of each edge that joins two vertices a second time."""
    vertices, faces = mesh.vertices, mesh.faces
    while True:
        edges = _half_edges(faces)
        pairs = _pairs(vertices, edges)
        keys = torch.minimum(edges.start, edges.end) << 32 | torch.maximum(edges.start, edges.end)
        order = torch.argsort(keys[pairs[0]], stable=True)
        sorted_keys = keys[pairs[0]][order]
        again = order[1:][sorted_keys[1:] == sorted_keys[:-1]]
        if not len(again):
            return Mesh(vertices, faces)
        kept, split, added, middles = torch.ones(len(faces), dtype=torch.bool), set(), [], []
        for half_edges in pairs[:, again].T.tolist():
            touched = {int(edges.face[half_edge]) for half_edge in half_edges}
            if touched & split:  # its turn comes
                continue
            split |= touched
            middle = len(vertices) + len(middles)
            for half_edge in half_edges:
                start, end, tip = (int(of[half_edge]) for of in (edges.start, edges.end, edges.across))
                added += [[start, middle, tip], [middle, end, tip]]
            middles.append(0.5 * (vertices[edges.start[half_edges[0]]] + vertices[edges.end[half_edges[0]]]))
        kept[list(split)] = False
        vertices = torch.cat([vertices, torch.stack(middles)])
        faces = torch.cat([faces[kept], torch.tensor(added)])


def _without_folds(faces: Tensor) -> Tensor:
    """Return the triangles [T, 3] without those of no area, and without pairs of the same three vertices."""
    a, b, c = faces.unbind(-1)
    faces = faces[(a != b) & (b != c) & (c != a)]
    # Turned so that the least vertex is the first: the other two say from which side the triangle is seen.
    turned = torch.stack([faces.roll(-shift, dims=1) for shift in range(3)])
    faces = turned[faces.argmin(dim=1), torch.arange(len(faces))]
    a, b, c = faces.unbind(-1)
    _, pair = torch.unique(a << 32 | torch.minimum(b, c), return_inverse=True)
    vertices = pair << 32 | torch.maximum(b, c)
    _, first = np.unique((vertices << 1 | (b < c)).numpy(), return_index=True)
    faces, vertices = faces[first], vertices[first]
    _, which, times = torch.unique(vertices, return_inverse=True, return_counts=True)
    return faces[times[which] == 1]


def _pairs(vertices: Tensor, edges: _HalfEdges) -> Tensor:
    """Return which half edges belong together, [2, P].

    Where more than two triangles meet in an edge, those do that bound one piece of the inside.
    """
    forward = edges.start < edges.end
    keys = torch.minimum(edges.start, edges.end) << 32 | torch.maximum(edges.start, edges.end)
    order = torch.argsort(keys, stable=True)
    _, times = torch.unique_consecutive(keys[order], return_counts=True)
    first = times.cumsum(0) - times
    one, other = order[first[times == 2]], order[first[times == 2] + 1]
    opposite = forward[one] != forward[other]
    more: list[tuple[int, int]] = []
    for begin, count in zip(first[times > 2].tolist(), times[times > 2].tolist(), strict=True):
        here = order[begin : begin + count]
        low, high = sorted((int(edges.start[here[0]]), int(edges.end[here[0]])))
        angles = _angles_around(vertices[low], vertices[high], vertices[edges.across[here]])
        # The inside lies at smaller angles of a triangle that runs forward, at larger ones of the other.
        around = here[torch.argsort(angles)].tolist()
        more += [
            (edge, before)
            for before, edge in zip([around[-1], *around], around, strict=False)
            if forward[edge] and not forward[before]
        ]
    found = torch.stack([one[opposite], other[opposite]])
    return torch.cat([found, torch.tensor(more, dtype=torch.int64).view(-1, 2).T], dim=1)


def _angles_around(low: Tensor, high: Tensor, points: Tensor) -> Tensor:
    """Return the angles of `points` [N, 3] around the axis from `low` to `high`, [N], radians."""
    axis = torch.nn.functional.normalize(high - low, dim=0, eps=1e-300)
    side = torch.linalg.cross(axis, torch.eye(3, dtype=axis.dtype)[int(axis.abs().argmin())])
    up = torch.linalg.cross(axis, side)
    return torch.atan2((points - low) @ up, (points - low) @ side)


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
