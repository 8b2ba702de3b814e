"""From a training to a mesh with its report: as good as it says, and a sentence where it cannot be."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blob_models import blobs
from glb_reading import read_glb
from known_meshes import known_mesh
from traced_shapes import SOLIDS, cameras_around, f_score, paint, write_traced_scene

import splatstudio as ss
from splatstudio.gaussians.trimming import Trim
from splatstudio.models.model import Model, load_model
from splatstudio.scene.load import load_scene
from splatstudio.surfaces import extract, make_mesh
from splatstudio.surfaces.depth_views import cameras_between
from splatstudio.surfaces.make_mesh import ELSEWHERE, MadeMesh, mesh_of_model, mesh_of_task
from splatstudio.surfaces.mesh import Mesh, face_areas
from splatstudio.surfaces.mesh_files import write_mesh
from splatstudio.surfaces.mesh_options import THE_FILES, Frame, MeshOptions, MeshTask

SPHERE = SOLIDS["sphere"]
COARSE = MeshOptions(resolution=40)
PIXELS = 96
SIZE = 2.0  # cm, which the studio does not know


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on photos of a painted sphere of radius 2."""
    folder = tmp_path_factory.mktemp("traced")
    scene = write_traced_scene(folder / "scene", SPHERE, num=6, pixels=PIXELS, scale=SIZE)
    ss.train(scene, run_dir=folder / "run", steps=400, test_every=0, seed=1)
    return folder / "run"


@pytest.fixture(scope="module")
def made(run: Path) -> MadeMesh:
    model = load_model(run)
    return mesh_of_model(model, load_scene(run.parent / "scene"), COARSE)


def test_a_trained_sphere_comes_back_in_the_units_of_its_files(made: MadeMesh) -> None:
    mesh, report = made.mesh, made.report
    unit = replace(mesh, vertices=mesh.vertices / SIZE)
    score, chamfer = f_score(unit, SPHERE)
    assert score > 0.9 and chamfer < 0.01, (score, chamfer)
    assert np.allclose(report.size, 2 * SIZE, rtol=0.1)


def test_a_known_mesh_comes_back_from_its_photos(tmp_path: Path) -> None:
    spot = known_mesh("spot")
    scene = write_traced_scene(tmp_path / "scene", spot, num=6, pixels=128)
    trained = ss.train(scene, run_dir=tmp_path / "run", preset="surface", steps=500, test_every=0, seed=1)
    again = mesh_of_model(trained, load_scene(scene), MeshOptions(resolution=64))
    score, chamfer = f_score(again.mesh, spot)
    assert score > 0.9 and chamfer < 0.005, (score, chamfer)


def test_the_report_says_what_is_true(made: MadeMesh) -> None:
    mesh, report = made.mesh, made.report
    assert report.triangles == mesh.num_triangles and report.views == 18
    assert report.seen_by_three is not None and report.seen_by_three > 0.9
    assert report.accuracy is not None and report.completeness is not None
    true = float((SPHERE.distance(mesh.vertices / SIZE).abs() * SIZE).median())
    assert report.accuracy == pytest.approx(true, rel=0.4) and report.completeness > 0.9
    assert report.voxel_size == pytest.approx(report.truncation_distance / 4)
    assert "of 255" in dict(report.rows)["Colors differ by"]


def test_its_colors_are_those_of_the_photos(made: MadeMesh) -> None:
    mesh = made.mesh
    assert mesh.colors is not None and mesh.num_seen is not None
    seen = mesh.num_seen >= 3
    at = torch.nn.functional.normalize(mesh.vertices, dim=1)
    assert (mesh.colors - paint(at))[seen].abs().mean() < 0.06


def test_views_between_photos_close_holes_where_those_are_few(run: Path) -> None:
    model, scene = load_model(run), load_scene(run.parent / "scene")
    few = replace(scene, views=scene.views[::2])  # 9 of 18
    plain = mesh_of_model(model, few, COARSE)
    between = mesh_of_model(model, few, replace(COARSE, between=True))
    assert between.report.views == plain.report.views == 9, "only photos are told"

    def seen(mesh: Mesh) -> float:
        return float(face_areas(mesh).sum())

    assert seen(between.mesh) > 1.02 * seen(plain.mesh)
    unit = replace(between.mesh, vertices=between.mesh.vertices / SIZE)
    assert float((SPHERE.distance(unit.vertices).abs() < 0.05).double().mean()) > 0.95, "it is the sphere's"


def test_a_camera_between_two_looks_where_both_look() -> None:
    one, other, opposite = (cameras_around(8)[number] for number in (8, 9, 12))
    (between,) = cameras_between([one, other])
    assert np.allclose(between.position, (one.position + other.position) / 2)
    ahead, middle = between.viewmat[2, :3], -between.position / np.linalg.norm(between.position)
    assert ahead @ middle > 0.999 and np.allclose(between.K, one.K)
    assert list(cameras_between([one, opposite])) == [], "they look at each other"
    assert list(cameras_between([one])) == []
    back = replace(one, viewmat=np.diag([-1.0, -1.0, 1.0, 1.0]) @ one.viewmat)  # as on a drone's next strip
    (between,) = cameras_between([one, back])
    assert np.allclose(between.viewmat, one.viewmat)


@pytest.mark.parametrize("size", [0.01, 100.0])
def test_a_scene_of_two_centimeters_or_of_hundreds_of_meters_is_meshed_alike(
    run: Path, made: MadeMesh, size: float
) -> None:
    to_other = np.diag([1 / size, 1 / size, 1 / size, 1.0])
    model, scene = load_model(run), load_scene(run.parent / "scene")
    model = replace(model, transform=model.transform @ to_other)
    other = mesh_of_model(model, replace(scene, transform=scene.transform @ to_other), COARSE)
    assert other.mesh.num_triangles == made.mesh.num_triangles
    assert torch.allclose(other.mesh.vertices, size * made.mesh.vertices, rtol=1e-6, atol=1e-9 * size)
    assert other.report.voxel_size == pytest.approx(size * made.report.voxel_size)
    assert other.report.accuracy == pytest.approx(size * (made.report.accuracy or 0.0))
    assert other.report.completeness == pytest.approx(made.report.completeness)


SHIFTED = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 5.0), (0.0, 0.0, 0.0, 1.0))


@pytest.mark.parametrize(("frame", "half"), [(None, 0.0), (THE_FILES, 0.0), (SHIFTED, 5.0)])
def test_what_is_cropped_has_no_surface_and_its_points_do_not_count(
    run: Path, tmp_path: Path, frame: Frame | None, half: float
) -> None:
    means = load_model(run).gaussians.means
    low, high = means.amin(dim=0), means.amax(dim=0)
    low[2] = (low[2] + high[2]) / 2
    corners = [*low.tolist(), *high.tolist()] if frame is None else [-9.0, -9.0, half, 9.0, 9.0, half + 9.0]
    trim = Trim(crop=tuple(corners))  # type: ignore[arg-type]
    report = mesh_of_task(MeshTask(run, tmp_path / "half.obj", COARSE, trim=trim, box_frame=frame)).report
    assert frame is None or (report.size[2] < 0.7 * 2 * SIZE and report.size[0] > 0.8 * 2 * SIZE)
    assert report.completeness is not None and report.completeness > 0.9, "the other half is not missed"
    assert 500 < report.sparse_points < 1000


def test_masks_leave_holes(run: Path, tmp_path: Path) -> None:
    import cv2

    scene = shutil.copytree(run.parent / "scene", tmp_path / "scene")
    (scene / "masks").mkdir()
    half = np.full((PIXELS, PIXELS), 255, np.uint8)
    half[: PIXELS // 2] = 0  # nothing counts in the upper half
    for photo in (scene / "images").iterdir():
        cv2.imwrite(str(scene / "masks" / photo.name), half)
    model = load_model(run)
    masked = mesh_of_model(model, load_scene(scene), COARSE)
    assert masked.report.holes >= 1
    top = float(masked.mesh.vertices[:, 2].max())
    assert top < 0.95 * SIZE, "no photo shows the pole"


def test_the_preset_is_closed_small_and_plain(run: Path) -> None:
    pytest.importorskip("fast_simplification")
    options = MeshOptions(mesh_preset="collision", resolution=48, triangles=500).with_preset()
    made = mesh_of_model(load_model(run), load_scene(run.parent / "scene"), options)
    assert made.report.holes == 0 and made.mesh.num_triangles <= 600 and made.mesh.colors is None


def test_the_ground_below_a_model_is_a_rectangle_and_says_what_lies_in_it(tmp_path: Path) -> None:
    step = torch.linspace(-1.0, 1.0, 25)
    x, z = torch.meshgrid(step, step, indexing="ij")
    means = torch.stack([x, torch.full_like(x, 0.4), z], dim=-1).reshape(-1, 3)  # y is down in a file
    template = blobs(num=len(means))
    flat = torch.tensor([0.06, 0.003, 0.06]).log().expand(len(means), 3).contiguous()
    quats = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(len(means), 4).contiguous()
    opacities = torch.full((len(means),), 6.0)
    floor = replace(template, means=means, quats=quats, scales=flat, opacities=opacities)
    options = MeshOptions(mesh_preset="ground", resolution=48).with_preset()
    made = mesh_of_model(Model(floor), None, options)
    assert made.mesh.num_triangles == 2 and made.mesh.colors is None
    assert (made.mesh.vertices[:, 1] - 0.4).abs().max() < 0.05
    low, high = made.mesh.vertices.amin(dim=0), made.mesh.vertices.amax(dim=0)
    assert ((high - low)[[0, 2]] > 1.8).all() and ((high - low)[[0, 2]] < 2.6).all()
    assert re.match(
        r"(9\d|100)% of what is level lies in the ground, which leans by [01]", made.report.notes[0]
    )
    write_mesh(tmp_path / "ground.glb", made.mesh)
    described, _ = read_glb((tmp_path / "ground.glb").read_bytes())
    assert described["nodes"][0]["name"] == described["meshes"][0]["name"] == "shadow_catcher"


def test_a_model_without_a_scene_is_seen_from_an_orbit_and_says_so(run: Path, tmp_path: Path) -> None:
    load_model(run).save(tmp_path / "model.ply")
    told: list[str] = []
    written = mesh_of_task(
        MeshTask(tmp_path / "model.ply", tmp_path / "mesh.obj", replace(COARSE, colors="reliability")),
        lambda done, total, what: told.append(what),
    )
    report = written.report
    assert report.views_are == "an orbit" and report.seen_by_three is None
    assert "an orbit around it; name the scene with --scene" in " ".join(report.notes)
    assert np.allclose(report.size, 2 * SIZE, rtol=0.2)
    assert json.loads(written.report_file.read_text())["triangles"] == report.triangles
    assert {"looking at the model", "fusing the depth", "coloring the surface"} <= set(told)


def test_too_little_memory_takes_the_resolution_that_fits_and_says_the_number(
    run: Path, made: MadeMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "free_memory", lambda: 2_000_000)
    model, scene = load_model(run), load_scene(run.parent / "scene")
    coarser = mesh_of_model(model, scene, COARSE)
    assert "0.001 GB of memory have room for" in coarser.report.resolution_chosen_by
    assert coarser.report.voxel_size > 1.2 * made.report.voxel_size
    assert 100 < coarser.mesh.num_triangles < made.mesh.num_triangles


def test_one_photo_gives_what_it_sees_with_a_note(run: Path) -> None:
    scene = load_scene(run.parent / "scene")
    made = mesh_of_model(load_model(run), replace(scene, views=scene.views[:1]), COARSE)
    assert "1 photos are few" in " ".join(made.report.notes)
    assert made.report.holes >= 1 and made.report.seen_by_three == 0.0


def test_a_model_of_another_place_is_told(run: Path, made: MadeMesh) -> None:
    assert ELSEWHERE not in made.report.notes
    model = load_model(run)
    beside = model.gaussians.detach()
    beside = replace(beside, means=beside.means + torch.tensor([0.0, 0.0, 0.3]))
    moved = mesh_of_model(replace(model, gaussians=beside), load_scene(run.parent / "scene"), COARSE)
    assert moved.report.notes[0] == ELSEWHERE
    # In lengths of the file that the frame's are held against by mistake, this would be near enough.
    assert moved.report.accuracy is not None and moved.report.scale > 3
    assert moved.report.accuracy / moved.report.scale < 0.05 * moved.report.diagonal


def test_nothing_to_see_is_a_sentence(run: Path) -> None:
    model, scene = load_model(run), load_scene(run.parent / "scene")
    clear = replace(model.gaussians, opacities=torch.full_like(model.gaussians.opacities, -9.0))
    with pytest.raises(ValueError, match="no view sees a surface"):
        mesh_of_model(replace(model, gaussians=clear), scene, COARSE)


def test_what_is_cancelled_leaves_no_file(run: Path, tmp_path: Path) -> None:
    for stage in ("fusing the depth", "coloring the surface", "writing mesh.glb"):

        def stop(done: int, total: int, what: str, stage: str = stage) -> None:
            if what == stage:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ss.mesh(run, tmp_path / "mesh.glb", resolution=32, on_progress=stop)
        assert list(tmp_path.iterdir()) == []


def test_an_earlier_mesh_stays_where_the_report_of_the_next_has_no_room(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, report = tmp_path / "mesh.glb", tmp_path / "mesh.glb.report.json"
    file.write_bytes(b"a mesh of before")
    report.write_text("{}")

    def full(path: Path, values: dict[str, object]) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(make_mesh, "write_json_durably", full)
        with pytest.raises(ValueError, match="No space left on device; nothing of it was kept, and the"):
            ss.mesh(run, file, resolution=32)
    report.unlink()
    report.mkdir()
    with pytest.raises(ValueError, match=r"mesh\.glb\.report\.json cannot be written: it is a folder"):
        ss.mesh(run, file, resolution=32)
    assert file.read_bytes() == b"a mesh of before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mesh.glb", "mesh.glb.report.json"]


def test_voxels_larger_than_what_is_seen_are_told(run: Path) -> None:
    with pytest.raises(ValueError, match=r"is [34]\.?\d* long, and a voxel 100; choose a smaller --voxel"):
        mesh_of_model(load_model(run), load_scene(run.parent / "scene"), MeshOptions(voxel_size=100.0))


def test_a_mesh_on_a_map_is_as_it_is_elsewhere_with_a_word_on_its_coordinates(run: Path) -> None:
    model, scene = load_model(run), load_scene(run.parent / "scene")
    on_a_map = model.transform @ np.array([[1, 0, 0, -5e5], [0, 1, 0, -4e6], [0, 0, 1, -100.0], [0, 0, 0, 1]])
    there = mesh_of_model(
        replace(model, transform=on_a_map), replace(scene, transform=on_a_map), MeshOptions(resolution=32)
    )
    assert there.mesh.vertices[:, 1].min() > 3.9e6
    (note,) = there.report.notes
    assert note.startswith("The coordinates are as large as 4,000,00") and "keep in steps of 0.25" in note
    assert not mesh_of_model(model, scene, MeshOptions(resolution=32)).report.notes


def test_python_writes_a_mesh_and_returns_its_report(run: Path, tmp_path: Path) -> None:
    report = ss.mesh(run, tmp_path / "mesh.glb", resolution=32, upright=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mesh.glb", "mesh.glb.report.json"]
    assert report.scale == 1.0
    with pytest.raises(ValueError, match=r"a mesh has no option size; its options are voxel_size, "):
        ss.mesh(run, tmp_path / "other.glb", size=3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (MeshOptions(voxel_size=0.0), "--voxel-size must be a length above 0"),
        (MeshOptions(voxel_size=float("nan")), "--voxel-size must be a length above 0"),
        (MeshOptions(resolution=2), "--resolution must be 8 to 8192"),
        (MeshOptions(triangles=1), "--triangles must be 4 or more"),
        (MeshOptions(smoothing=-1), "--smoothing must be 0 to 200 rounds"),
        (MeshOptions(min_island=2.0), "--min-island must be a share"),
    ],
)
def test_options_that_cannot_be(options: MeshOptions, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        mesh_of_model(Model(blobs()), None, options)
