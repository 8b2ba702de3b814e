"""Files tell that their model was trained anti-aliased, and it is drawn so again."""

from __future__ import annotations

import json
import queue
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blob_models import blobs
from test_cli import command

from splatstudio.cli.export import export_model
from splatstudio.formats import FORMATS, read_splats
from splatstudio.gui.panel import Page
from splatstudio.gui.state.status import Notice
from splatstudio.models.exporter import BLURRED, BLURRED_PAGE
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.runtime.messages import Event, Export, JobDone
from splatstudio.runtime.tasks import Tasks
from splatstudio.scene.scene import Scene

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


def test_a_file_of_a_file_tells_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specks().save(tmp_path / "a.ply")
    path = tmp_path / "a.ply"
    for ending in TELLING[1:]:
        assert export_model(path, tmp_path / f"b{ending}").note is None
        path = tmp_path / f"b{ending}"
        assert read_splats(path).antialiased
    assert "trained anti-aliased" in command(capsys, "info", path)[1]


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
