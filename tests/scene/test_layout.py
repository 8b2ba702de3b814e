"""Folders as other programs and people leave them: several models, scenes a level off, incomplete folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from PIL import Image
from poses_of_programs import WRITERS, write_metashape, write_polycam, write_record3d, write_scanner_app
from scene_builder import (
    TinyScene,
    cameras_bin,
    images_bin,
    points_bin,
    tiny_scene,
    write_blender,
    write_colmap,
    write_colmap_text,
    write_pictures,
    write_transforms,
)

from splatstudio.api import load_model, train
from splatstudio.checkpoints.checkpoint import checkpoint_folders
from splatstudio.models.model import scene_shown_by
from splatstudio.models.scoring import EvaluationTask, evaluate_task
from splatstudio.poses.estimate import lacks_poses
from splatstudio.scene.colmap import visible_points
from splatstudio.scene.colmap_model import num_registered
from splatstudio.scene.describe import describe_scene
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig

TINY = tiny_scene()


def write_model(folder: Path, tiny: TinyScene) -> Path:
    """Write the three files of a COLMAP model into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cameras.bin").write_bytes(cameras_bin(tiny))
    (folder / "images.bin").write_bytes(images_bin(tiny))
    (folder / "points3D.bin").write_bytes(points_bin(tiny))
    return folder


def part_of(tiny: TinyScene, num: int) -> TinyScene:
    """Return the first `num` views of a scene."""
    return replace(tiny, names=tiny.names[:num], viewmats=tiny.viewmats[:num])


@pytest.fixture
def two_models(tmp_path: Path) -> Path:
    """Return a scene whose first model has 3 of the 9 photos, and whose second, moved, has all."""
    folder = write_colmap(tmp_path / "scene", TINY)
    shutil.rmtree(folder / "sparse/0")
    write_model(folder / "sparse/0", part_of(TINY, 3))
    moved = TINY.viewmats.copy()
    moved[:, :3, 3] += moved[:, :3, :3] @ np.array([1.0, 2.0, 3.0])
    write_model(folder / "sparse/1", replace(TINY, viewmats=moved, points=TINY.points - [1.0, 2.0, 3.0]))
    return folder


def test_of_several_models_the_largest_is_read_and_another_can_be_chosen(two_models: Path) -> None:
    scene = load_scene(two_models)
    assert len(scene.views) == 9 and scene.model_folder == two_models / "sparse/1"
    assert scene.notes[0] == (
        f"{two_models}/sparse holds 2 models: 1 (9 photos) is used, 0 (3 photos) not; "
        "--model NUMBER chooses another"
    )
    first = load_scene(two_models, model=0)
    assert len(first.views) == 3 and not any("--model" in note for note in first.notes)
    with pytest.raises(ValueError, match=r"no model 2: choose one of 0 \(3 photos\), 1 \(9 photos\)"):
        load_scene(two_models, model=2)
    # The folder of a model says it, too, where no option can.
    assert len(load_scene(two_models / "sparse/0").views) == 3


def test_models_of_text_are_counted_too(tmp_path: Path) -> None:
    folder = write_colmap_text(tmp_path / "scene", part_of(TINY, 3))
    other = write_colmap_text(tmp_path / "other", TINY)
    (other / "sparse/0").rename(folder / "sparse/1")
    write_pictures(folder / "images", TINY)
    assert len(load_scene(folder).views) == 9
    assert [num_registered(folder / "sparse" / model) for model in "01"] == [3, 9]
    images = folder / "sparse/0/images.txt"
    images.write_text("\n".join(filter(None, images.read_text().split("\n"))), encoding="utf-8-sig")
    assert num_registered(images.parent) == 3, "without lines of observations"
    images.write_text("# none\n")
    assert num_registered(images.parent) == 0


def test_a_damaged_count_is_not_the_largest(two_models: Path) -> None:
    write_model(two_models / "sparse/2", part_of(TINY, 2))
    (two_models / "sparse/2/images.bin").write_bytes(b"\xff" * 100)
    assert load_scene(two_models).model_folder == two_models / "sparse/1"


def test_the_only_model_may_have_any_number(two_models: Path) -> None:
    shutil.rmtree(two_models / "sparse/0")
    scene = load_scene(two_models)
    assert len(scene.views) == 9 and scene.notes == ()


def test_a_number_is_for_colmap_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--model is for COLMAP's"):
        load_scene(write_transforms(tmp_path, TINY), model=1)


def test_a_run_keeps_its_model(two_models: Path, tmp_path: Path, command: CommandLine) -> None:
    config = TrainConfig(steps=2, sh_degree=0, eval_every=0, eval_steps=(), save_minutes=0, model=0)
    run = tmp_path / "run"
    train(two_models, run_dir=run, config=config)
    assert json.loads((run / "run.json").read_text())["config"]["model"] == 0
    shown = scene_shown_by(run, None, full_size=True)
    assert len(shown.views) == 3 and np.allclose(load_model(run).transform, shown.transform)
    for named in (None, two_models):
        evaluated = evaluate_task(EvaluationTask(run, named)).evaluation
        assert [image.name for image in evaluated.images] == [TINY.names[0]]
    code, told = command("info", two_models, "--model", 0)
    assert code == 0 and "Photos 3:" in " ".join(told.split())


def test_a_larger_model_that_comes_later_is_another_run_s(
    two_models: Path, tmp_path: Path, command: CommandLine
) -> None:
    (two_models / "sparse/1").rename(tmp_path / "later")
    write_model(two_models / "sparse/1", part_of(TINY, 2))
    code, told = command("train", two_models, "--run", tmp_path / "run", "--steps", 2, "--sh-degree", 0)
    assert code == 0 and "holds 2 models: 0 (3 photos) is used" in " ".join(told.split())
    (tmp_path / "later").rename(two_models / "sparse/2")
    assert len(load_scene(two_models).views) == 9
    assert len(scene_shown_by(tmp_path / "run", None, full_size=True).views) == 3
    code, told = command("train", two_models, "--run", tmp_path / "run", "--steps", 3, "--resume")
    assert code == 0 and "3 steps" not in told and len(checkpoint_folders(tmp_path / "run")) == 2


def test_photos_without_a_pose_are_counted_and_named(tmp_path: Path, command: CommandLine) -> None:
    folder = write_colmap(tmp_path / "scene", part_of(TINY, 3))
    write_pictures(folder / "images", TINY)
    scene = load_scene(folder)
    assert scene.unposed == TINY.names[3:]
    assert scene.notes[0].startswith(f"6 of the 9 photos in {folder}/images have no pose and are not used")
    assert dict(describe_scene(scene))["Without a pose"] == ", ".join(TINY.names[3:])
    assert any("`splatstudio info` names them" in note for note in scene.notes)
    assert all("info" not in text for _, text in describe_scene(scene)), "it has just named them"
    code, told = command("info", folder)
    assert code == 0 and all(name in told for name in TINY.names[3:])
    other = load_scene(write_transforms(tmp_path / "other", TINY))
    assert other.unposed == () and other.notes == ()


def test_an_incomplete_folder_of_smaller_photos_is_not_used(tmp_path: Path) -> None:
    folder = write_colmap(tmp_path, TINY)
    write_pictures(folder / "images_2", part_of(tiny_scene(width=24, height=16), 4))
    scene = load_scene(folder, downscale=2)
    assert len(scene.views) == 9 and scene.views[0].image_path.parent.name == "images"
    assert (scene.cameras[0].width, scene.photo(8).rgb.shape) == (24, (16, 24, 3))
    assert scene.notes[0].startswith(f"{folder}/images_2 holds 4 of the 9 photos")
    write_pictures(folder / "images_2", tiny_scene(width=24, height=16))
    assert load_scene(folder, downscale=2).views[0].image_path.parent.name == "images_2"
    # Where there are no others, they are better than none.
    shutil.rmtree(folder / "images")
    scene = load_scene(folder)
    assert scene.views[0].image_path.parent.name == "images_2" and "images_2 are used" in scene.notes[0]


def in_a_folder_below(folder: Path) -> None:
    write_colmap(folder / "data", TINY)


def two_below(folder: Path) -> None:
    write_blender(folder / "a/b", TINY)


def undistorted(folder: Path) -> None:
    write_colmap(folder / "dense/0", TINY)


def undistorted_beside_its_model(folder: Path) -> None:
    write_colmap(folder / "dense", TINY)
    write_model(folder / "sparse/0", TINY)


def as_taken(folder: Path) -> None:
    write_model(folder / "distorted/sparse/0", TINY)
    write_pictures(folder / "input", TINY)


def model_below_the_photos(folder: Path) -> None:
    write_model(folder / "output/sparse/0", TINY)
    write_pictures(folder / "images", TINY)


def model_below_photos_at_the_top(folder: Path) -> None:
    write_model(folder / "more/output/sparse/0", TINY)
    write_pictures(folder, TINY)


def as_taken_beside_what_is_undistorted(folder: Path) -> None:
    as_taken(folder)
    write_pictures(folder / "images", tiny_scene(width=30, height=30))


def model_at_the_top(folder: Path) -> None:
    write_model(folder, TINY)
    write_pictures(folder / "images", TINY)


def photos_at_the_top(folder: Path) -> None:
    write_model(folder / "sparse", TINY)
    write_pictures(folder, TINY)
    write_pictures(folder / "masks", TINY)


def photos_of_two_cameras_at_the_top(folder: Path) -> None:
    names = tuple(f"left/{name}" if i % 2 else f"right/{name}" for i, name in enumerate(TINY.names))
    both = replace(TINY, names=names)
    write_model(folder / "sparse/0", both)
    write_pictures(folder, both)
    write_pictures(folder / "other", TINY)


LAYOUTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "data": (in_a_folder_below, "no camera poses itself: {}/data is opened"),
    "a/b": (two_below, "no camera poses itself: {}/a/b is opened"),
    "dense/0": (undistorted, "no camera poses itself: {}/dense/0 is opened"),
    "sparse and dense": (
        undistorted_beside_its_model,
        "no photos of its poses itself: {}/dense is opened",
    ),
    "distorted": (as_taken, ""),
    "distorted beside images": (as_taken_beside_what_is_undistorted, ""),
    "output and images": (model_below_the_photos, "no camera poses itself: {}/output is opened"),
    "output in photos": (
        model_below_photos_at_the_top,
        "no camera poses itself: {}/more/output is opened",
    ),
    "model at the top": (model_at_the_top, ""),
    "photos at the top": (photos_at_the_top, "the photos in {} are used"),
    "two cameras at the top": (photos_of_two_cameras_at_the_top, "the photos in {} are used"),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_layouts_of_other_programs_are_opened(tmp_path: Path, kind: str) -> None:
    write, told = LAYOUTS[kind]
    folder = tmp_path / "scene"
    folder.mkdir()
    write(folder)
    scene = load_scene(folder)
    assert len(scene.views) == (8 if "b" in kind.split("/") else 9)
    assert scene.path == folder and scene.unposed == ()
    assert scene.photo(0).rgb.shape == (32, 48, 3)
    if told:
        assert told.format(folder) in scene.notes[0]
    if scene.format == "COLMAP" and "output" not in kind:
        assert scene.model_folder is not None
        for part in (scene.model_folder, scene.model_folder / "images.bin"):
            assert load_scene(part).views[0].name == scene.views[0].name
        with pytest.raises(ValueError, match="no observations"):  # the model is found again
            visible_points(scene)


def test_a_file_of_a_scene_stands_for_its_folder(tmp_path: Path) -> None:
    folder = write_blender(tmp_path, TINY)
    assert load_scene(folder / "transforms_train.json").format == "Blender"


def test_several_scenes_below_are_listed_with_their_sizes(tmp_path: Path, command: CommandLine) -> None:
    write_colmap(tmp_path / "room", part_of(TINY, 4))
    write_transforms(tmp_path / "more/garden", TINY)
    write_colmap(tmp_path / ".hidden", TINY)
    with pytest.raises(ValueError, match="holds 2 scenes") as caught:
        load_scene(tmp_path)
    assert "room (4 photos), more/garden (9 photos); open one of them" in str(caught.value)
    code, told = command("info", tmp_path)
    assert code == 2 and "holds 2 scenes" in told
    assert len(load_scene(tmp_path / "more").views) == 9


@pytest.mark.parametrize("name", ["images_of_the_church", "depth of field", "masked ball"])
def test_a_scene_below_may_have_a_name_that_begins_like_that_of_pictures(tmp_path: Path, name: str) -> None:
    write_colmap(tmp_path / name, TINY)
    write_colmap(tmp_path / "images_2" / "copy", TINY)
    assert load_scene(tmp_path).model_folder == tmp_path / name / "sparse/0"


@pytest.mark.parametrize("place", [".", "images", "holiday", "holiday/first day"])
def test_photos_below_the_folder_are_photos_too(tmp_path: Path, place: str) -> None:
    write_pictures(tmp_path / "scan" / place, TINY)
    write_pictures(tmp_path / "scan" / ".trash", TINY)
    write_pictures(tmp_path / "scan" / place / "masks", TINY)
    told = f"holds {len(TINY.names)} photos but no camera poses.*splatstudio poses"
    with pytest.raises(ValueError, match=told):
        load_scene(tmp_path / "scan")


def test_scenes_far_below_are_not_looked_for(tmp_path: Path) -> None:
    write_colmap(tmp_path / "a/b/c", TINY)
    with pytest.raises(ValueError, match="is not a scene"):
        load_scene(tmp_path)


def test_photos_in_several_folders_are_told_by_folder(tmp_path: Path) -> None:
    write_pictures(tmp_path / "garden", TINY)
    write_pictures(tmp_path / "room/images", TINY)
    for copies in ("room/images_2", "room/depths", "garden/old run/renders"):
        write_pictures(tmp_path / copies, TINY)
    (tmp_path / "garden/old run/run.json").write_text("{}")
    told = r"holds \d+ photos in 2 folders \(garden: 4, room: 4\).*as one scene.*its folder can be named"
    with pytest.raises(ValueError, match=told.replace("4", str(len(TINY.names)))):
        load_scene(tmp_path)


@pytest.mark.parametrize(("name", "side"), [("images", 48), ("images_2", 24)])
def test_who_names_the_photos_of_a_scene_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, side: int
) -> None:
    write_colmap(tmp_path, TINY)
    if name != "images":
        shutil.copytree(tmp_path / "images", tmp_path / name)
        for file in (tmp_path / name).iterdir():
            with Image.open(file) as whole:
                whole.resize((24, 16)).save(file)
    photos = tmp_path / name
    monkeypatch.chdir(photos)
    assert not lacks_poses(photos) and not lacks_poses(Path(".")), "nothing is estimated anew"
    scene = load_scene(photos)
    assert scene.path == tmp_path
    assert len(scene.views) == len(TINY.names) and scene.cameras[0].width == side
    assert f"{photos} has no camera poses itself: {tmp_path} is opened" in scene.notes
    write_pictures(tmp_path / "masks", TINY)
    with pytest.raises(ValueError, match="no camera poses"):
        load_scene(tmp_path / "masks")


def test_photos_in_a_hidden_folder_are_none_of_the_scene(tmp_path: Path) -> None:
    write_colmap(tmp_path, TINY)
    write_pictures(tmp_path / "images/.splatstudio/poses/images", TINY)
    scene = load_scene(tmp_path)
    assert scene.unposed == () and not any("no pose" in note for note in scene.notes)


def test_heic_and_raw_files_are_counted_as_the_photos_that_they_are(tmp_path: Path) -> None:
    for name in ("1.HEIC", "2.heif", "3.jpg", "3.CR2", "4.CR2", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="holds 4 photos but no camera poses"):
        load_scene(tmp_path)


@pytest.mark.parametrize("ending", [".HEIC", ".CR2", ".dng"])
@pytest.mark.parametrize("program", ["COLMAP", "transforms.json", "Metashape", "RealityScan"])
def test_photos_of_poses_that_are_heic_or_raw_are_told(tmp_path: Path, program: str, ending: str) -> None:
    writers = {"COLMAP": write_colmap, "transforms.json": write_transforms}
    if program in writers:
        names = tuple(name.replace(".png", ending) for name in TINY.names)
        folder = writers[program](tmp_path / "a", replace(TINY, names=tuple(f"{n}.png" for n in names)))
        for file in (folder / "images").iterdir():
            file.rename(file.with_suffix(""))
        for file in (folder / "sparse/0/images.bin", folder / "transforms.json"):
            if file.exists():
                file.write_bytes(file.read_bytes().replace(f"{ending}.png".encode(), ending.encode()))
    else:
        folder = WRITERS[program](tmp_path / "a")
        for file in (folder / "images").iterdir():
            file.rename(file.with_suffix(ending))
    with pytest.raises(ValueError, match=r"as HEIC or raw files, which .* save them as JPEG under the same"):
        load_scene(folder)
    photos = sorted((folder / "images").iterdir())
    for file in photos[1:]:
        file.rename(file.with_suffix(".png"))
    scene = load_scene(folder)
    assert len(scene.views) == len(TINY.names) - 1, "they are found under the ending that they have now"
    assert any("1 of them are there as HEIC or raw files" in note for note in scene.notes)
    photos[0].rename(photos[0].with_suffix(".png"))
    assert len(load_scene(folder).views) == len(TINY.names)


@pytest.mark.parametrize("program", ["Metashape", "RealityScan"])
def test_the_case_and_the_mark_of_a_file_of_poses_do_not_matter(tmp_path: Path, program: str) -> None:
    folder = WRITERS[program](tmp_path / "a")
    (file,) = (path for path in folder.iterdir() if path.is_file())
    text = file.read_text()
    file.unlink()
    (folder / f"Kameras{file.suffix.upper()}").write_text(text, encoding="utf-8-sig")
    (folder / "images").rename(folder / "Photos")
    scene = load_scene(folder)
    assert scene.format == program and len(scene.views) == len(TINY.names)
    assert load_scene(folder / "Photos").path == folder


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_an_xml_may_be_of_utf_16(tmp_path: Path, encoding: str) -> None:
    folder = write_metashape(tmp_path / "a")
    text = (folder / "cameras.xml").read_text().replace("UTF-8", "UTF-16")
    mark = "" if encoding == "utf-16" else "\ufeff"
    (folder / "cameras.xml").write_bytes((mark + text).encode(encoding))
    assert load_scene(folder).format == "Metashape"


@pytest.mark.parametrize(("pictures", "table"), [("rgbd", "metadata"), ("rgb", "metadata.json")])
def test_record3d_has_its_pictures_in_either_folder(tmp_path: Path, pictures: str, table: str) -> None:
    folder = write_record3d(tmp_path / "a")
    (folder / "rgb").rename(folder / pictures)
    (folder / "metadata").rename(folder / table)
    scene = load_scene(folder)
    assert scene.format == "Record3D" and len(scene.views) == len(TINY.names)
    archive = shutil.make_archive(str(tmp_path / "capture"), "zip", folder)
    record = Path(archive).rename(tmp_path / "capture.r3d")
    assert len(load_scene(record).views) == len(TINY.names)


def test_other_programs_metadata_beside_pictures_are_no_poses(tmp_path: Path) -> None:
    write_pictures(tmp_path / "rgb", TINY)
    (tmp_path / "metadata.json").write_text('{"0": {"warp_id": 0}}')
    with pytest.raises(ValueError, match="no camera poses"):
        load_scene(tmp_path)


def test_a_scan_may_begin_with_any_frame(tmp_path: Path) -> None:
    folder = write_scanner_app(tmp_path / "a")
    for file in folder.glob("frame_00000.*"):
        file.unlink()
    scene = load_scene(folder)
    assert scene.format == "3D Scanner App" and len(scene.views) == len(TINY.names) - 1


@pytest.mark.parametrize("place", ["keyframes", "keyframes/corrected_images"])
def test_who_names_a_part_of_a_recording_opens_it(tmp_path: Path, place: str) -> None:
    folder = write_polycam(tmp_path / "a")
    write_pictures(folder / "keyframes/confidence", TINY)
    assert not lacks_poses(folder / place)
    scene = load_scene(folder / place)
    assert scene.path == folder and len(scene.views) == len(TINY.names)
    assert f"{folder / place} has no camera poses itself: {folder} is opened" in scene.notes


def test_maps_of_confidence_are_no_photos(tmp_path: Path) -> None:
    write_pictures(tmp_path / "confidence", TINY)
    write_pictures(tmp_path / "photos", TINY)
    with pytest.raises(ValueError, match=f"photos holds {len(TINY.names)} photos but no camera poses"):
        load_scene(tmp_path)


def test_corrected_poses_are_not_used_with_pictures_as_taken(tmp_path: Path) -> None:
    folder = write_polycam(tmp_path / "a") / "keyframes"
    shutil.copytree(folder / "corrected_cameras", folder / "cameras")
    for file in (folder / "corrected_cameras").iterdir():
        file.write_text(file.read_text().replace('"fx": ', '"fx": 9'))
    assert load_scene(folder.parent).cameras[0].K[0, 0] > 900
    (folder / "corrected_images").rename(folder / "images")
    scene = load_scene(folder.parent)
    assert scene.cameras[0].K[0, 0] == TINY.focal
    assert any("corrected_cameras is not used" in note for note in scene.notes)


def test_of_several_exports_in_a_folder_a_note_names_those_not_used(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "a")
    text = (folder / "cameras.xml").read_text()
    (folder / "newer.xml").write_text(text.replace('<group id="0"', '<group id="1"'))
    assert load_scene(folder).notes[0] == (
        f"{folder} holds 2 files of camera poses: cameras.xml is used, newer.xml not; open one of them by its"
        " own name to use that"
    )
    assert not any("is used" in note for note in load_scene(folder / "newer.xml").notes)
