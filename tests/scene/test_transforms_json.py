"""transforms.json as nerfstudio, instant-ngp, Metashape's export and people write it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from blob_scenes import write_blob_scene
from scene_builder import (
    points_ply,
    tiny_scene,
    transforms,
    write_blender,
    write_pictures,
    write_transforms,
)

from splatstudio.scene.lens import Lens, distort, undistort
from splatstudio.scene.lens_models import project
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene

TINY = tiny_scene()


def written(folder: Path, pictures: Any = "images", **values: Any) -> Path:
    """Write a transforms.json with other `values`, None to omit one, and the photos in `pictures`."""
    write_pictures(folder / pictures, TINY)
    content = transforms(TINY) | values
    (folder / "transforms.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder


def listed(*numbers: int) -> list[str]:
    return [f"images/{TINY.names[number]}" for number in numbers]


def split_of(scene: Scene) -> tuple[list[str], list[str]]:
    """Return the names of the views to train on and of those to test with."""
    names = [view.name for view in scene.views]
    return [names[i] for i in scene.train_indices], [names[i] for i in scene.test_indices]


def names(*numbers: int) -> list[str]:
    return [TINY.names[number] for number in numbers]


@pytest.mark.parametrize(
    ("lists", "train", "test"),
    [
        ({"train": (0, 1, 2), "val": (3, 4), "test": (3, 4)}, (0, 1, 2), (3, 4)),
        ({"train": (0, 1, 2), "val": (3,), "test": (5, 6)}, (0, 1, 2), (5, 6)),
        ({"train": (0, 1, 2), "val": (3,)}, (0, 1, 2), (3,)),
        ({"train": (0, 1, 2)}, (0, 1, 2), (3, 4, 5, 6, 7, 8)),
        ({"test": (8,)}, (0, 1, 2, 3, 4, 5, 6, 7), (8,)),
        ({"train": (0, 1, 2, 3), "test": (3, 4)}, (0, 1, 2), (3, 4)),
    ],
)
def test_the_lists_of_filenames_split_the_photos(tmp_path: Path, lists, train, test) -> None:
    values = {f"{split}_filenames": listed(*numbers) for split, numbers in lists.items()}
    scene = load_scene(written(tmp_path, **values))
    assert split_of(scene) == (names(*train), names(*test))
    assert f"names the {len(test)} photos of the test" in scene.notes[0]
    num_unused = 9 - len(train) - len(test)
    passed_over = [note for note in scene.notes if "of its val_filenames not used: test_filenames" in note]
    num_passed_over = len(set(lists.get("val", ())) - set(test)) if "test" in lists else 0
    assert [note.split()[0] for note in passed_over] == ([str(num_passed_over)] if num_passed_over else [])
    unused = [note for note in scene.notes if "in none of the lists" in note]
    others = num_unused - num_passed_over
    assert [note.split()[0] for note in unused] == ([str(others)] if others else [])
    # What the user says goes before the file.
    chosen = load_scene(tmp_path, test_images=[TINY.names[1]])
    assert split_of(chosen)[1] == names(1)


def test_lists_may_name_photos_without_their_folders(tmp_path: Path) -> None:
    scene = load_scene(written(tmp_path, train_filenames=names(0, 1, 2), test_filenames=names(3, 4)))
    assert split_of(scene) == (names(0, 1, 2), names(3, 4))


def test_numbers_may_be_written_as_text(tmp_path: Path) -> None:
    content = transforms(TINY)
    frames = [frame | {"k1": "-0.01", "k2": "0", "p1": "-0.0"} for frame in content["frames"]]
    lens = load_scene(written(tmp_path, frames=frames)).views[0].lens
    assert lens.distortion[:4] == (-0.01, 0.0, 0.0, 0.0)


def test_instant_ngp_knows_angles_in_degrees_too(tmp_path: Path) -> None:
    width = 2 * TINY.focal * np.tan(np.radians(30))
    scene = load_scene(written(tmp_path, fl_x=None, fl_y=None, w=None, h=None, x_fov=60))
    assert scene.views[0].camera.K[0, 0] == pytest.approx(TINY.focal * TINY.width / width)


MATRIX = [[50.0, 0.0, 23.0], [0.0, 51.0, 15.0], [0.0, 0.0, 1.0]]
OTHER_NAMES = {
    "fx": {"fx": 50, "fy": 51, "cx": 23, "cy": 15},
    "K": {"K": MATRIX},
    "nine numbers": {"K": np.ravel(MATRIX).tolist()},
    "four by four": {"K": [[*row, 0.0] for row in MATRIX] + [[0.0, 0.0, 0.0, 1.0]]},
    "column by column": {"K": np.transpose(MATRIX).ravel().tolist()},
}


@pytest.mark.parametrize("kind", OTHER_NAMES)
@pytest.mark.parametrize("of_frames", [False, True])
def test_intrinsics_have_several_names(tmp_path: Path, kind: str, of_frames: bool) -> None:
    none = dict.fromkeys(("fl_x", "fl_y", "cx", "cy"))
    frames = [frame | OTHER_NAMES[kind] for frame in transforms(TINY)["frames"]]
    values = {"frames": frames, "camera_angle_x": 1.0} if of_frames else OTHER_NAMES[kind]
    lens = load_scene(written(tmp_path, **(none | values))).views[0].lens
    assert (lens.fx, lens.fy, lens.cx, lens.cy) == (50, 51, 23, 15)


def test_one_focal_length_or_angle_is_that_of_both_axes(tmp_path: Path) -> None:
    for number, values in enumerate(
        ({"fl_y": 40}, {"camera_angle_y": 2 * np.arctan(0.5 * TINY.height / 40)})
    ):
        told = {"fl_x": None, "fl_y": None, "w": None, "h": None, **values}
        lens = load_scene(written(tmp_path / f"{number}", **told)).views[0].lens
        assert (lens.fx, lens.fy) == (pytest.approx(40), pytest.approx(40))


def test_an_angle_of_a_frame_goes_before_what_the_file_tells(tmp_path: Path) -> None:
    angle = 2 * float(np.arctan(0.5 * TINY.width / 30))
    frames = [frame | {"camera_angle_x": angle} for frame in transforms(TINY)["frames"]]
    lens = load_scene(written(tmp_path, frames=frames, camera_angle_y=0.4)).views[0].lens
    assert (lens.fx, lens.fy) == (pytest.approx(30), pytest.approx(30))


def test_distortion_may_be_a_list_in_the_order_of_nerfstudio(tmp_path: Path) -> None:
    frames = transforms(TINY)["frames"]
    frames[1]["distortion_params"] = [0.01, 0.0, 0.0, 0.0, 0.0, 0.0]
    scene = load_scene(written(tmp_path, frames=frames, distortion_params=[0.1, 0.2, 0.3, 0, 0.4, 0.5], k1=9))
    assert scene.views[0].lens.distortion == (0.1, 0.2, 0.4, 0.5, 0.3)
    assert scene.views[1].lens.distortion == (0.01, 0.0, 0.0, 0.0, 0.0)


def test_latlong_of_instant_ngp_is_a_panorama(tmp_path: Path) -> None:
    lens = load_scene(written(tmp_path, latlong=True, equirectangular=False)).views[0].lens
    assert (lens.kind, lens.model) == ("equirectangular", "EQUIRECTANGULAR")
    # Where its `latlong_to_dir` says that a pixel looks: x right, y down, z forward.
    u, v = 0.7 * TINY.width, 0.2 * TINY.height
    longitude, latitude = (u / TINY.width - 0.5) * 2 * np.pi, (v / TINY.height - 0.5) * np.pi
    direction = np.array(
        [
            np.sin(longitude) * np.cos(latitude),
            np.sin(latitude),
            np.cos(longitude) * np.cos(latitude),
        ]
    )
    shown = project(lens.kind, lens.distortion, direction) * [lens.fx, lens.fy] + [lens.cx, lens.cy]
    np.testing.assert_allclose(shown, [u, v], rtol=1e-12)


def test_a_circle_of_a_fisheye_that_is_not_used_is_told(tmp_path: Path) -> None:
    written(tmp_path, camera_model="OPENCV_FISHEYE", fisheye_crop_radius=12)
    assert any(note.startswith("fisheye_crop_radius is not used") for note in load_scene(tmp_path).notes)


def black(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((TINY.height, TINY.width), np.uint8))


@pytest.mark.parametrize("folder", ["masks/day1", "images/masks"])
def test_masks_of_photos_in_folders_are_found(tmp_path: Path, folder: str) -> None:
    content = transforms(TINY, "images/day1")
    written(tmp_path, "images/day1", frames=content["frames"])
    for name in TINY.names:
        black(tmp_path / folder / name)
    scene = load_scene(tmp_path)
    assert all(view.mask_path is not None for view in scene.views)
    mask = scene.photo(0).mask
    assert mask is not None and not mask.any()


@pytest.mark.parametrize("listed_as", ["/elsewhere/scene/masks/", "../masks/", "C:\\scene\\masks\\"])
def test_listed_masks_are_found_by_the_ends_of_their_paths(tmp_path: Path, listed_as: str) -> None:
    frames = [frame | {"mask_path": listed_as + name} for frame, name in frames_with_names()]
    written(tmp_path, frames=frames)
    for name in TINY.names[1:]:
        black(tmp_path / "masks" / name)
    scene = load_scene(tmp_path)
    assert [view.mask_path is not None for view in scene.views] == [False] + [True] * 8
    (note,) = (note for note in scene.notes if "mask" in note)
    assert note.startswith("1 photo is used without the mask that is listed") and TINY.names[0] in note


def frames_with_names() -> list[tuple[dict[str, Any], str]]:
    return [*zip(transforms(TINY)["frames"], TINY.names, strict=True)]


def test_a_photo_that_is_no_picture_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, w=None, h=None)
    (tmp_path / "images" / TINY.names[3]).write_text("no picture")
    scene = load_scene(tmp_path)
    assert len(scene.views) == 8
    assert any("1 photo is no picture or damaged" in note for note in scene.notes)


def test_lists_that_leave_nothing_are_told_and_ignored(tmp_path: Path) -> None:
    every = listed(*range(9))
    scene = load_scene(written(tmp_path, train_filenames=every, val_filenames=every, test_filenames=every))
    assert split_of(scene)[1] == names(0, 8) and "split nothing off" in scene.notes[0]
    with pytest.raises(ValueError, match="has val_filenames, which is no list of file names"):
        load_scene(written(tmp_path, val_filenames="images/view_000.png"))


@pytest.mark.parametrize("missing", [("w",), ("w", "h"), ("w", "h", "cx", "cy")])
def test_the_picture_tells_its_size(tmp_path: Path, missing: tuple[str, ...]) -> None:
    plain = load_scene(write_transforms(tmp_path / "plain", TINY))
    scene = load_scene(written(tmp_path / "scene", **dict.fromkeys(missing)))
    assert [camera.K.tolist() for camera in scene.cameras] == [camera.K.tolist() for camera in plain.cameras]
    assert scene.views[0].lens == plain.views[0].lens


@pytest.mark.parametrize(
    ("word", "kind"), [("opencv", "brown"), ("opencv_fisheye", "fisheye"), ("Pinhole", "brown")]
)
def test_models_may_be_written_in_small_letters(tmp_path: Path, word: str, kind: str) -> None:
    lens = load_scene(written(tmp_path, camera_model=word)).views[0].lens
    assert (lens.kind, lens.model) == (kind, word.upper())


def test_k4_of_a_plane_camera_is_the_eighth_power(tmp_path: Path) -> None:
    lens = load_scene(written(tmp_path, k1=0.05, k4=0.2)).views[0].lens
    assert lens.distortion == (0.05, 0.0, 0.0, 0.0, 0.0, 0.2)
    point = np.array([[0.4, -0.3]])
    np.testing.assert_allclose(distort(lens, point), point * (1 + 0.05 * 0.25 + 0.2 * 0.25**4), rtol=1e-12)
    np.testing.assert_allclose(undistort(lens, distort(lens, point)), point, atol=1e-9)
    # Without a model that bends back: the same five coefficients as before.
    assert isinstance(lens, Lens) and replace(lens, distortion=lens.distortion[:5]).distorted


FOREIGN = {
    "another machine's": "/mnt/disk/capture/images/{}",
    "Windows": "C:\\capture\\images\\{}",
    "a file of another folder": "/data/frames/{}",
    "from above": "../capture/images/{}",
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("pictures", ["images", "."])
def test_paths_of_another_machine_are_found_by_their_ends(tmp_path: Path, kind: str, pictures: str) -> None:
    folder = tmp_path / "scene"
    frames = transforms(TINY)["frames"]
    for frame, name in zip(frames, TINY.names, strict=True):
        frame["file_path"] = FOREIGN[kind].format(name)
    scene = load_scene(written(folder, pictures, frames=frames, test_filenames=[frames[4]["file_path"]]))
    assert {view.image_path.parent for view in scene.views} == {folder / pictures}
    assert split_of(scene)[1] == names(4)
    assert (
        "are not at the listed paths" in scene.notes[0]
        and f"in {folder / pictures} are used" in scene.notes[0]
    )
    assert scene.unposed == ()


def test_names_that_fit_two_frames_are_not_guessed(tmp_path: Path) -> None:
    frames = transforms(TINY)["frames"]
    for number, frame in enumerate(frames):
        frame["file_path"] = f"/far/camera{number}/view_000.png"
    with pytest.raises(ValueError, match="9 listed images do not exist"):
        load_scene(written(tmp_path, frames=frames))


def test_points_of_another_machine_are_found_beside_the_file(tmp_path: Path) -> None:
    folder = write_transforms(tmp_path, TINY)
    content = json.loads((folder / "transforms.json").read_text())
    content["ply_file_path"] = "/mnt/disk/sparse_pc.ply"
    (folder / "transforms.json").write_text(json.dumps(content))
    scene = load_scene(folder)
    assert len(scene.points) == 60 and scene.notes[0].startswith("/mnt/disk/sparse_pc.ply is not there")


def test_without_the_points_that_are_listed_a_scene_is_trained_from_random_ones(tmp_path: Path) -> None:
    scene = load_scene(written(tmp_path, ply_file_path="no.ply"))
    assert len(scene.views) == 9 and not len(scene.points)
    assert scene.notes[0] == "the points no.ply are not there: training starts from random points"


@pytest.mark.parametrize("form", ["transforms.json", "COLMAP"])
def test_masks_that_are_called_as_no_photo_are_told(tmp_path: Path, form: str) -> None:
    folder = written(tmp_path) if form == "transforms.json" else write_blob_scene(tmp_path / "blobs", 4)
    (folder / "masks").mkdir()
    first = sorted((folder / "images").iterdir())[0]
    shutil.copy(first, folder / "masks" / "mask_1.png")
    (told,) = (note for note in load_scene(folder).notes if "no photo is masked" in note)
    assert f"none of the 1 pictures in {folder / 'masks'} is called as one" in told
    shutil.copy(first, folder / "masks" / f"{first.name}.png")
    assert not any("masked" in note for note in load_scene(folder).notes)


def with_ply_path(folder: Path) -> None:
    (folder / "sparse_pc.ply").write_bytes(points_ply(TINY))
    path = folder / "transforms_train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ply_file_path": "sparse_pc.ply"}))


def with_points_of_the_original_trainer(folder: Path) -> None:
    (folder / "points3d.ply").write_bytes(points_ply(TINY))


@pytest.mark.parametrize("points", [with_ply_path, with_points_of_the_original_trainer])
def test_a_blender_scene_may_have_points(tmp_path: Path, points: Callable[[Path], None]) -> None:
    folder = write_blender(tmp_path, TINY)
    assert not len(load_scene(folder).points)
    points(folder)
    scene = load_scene(folder)
    np.testing.assert_array_equal(scene.colors, TINY.colors)
    placed = TINY.points @ scene.transform[:3, :3].T + scene.transform[:3, 3]
    np.testing.assert_allclose(scene.points, placed, atol=1e-5)


def test_random_points_and_what_is_no_cloud_are_not_the_points_of_a_blender_scene(tmp_path: Path) -> None:
    folder = write_blender(tmp_path, TINY)
    places = np.random.default_rng(0).random((100_000, 3)) * 2.6 - 1.3
    gray = np.full((100_000, 3), 127, np.uint8)
    (folder / "points3d.ply").write_bytes(points_ply(replace(TINY, points=places, colors=gray)))
    scene = load_scene(folder)
    assert not len(scene.points) and "holds those that the original trainer begins" in scene.notes[-1]
    (folder / "points3d.ply").write_text("no points")
    scene = load_scene(folder)
    assert not len(scene.points) and "points3d.ply is not a PLY" in scene.notes[-1]


def write_split(folder: Path, split: str, *numbers: int) -> None:
    frames = [transforms(TINY)["frames"][number] for number in numbers]
    (folder / f"transforms_{split}.json").write_text(json.dumps(transforms(TINY) | {"frames": frames}))


def test_split_files_beside_a_transforms_json_say_what_is_held_out(tmp_path: Path) -> None:
    folder = written(tmp_path)
    write_split(folder, "train", 0, 1, 2, 5, 6, 7, 8)
    write_split(folder, "val", 3, 4)
    scene = load_scene(folder)
    assert split_of(scene) == (names(0, 1, 2, 5, 6, 7, 8), names(3, 4))
    assert scene.notes == ("transforms_val.json names the 2 photos of the test",)
    write_split(folder, "test", 5)
    assert split_of(load_scene(folder))[1] == names(5)
    assert split_of(load_scene(written(tmp_path, test_filenames=listed(8))))[1] == names(8)
    # That file alone is a scene, too.
    assert load_scene(folder / "transforms.json").test_names == {TINY.names[8]}


def test_split_files_of_other_photos_are_told_and_not_used(tmp_path: Path) -> None:
    folder = written(tmp_path)
    other = transforms(replace(TINY, names=tuple(f"r_{name}" for name in TINY.names)), "test")
    (folder / "transforms_test.json").write_text(json.dumps(other))
    scene = load_scene(folder)
    assert split_of(scene)[1] == names(0, 8)
    told = "transforms_test.json is not used: it names none of the photos of transforms.json"
    assert scene.notes == (told,)
    (folder / "transforms_test.json").write_text("{")
    (note,) = load_scene(folder).notes
    assert note.startswith("transforms_test.json is not used: ") and "is not valid JSON" in note


def test_photos_without_a_frame_are_counted(tmp_path: Path) -> None:
    frames = transforms(TINY)["frames"][:3]
    frames[0]["depth_file_path"] = "images/view_004.png"
    folder = written(tmp_path, frames=frames)
    (folder / "images/view_005.png").rename(folder / "images/dynamic_mask_view_000.png")
    scene = load_scene(folder)
    assert scene.unposed == (TINY.names[3], *TINY.names[6:])
    assert scene.notes[0].startswith("masks of instant-ngp (dynamic_mask_..., 1 in all) lie beside")
    assert scene.notes[1].startswith("4 of the 7 photos in") and "have no pose" in scene.notes[1]
    # Depths and normals lie beside Blender's pictures.
    blender = write_blender(tmp_path / "blender", TINY)
    write_pictures(blender / "test", replace(TINY, names=tuple(f"depth_{name}" for name in TINY.names)))
    assert load_scene(blender).unposed == ()


def test_a_file_of_frames_may_be_called_as_its_user_likes(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "transforms.json").rename(tmp_path / "transforms_undistorted.json")
    assert len(load_scene(tmp_path / "transforms_undistorted.json").views) == len(TINY.names)
