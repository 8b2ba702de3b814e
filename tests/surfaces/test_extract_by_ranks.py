"""Several ranks make the mesh that one makes, each with its own blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mesh_tasks import fused_solid, made_mesh, torus_views
from rank_pool import RankPool

import splatstudio as ss
from splatstudio.surfaces.extract import extract_surface
from splatstudio.surfaces.mesh_options import MeshOptions, MeshTask
from splatstudio.surfaces.tsdf import Grid, find_blocks, fuse

GRID = Grid(np.full(3, -1.6), 0.05)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_the_mesh_of_several_ranks_is_that_of_one(pool: RankPool, num_ranks: int) -> None:
    views = torus_views()
    alone = fuse(GRID, find_blocks(GRID, views), views)
    mesh = extract_surface(alone)
    assert mesh.num_triangles > 1000
    answers = pool.run(num_ranks, fused_solid, GRID, len(views))
    for other, _ in answers:
        assert torch.equal(other.vertices, mesh.vertices) and torch.equal(other.faces, mesh.faces)
    shares = [num for _, num in answers]
    assert sum(shares) == len(alone) and max(shares) - min(shares) <= 1


def test_ranks_without_a_block_or_a_view_help_all_the_same(pool: RankPool) -> None:
    coarse = Grid(np.full(3, -8.0), 0.9)
    views = torus_views()[:2]
    mesh = extract_surface(fuse(coarse, find_blocks(coarse, views), views))
    answers = pool.run(4, fused_solid, coarse, len(views))
    assert min(num for _, num in answers) == 0
    assert all(torch.equal(other.vertices, mesh.vertices) for other, _ in answers)


def test_a_run_becomes_the_same_file_by_two_ranks(blob_folder: Path, tmp_path: Path, pool: RankPool) -> None:
    run = tmp_path / "run"
    ss.train(blob_folder, run_dir=run, steps=60)
    options = MeshOptions(resolution=40, between=True)
    ss.mesh(run, tmp_path / "one.ply", resolution=40, between=True)
    told = pool.run(2, made_mesh, MeshTask(run, tmp_path / "two.ply", options))
    assert told[0] and told[1] is None
    assert (tmp_path / "two.ply").read_bytes() == (tmp_path / "one.ply").read_bytes()
    reports = [(tmp_path / f"{name}.ply.report.json").read_text() for name in ("one", "two")]
    assert reports[0] == reports[1]
