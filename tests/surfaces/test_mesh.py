"""What is done to meshes: islands, holes, fewer triangles, samples; and that others read their files."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from glb_reading import read_glb
from traced_shapes import SOLIDS, f_score, field_of, views_of

from splatstudio.surfaces.extract import extract_surface
from splatstudio.surfaces.mesh import (
    Mesh,
    boundary_loops,
    kept,
    manifold,
    sampled,
    simplified,
    smoothed,
    vertex_normals,
    watertight,
    without_islands,
)
from splatstudio.surfaces.mesh_files import WRITERS, check_mesh_output, write_mesh
from splatstudio.surfaces.quality import distances_to, point_scores, seen_share

SPHERE = SOLIDS["sphere"]
BALL = extract_surface(field_of(views_of(SPHERE, num=5, pixels=64), 0.08))
TRIANGLE = Mesh(
    torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64),
    torch.tensor([[0, 1, 2]]),
)


def joined(one: Mesh, other: Mesh) -> Mesh:
    faces = torch.cat([one.faces, other.faces + len(one.vertices)])
    return Mesh(torch.cat([one.vertices, other.vertices]), faces)


def colored(mesh: Mesh) -> Mesh:
    colors = (mesh.vertices - mesh.vertices.amin(dim=0)) / mesh.diagonal
    return replace(mesh, colors=colors.float(), num_seen=torch.full((len(mesh.vertices),), 4))


def test_a_closed_ball_has_no_holes_and_nothing_to_close() -> None:
    assert boundary_loops(BALL) == []
    assert watertight(BALL) is BALL


def test_small_islands_are_dropped_by_their_area() -> None:
    small = replace(BALL, vertices=BALL.vertices * 0.2 + 5.0)  # 4 % of the area
    both = joined(BALL, small)
    assert without_islands(both, 0.1).num_triangles == BALL.num_triangles
    assert without_islands(both, 0.03).num_triangles == 2 * BALL.num_triangles
    assert without_islands(both, 0.0) is both
    assert without_islands(both, 0.1).vertices.max() < 2.0, "their vertices are gone, too"


def test_smoothing_takes_roughness_off_and_keeps_the_size() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 0.02 * torch.randn(BALL.vertices.shape, generator=generator, dtype=torch.float64)
    rough = replace(BALL, vertices=BALL.vertices + noise)
    smooth = smoothed(rough, 10)

    def error(mesh: Mesh) -> tuple[float, float]:
        radius = mesh.vertices.norm(dim=1)
        turned = (vertex_normals(mesh) * SPHERE.normals(mesh.vertices)).sum(dim=1).clamp(-1, 1)
        return float(radius.mean()), float(torch.rad2deg(torch.acos(turned)).mean())

    assert error(smooth)[0] == pytest.approx(error(rough)[0], rel=0.005)
    assert error(smooth)[1] < 0.5 * error(rough)[1]
    assert smoothed(rough, 0) is rough and torch.equal(smooth.faces, rough.faces)


def test_smoothing_leaves_the_edge_of_a_plane_in_its_place() -> None:
    step = torch.arange(9, dtype=torch.float64)
    vertices = torch.cat([torch.cartesian_prod(step, step), torch.zeros(81, 1, dtype=torch.float64)], dim=1)
    corner = torch.tensor([[9 * i + j, 9 * i + j + 9, 9 * i + j + 1] for i in range(8) for j in range(8)])
    plane = Mesh(vertices, torch.cat([corner, corner[:, [2, 1, 1]] + torch.tensor([0, 0, 1])]))
    smooth = smoothed(replace(plane, vertices=vertices + torch.tensor([0.0, 0.0, 2.0])), 10)
    assert (smooth.vertices[:, 2] - 2.0).abs().max() < 1e-9, "a plane stays one"
    assert (smooth.vertices - vertices)[:, :2].abs().max() < 0.6, "only its corners are rounded"


def test_holes_are_closed_and_their_middles_count_as_unseen() -> None:
    normals = BALL.vertices[BALL.faces].mean(dim=1)
    holed = colored(kept(BALL, (normals[:, 2] < 0.8) & (normals[:, 0] > -0.9)))
    assert len(boundary_loops(holed)) == 2
    closed = watertight(holed)
    assert boundary_loops(closed) == []
    assert closed.num_seen is not None and closed.num_seen[-2:].tolist() == [0, 0]
    assert closed.colors is not None and len(closed.colors) == len(closed.vertices)
    # The caps face outward: the volume is that of the ball without what lies above them.
    a, b, c = (closed.vertices[closed.faces[:, corner]] for corner in range(3))
    volume = float((a * torch.linalg.cross(b, c)).sum() / 6)
    assert 0.75 * 4.19 < volume < 4.19


def test_two_holes_that_touch_are_closed_each() -> None:
    fan = torch.tensor([[0, 1, 2], [0, 3, 4]])
    points = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]], dtype=torch.float64)
    loops = boundary_loops(Mesh(points, fan))
    assert sorted(map(sorted, loops)) == [[0, 1, 2], [0, 3, 4]]
    assert boundary_loops(watertight(Mesh(points, fan))) == []


def test_fewer_triangles_keep_the_shape_wherever_it_lies() -> None:
    pytest.importorskip("fast_simplification")
    far = replace(BALL, vertices=BALL.vertices * 1e-2 + 1e3)
    fewer = simplified(far, 800)
    assert 400 < fewer.num_triangles <= 800
    back = replace(fewer, vertices=(fewer.vertices - 1e3) * 1e2)
    assert f_score(back, SPHERE)[0] > 0.95
    assert simplified(BALL, 10**9) is BALL


def triangles_of_each_edge(mesh: Mesh) -> list[int]:
    """Return the numbers of triangles that edges have, each once."""
    edges = torch.cat([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]])
    _, times = torch.unique(edges.sort(dim=1).values, dim=0, return_counts=True)
    return torch.unique(times).tolist()


def tetrahedron(*corners: list[float]) -> Mesh:
    vertices = torch.tensor(corners, dtype=torch.float64)
    faces = torch.tensor([[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]])
    sides = vertices[1:] - vertices[0]
    return Mesh(vertices, faces if torch.linalg.det(sides) > 0 else faces.flip(1))


def test_solids_that_share_an_edge_get_one_each_and_stay_closed() -> None:
    low, high = [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]
    right = tetrahedron(low, high, [1.0, -0.5, 0.5], [1.0, 0.5, 0.5])
    left = tetrahedron(low, high, [-1.0, -0.5, 0.5], [-1.0, 0.5, 0.5])
    same = torch.tensor([0, 1, 4, 5])
    both = Mesh(torch.cat([right.vertices, left.vertices[2:]]), torch.cat([right.faces, same[left.faces]]))
    assert triangles_of_each_edge(both) == [2, 4]
    apart = manifold(both)
    assert triangles_of_each_edge(apart) == [2] and apart.num_triangles == 8
    assert len(apart.vertices) == 8 and boundary_loops(apart) == []
    # Each has the four sides of one of the two: what bounds one piece of the inside stays together.
    for face in apart.faces:
        of_one_solid = apart.vertices[face][:, 0]
        assert not (of_one_solid.min() < 0 < of_one_solid.max())
    x = apart.vertices[:, 0]
    for vertex in torch.nonzero(x == 0).flatten().tolist():
        around = apart.faces[(apart.faces == vertex).any(dim=1)].unique()
        assert not (x[around].min() < 0 < x[around].max()), "nor do the two share a vertex"


def test_what_collapsing_leaves_of_triangles_goes() -> None:
    folded = torch.cat([BALL.faces, torch.tensor([[0, 1, 1]]), BALL.faces[:1].flip(1)])
    mended = manifold(replace(BALL, faces=folded))
    # The first triangle and the one on its back have gone, the hole of it is one as others.
    assert mended.num_triangles == BALL.num_triangles - 1 and len(boundary_loops(mended)) == 1
    assert triangles_of_each_edge(watertight(mended)) == [2]
    third = Mesh(torch.cat([BALL.vertices, torch.full((1, 3), 3.0, dtype=torch.float64)]), BALL.faces)
    fin = torch.tensor([[*BALL.faces[0, :2].tolist(), len(BALL.vertices)]])
    assert triangles_of_each_edge(replace(third, faces=torch.cat([BALL.faces, fin]))) == [1, 2, 3]
    assert triangles_of_each_edge(manifold(replace(third, faces=torch.cat([BALL.faces, fin])))) == [1, 2]
    assert manifold(replace(BALL, faces=BALL.faces[:0])).num_triangles == 0


@pytest.mark.parametrize(("roughness", "num"), [(0.15, 400), (0.15, 60), (0.15, 12), (0.6, 400)])
def test_fewer_triangles_of_what_is_closed_can_be_closed(roughness: float, num: int) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = roughness * torch.randn(BALL.vertices.shape, generator=generator, dtype=torch.float64)
    few = simplified(replace(BALL, vertices=BALL.vertices + noise), num)
    assert few.num_triangles <= num
    closed = watertight(few)
    assert triangles_of_each_edge(closed) == [2] and boundary_loops(closed) == []


def test_fewer_triangles_without_the_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from splatstudio.surfaces import mesh

    monkeypatch.setattr(mesh, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'splatstudio\[mesh\]'"):
        simplified(BALL, 10)


def test_samples_are_spread_by_area() -> None:
    wide = joined(TRIANGLE, replace(TRIANGLE, vertices=TRIANGLE.vertices * 3 + 5))
    points, face = sampled(wide, 10_000)
    assert abs(float((face == 1).double().mean()) - 0.9) < 0.02
    assert (points[face == 0][:, :2].sum(dim=1) <= 1.0).all()
    flat = replace(TRIANGLE, vertices=TRIANGLE.vertices * 0)
    assert len(sampled(flat, 10)[0]) == 0


def test_normals_of_vertices_point_outward() -> None:
    outward = (vertex_normals(BALL) * BALL.vertices).sum(dim=1)
    assert outward.min() > 0 and (outward > 0.9).double().mean() > 0.98


def test_scores_against_points() -> None:
    accuracy, completeness = point_scores(BALL, SPHERE.surface(500).numpy())
    assert accuracy is not None and accuracy < 0.01
    assert completeness is not None and completeness > 0.98
    half = kept(BALL, BALL.vertices[BALL.faces].mean(dim=1)[:, 2] > 0)
    _, share = point_scores(half, SPHERE.surface(4000).numpy())
    assert share is not None and abs(share - 0.5) < 0.1
    assert point_scores(BALL, np.zeros((0, 3))) == (None, None)
    away = distances_to(TRIANGLE, torch.tensor([[0.2, 0.2, 0.5], [-3.0, 0.0, 0.0]], dtype=torch.float64))
    assert torch.allclose(away, torch.tensor([0.5, 3.0], dtype=torch.float64), atol=0.01)


def test_the_share_that_is_seen_is_by_area() -> None:
    wide = joined(TRIANGLE, replace(TRIANGLE, vertices=TRIANGLE.vertices * 3))
    assert seen_share(replace(wide, num_seen=torch.tensor([0, 2, 1, 3, 4, 9]))) == pytest.approx(0.9)
    assert seen_share(wide) is None


@pytest.mark.parametrize("ending", WRITERS)
def test_other_programs_read_what_is_written(tmp_path: Path, ending: str) -> None:
    trimesh = pytest.importorskip("trimesh")
    mesh = colored(BALL)
    write_mesh(tmp_path / f"ball{ending}", mesh)
    assert [path.name for path in tmp_path.iterdir()] == [f"ball{ending}"]
    read = trimesh.load(tmp_path / f"ball{ending}", force="mesh", process=False)
    if ending == ".stl":
        read.merge_vertices()
    assert len(read.faces) == mesh.num_triangles and read.is_watertight and read.volume > 3.9
    vertices = torch.from_numpy(np.array(read.vertices))
    if ending == ".glb":  # y is up there, as in a .glb of splats
        vertices = vertices * torch.tensor([-1.0, -1.0, 1.0])
    if ending != ".stl":
        assert torch.allclose(vertices, mesh.vertices, atol=1e-6)
        assert mesh.colors is not None
        if ending == ".glb":  # trimesh takes the material alone
            return
        told = read.visual.vertex_colors[:, :3] / 255.0
        assert np.abs(told - mesh.colors.numpy()).max() < 0.005


def test_what_stands_upright_stands_so_in_a_glb_whose_y_is_up(tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    tall = replace(
        BALL, vertices=BALL.vertices * torch.tensor([1.0, 1.0, 3.0]) + torch.tensor([0.0, 0.0, 9.0])
    )
    for ending, up in ((".glb", 1), (".ply", 2)):
        write_mesh(tmp_path / f"tall{ending}", tall, z_up=True)
        low, high = trimesh.load(tmp_path / f"tall{ending}", force="mesh").bounds
        assert low[up] == pytest.approx(6, abs=0.2) and high[up] == pytest.approx(12, abs=0.2), ending


def test_a_glb_keeps_to_the_rules_of_the_format(tmp_path: Path) -> None:
    write_mesh(tmp_path / "ball.glb", colored(BALL))
    told, content = read_glb((tmp_path / "ball.glb").read_bytes())
    for view in told["bufferViews"]:
        assert view["byteOffset"] % 4 == 0
    position = told["accessors"][0]
    points = np.frombuffer(content, "<f4", 3 * position["count"]).reshape(-1, 3)
    assert position["min"] == points.min(axis=0).tolist() and position["max"] == points.max(axis=0).tolist()
    start = told["bufferViews"][2]["byteOffset"]
    colors = np.frombuffer(content, "<u2", 4 * position["count"], start).reshape(-1, 4)
    screen = np.asarray(colored(BALL).colors)
    linear = np.where(screen <= 0.04045, screen / 12.92, ((screen + 0.055) / 1.055) ** 2.4)
    assert np.abs(colors[:, :3] / 65_535 - linear).max() < 1e-5 and (colors[:, 3] == 65_535).all()
    normals = told["bufferViews"][1]
    lengths = np.linalg.norm(
        np.frombuffer(content, "<f4", 3 * position["count"], normals["byteOffset"]).reshape(-1, 3), axis=1
    )
    assert np.abs(lengths - 1).max() < 1e-4


def test_what_is_no_mesh_file_or_no_mesh_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a mesh ends in \.glb, \.obj, \.ply or \.stl"):
        check_mesh_output(tmp_path / "mesh.splat")
    with pytest.raises(ValueError, match="has no triangles"):
        write_mesh(tmp_path / "mesh.ply", Mesh(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.int64)))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_file_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sys.modules["splatstudio.surfaces.mesh_files"]

    def interrupted(mesh: Mesh) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "face_normals", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_mesh(tmp_path / "mesh.stl", BALL)  # its head is written by then
    assert list(tmp_path.iterdir()) == []
