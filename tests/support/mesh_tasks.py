"""What each rank does of a mesh, in tests of several ranks."""

from __future__ import annotations

from traced_shapes import SOLIDS, views_of

from splatstudio.distributed.ranks import Ranks
from splatstudio.surfaces.extract import all_keys, surface_by_ranks
from splatstudio.surfaces.make_mesh import help_with_mesh, mesh_of_task
from splatstudio.surfaces.mesh import Mesh
from splatstudio.surfaces.mesh_options import MeshTask
from splatstudio.surfaces.tsdf import DepthView, Grid, find_blocks, fuse


def fused_solid(ranks: Ranks, grid: Grid, num_views: int) -> tuple[Mesh, int]:
    """Return the mesh of a torus, which this rank makes its share of, and how many blocks that has."""
    views = torus_views()[:num_views]
    keys = all_keys(find_blocks(grid, views[ranks.rank :: ranks.num_ranks]), ranks)
    own = fuse(grid, keys[ranks.share(len(keys))], views)
    return surface_by_ranks(own, keys, 1.0, ranks), len(own)


def torus_views() -> list[DepthView]:
    """Return depth images of a torus from all around."""
    return views_of(SOLIDS["torus"], 4, 96)


def made_mesh(ranks: Ranks, task: MeshTask) -> int | None:
    """Make a mesh by all ranks; return the number of triangles that rank 0 writes."""
    if ranks.rank == 0:
        return mesh_of_task(task, ranks=ranks).report.triangles
    help_with_mesh(task, ranks)
    return None
