"""The Export and Render tabs: names of files, sizes, what is omitted, and nothing written over."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import viser
import viser.transforms
from example_checkpoints import example
from format_models import model
from gui_parts import as_user
from path_builder import random_keys

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.formats import FORMATS, format_of
from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.gui.amounts import size
from splatstudio.gui.panel import Page, output_path
from splatstudio.gui.state.scene_overlay import Draft, PathEditor
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.tabs.export import ExportPanel, with_ending
from splatstudio.gui.tabs.mesh import MeshSection
from splatstudio.gui.tabs.render import FORMATS as RENDER_FORMATS
from splatstudio.gui.tabs.render import PHOTO, OutputSection, PictureSection
from splatstudio.gui.tabs.trim import BOX_SIDES, TrimSection
from splatstudio.models.model import Model
from splatstudio.runtime.file_tasks import FileTask
from splatstudio.runtime.messages import Exported, ModelLoaded, ViewJob
from splatstudio.runtime.training_news import model_loaded
from splatstudio.scene.scene import Scene
from splatstudio.settings.setting import typed_output

NAMELESS = ("", " ", "/", ".", "..", "a/..")


@pytest.mark.parametrize(("name", "degree"), [("PLY", 3), ("SPZ", 1), ("Web page", 0)])
@pytest.mark.parametrize("of_scene", [True, False])
def test_the_size_is_told_before_a_file_is_written(page: Any, name: str, degree: int, of_scene: bool) -> None:
    controller = page.controller
    if not of_scene:
        controller.project = replace(controller.project, scene=None)
    controller.status = Status(num_gaussians=2_000_000, has_model=True)
    panel = ExportPanel(page)
    panel._format.value = name
    panel.refresh()
    assert f"about {size(panel._chosen.estimated_bytes(2_000_000, 3))}" in panel._facts.content
    form = format_of(f"a{panel._chosen.endings[0]}")
    assert form is not None and form is panel._chosen
    gaussians = model(5, degree)
    # Another model takes the place of the first one: its harmonics count.
    worker = SimpleNamespace(job=ViewJob(Path("other.ply")))
    controller.preview.shown = worker, model_loaded(Model(gaussians), 2_000_000)
    panel.refresh()
    assert f"about {size(form.estimated_bytes(2_000_000, degree))}" in panel._facts.content


@pytest.mark.parametrize(
    ("name", "upright", "told"),
    [
        ("PLY", False, "those of the scene's files<"),
        ("PLY", True, "upright, y down<"),
        ("glTF", False, "those of the scene's files, turned to glTF's axes<"),
        ("glTF", True, "upright, turned to glTF's axes<"),
    ],
)
def test_in_which_coordinates_a_file_lies_is_told(page: Any, name: str, upright: bool, told: str) -> None:
    panel = ExportPanel(page)
    panel._format.value, panel._upright.value = name, upright
    panel.refresh()
    assert told in html.unescape(panel._facts.content)


def test_at_most_as_many_splats_are_announced_and_afterward_how_many_it_were(page: Any) -> None:
    panel = ExportPanel(page)
    page.controller.status = Status(state="viewing", has_model=True, num_gaussians=1000)
    panel.refresh()
    assert "at most" not in panel._facts.content
    panel._trim._opacity.value = 0.3
    panel.refresh()
    assert "at most 1,000" in panel._facts.content
    panel.follow(Exported(Path("a.ply"), 755, 10))
    panel.refresh()
    assert "a.ply: 755 splats" in panel._facts.content


def test_the_section_tells_the_views_what_to_hide(page: Any) -> None:
    told: list[Trim] = []
    section = TrimSection(page, told.append)
    call: Callable[[], None] = section._draw
    section._opacity.value = 0.3
    call()
    assert told[-1] == Trim(0.3) and section._hide.visible
    section._hide.value = False
    call()
    assert told[-1] == KEEP_ALL and section.trim == Trim(0.3)
    section._hide.value = True
    section._opacity.value = 0.0
    call()
    assert told[-1] == KEEP_ALL and not section._hide.visible


def test_the_ending_follows_the_chosen_format() -> None:
    by_name = {format_.name: format_ for format_ in FORMATS}
    assert with_ending("a/model", by_name["PLY"]) == "a/model.ply"
    assert with_ending("a/model.ply", by_name["SPZ"]) == "a/model.spz"
    assert with_ending("a/model.compressed.ply", by_name["PLY"]) == "a/model.ply"
    assert with_ending("a/model.v2.ply", by_name["PLY"]) == "a/model.v2.ply"


def test_an_ending_that_is_typed_chooses_the_format(page: Page, sent: list[Any], tmp_path: Path) -> None:
    panel = ExportPanel(page)
    panel._path.value = str(tmp_path / "x.spz")
    panel._write()
    assert sent[-1].path == tmp_path / "x.spz" and panel._format.value == "SPZ"
    panel._path.value = str(tmp_path / "x.obj")
    with pytest.raises(ValueError, match=r"x\.obj would be a mesh"):
        panel._write()
    assert len(sent) == 1


def test_a_double_click_writes_one_file(page: Any, sent: list[Any]) -> None:
    panel = ExportPanel(page)
    panel.refresh()
    export = next(handle for handle, *_ in panel._kept if getattr(handle, "label", "") == "Export PLY")
    as_user(export, True)
    as_user(export, True)
    assert len(sent) == 1


def test_a_mesh_goes_with_the_model_that_it_is_of(page: Any, run: Path, tmp_path: Path) -> None:
    section = MeshSection(page, lambda: KEEP_ALL)
    for shown, stays in ((None, True), (run / "ckpts/step_00000007", True), (tmp_path / "other.ply", False)):
        section._made, section._model = cast(Any, SimpleNamespace(shown=None)), run
        page.controller.shown_path = shown
        section.refresh()
        assert (section._made is not None) == stays, shown


def test_the_box_of_a_mesh_lies_where_the_page_shows_it(page: Page, run: Path, tmp_path: Path) -> None:
    corners = (-1.0, -1.0, -1.0, 1.0, 1.0, 1.0)
    begun: list[FileTask] = []
    page.tasks.start = lambda kind, task, ended: begun.append(task)  # type: ignore[method-assign]
    section = MeshSection(page, lambda: Trim(crop=corners))
    page.controller.shown_path = tmp_path / "of_another_run.ply"  # type: ignore[misc]
    section._path.value = str(tmp_path / "mesh.glb")
    section._start()
    (mesh,) = (task.mesh for task in begun)
    scene = page.controller.project.scene
    assert mesh is not None and scene is not None and mesh.trim.crop == corners
    assert np.array_equal(np.array(mesh.box_frame), scene.transform), "not in that model's own frame"


def test_a_mesh_is_called_as_the_checkpoint_that_it_is_of(page: Any, run: Path) -> None:
    begun: list[FileTask] = []
    page.tasks.start = lambda kind, task, ended: begun.append(task)
    controller = page.controller
    section = MeshSection(page, lambda: KEEP_ALL)
    make = next(handle for handle, *_ in section._kept if handle.label == "Make mesh")
    section.refresh()
    assert make.disabled and "press Save first" in make.hint
    with pytest.raises(ValueError, match="press Save first"):
        section._start()
    controller.status = Status(state="training", step=40, num_gaussians=60, has_model=True)
    save_checkpoint(run, example(30))
    section.look()
    section.refresh()
    assert not make.disabled and make.hint is None
    section._start()
    controller.shown_path = save_checkpoint(run, example(20))
    section.refresh()
    assert Path(section._path.value).name == "blobs-20.glb"
    section._start()
    made = [task.mesh for task in begun]
    assert [(each.output.name, each.path.name) for each in made if each is not None] == [
        ("blobs-30.glb", "step_00000030"),
        ("blobs-20.glb", "step_00000020"),
    ]


@pytest.mark.parametrize("text", NAMELESS)
def test_a_path_without_a_name_is_no_file_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="names no file"):
        typed_output(text)
    assert typed_output(" a b.ply ") == Path("a b.ply")


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("mine.ply", "runs/a/exports/mine.ply"),
        ("./mine.ply", "runs/a/exports/mine.ply"),
        ("to/mine.ply", "to/mine.ply"),
        ("../mine.ply", "../mine.ply"),
        ("/to/mine.ply", "/to/mine.ply"),
    ],
)
def test_a_name_alone_goes_where_the_suggested_file_would(typed: str, place: str) -> None:
    assert output_path(typed, "runs/a/exports/a-30.ply") == Path(place)


def test_an_ending_is_never_the_whole_name() -> None:
    ply = next(form for form in FORMATS if form.name == "PLY")
    assert with_ending("", ply) == "" and with_ending("/", ply) == "/" and with_ending("a/", ply) == "a.ply"


@pytest.mark.parametrize("text", ["", "/"])
def test_an_emptied_field_is_filled_again_when_the_path_changes(page: Any, text: str) -> None:
    editor = PathEditor(Draft(CameraPath(())))
    output = OutputSection(page, editor)
    output.refresh()
    suggested = output._file.value
    output._file.value = text
    page.controller.status = Status(has_model=False)
    output.refresh()
    assert output._file.value == suggested and suggested.endswith(".mp4")


def test_a_video_takes_no_other_ones_place(
    page: Page, notices: list[Notice], sent: list[Any], tmp_path: Path
) -> None:
    editor = PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    (tmp_path / "mine.mp4").write_bytes(b"an older video")
    section = OutputSection(page, editor)
    section._file.value = str(tmp_path / "mine.mp4")
    section._start(cast(viser.ClientHandle, object()))
    assert sent[0].output == tmp_path / "mine-2.mp4"
    assert (
        "mine-2.mp4" in notices[0].title
        and "mine.mp4 stays as it is: this one is called mine-2.mp4" in notices[0].text
    )


@pytest.mark.usefixtures("notices")
def test_a_double_click_renders_one_video(page: Page, sent: list[Any], tmp_path: Path) -> None:
    editor = PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    section = OutputSection(page, editor)
    section._file.value = str(tmp_path / "mine.mp4")
    section.refresh()
    as_user(section._render, True)
    as_user(section._render, True)
    assert [command.output.name for command in sent] == ["mine.mp4"]


@pytest.mark.usefixtures("notices")
def test_frames_take_no_other_ones_folder_and_a_video_follows_its_format(
    page: Page, sent: list[Any], tmp_path: Path
) -> None:
    editor, client = PathEditor(), cast(viser.ClientHandle, object())
    for key in random_keys(1, 2):
        editor.add(key)
    section = OutputSection(page, editor)
    (tmp_path / "mine").mkdir()
    section._file.value = str(tmp_path / "mine")
    section._format.value = next(name for name, (ending, _) in RENDER_FORMATS.items() if not ending)
    section._start(client)
    assert sent[-1].output == tmp_path / "mine", "it is empty"
    (tmp_path / "mine" / "frame_00000.png").touch()
    section._start(client)
    assert sent[-1].output == tmp_path / "mine-2"
    section._format.value = section._chosen
    section._choose_format(section._chosen)
    assert section._file.value == str(tmp_path / "mine.mp4"), "not within the folder of the frames"
    section._file.value = f"{tmp_path / 'mine'}/"
    section._choose_format(section._chosen)
    section._start(client)
    assert sent[-1].output.parent == tmp_path / "mine" and sent[-1].output.suffix == ".mp4", "asked for"


def test_a_video_is_as_large_as_the_photos_to_the_pixel(page: Page, blob_scene: Scene) -> None:
    page.controller.project = replace(page.controller.project, scene=blob_scene.resized(7))
    photo = blob_scene.cameras[0]
    assert (photo.width % 7, photo.height % 7) != (0, 0), "it is rounded"
    section = OutputSection(page, PathEditor())
    assert section._sizes[PHOTO] == (photo.width // 2 * 2, photo.height // 2 * 2)


def test_a_picture_takes_no_name_of_one_that_is_still_drawn(page: Page, tmp_path: Path) -> None:
    section, wanted = PictureSection(page), tmp_path / "picture-7.png"
    (tmp_path / "picture-7.png").touch()
    names = [section._free(wanted).name for _ in range(3)]
    assert len(set(names)) == 3 and names[0] == "picture-7-2.png"
    assert all(not (tmp_path / name).exists() for name in names)


def test_a_run_that_is_started_over_is_whole_again(page: Any, run: Path) -> None:
    shown: list[Trim] = []
    trim = TrimSection(page, shown.append)
    trim._opacity.value, trim._crop.value = 0.3, True
    trim.refresh()
    assert not trim.trim.keeps_all and shown[-1] == trim.trim
    page.controller.project = replace(page.controller.project, run_dir=run.with_name("another"))
    trim.refresh()
    assert trim.trim == KEEP_ALL == shown[-1] and trim._box._corners is None
    assert not trim._from.visible


def changed_by_a_user(control: Any, value: Any, call: Callable[[Any], None]) -> None:
    """Change a control as a browser does; nobody visits this server."""
    control.value = value
    call(SimpleNamespace(client=object()))


def test_a_crop_box_is_there_when_its_run_is_opened_again(
    page: Any, run: Path, notices: list[Notice]
) -> None:
    first = TrimSection(page, lambda _: None)
    assert not notices, "nothing was kept"
    changed_by_a_user(first._crop, True, first._change)
    changed_by_a_user(first._from, (-0.125, -1.0, -2.0), first._move)
    changed_by_a_user(first._opacity, 0.25, first._change)
    first.close()
    assert (run / "crop.json").exists() and "crop.json" in first._said.content
    shown: list[Trim] = []
    again = TrimSection(page, shown.append)
    assert again.trim == first.trim == shown[-1] and again.trim.crop is not None
    assert [notice.title for notice in notices] == ["Filtered like last time"]
    again.surround(np.zeros(3), 5.0)
    assert again.trim == first.trim, "a new model does not move what somebody has laid"
    project = page.controller.project
    page.controller.project = replace(project, run_dir=run.with_name("another"))
    again.refresh()
    assert again.trim == KEEP_ALL and not notices, "a new run is not filtered"
    page.controller.project = project
    # Elsewhere in the world the same numbers would be another box.
    scene = page.controller.project.scene
    moved = replace(scene, transform=scene.transform @ np.diag([2.0, 2.0, 2.0, 1.0]))
    page.controller.project = replace(page.controller.project, scene=moved)
    assert TrimSection(page, lambda _: None).trim == KEEP_ALL


def test_a_filter_of_another_runs_model_is_not_kept_as_that_of_this_run(page: Any, run: Path) -> None:
    section = TrimSection(page, lambda _: None)
    changed_by_a_user(section._opacity, 0.25, section._change)
    section.close()
    kept = (run / "crop.json").read_bytes()
    section = TrimSection(page, lambda _: None)
    page.controller.shown_path = run.with_name("another") / "ckpts" / "step_00000009"
    changed_by_a_user(section._opacity, 0.75, section._change)
    section.close()
    assert (run / "crop.json").read_bytes() == kept and "another run is in the view" in section._said.content


def test_from_beyond_to_is_said_and_put_in_order_when_it_is_opened_again(page: Any, run: Path) -> None:
    section = TrimSection(page, lambda _: None)
    as_user(section._crop, True)
    as_user(section._from, (5.0, -1.0, -1.0))
    as_user(section._to, (1.0, 1.0, 1.0))
    assert section._from.value[0] == 5.0, "more digits may follow"
    assert section._box._corners == ((1.0, -1.0, -1.0), (5.0, 1.0, 1.0))
    assert section.trim.crop == (5.0, -1.0, -1.0, 1.0, 1.0, 1.0), "of opposite corners in any order"
    assert "From is beyond To: the box lies between them." in section._said.content
    section.close()
    kept = TrimSection(page, lambda _: None)
    assert (kept._from.value, kept._to.value) == ((1.0, -1.0, -1.0), (5.0, 1.0, 1.0))
    assert "beyond" not in kept._said.content


def test_a_crop_that_cannot_be_written_is_not_called_kept(page: Any, run: Path) -> None:
    (run / "crop.json").mkdir()
    section = TrimSection(page, lambda _: None)
    changed_by_a_user(section._opacity, 0.25, section._change)
    section.close()
    assert "The crop is not saved: " in section._said.content
    (run / "crop.json").rmdir()
    changed_by_a_user(section._opacity, 0.5, section._change)
    section.close()
    assert "Saved in crop.json" in section._said.content
    page.viewport.on_kept(section.trim, 1234)
    assert section.num_kept == 1234 and "Keeps 1,234 splats. Saved in crop.json" in section._said.content
    page.viewport.on_kept(Trim(0.75), 99)  # a picture of the filter before comes late
    assert section.num_kept is None
    section._not_kept = "The crop is not saved: of the run before."
    section._take_kept()
    assert "not saved" not in section._said.content, "another run was opened"


def test_a_box_that_was_lost_is_laid_around_the_model_again(page: Any, run: Path) -> None:
    section = TrimSection(page, lambda _: None)
    section.surround(np.array([1.0, 0.0, 0.0]), 2.0)
    first = section._from.value, section._to.value
    changed_by_a_user(section._crop, True, section._change)
    changed_by_a_user(section._from, (500.0, 500.0, 500.0), section._move)
    section.surround(np.array([1.5, 0.0, 0.0]), 2.0)
    assert section._from.value == (500.0, 500.0, 500.0)
    assert section._again.visible
    section._surround_again()
    moved = tuple(tuple(np.add(corner, (0.5, 0.0, 0.0)).tolist()) for corner in first)
    assert (section._from.value, section._to.value) == moved and section._crop.value
    page.controller.preview.loaded = ModelLoaded(9, 7, (50.0, 0.0, 0.0), 0.5)
    section._surround_again()
    assert section._from.value[0] == 49.0, "around the other model, which is in the view"
    page.controller.preview.loaded = None
    section._surround_again()
    assert (section._from.value, section._to.value) == moved
    section.close()
    kept = TrimSection(page, lambda _: None)
    assert kept._crop.value, "the box is the model's own from then on, and crops still"


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"min_opacity": 7, "crops": true, "box": null, "hides": true}']
)
def test_a_damaged_crop_is_none(page: Any, run: Path, text: str) -> None:
    (run / "crop.json").write_text(text)
    assert TrimSection(page, lambda _: None).trim == KEEP_ALL


@pytest.mark.parametrize("radius", [0.004, 1.0, 37.0, 5e4])
def test_the_fields_of_the_box_follow_the_size_of_the_model(page: Any, radius: float) -> None:
    section = TrimSection(page, lambda _: None)
    section.surround(np.array([0.1, 0.2, 0.3]) * radius, radius)
    side = section._to.value[0] - section._from.value[0]
    assert abs(side - 4.0 * radius) < 0.07 * radius, "the box is not rounded away"
    assert 30 < side / section._from.step < 330
    # What is shown in the field is what holds.
    assert round(section._from.value[0], section._from.precision) == pytest.approx(section._from.value[0])


def test_a_side_of_the_box_is_dragged_up_to_the_other_one(page: Any) -> None:
    section = TrimSection(page, lambda _: None)
    section._crop.value = True
    section._draw()
    assert len(section._box._handles) == 6
    upper = next(face for face in BOX_SIDES if face.axis == 2 and face.is_upper)
    handle = section._box._handles[upper]

    def drag(phase: str, to: float) -> None:
        handle.position = (0.0, 0.0, to)
        event = SimpleNamespace(client_id=0, target=handle, phase=phase)
        asyncio.run(section._box._dragged(upper, cast(Any, event)))

    drag("start", 1.0)
    drag("update", 2.5)
    assert section._to.value == (1.0, 1.0, 2.5) and section._from.value == (-1.0, -1.0, -1.0)
    drag("end", -7.0)
    section._draw()
    assert section._to.value[2] == -1.0 == handle.position[2], "it ends at the other side"
    outward = viser.transforms.SO3(handle.wxyz).as_matrix() @ np.eye(3)[2]
    assert outward[2] == pytest.approx(1.0)
    lower = section._box._handles[BOX_SIDES[0]]
    assert (viser.transforms.SO3(lower.wxyz).as_matrix() @ np.eye(3)[0])[0] == pytest.approx(-1.0)
    section._crop.value = False
    section._draw()
    assert not section._box._handles
