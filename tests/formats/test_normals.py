"""Normals in exported files: 0 by default, as the first 3DGS program writes them, real ones where asked."""

from __future__ import annotations

import json
import queue
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blob_models import blobs
from command_line import CommandLine
from format_models import assert_kept, model, precision_of

from splatstudio.cameras.placement import Placement
from splatstudio.cli.export import export_model
from splatstudio.formats import FORMATS, FileExtras, read_splats, write_gaussians
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.formats.viewer_page import splat_buffer
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gui.panel import Page
from splatstudio.gui.state.status import Notice
from splatstudio.kernels.reference import rotation_matrices
from splatstudio.models.exporter import BLURRED, BLURRED_PAGE, normals_of
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.runtime.messages import Event, Export, JobDone, JobFailed
from splatstudio.runtime.tasks import Tasks
from splatstudio.scene.ply_header import parse_header
from splatstudio.scene.scene import Scene


def columns(path: Path, *names: str) -> np.ndarray:
    """Return float columns [N, n] of a binary PLY."""
    content = path.read_bytes()
    header = parse_header(path, content[:10_000])
    (vertex,) = header.elements
    rows = np.frombuffer(content, vertex.row_type("<"), vertex.count, header.num_bytes)
    return np.stack([rows[name] for name in names], axis=1)


def sphere(num: int = 500) -> Gaussians:
    """Return flat Gaussians on the unit sphere, their shortest axes along the radius, of either sign."""
    generator = np.random.default_rng(3)
    means = generator.normal(size=(num, 3))
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    # The shortest way from z to the radius; the axes are turned into other places by row.
    half = means + np.array([0.0, 0.0, 1.0])
    quats = np.concatenate([half[:, 2:], np.cross((0.0, 0.0, 1.0), half)], axis=1)
    gaussians = model(num, 0)
    scales = torch.tensor([[-2.0, -2.5, -6.0]]).repeat(num, 1)
    return replace(
        gaussians,
        means=torch.from_numpy(means).float(),
        quats=torch.from_numpy(quats).float(),
        scales=scales,
    )


def test_a_quaternion_of_length_0_turns_nothing(tmp_path: Path) -> None:
    gaussians = model(10)
    gaussians.quats[3] = 0.0
    gaussians.scales[3] = torch.tensor([-2.0, -6.0, -3.0])
    write_ply(tmp_path / "a.ply", gaussians)
    read = read_ply(tmp_path / "a.ply").gaussians
    normals = normals_of(read, np.zeros((0, 3)))
    assert normals.isfinite().all() and normals[3].abs().tolist() == [0.0, 1.0, 0.0]
    covariances = splat_buffer(read).view(np.float16)[:, 8:14]
    expected = np.array([-4.0, -np.inf, -np.inf, -12.0, -np.inf, -6.0])  # the upper triangle's logarithms
    assert np.isfinite(covariances).all() and np.allclose(covariances[3], np.exp(expected), rtol=1e-2)


def test_a_center_that_is_no_place_is_named() -> None:
    gaussians = model(10)
    gaussians.means[7, 1] = float("nan")
    for eyes in (np.zeros((0, 3)), np.ones((2, 3))):
        with pytest.raises(ValueError, match=r"no normals: 'means' of splat 7 is nan"):
            normals_of(gaussians, eyes)


def test_a_normal_is_the_shortest_axis() -> None:
    gaussians = model(400)
    normals = normals_of(gaussians, np.zeros((0, 3))).double()
    assert torch.allclose(normals.norm(dim=1), torch.ones(400).double(), atol=1e-6)
    axes = rotation_matrices(gaussians.quats.double())
    along = (axes * normals[:, :, None]).sum(dim=1).abs()
    assert (along.argmax(dim=1) == gaussians.scales.argmin(dim=1)).all()
    assert torch.allclose(along.max(dim=1).values, torch.ones(400).double(), atol=1e-5)


def test_normals_face_the_nearest_camera_or_away_from_the_middle() -> None:
    gaussians = sphere()
    outside = 5.0 * gaussians.means[::10].numpy()
    around = (normals_of(gaussians, outside) * gaussians.means).sum(dim=1)
    assert (around > 0.99).float().mean() > 0.95  # at the rim of what a camera sees a sign may be either
    inside = normals_of(gaussians, np.array([[0.05, 0.0, 0.0]]))
    assert ((inside * gaussians.means).sum(dim=1) < -0.99).all()
    alone = normals_of(gaussians, np.zeros((0, 3)))
    assert ((alone * gaussians.means).sum(dim=1) > 0.99).all()


@pytest.mark.parametrize("ending", [".ply", ".points.ply"])
def test_files_hold_them_where_they_are_asked_for(tmp_path: Path, ending: str) -> None:
    gaussians = model(9000)  # more than a chunk
    normals = normals_of(gaussians, np.zeros((0, 3)))
    write_gaussians(tmp_path / f"a{ending}", gaussians, FileExtras(normals=normals))
    assert np.array_equal(columns(tmp_path / f"a{ending}", "nx", "ny", "nz"), normals.numpy())
    assert np.array_equal(columns(tmp_path / f"a{ending}", "x", "y", "z"), gaussians.means.numpy())
    write_gaussians(tmp_path / f"b{ending}", gaussians)
    if ending == ".ply":
        assert_kept(read_ply(tmp_path / "a.ply").gaussians, gaussians, precision_of(".ply", gaussians))
        assert not columns(tmp_path / "b.ply", "nx", "ny", "nz").any()
    else:
        assert b"nx" not in (tmp_path / "b.points.ply").read_bytes()[:300]


def test_other_formats_say_that_they_have_no_room(tmp_path: Path) -> None:
    normals = torch.zeros(5, 3)
    for form in FORMATS:
        if form.write is not None and not form.has_normals:
            with pytest.raises(ValueError, match=r"no room for normals; .* \.ply and \.points\.ply have"):
                write_gaussians(tmp_path / f"a{form.endings[0]}", model(5), FileExtras(normals=normals))
    assert list(tmp_path.iterdir()) == []


def test_the_command_and_the_tab_write_the_same(
    tmp_path: Path, blob_folder: Path, blob_scene: Scene, command: CommandLine
) -> None:
    """The one turns the model and then takes the normals, the other the other way round."""
    gaussians = blobs(num=300)
    write_ply(tmp_path / "a.ply", gaussians)
    arguments = ("export", tmp_path / "a.ply", "-o", tmp_path / "b.ply", "--scene", blob_folder, "--normals")
    code, printed = command(*arguments)
    assert code == 0 and "not known" not in printed
    written = columns(tmp_path / "b.ply", "nx", "ny", "nz")
    eyes = np.stack([camera.position for camera in blob_scene.cameras])
    in_files = Model(gaussians).in_frame_of(blob_scene)
    expected = normals_of(in_files.gaussians, eyes)
    toward = torch.from_numpy(written).float()
    rotation = torch.from_numpy(
        blob_scene.transform[:3, :3] / np.cbrt(np.linalg.det(blob_scene.transform[:3, :3]))
    )
    assert torch.allclose(toward @ rotation.T.float(), expected, atol=1e-4)
    events: list[Event] = []
    ended = threading.Event()

    def take(event: Event) -> None:
        events.append(event)
        if isinstance(event, (JobDone, JobFailed)):
            ended.set()

    jobs = Tasks(take, lambda: False)
    positions = tuple((float(x), float(y), float(z)) for x, y, z in eyes)
    jobs.start(Export(tmp_path / "c.ply", normals=True, eyes=positions), lambda: in_files)
    assert ended.wait(120.0) and isinstance(events[-1], JobDone), events
    assert np.allclose(columns(tmp_path / "c.ply", "nx", "ny", "nz"), written, atol=1e-4)


def test_a_scene_that_is_gone_is_told(tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    with pytest.raises(ValueError, match="gone"):
        export_model(
            tmp_path / "a.ply",
            tmp_path / "b.ply",
            placement=Placement(scene=tmp_path / "gone"),
            normals=True,
        )


TELLING = [form.endings[0] for form in FORMATS if form.tells_antialiased]
SILENT = [form.endings[0] for form in FORMATS if form.write and not form.tells_antialiased]


def specks() -> Model:
    """Return an anti-aliased model of Gaussians that are smaller than a pixel."""
    gaussians = blobs()
    return Model(replace(gaussians, scales=gaussians.scales - 4.0), options=RenderOptions(antialiased=True))


def test_the_formats_that_tell() -> None:
    assert TELLING == [".ply", ".compressed.ply", ".spz", ".sog"]


@pytest.mark.parametrize("ending", TELLING)
def test_a_file_is_drawn_as_it_was_trained(tmp_path: Path, blob_scene: Scene, ending: str) -> None:
    kept, plain = tmp_path / f"kept{ending}", tmp_path / f"plain{ending}"
    specks().save(kept)
    replace(specks(), options=RenderOptions()).save(plain)
    camera = blob_scene.cameras[0]
    pictures = {}
    for path in (kept, plain):
        model = load_model(path)
        pictures[path] = render(model.gaussians, camera, model.options).rgb
        assert model.options.antialiased == read_splats(path).antialiased == (path == kept)
    for name, tensor in read_splats(plain).gaussians.tensors().items():
        assert torch.equal(tensor, read_splats(kept).gaussians.tensors()[name]), name
    # Specks that make up for their blur are far fainter.
    assert pictures[kept].mean() < 0.5 * pictures[plain].mean()


def test_a_file_of_a_file_tells_it_too(tmp_path: Path, command: CommandLine) -> None:
    specks().save(tmp_path / "a.ply")
    path = tmp_path / "a.ply"
    for ending in TELLING[1:]:
        assert export_model(path, tmp_path / f"b{ending}").note is None
        path = tmp_path / f"b{ending}"
        assert read_splats(path).antialiased
    assert "trained anti-aliased" in command("info", path)[1]


@pytest.mark.parametrize(
    ("comments", "expected"),
    [
        (["SplatRenderMode: mip"], True),
        (["SplatRenderMode: default"], False),
        (["Postshot v1.0.0", "postshot.anti_aliasing=1"], True),
        (["postshot.anti_aliasing=0"], False),
        (["antialiased 1"], True),
        (["antialiased 1", "SplatRenderMode: default"], False),
        (["SplatRenderMode: default", "SplatRenderMode: mip", "a word"], True),
        (["it is not antialiased", "antialiased", "SplatRenderMode: 2dgs", ""], False),
    ],
)
def test_the_comments_of_other_programs(tmp_path: Path, comments: list[str], expected: bool) -> None:
    path = tmp_path / "a.ply"
    replace(specks(), options=RenderOptions()).save(path)
    start, middle, rest = path.read_bytes().partition(b"element vertex")
    told = "".join(f"comment {comment}\n" for comment in comments).encode()
    path.write_bytes(start + told + middle + rest)
    assert load_model(path).options.antialiased == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [({"antialias": True}, True), ({"antialias": False}, False), ({"model": "2dgs"}, False)],
)
def test_the_descriptions_of_other_programs(tmp_path: Path, entry: dict[str, object], expected: bool) -> None:
    path = tmp_path / "a.sog"
    replace(specks(), options=RenderOptions()).save(path)
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "a")
    meta = tmp_path / "a" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | entry))
    assert load_model(meta).options.antialiased == expected


@pytest.mark.parametrize("ending", SILENT)
def test_where_a_file_cannot_tell_its_user_is_told(tmp_path: Path, ending: str) -> None:
    specks().save(tmp_path / "a.ply")
    told = {".html": BLURRED_PAGE, ".points.ply": ""}.get(ending, BLURRED)
    assert (export_model(tmp_path / "a.ply", tmp_path / f"b{ending}").note or "") == told
    assert note_of(Export(tmp_path / f"c{ending}"), specks()) == told
    plain = replace(specks(), options=RenderOptions())
    assert note_of(Export(tmp_path / f"d{ending}"), plain) == ""


def test_the_page_writes_files_that_tell(tmp_path: Path) -> None:
    for ending in TELLING:
        assert note_of(Export(tmp_path / f"a{ending}"), specks()) == ""
        assert read_splats(tmp_path / f"a{ending}").antialiased


def test_who_exports_on_the_page_reads_what_the_file_does_not_keep(
    page: Page, notices: list[Notice], tmp_path: Path
) -> None:
    for job, name, note in ((1, "a.glb", BLURRED), (2, "a.ply", "")):
        page.tasks.submit(Export(tmp_path / name))
        page.tasks.follow(JobDone(job, tmp_path / name, 7, note))
    bad, good = notices
    assert bad.bad and bad.text == f"{tmp_path / 'a.glb'}. {BLURRED}" and not good.bad


def note_of(task: Export, model: Model) -> str:
    """Let the page's task run to its end and return what it tells of the file."""
    events: queue.Queue[Event] = queue.Queue()
    Tasks(events.put, lambda: False).start(task, lambda: model)
    while not isinstance(event := events.get(timeout=60), JobDone):
        pass
    return event.note
