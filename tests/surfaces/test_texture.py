"""Textures: triangles laid out flat, filled with what photos show, and written so that others see it."""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from glb_reading import read_glb
from other_programs import gltf_readers, read_by_others  # noqa: F401  (a fixture)
from traced_shapes import SOLIDS, field_of, paint, views_of

from splatstudio.surfaces import make_mesh
from splatstudio.surfaces.colors import colored_by
from splatstudio.surfaces.depth_views import SurfaceView
from splatstudio.surfaces.extract import extract_surface
from splatstudio.surfaces.make_mesh import refuse_options
from splatstudio.surfaces.mesh import Mesh, Unwrapped, boundary_loops, simplified
from splatstudio.surfaces.mesh_files import check_mesh_output, write_mesh
from splatstudio.surfaces.mesh_options import MeshOptions, MeshTask
from splatstudio.surfaces.texture import texels_of, textured

SPHERE = SOLIDS["sphere"]
SIZE = 256
TOLERANCE = 0.1


@cache
def photos() -> tuple[SurfaceView, ...]:
    """Return pictures of a painted sphere with their depth, larger than its depth is."""
    views = []
    for view in views_of(SPHERE, num=5, pixels=64):
        _, points = SPHERE.trace(view.camera.resized(256, 256))
        views.append(SurfaceView(view, (paint(points) * 255).round().byte()))
    return tuple(views)


@pytest.fixture(scope="module")
def coarse() -> Mesh:
    """Return a sphere of few triangles with the colors of its photos."""
    pytest.importorskip("fast_simplification")
    pytest.importorskip("xatlas")
    views = photos()
    ball = extract_surface(field_of([view.depth_view for view in views], 0.06))
    return colored_by(simplified(ball, 300), views, TOLERANCE).mesh


@pytest.fixture(scope="module")
def ball(coarse: Mesh) -> Mesh:
    """Return the coarse sphere with a texture."""
    return textured(coarse, lambda texel: photos(), SIZE, TOLERANCE)


def shown_at(mesh: Mesh, weights: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
    """Return the color of the texture in each triangle at a place between its corners, and the point."""
    assert mesh.texture is not None
    flat, picture = mesh.texture.flat, mesh.texture.picture
    uv = (flat.uv[flat.faces] * weights[:, None]).sum(dim=1).numpy() * len(picture)
    column, row = np.floor(uv).astype(int).T
    points = (mesh.vertices[mesh.faces] * weights[:, None]).sum(dim=1)
    return picture[row, column] / 255.0, points


def test_a_texture_shows_what_few_vertices_cannot(ball: Mesh) -> None:
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    shown, points = shown_at(ball, weights)
    true = paint(torch.nn.functional.normalize(points, dim=1)).numpy()
    assert ball.colors is not None
    between = ball.colors[ball.faces].mean(dim=1).numpy()
    assert np.abs(shown - true).mean() < 0.02
    assert np.abs(shown - true).mean() < 0.5 * np.abs(between - true).mean()


def test_what_no_photo_sees_has_the_colors_of_its_vertices(coarse: Mesh) -> None:
    above = [view for view in photos() if view.depth_view.camera.position[2] > 1.0]
    half = colored_by(coarse, above, TOLERANCE).mesh
    assert half.num_seen is not None and half.colors is not None
    unseen = (half.num_seen[half.faces] == 0).all(dim=1)
    assert unseen.any()
    shown, _ = shown_at(textured(half, lambda texel: above, SIZE, TOLERANCE), torch.full((3,), 1 / 3))
    between = half.colors[half.faces].mean(dim=1).numpy()
    assert np.abs(shown - between)[unseen.numpy()].max() < 0.04


def test_texels_know_their_triangle_and_their_place_in_it() -> None:
    uv = torch.tensor([[0.1, 0.1], [0.9, 0.1], [0.9, 0.9], [0.1, 0.9]], dtype=torch.float64)
    faces = torch.tensor([[0, 1, 2], [0, 2, 3], [1, 1, 1]])  # the last one has no area
    flat = Unwrapped(torch.arange(4), faces, uv)
    texels = texels_of(flat, 20)
    assert len(texels.number) == 16 * 16 and len(torch.unique(texels.number)) == 16 * 16
    there = texels.at(torch.arange(len(texels.number)), uv, faces) * 20
    row, column = texels.number // 20, texels.number % 20
    assert torch.allclose(there, torch.stack([column, row], dim=1).double() + 0.5)
    assert set(texels.face.tolist()) == {0, 1}
    assert len(texels_of(replace(flat, faces=faces[:0]), 20).number) == 0


def test_between_charts_lies_the_color_of_the_nearest_one(ball: Mesh) -> None:
    assert ball.texture is not None
    dark = (ball.texture.picture.max(axis=-1) == 0).mean()
    assert ball.texture.picture.shape == (SIZE, SIZE, 3) and dark == 0.0


def test_the_surface_stays_whole_where_charts_meet(ball: Mesh, coarse: Mesh) -> None:
    assert ball.texture is not None and len(ball.texture.flat.source) > len(coarse.vertices)
    assert boundary_loops(ball) == boundary_loops(coarse)
    assert torch.equal(ball.texture.flat.source[ball.texture.flat.faces], ball.faces)


@pytest.mark.parametrize("ending", [".glb", ".obj"])
def test_other_programs_see_the_texture(tmp_path: Path, ball: Mesh, ending: str) -> None:
    trimesh = pytest.importorskip("trimesh")
    write_mesh(tmp_path / f"ball{ending}", ball)
    read = trimesh.load(tmp_path / f"ball{ending}", force="mesh", process=False)
    colors = read.visual.to_color().vertex_colors[:, :3] / 255.0
    points = np.array(read.vertices)
    if ending == ".glb":
        points = points * (-1.0, -1.0, 1.0)  # y is up there
    true = paint(torch.nn.functional.normalize(torch.from_numpy(points), dim=1)).numpy()
    assert np.abs(colors - true).mean() < 0.04, "also that v grows as each format has it"
    names = {".glb": ["ball.glb"], ".obj": ["ball.mtl", "ball.obj", "ball.png"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == names[ending]


def test_a_glb_holds_its_picture_by_the_rules(tmp_path: Path, ball: Mesh) -> None:
    write_mesh(tmp_path / "ball.glb", ball)
    told, content = read_glb((tmp_path / "ball.glb").read_bytes())
    view = told["bufferViews"][told["images"][0]["bufferView"]]
    assert "target" not in view and told["extensionsUsed"] == ["KHR_materials_unlit"]
    png = np.frombuffer(content[view["byteOffset"] :][: view["byteLength"]], np.uint8)
    assert ball.texture is not None
    decoded = cv2.imdecode(png, cv2.IMREAD_COLOR)
    assert decoded is not None and np.array_equal(decoded[..., ::-1], ball.texture.picture)
    attributes = told["meshes"][0]["primitives"][0]["attributes"]
    assert set(attributes) == {"POSITION", "NORMAL", "TEXCOORD_0"}, "colors would be multiplied with it"


@pytest.mark.parametrize("look", ["colors", "texture", "plain"])
def test_the_validator_of_the_format_finds_nothing(
    tmp_path: Path,
    ball: Mesh,
    look: str,
    gltf_readers: Path,  # noqa: F811
) -> None:
    looks = {"colors": replace(ball, texture=None), "texture": ball}
    mesh = looks.get(look, replace(ball, texture=None, colors=None))
    write_mesh(tmp_path / "ball.glb", mesh)
    found = read_by_others(gltf_readers, tmp_path / "ball.glb")
    assert found["issues"] == [] and found["mode"] == 4
    expected = len(ball.texture.flat.source) if ball.texture and look == "texture" else len(ball.vertices)
    assert len(found["attributes"]["POSITION"]["rows"]) == expected


def test_what_is_interrupted_leaves_no_file(
    tmp_path: Path, ball: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    from splatstudio.surfaces import mesh_files

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mesh_files, "write_parts_durably", stop)
    with pytest.raises(KeyboardInterrupt):
        write_mesh(tmp_path / "ball.obj", ball)
    assert list(tmp_path.iterdir()) == []


def test_a_mesh_that_fails_leaves_the_earlier_one_whole(
    tmp_path: Path, ball: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    from splatstudio.surfaces import mesh_files

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_mesh(tmp_path / "ball.obj", ball)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert before.keys() == {"ball.obj", "ball.mtl", "ball.png"}
    monkeypatch.setattr(mesh_files, "write_parts_durably", full)
    with pytest.raises(OSError, match="No space left"):
        write_mesh(tmp_path / "ball.obj", replace(ball, vertices=2.0 * ball.vertices))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_files_of_a_texture_are_told_before(tmp_path: Path) -> None:
    task = MeshTask(tmp_path, tmp_path / "model.obj", MeshOptions(texture=64))
    assert {file.name for file in task.files} == {
        "model.obj",
        "model.mtl",
        "model.png",
        "model.obj.report.json",
    }
    assert len(replace(task, output=tmp_path / "model.glb").files) == 2


def test_a_texture_that_cannot_be_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"model.ply would have no texture: write a .glb or .obj"):
        check_mesh_output(tmp_path / "model.ply", textured=True)
    with pytest.raises(ValueError, match="--texture must be 64 to 8192 texels, not 3"):
        MeshOptions(texture=3).check()
    with pytest.raises(ValueError, match="does not go with --colors none"):
        MeshOptions(texture=64, colors="none").check()
    assert MeshOptions(texture=64).with_preset().triangles == 50_000
    monkeypatch.setattr(make_mesh, "can_unwrap", lambda: False)
    monkeypatch.setattr(make_mesh, "can_simplify", lambda: True)
    with pytest.raises(ValueError, match=r"needs xatlas.*pip install 'splatstudio\[mesh\]'"):
        refuse_options(MeshOptions(texture=64))
