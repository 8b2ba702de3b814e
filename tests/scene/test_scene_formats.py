"""Each format of a scene gives the same cameras, points and split."""

import json
import shutil
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scene_builder import (
    cameras_bin,
    images_bin,
    opengl_pose,
    points_bin,
    points_ply,
    tiny_scene,
    transforms,
    write_blender,
    write_colmap,
    write_colmap_text,
    write_pictures,
    write_transforms,
)

from splatstudio.scene.colmap import NoVisiblePoints, visible_points
from splatstudio.scene.describe import describe_scene
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene


def file_cameras(scene: Scene) -> np.ndarray:
    """Return the cameras brought back to the files' frame."""
    back = np.linalg.inv(scene.transform)
    return np.stack([camera.transformed(back).viewmat for camera in scene.cameras])


def projections(scene: Scene) -> np.ndarray:
    """Return the pixels [C, P, 2] of the sparse points: what no similarity of the world changes."""
    pixels = []
    for camera in scene.cameras:
        p = (scene.points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]) @ camera.K.T
        pixels.append(p[:, :2] / p[:, 2:])
    return np.stack(pixels)


@pytest.mark.parametrize("write", [write_colmap, write_colmap_text, write_transforms])
def test_each_format_gives_the_cameras_and_points_it_was_written_with(tmp_path, write):
    tiny = tiny_scene()
    scene = load_scene(write(tmp_path, tiny))
    assert [view.name for view in scene.views] == list(tiny.names)
    np.testing.assert_allclose(file_cameras(scene), tiny.viewmats, atol=1e-9)
    expected = []
    for viewmat in tiny.viewmats:
        p = tiny.points @ viewmat[:3, :3].T + viewmat[:3, 3]
        expected.append(tiny.focal * p[:, :2] / p[:, 2:] + [tiny.width / 2, tiny.height / 2])
    np.testing.assert_allclose(projections(scene), np.stack(expected), atol=1e-3)
    np.testing.assert_array_equal(scene.colors, tiny.colors)
    assert scene.test_indices == (0, 8) and scene.train_indices == (1, 2, 3, 4, 5, 6, 7)
    assert scene.points.dtype == np.float32 and scene.transform.dtype == np.float64
    assert scene.notes == ()


def test_binary_and_text_of_one_model_are_the_same(tmp_path):
    tiny = tiny_scene()
    binary = load_scene(write_colmap(tmp_path / "b", tiny))
    text = load_scene(write_colmap_text(tmp_path / "t", tiny))
    np.testing.assert_array_equal(binary.points, text.points)
    for a, b in zip(binary.cameras, text.cameras, strict=True):
        np.testing.assert_array_equal(a.viewmat, b.viewmat)
        np.testing.assert_array_equal(a.K, b.K)


@pytest.mark.parametrize(
    ("model", "distortion", "kind", "stored"),
    [
        ("SIMPLE_PINHOLE", (), "brown", ()),
        ("SIMPLE_RADIAL", (0.1,), "brown", (0.1, 0, 0, 0, 0)),
        ("RADIAL", (0.1, -0.02), "brown", (0.1, -0.02, 0, 0, 0)),
        ("OPENCV", (0.1, -0.02, 0.001, 0.002), "brown", (0.1, -0.02, 0.001, 0.002, 0)),
        ("OPENCV_FISHEYE", (0.1, -0.02, 0.003, 0.004), "fisheye", (0.1, -0.02, 0.003, 0.004)),
    ],
)
def test_colmap_camera_models_put_their_parameters_in_their_places(tmp_path, model, distortion, kind, stored):
    tiny = tiny_scene(2)
    lens = load_scene(write_colmap(tmp_path, tiny, model=model, distortion=distortion)).views[1].lens
    assert (lens.kind, lens.distortion, lens.model) == (kind, stored, model)
    assert (lens.fx, lens.fy, lens.cx, lens.cy) == (tiny.focal, tiny.focal, 24.0, 16.0)


def test_quaternion_of_any_length_is_a_rotation(tmp_path):
    tiny = tiny_scene(2)
    path = write_colmap(tmp_path, tiny) / "sparse/0/images.bin"
    content = bytearray(path.read_bytes())
    quaternion = np.frombuffer(content, "<f8", 4, 12) * 3.0
    content[12:44] = quaternion.astype("<f8").tobytes()
    path.write_bytes(content)
    np.testing.assert_allclose(file_cameras(load_scene(tmp_path)), tiny.viewmats, atol=1e-9)


def test_model_directly_in_sparse_and_newer_rig_files_are_read(tmp_path):
    write_colmap(tmp_path, tiny_scene())
    for file in (tmp_path / "sparse/0").iterdir():
        file.rename(tmp_path / "sparse" / file.name)
    (tmp_path / "sparse/0").rmdir()
    (tmp_path / "sparse/rigs.bin").write_bytes(b"\1" + bytes(30))
    (tmp_path / "sparse/frames.bin").write_bytes(b"\1" + bytes(30))
    assert len(load_scene(tmp_path).views) == 9


def test_points_file_may_be_missing(tmp_path):
    write_colmap(tmp_path, tiny_scene())
    (tmp_path / "sparse/0/points3D.bin").unlink()
    scene = load_scene(tmp_path)
    assert scene.points.shape == (0, 3) and scene.colors.shape == (0, 3)
    assert "random points" in scene.notes[0]


def test_points_that_are_not_finite_are_dropped_and_noted(tmp_path):
    tiny = tiny_scene()
    tiny.points[3, 1] = np.nan
    tiny.points[5, 0] = 1e300
    scene = load_scene(write_colmap(tmp_path, tiny))
    assert len(scene.points) == 58 and np.isfinite(scene.points).all()
    np.testing.assert_array_equal(scene.colors, np.delete(tiny.colors, [3, 5], axis=0))
    assert scene.notes == ("2 of 60 sparse points are not finite and are left out",)


def test_missing_photos_are_counted_in_one_note(tmp_path):
    write_colmap(tmp_path, tiny_scene())
    (tmp_path / "images/view_002.png").unlink()
    (tmp_path / "images/view_005.png").unlink()
    scene = load_scene(tmp_path)
    assert len(scene.views) == 7
    assert len(scene.notes) == 1 and scene.notes[0].startswith("2 listed images do not exist")
    assert "view_002.png, view_005.png" in scene.notes[0]
    # The split counts the photos that are part of the scene.
    assert scene.test_indices == (0,)


def test_split(tmp_path):
    write_colmap(tmp_path, tiny_scene(4))
    assert load_scene(tmp_path, test_every=2).test_indices == (0, 2)
    assert load_scene(tmp_path, test_every=0).test_indices == ()
    assert load_scene(tmp_path, test_every=0).train_indices == (0, 1, 2, 3)
    all_test = load_scene(tmp_path, test_every=1)
    assert all_test.train_indices == (0, 1, 2, 3) and "no view is held out" in all_test.notes[0]


def test_names_are_sorted_and_subfolders_belong_to_them(tmp_path):
    tiny = tiny_scene(4)
    names = ("b/2.png", "a/9.png", "b/10.png", "a/1.png")
    tiny = type(tiny)(names, *[getattr(tiny, f) for f in list(tiny.__dataclass_fields__)[1:]])
    scene = load_scene(write_colmap(tmp_path, tiny), test_every=3)
    assert [v.name for v in scene.views] == ["a/1.png", "a/9.png", "b/10.png", "b/2.png"]
    np.testing.assert_allclose(file_cameras(scene), tiny.viewmats[[3, 1, 2, 0]], atol=1e-9)
    assert scene.test_indices == (0, 3)


def test_images_folder_of_the_downscale_is_used_where_it_exists(tmp_path):
    tiny = tiny_scene()
    write_colmap(tmp_path, tiny)
    quarter = tiny_scene(width=12, height=8)
    write_pictures(tmp_path / "images_4", quarter)
    small = load_scene(tmp_path, downscale=4)
    assert small.views[0].image_path.parent.name == "images_4"
    assert (small.cameras[0].width, small.cameras[0].height) == (12, 8)
    assert small.photo(0).rgb.shape == (8, 12, 3)
    np.testing.assert_allclose(small.cameras[0].K, [[14.4, 0, 6], [0, 14.4, 4], [0, 0, 1]])
    halved = load_scene(tmp_path, downscale=2)  # no images_2: the full photos are halved
    assert halved.views[0].image_path.parent.name == "images" and halved.cameras[0].width == 24
    np.testing.assert_array_equal(small.whole_photo(0).rgb, load_scene(tmp_path).photo(0).rgb)
    named = load_scene(tmp_path, images_folder="images_4")
    assert named.cameras[0].width == 12 and "intrinsics were scaled" in named.notes[0]
    assert named.whole_photo(0).rgb.shape == (32, 48, 3)
    for downscale, width, told in ((8, 6, True), (4, 12, False)):
        named = load_scene(tmp_path, images_folder="images_4", downscale=downscale)
        assert named.cameras[0].width == width
        assert any("--downscale 8 divides the size that is stated" in note for note in named.notes) == told
    write_pictures(tmp_path / "images", tiny_scene(width=32, height=32))  # other pictures, of another shape
    assert load_scene(tmp_path, images_folder="images_4").whole_photo(0).rgb.shape == (8, 12, 3)
    (tmp_path / "images" / tiny.names[0]).unlink()
    assert load_scene(tmp_path, images_folder="images_4").whole_photo(0).rgb.shape == (8, 12, 3)


def test_frames_of_transforms_json_override_the_file(tmp_path):
    tiny = tiny_scene(3)
    content = transforms(tiny)
    content["frames"][1] |= {"fl_x": 60.0, "fl_y": 61.0, "cx": 20.0, "k1": 0.05, "p2": 0.001}
    content |= {"camera_angle_x": 0.5}
    write_pictures(tmp_path / "images", tiny)
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    scene = load_scene(tmp_path)
    first, second = scene.views[0].lens, scene.views[1].lens
    assert (first.fx, first.cx, first.distorted) == (tiny.focal, 24.0, False)
    assert (second.fx, second.fy, second.cx, second.cy) == (60.0, 61.0, 20.0, 16.0)
    assert second.distortion == (0.05, 0.0, 0.0, 0.001, 0.0)
    assert load_scene(tmp_path / "transforms.json").format == "transforms.json"


def test_angle_of_view_gives_the_focal_length_and_files_need_no_ending(tmp_path):
    tiny = tiny_scene(3)
    content = transforms(tiny, ending=False)
    for name in ("fl_x", "fl_y", "cx", "cy", "w", "h"):
        del content[name]
    content["camera_angle_x"] = 2 * np.arctan(0.5 * tiny.width / tiny.focal)
    write_pictures(tmp_path / "images", tiny)
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    scene = load_scene(tmp_path)
    np.testing.assert_allclose(scene.cameras[2].K, [[57.6, 0, 24], [0, 57.6, 16], [0, 0, 1]])
    assert scene.views[2].name == "view_002.png"


def test_fisheye_of_nerfstudio_and_of_instant_ngp(tmp_path):
    tiny = tiny_scene(2)
    write_pictures(tmp_path / "images", tiny)
    for extra in ({"camera_model": "OPENCV_FISHEYE"}, {"is_fisheye": True}):
        content = transforms(tiny) | {"k1": 0.1, "k2": 0.01, "k3": 0.001, "k4": 0.0001} | extra
        (tmp_path / "transforms.json").write_text(json.dumps(content))
        lens = load_scene(tmp_path).views[0].lens
        assert (lens.kind, lens.distortion) == ("fisheye", (0.1, 0.01, 0.001, 0.0001))


def test_nerfstudio_points_of_the_colmap_folder_follow_applied_transform(tmp_path):
    tiny = tiny_scene()
    write_pictures(tmp_path / "images", tiny)
    applied = np.array([[0.0, 0, 1, 0.5], [1, 0, 0, -1], [0, 1, 0, 2]])
    content = transforms(tiny)
    full = np.vstack([applied, [0, 0, 0, 1]])
    for i, frame in enumerate(content["frames"]):
        frame["transform_matrix"] = opengl_pose(tiny.viewmats[i] @ np.linalg.inv(full))
    content["applied_transform"] = applied.tolist()
    (tmp_path / "transforms.json").write_text(json.dumps(content))
    (tmp_path / "colmap/sparse/0").mkdir(parents=True)
    (tmp_path / "colmap/sparse/0/points3D.bin").write_bytes(points_bin(tiny))
    scene = load_scene(tmp_path)
    plain = load_scene(write_colmap(tmp_path / "plain", tiny))
    np.testing.assert_allclose(projections(scene), projections(plain), atol=1e-3)


def test_ascii_ply_points(tmp_path):
    tiny = tiny_scene(num_points=5)
    write_transforms(tmp_path, tiny)
    header = "ply\nformat ascii 1.0\ncomment by hand\nelement vertex 5\n"
    header += "".join(f"property float {n}\n" for n in ("x", "y", "z", "nx")) + "end_header\n"
    rows = "\n".join(f"{x:.9g} {y:.9g} {z:.9g} 0" for x, y, z in tiny.points)
    (tmp_path / "sparse_pc.ply").write_text(header + rows + "\n")
    scene = load_scene(tmp_path)
    back = np.linalg.inv(scene.transform)
    np.testing.assert_allclose(scene.points @ back[:3, :3].T + back[:3, 3], tiny.points, atol=1e-5)
    assert (scene.colors == 128).all()


def test_blender_trains_on_the_training_file_and_tests_on_the_test_file(tmp_path):
    tiny = tiny_scene()
    scene = load_scene(write_blender(tmp_path, tiny))
    assert scene.format == "Blender" and len(scene.views) == 8
    assert [scene.views[i].name for i in scene.test_indices] == ["test/view_007.png", "test/view_008.png"]
    assert [scene.views[i].name for i in scene.train_indices] == [f"train/view_{i:03d}.png" for i in range(6)]
    np.testing.assert_allclose(file_cameras(scene)[scene.test_indices[1]], tiny.viewmats[8], atol=1e-9)
    np.testing.assert_allclose(scene.cameras[0].K, [[57.6, 0, 24], [0, 57.6, 16], [0, 0, 1]])
    photo = scene.photo(0)
    assert photo.alpha is not None and photo.alpha.min() == 0 and photo.alpha.max() == 255
    assert "transforms_val.json" in scene.notes[0]
    (tmp_path / "transforms_test.json").unlink()
    scene = load_scene(tmp_path)
    assert [scene.views[i].name for i in scene.test_indices] == ["val/view_006.png"]
    (tmp_path / "transforms_val.json").unlink()
    scene = load_scene(tmp_path, test_every=5)
    assert scene.test_indices == (0, 5) and len(scene.views) == 6


def test_a_mark_before_the_text_of_a_model_is_no_part_of_it(tmp_path):
    expected = file_cameras(load_scene(write_colmap_text(tmp_path / "plain", tiny_scene())))
    folder = write_colmap_text(tmp_path / "marked", tiny_scene())
    for file in (folder / "sparse/0").iterdir():
        lines = [line for line in file.read_text().split("\n") if not line.startswith("#")]
        file.write_text("\n".join(lines), encoding="utf-8-sig")
    scene = load_scene(folder)
    assert len(scene.points) == 60
    np.testing.assert_allclose(file_cameras(scene), expected)


@pytest.mark.parametrize("name", ["view_", "my photo ", "a b "])
def test_a_text_without_lines_of_observations_has_all_its_images(tmp_path, name):
    tiny = tiny_scene()
    tiny = replace(tiny, names=tuple(each.replace("view_", name) for each in tiny.names))
    folder = write_colmap_text(tmp_path, tiny)
    expected = file_cameras(load_scene(folder))
    file = folder / "sparse/0/images.txt"
    file.write_text("\n".join(filter(None, file.read_text().split("\n"))) + "\n\n")
    scene = load_scene(folder)
    assert [view.name for view in scene.views] == list(tiny.names)
    np.testing.assert_allclose(file_cameras(scene), expected)
    with pytest.raises(NoVisiblePoints, match="no observations"):
        visible_points(scene)


def test_points_of_a_model_may_be_in_a_ply(tmp_path):
    tiny = tiny_scene()
    folder = write_colmap_text(tmp_path, tiny)
    (folder / "sparse/0/points3D.txt").unlink()
    (folder / "sparse/0/points3D.ply").write_bytes(points_ply(tiny))
    scene = load_scene(folder)
    np.testing.assert_array_equal(scene.colors, tiny.colors)
    back = np.linalg.inv(scene.transform)
    np.testing.assert_allclose(scene.points @ back[:3, :3].T + back[:3, 3], tiny.points, atol=1e-4)
    assert any("points3D.ply has the points" in note for note in scene.notes)
    with pytest.raises(NoVisiblePoints, match=r"has no points3D\.txt"):
        visible_points(scene)


def test_description_says_what_a_person_asks(tmp_path):
    write_colmap(tmp_path, tiny_scene(), model="SIMPLE_RADIAL", distortion=(0.1,))
    (tmp_path / "images/view_003.png").unlink()
    rows = dict(describe_scene(load_scene(tmp_path, downscale=2)))
    assert rows["Format"] == "COLMAP"
    assert rows["Photos"] == "8: 7 to train, 1 to test"
    assert rows["Size in files"] == "48 x 32"
    assert rows["Cameras"] == "1 (SIMPLE_RADIAL)"
    assert rows["Sparse points"] == "60"
    assert "view_003.png" in rows["Note"]


def test_two_thousand_images_with_five_thousand_observations_each_load_in_seconds(tmp_path):
    tiny = tiny_scene(20)
    write_pictures(tmp_path / "images", tiny)
    sparse = tmp_path / "sparse/0"
    sparse.mkdir(parents=True)
    (sparse / "cameras.bin").write_bytes(cameras_bin(tiny))
    record = images_bin(tiny_scene(1), num_observations=5000)[8:]
    with (sparse / "images.bin").open("wb") as file:
        file.write(struct.pack("<Q", 2000))
        for i in range(2000):
            file.write(record.replace(b"view_000.png", f"copy_{i:04d}.png".encode()))
    Path(tmp_path / "copies").mkdir()
    for i in range(2000):
        shutil.copy(tmp_path / "images/view_000.png", tmp_path / f"copies/copy_{i:04d}.png")
    start = time.process_time()
    scene = load_scene(tmp_path, images_folder="copies")
    elapsed = time.process_time() - start
    assert len(scene.views) == 2000
    # About half a second on one old core; the bound leaves room for a busy machine.
    assert elapsed < 5
