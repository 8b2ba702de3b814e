"""Depth images fused: the field is the distance to the surface, also where depth is missing, wrong or far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from traced_shapes import SOLIDS, field_of, views_of

from splatstudio.surfaces.extract import extract_surface
from splatstudio.surfaces.tsdf import (
    BLOCK,
    TRUNCATION,
    DepthView,
    Grid,
    blocks_near,
    find_blocks,
    fuse,
    keys_of,
    places_of,
    points_seen,
)

SPHERE = SOLIDS["sphere"]
VIEWS = views_of(SPHERE, num=4, pixels=64)


def test_places_of_blocks_come_back_from_their_keys() -> None:
    places = torch.tensor([[0, 0, 0], [1, 2, 3], [2**21 - 1, 0, 2**21 - 1]])
    assert torch.equal(places_of(keys_of(places)), places)
    assert (
        keys_of(torch.tensor([0, 0, 5])) < keys_of(torch.tensor([0, 1, 0])) < keys_of(torch.tensor([1, 0, 0]))
    )


def test_the_field_is_the_distance_to_the_surface() -> None:
    field = field_of(VIEWS)
    axis = torch.arange(BLOCK)
    local = torch.cartesian_prod(axis, axis, axis)
    points = (places_of(field.keys)[:, None] * BLOCK + local) * field.grid.voxel_size + torch.from_numpy(
        field.grid.origin
    )
    true = SPHERE.distance(points) / field.grid.truncation
    near = (field.weight > 2) & (true.abs() < 0.1)
    assert near.sum() > 1000
    assert (field.distance - true)[near].abs().mean() < 0.15
    before = (field.weight > 2) & (true > 0.3)
    assert (field.distance[before] > 0.2).double().mean() > 0.99
    # Behind the surface by more than the truncation distance nobody has seen anything.
    assert field.weight[true < -1.2].max() == 0


def test_every_point_of_the_surface_has_its_blocks_around_it() -> None:
    grid = Grid(np.full(3, -1.6), 0.05)
    (view, *_) = VIEWS
    keys = blocks_near(view, grid)
    points = (points_seen(view) - torch.from_numpy(grid.origin)) / (grid.voxel_size * BLOCK)
    for shift in (-0.499, 0.0, 0.499):
        for axis in range(3):
            moved = points.clone()
            moved[:, axis] += shift
            assert torch.isin(keys_of(moved.floor().long()), keys).all()
    # And no more: a block without a point within a truncation distance and a half is not there.
    corner = places_of(keys)[:, None].double()
    away = torch.maximum(corner - points[None], points[None] - corner - 1).clamp(min=0).norm(dim=-1)
    assert away.amin(dim=1).max() < 1.5 * TRUNCATION / BLOCK * 3**0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_pixels_without_a_depth_tell_nothing(bad: float) -> None:
    spoiled = [DepthView(view.camera, view.depth.clone()) for view in VIEWS]
    holed = [DepthView(view.camera, view.depth.clone()) for view in VIEWS]
    for view, other in zip(spoiled, holed, strict=True):
        view.depth[20:30] = bad
        other.depth[20:30] = 0.0
    with_bad, without = field_of(spoiled), field_of(holed)
    assert torch.equal(with_bad.keys, without.keys)
    assert torch.equal(with_bad.distance, without.distance) and with_bad.distance.isfinite().all()


def test_nothing_seen_has_no_blocks_and_no_surface() -> None:
    grid = Grid(np.full(3, -1.6), 0.05)
    empty = [replace(view, depth=torch.zeros_like(view.depth)) for view in VIEWS]
    for views in ([], empty):
        field = fuse(grid, find_blocks(grid, views), views)
        assert len(field) == 0
        assert extract_surface(field).num_triangles == 0


def test_what_lies_outside_of_the_grid_is_left_out() -> None:
    inside, whole = Grid(np.array([0.0, -1.6, -1.6]), 0.05), Grid(np.full(3, -1.6), 0.05)
    half = extract_surface(fuse(inside, find_blocks(inside, VIEWS), VIEWS))
    assert half.vertices[:, 0].min() >= 0
    assert extract_surface(fuse(whole, find_blocks(whole, VIEWS), VIEWS)).vertices[:, 0].min() < -0.9


def test_free_space_seen_by_others_takes_away_what_one_view_made_up() -> None:
    (first, *others) = VIEWS
    wrong = DepthView(first.camera, first.depth.clone())
    wrong.depth[30:34, 30:34] = 1.6  # a small patch far before the sphere
    alone, all_views = field_of([wrong]), field_of([wrong, *others])

    def before_the_sphere(min_views: int, field: object) -> int:
        mesh = extract_surface(field, min_views)  # type: ignore[arg-type]
        return int((mesh.vertices.norm(dim=1) > 1.3).sum())

    assert before_the_sphere(1, alone) > 0
    assert before_the_sphere(2, all_views) == 0
