"""The surface of a truncated signed distance field as triangles: marching cubes over blocks.

Source: Lorensen and Cline 1987, "Marching Cubes". The table of the 256 cases is made here: on each face of a
cube the cut edges are joined around the corners that lie behind the surface, and the loops that this gives
are cut into triangles. A face's two cubes agree on it, so that the surface has no cracks.

Of several ranks each has its own blocks of the field, and all of the depth images go to each. The blocks are
in the order of their keys, x first: those of a rank lie together, and for its surface it needs few of others,
namely those that follow at its border. The mesh is that of one rank, bit for bit.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from splatstudio.distributed.ranks import Ranks
from splatstudio.operating_system import free_memory
from splatstudio.surfaces.mesh import Mesh
from splatstudio.surfaces.tsdf import BLOCK, CHUNK, NUM_VOXELS, Tsdf, keys_of, places_of

SIDE = BLOCK + 1  # of a block with the first voxels of the next ones
MOST_TRIANGLES = 5  # of a cube
END_MARGIN = 1e-3  # of an edge: a vertex keeps off its ends, where it would meet another one
# A surface changes the distance by 1 in a truncation distance. Where it jumps by more from one voxel to the
# next, a view has seen past an edge: what lies between is not known.
MOST_JUMP = 1.2

CORNERS = tuple((corner & 1, corner >> 1 & 1, corner >> 2 & 1) for corner in range(8))
# An edge of a cube: the corner where it begins, and its axis.
EDGES = tuple((corner, axis) for axis in range(3) for corner in range(8) if not corner >> axis & 1)


def _face(axis: int, side: int) -> list[int]:
    """Return the corners of a face counterclockwise as seen from outside."""
    second, third = (axis + 1) % 3, (axis + 2) % 3
    steps = [(0, 0), (1, 0), (1, 1), (0, 1)]
    corners = [side << axis | a << second | b << third for a, b in steps]
    return corners if side else corners[::-1]


def _edge_between(one: int, other: int) -> int:
    return EDGES.index((min(one, other), (one ^ other).bit_length() - 1))


def _loops(behind: int) -> list[list[int]]:
    """Return the loops of edges that bound the surface in a cube; bit c of `behind`: corner c lies there."""
    follows: dict[int, int] = {}
    for axis in range(3):
        for side in (0, 1):
            corners = _face(axis, side)
            inside = [behind >> corner & 1 for corner in corners]
            for end in range(4):
                if inside[end] and not inside[(end + 1) % 4]:
                    start = end
                    while inside[start - 1]:
                        start -= 1
                    leaving = _edge_between(corners[end], corners[(end + 1) % 4])
                    follows[_edge_between(corners[start - 1], corners[start])] = leaving
    loops: list[list[int]] = []
    while follows:
        edge, after = follows.popitem()
        loop = [edge]
        while after != edge:
            loop.append(after)
            after = follows.pop(after)
        loops.append(loop)
    return loops


def _faces_of(edge: int) -> set[tuple[int, int]]:
    """Return the two faces of a cube that an edge lies on."""
    corner, along = EDGES[edge]
    return {(axis, corner >> axis & 1) for axis in range(3) if axis != along}


def _fans(loop: list[int]) -> list[tuple[int, int, int]]:
    """Cut a loop into triangles around one of its edges, so that no cut lies on a face of the cube.

    There it could be an edge of the next cube's triangles, too, which more than two would share.
    """

    def cuts_on_faces(turned: list[int]) -> int:
        return sum(bool(_faces_of(turned[0]) & _faces_of(edge)) for edge in turned[2:-1])

    best = min((loop[i:] + loop[:i] for i in range(len(loop))), key=cuts_on_faces)
    return [(best[0], best[i], best[i + 1]) for i in range(1, len(best) - 1)]


@cache
def triangle_table() -> tuple[Tensor, Tensor]:
    """Return the number of triangles of each case [256] and their edges [256, MOST_TRIANGLES, 3], int64.

    Seen from before the surface the edges of a triangle are counterclockwise.
    """
    edges = torch.zeros(256, MOST_TRIANGLES, 3, dtype=torch.int64)
    counts = torch.zeros(256, dtype=torch.int64)
    for case in range(256):
        fans = [fan for loop in _loops(case) for fan in _fans(loop)]
        counts[case] = len(fans)
        if fans:
            edges[case, : len(fans)] = torch.tensor(fans)
    return counts, edges


def neighbors_of(field: Tsdf) -> Tensor:
    """Return the row of the block at each of the 8 CORNERS steps from each block, [B, 8]; -1: none."""
    places = places_of(field.keys)
    found = torch.full((len(field), 8), -1, dtype=torch.int64)
    for number, corner in enumerate(CORNERS):
        wanted = keys_of(places + torch.tensor(corner))
        row = torch.searchsorted(field.keys, wanted).clamp(max=max(0, len(field) - 1))
        found[:, number] = torch.where(field.keys[row] == wanted, row, -1)
    return found


def _local_index(length: int) -> tuple[Tensor, Tensor]:
    """Return which neighbor holds each point of a block with its borders, and its place there, [length^3]."""
    axis = torch.arange(length)
    x, y, z = torch.cartesian_prod(axis, axis, axis).unbind(-1)
    neighbor = (x // BLOCK) | (y // BLOCK) << 1 | (z // BLOCK) << 2
    return neighbor, (x % BLOCK * BLOCK + y % BLOCK) * BLOCK + z % BLOCK


@dataclass(frozen=True, eq=False)
class SurfacePart:
    """The triangles of some blocks of a field, by the edges of the grid that the surface cuts.

    `edges` [E] int64 are their numbers, sorted, `vertices` [E, 3] float64 where the surface cuts them in the
    coordinates of the views, and `triangles` [T, 3] int64 rows of both.
    """

    edges: Tensor
    vertices: Tensor
    triangles: Tensor


def extract_surface(field: Tsdf, min_views: float = 1.0) -> Mesh:
    """Return the surface of a field in the coordinates of its views, without colors.

    A cube has a surface only where at least `min_views` views told the distance at all its 8 corners: what
    nobody saw stays a hole. Triangles are counterclockwise as seen from outside; two that meet share their
    vertices, also over the borders of blocks.
    """
    part = surface_part(field, torch.arange(len(field)), min_views)
    return Mesh(part.vertices, part.triangles)


def surface_part(field: Tsdf, rows: Tensor, min_views: float) -> SurfacePart:
    """Return the surface in the blocks `rows` [n] int64 of a field, which has the blocks after them, too."""
    neighbors = neighbors_of(field)
    known = field.weight >= min_views
    parts = [_triangles_of(field, known, neighbors, some) for some in rows.split(CHUNK) if len(some)]
    edges = torch.cat(parts) if parts else torch.empty(0, 3, dtype=torch.int64)
    used, triangles = torch.unique(edges, return_inverse=True)
    return SurfacePart(used, _vertices(field, neighbors, used), triangles)


def joined_surface(parts: Sequence[SurfacePart]) -> Mesh:
    """Return the mesh of parts of one field, whose edges are numbered alike: they share their vertices."""
    edges, rows = torch.unique(torch.cat([part.edges for part in parts]), return_inverse=True)
    vertices = torch.empty(len(edges), 3, dtype=torch.float64)
    vertices[rows] = torch.cat([part.vertices for part in parts])
    before = np.cumsum([0, *(len(part.edges) for part in parts[:-1])])
    triangles = [part.triangles + int(first) for part, first in zip(parts, before, strict=True)]
    return Mesh(vertices, rows[torch.cat(triangles)])


def _triangles_of(field: Tsdf, known: Tensor, neighbors: Tensor, rows: Tensor) -> Tensor:
    """Return the triangles in the blocks `rows` as edges of the grid, [T, 3]: point * 3 + axis."""
    counts, table = triangle_table()
    block, place = _local_index(SIDE)
    row = neighbors[rows][:, block]  # [n, 9^3]
    point = row.clamp(min=0) * NUM_VOXELS + place
    distance = field.distance.flatten()[point].view(-1, SIDE, SIDE, SIDE)
    seen = (known.flatten()[point] & (row >= 0)).view(-1, SIDE, SIDE, SIDE)
    point = point.view(-1, SIDE, SIDE, SIDE)
    case = torch.zeros(len(rows), BLOCK, BLOCK, BLOCK, dtype=torch.int64)
    whole = torch.ones_like(case, dtype=torch.bool)
    for number, (x, y, z) in enumerate(CORNERS):
        part = (slice(None), slice(x, x + BLOCK), slice(y, y + BLOCK), slice(z, z + BLOCK))
        case |= (distance[part] < 0).long() << number
        whole &= seen[part]
    whole &= (case > 0) & (case < 255)
    cubes = torch.nonzero(whole)
    steps = torch.tensor(CORNERS)
    n, x, y, z = (cubes[:, None] + torch.cat([torch.zeros(8, 1, dtype=torch.int64), steps], dim=1)).unbind(-1)
    corners, values = point[n, x, y, z], distance[n, x, y, z]  # [c, 8]
    jumps = torch.zeros(len(cubes), dtype=torch.bool)
    for start, axis in EDGES:
        one, other = values[:, start], values[:, start | 1 << axis]
        jumps |= ((one < 0) != (other < 0)) & ((one - other).abs() > MOST_JUMP)
    corners, cases = corners[~jumps], case[whole][~jumps]
    number = counts[cases]
    cube = torch.repeat_interleave(torch.arange(len(cases)), number)
    within = torch.arange(len(cube)) - (number.cumsum(0) - number)[cube]
    chosen = table[cases[cube], within]  # [T, 3]
    starts, axes = torch.tensor(EDGES).unbind(-1)
    return corners[cube[:, None], starts[chosen]] * 3 + axes[chosen]


def _vertices(field: Tsdf, neighbors: Tensor, edges: Tensor) -> Tensor:
    """Return where the surface cuts the edges [E] of the grid, [E, 3] float64."""
    point, axis = edges // 3, edges % 3
    row, place = point // NUM_VOXELS, point % NUM_VOXELS
    local = torch.stack([place // BLOCK**2, place // BLOCK % BLOCK, place % BLOCK], dim=-1)
    step = torch.nn.functional.one_hot(axis, 3)
    end = local + step
    over = (end // BLOCK * torch.tensor([1, 2, 4])).sum(dim=1)
    end = end % BLOCK
    end_point = neighbors[row, over] * NUM_VOXELS + (end[:, 0] * BLOCK + end[:, 1]) * BLOCK + end[:, 2]
    flat = field.distance.flatten()
    one, other = flat[point].double(), flat[end_point].double()
    share = (one / (one - other)).clamp(END_MARGIN, 1.0 - END_MARGIN)
    at = (places_of(field.keys[row]) * BLOCK + local).double() + share[:, None] * step
    return torch.from_numpy(field.grid.origin) + field.grid.voxel_size * at


def memory_of_rank(ranks: Ranks) -> int:
    """Return how many bytes each rank may take: the least that any has, those of a machine sharing it."""
    hosts = ranks.all_gather_bytes(socket.gethostname().encode())
    own = free_memory() // Counter(hosts)[socket.gethostname().encode()]
    return min(int(part) for part in ranks.all_gather(torch.tensor([own])))


def all_keys(own: Tensor, ranks: Ranks) -> Tensor:
    """Return the keys, sorted, that any rank found; `own` are this one's, sorted."""
    found = ranks.all_gather(own)
    return torch.unique(torch.cat(found)) if len(found) > 1 else own


def surface_by_ranks(own: Tsdf, keys: Tensor, min_views: float, ranks: Ranks) -> Mesh:
    """Return the surface, see `extract_surface`, of a field of which every rank has its share.

    `keys` [B] are those of all blocks, sorted, and `own` has this rank's share of them. All ranks call it and
    get the same mesh.
    """
    if ranks.num_ranks == 1:
        return extract_surface(own, min_views)
    field = _with_blocks_after(own, keys, ranks)
    rows = torch.searchsorted(field.keys, own.keys)
    part = surface_part(field, rows, min_views)
    # The same number for an edge on all ranks: by the block's place among those of all.
    row = torch.searchsorted(keys, field.keys)[part.edges // (3 * NUM_VOXELS)]
    edges = row * (3 * NUM_VOXELS) + part.edges % (3 * NUM_VOXELS)
    gathered = (ranks.all_gather(rows) for rows in (edges, part.vertices, part.triangles))
    return joined_surface([SurfacePart(*each) for each in zip(*gathered, strict=True)])


def _with_blocks_after(own: Tsdf, keys: Tensor, ranks: Ranks) -> Tsdf:
    """Return a field that holds also the blocks of other ranks next to this one's, where there are such."""
    steps = torch.tensor(CORNERS[1:])
    near = torch.unique(keys_of(places_of(own.keys)[:, None] + steps).flatten())
    wanted = near[torch.isin(near, keys) & ~torch.isin(near, own.keys)]
    ends = [len(keys) * (rank + 1) // ranks.num_ranks for rank in range(ranks.num_ranks)]
    before = torch.searchsorted(torch.searchsorted(keys, wanted), torch.tensor([0, *ends]))
    asked = before.diff()  # of each rank, whose blocks lie together
    answers = ranks.all_to_all_counts(asked[:, None].contiguous())[:, 0]
    requests = ranks.all_to_all(wanted, asked.tolist(), answers.tolist())
    told = torch.stack([own.distance, own.weight], dim=1)[torch.searchsorted(own.keys, requests)]
    got = ranks.all_to_all(told, answers.tolist(), asked.tolist())
    order = torch.argsort(torch.cat([own.keys, wanted]))
    return Tsdf(
        own.grid,
        torch.cat([own.keys, wanted])[order],
        torch.cat([own.distance, got[:, 0]])[order],
        torch.cat([own.weight, got[:, 1]])[order],
    )
