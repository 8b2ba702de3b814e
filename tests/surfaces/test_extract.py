"""Marching cubes over blocks: closed where all is known, outside outward, holes where nothing is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from traced_shapes import SOLIDS, f_score, field_of, views_of

from splatstudio.surfaces.extract import extract_surface, triangle_table
from splatstudio.surfaces.mesh import Mesh, boundary_loops, face_normals
from splatstudio.surfaces.tsdf import BLOCK, NUM_VOXELS, Grid, Tsdf, keys_of, places_of


def random_field(seed: int) -> Tsdf:
    """Return a block of blocks of noise, in which every case of a cube comes up."""
    generator = torch.Generator().manual_seed(seed)
    keys = keys_of(torch.cartesian_prod(*[torch.arange(1, 4)] * 3)).sort().values
    values = torch.rand(len(keys), NUM_VOXELS, generator=generator) * 1.1 - 0.5
    return Tsdf(Grid(np.zeros(3), 1.0), keys, values, torch.ones_like(values))


def exact_field(distance: torch.Tensor, keys: torch.Tensor, grid: Grid) -> Tsdf:
    values = (distance / grid.truncation).clamp(-1, 1).float()
    return Tsdf(grid, keys, values, torch.ones_like(values))


def points_of(keys: torch.Tensor, grid: Grid) -> torch.Tensor:
    local = torch.cartesian_prod(*[torch.arange(BLOCK)] * 3)
    return (places_of(keys)[:, None] * BLOCK + local) * grid.voxel_size + torch.from_numpy(grid.origin)


def edges_of(mesh: Mesh) -> torch.Tensor:
    return torch.cat([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]])


@pytest.mark.parametrize("seed", range(3))
def test_no_edge_has_two_triangles_on_one_side_whatever_the_field(seed: int) -> None:
    mesh = extract_surface(random_field(seed))
    edges = edges_of(mesh)
    assert mesh.num_triangles > 20_000
    assert len(torch.unique(edges, dim=0)) == len(edges)
    # A boundary lies on the outer sides of the noise alone: blocks meet without cracks.
    at = mesh.vertices[torch.tensor([vertex for loop in boundary_loops(mesh) for vertex in loop])]
    low, high = at.min(), at.max()
    assert ((at - low).abs().amin(dim=1).minimum((at - high).abs().amin(dim=1)) < 1e-9).all()


def test_all_cases_have_triangles_but_the_two_without_a_cut() -> None:
    counts, _ = triangle_table()
    assert (counts[1:255] > 0).all() and counts[0] == counts[255] == 0


def test_a_plane_through_blocks_is_flat_and_faces_outward() -> None:
    grid = Grid(np.array([-1.0, -1.0, -1.0]), 0.1)
    keys = keys_of(torch.cartesian_prod(*[torch.arange(0, 3)] * 3)).sort().values
    normal = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64) / 3
    mesh = extract_surface(exact_field(points_of(keys, grid) @ normal - 0.3, keys, grid))
    assert (mesh.vertices @ normal - 0.3).abs().max() < 1e-4  # vertices keep off the points of the grid
    assert (face_normals(mesh) @ normal).median() > 0.999


@pytest.mark.parametrize("name", SOLIDS)
def test_a_solid_that_is_seen_from_all_sides_comes_back_closed(name: str) -> None:
    solid = SOLIDS[name]
    mesh = extract_surface(field_of(views_of(solid), 0.025))
    score, chamfer = f_score(mesh, solid)
    assert score > 0.95 and chamfer < 0.004, (score, chamfer)
    middles = mesh.vertices[mesh.faces].mean(dim=1)
    assert ((face_normals(mesh) * solid.normals(middles)).sum(dim=1) > 0).double().mean() > 0.98


@pytest.mark.parametrize("scale", [100.0, 0.01])
def test_sizes_do_not_matter(scale: float) -> None:
    solid = SOLIDS["sphere"]
    views = views_of(solid, num=4, pixels=64, scale=scale)
    mesh = extract_surface(field_of(views, 0.05 * scale, 1.6 * scale))
    same = extract_surface(field_of(views_of(solid, num=4, pixels=64), 0.05, 1.6))
    assert abs(mesh.num_triangles / same.num_triangles - 1) < 0.02
    assert (mesh.vertices.norm(dim=1) / scale - 1).abs().mean() < 0.01


def test_what_nobody_saw_stays_a_hole() -> None:
    solid = SOLIDS["sphere"]
    above = [view for view in views_of(solid) if view.camera.position[2] > 1.0]
    mesh = extract_surface(field_of(above))
    assert mesh.vertices[:, 2].max() > 0.95
    assert mesh.vertices[:, 2].min() > -0.6, "the cameras above do not see the bottom"
    assert boundary_loops(mesh)


def test_one_view_gives_its_side_alone() -> None:
    (view, *_) = views_of(SOLIDS["sphere"])
    mesh = extract_surface(field_of([view]))
    toward = torch.from_numpy(view.camera.position / np.linalg.norm(view.camera.position))
    assert mesh.num_triangles > 500
    assert (mesh.vertices @ toward).min() > 0.0
    assert (mesh.vertices.norm(dim=1) - 1).abs().median() < 0.01
