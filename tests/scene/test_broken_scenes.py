"""Whatever is wrong with a scene folder, one clear sentence says so, quickly and without much memory."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import tempfile
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scene_builder import (
    TinyScene,
    cameras_bin,
    images_bin,
    points_bin,
    points_ply,
    tiny_scene,
    transforms,
    write_blender,
    write_colmap,
    write_colmap_text,
    write_picture,
    write_pictures,
    write_transforms,
)

from splatstudio.scene import colmap_binary
from splatstudio.scene.load import load_scene
from splatstudio.scene.point_ply import read_point_ply

TINY = tiny_scene(3, num_points=4)
MODEL = "sparse/0"


def refusal(path: Path, **options) -> str:
    """Return the sentence with which `path` is refused, after checking its form, its time and its memory."""
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(ValueError) as caught:
        load_scene(path, **options)
    elapsed = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    text = str(caught.value)
    assert "\n" not in text and 20 < len(text) < 600, text
    assert elapsed < 2 and peak < 30e6, (elapsed, peak)
    return text


def patched(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def colmap(folder: Path) -> Path:
    return write_colmap(folder, TINY)


def colmap_without(folder: Path, name: str) -> None:
    colmap(folder)
    (folder / name).unlink()


def colmap_patched(folder: Path, file: str, offset: int, data: bytes) -> None:
    patched(colmap(folder) / MODEL / file, offset, data)


def colmap_line(folder: Path, file: str, number: int, line: str) -> None:
    write_colmap_text(folder, TINY)
    lines = (folder / MODEL / file).read_text().split("\n")
    lines[number - 1] = line
    (folder / MODEL / file).write_text("\n".join(lines))


def json_text(folder: Path, text: str) -> None:
    write_pictures(folder / "images", TINY)
    (folder / "transforms.json").write_text(text)


def json_with(folder: Path, *, frame: dict | None = None, **values) -> None:
    content = transforms(TINY)
    for name, value in values.items():
        if value is None:
            content.pop(name)
        else:
            content[name] = value
    content["frames"][1] |= frame or {}
    json_text(folder, json.dumps(content))


def ply_with(folder: Path, data: bytes) -> None:
    write_transforms(folder, TINY)
    (folder / "sparse_pc.ply").write_bytes(data)


def renamed(tiny: TinyScene) -> TinyScene:
    return replace(tiny, names=tuple(f"other_{name}" for name in tiny.names))


def photos_only(folder: Path) -> None:
    write_pictures(folder, TINY)


def sparse_without_files(folder: Path) -> None:
    colmap(folder)
    for file in (folder / MODEL).iterdir():
        file.unlink()


def no_image_left(folder: Path) -> None:
    colmap(folder)
    for file in (folder / "images").iterdir():
        file.rename(file.with_name("other_" + file.name))


def no_images_folder(folder: Path) -> None:
    colmap(folder)
    (folder / "images").rename(folder / "photos")


def empty_images_folder(folder: Path) -> None:
    colmap(folder)
    for file in (folder / "images").iterdir():
        file.unlink()


def folder_for_file(folder: Path) -> None:
    colmap_without(folder, f"{MODEL}/images.bin")
    (folder / MODEL / "images.bin").mkdir()


def picture_of_other_size(folder: Path) -> None:
    colmap(folder)
    write_pictures(folder / "images", tiny_scene(3, width=32, height=32))


def no_registered_image(folder: Path) -> None:
    colmap(folder)
    (folder / MODEL / "images.bin").write_bytes(struct.pack("<Q", 0))


def blender_without_pictures(folder: Path) -> None:
    write_blender(folder, tiny_scene(6))
    for file in (folder / "train").iterdir():
        file.unlink()


def lens_without_inverse(folder: Path) -> None:
    write_colmap(folder, TINY, model="SIMPLE_RADIAL", distortion=(-1e9,))


HUGE = struct.pack("<Q", 2**60)
NAN = struct.pack("<d", float("nan"))
IMAGE_1 = 8  # offset of the first image record in images.bin

# What is broken: how to make it, and what the sentence must say.
BROKEN = {
    "empty folder": (lambda f: f.mkdir(exist_ok=True), ["is empty", "COLMAP"]),
    "photos without poses": (
        photos_only,
        ["3 photos", "poses", "nothing was changed", "splatstudio poses "],
    ),
    "unrelated files": (lambda f: (f / "notes.txt").write_text("hello"), ["is not a scene"]),
    "sparse but empty": (sparse_without_files, ["sparse/0 holds no cameras.bin"]),
    "no cameras.bin": (lambda f: colmap_without(f, f"{MODEL}/cameras.bin"), ["cameras.bin does not exist"]),
    "no images.bin": (lambda f: colmap_without(f, f"{MODEL}/images.bin"), ["images.bin does not exist"]),
    "folder in place of a file": (folder_for_file, ["images.bin cannot be read"]),
    "no images folder": (no_images_folder, ["images does not exist", "photos"]),
    "empty images folder": (empty_images_folder, ["holds no photos", "needs 3"]),
    "no listed photo exists": (
        no_image_left,
        ["3 listed images do not exist", "view_000.png", "none is left"],
    ),
    "2^60 cameras": (
        lambda f: colmap_patched(f, "cameras.bin", 0, HUGE),
        ["cameras.bin", f"{2**60} cameras"],
    ),
    "2^60 images": (lambda f: colmap_patched(f, "images.bin", 0, HUGE), ["images.bin", f"{2**60} images"]),
    "2^60 points": (
        lambda f: colmap_patched(f, "points3D.bin", 0, HUGE),
        ["points3D.bin", f"{2**60} points"],
    ),
    "2^60 observations": (
        lambda f: colmap_patched(f, "images.bin", IMAGE_1 + 64 + 13, HUGE),
        ["images.bin", "image 1", "observations"],
    ),
    "track of 2^60": (
        lambda f: colmap_patched(f, "points3D.bin", 8 + 43, HUGE),
        ["points3D.bin", "point 1 of 4"],
    ),
    "track of 2^63": (
        lambda f: colmap_patched(f, "points3D.bin", 8 + 43, struct.pack("<Q", 2**63)),
        ["points3D.bin", "point 1 of 4"],
    ),
    "unknown camera model": (
        lambda f: colmap_patched(f, "cameras.bin", 12, struct.pack("<i", 77)),
        ["cameras.bin", "camera 1", "number 77"],
    ),
    "zero width": (
        lambda f: colmap_patched(f, "cameras.bin", 16, struct.pack("<Q", 0)),
        ["cameras.bin", "camera 1", "0 x 32"],
    ),
    "negative width": (
        lambda f: colmap_patched(f, "cameras.bin", 16, struct.pack("<q", -48)),
        ["cameras.bin", "image size"],
    ),
    "focal length NaN": (lambda f: colmap_patched(f, "cameras.bin", 32, NAN), ["camera 1", "finite"]),
    "focal length negative": (
        lambda f: colmap_patched(f, "cameras.bin", 32, struct.pack("<d", -5.0)),
        ["camera 1", "-5", "not positive"],
    ),
    "lens without inverse": (lens_without_inverse, ["view_000.png", "distortion", "cannot be undone"]),
    "rotation NaN": (
        lambda f: colmap_patched(f, "images.bin", IMAGE_1 + 4, NAN),
        ["images.bin", "view_000.png", "not finite"],
    ),
    "position infinite": (
        lambda f: colmap_patched(f, "images.bin", IMAGE_1 + 36, struct.pack("<d", float("inf"))),
        ["images.bin", "view_000.png", "not finite"],
    ),
    "zero quaternion": (
        lambda f: colmap_patched(f, "images.bin", IMAGE_1 + 4, bytes(32)),
        ["images.bin", "view_000.png", "zero quaternion"],
    ),
    "camera that does not exist": (
        lambda f: colmap_patched(f, "images.bin", IMAGE_1 + 60, struct.pack("<I", 9)),
        ["view_000.png", "camera 9"],
    ),
    "no registered image": (no_registered_image, ["images.bin", "no registered image"]),
    "photo of another size": (picture_of_other_size, ["view_000.png", "32 x 32", "48 x 32"]),
    "camera line too short": (
        lambda f: colmap_line(f, "cameras.txt", 2, "1 PINHOLE"),
        ["cameras.txt, line 2", "2 col"],
    ),
    "camera with too few parameters": (
        lambda f: colmap_line(f, "cameras.txt", 2, "1 PINHOLE 48 32 57 24"),
        ["cameras.txt, line 2", "has 8"],
    ),
    "camera model of an unknown word": (
        lambda f: colmap_line(f, "cameras.txt", 2, "1 PINWHEEL 48 32 57"),
        ["cameras.txt, line 2", "PINWHEEL"],
    ),
    "word for a focal length": (
        lambda f: colmap_line(f, "cameras.txt", 2, "1 PINHOLE 48 32 long 57 24 16"),
        ["cameras.txt, line 2", "'long 57 24 16'"],
    ),
    "image line too short": (
        lambda f: colmap_line(f, "images.txt", 2, "1 1 0 0 0"),
        ["images.txt, line 2", "5 columns"],
    ),
    "word in a pose": (
        lambda f: colmap_line(f, "images.txt", 2, "1 1 0 0 x 0 0 0 1 view_000.png"),
        ["images.txt, line 2", "word"],
    ),
    "lines of images out of step": (
        lambda f: colmap_line(f, "images.txt", 3, "2 1 0 0 0 0 0 0 1 view_001.png"),
        ["images.txt, line 3", "three columns"],
    ),
    "point line with an odd track": (
        lambda f: colmap_line(f, "points3D.txt", 3, "2 0 0 0 9 9 9 0.5 1"),
        ["points3D.txt, line 3", "9 columns"],
    ),
    "color of 256": (
        lambda f: colmap_line(f, "points3D.txt", 3, "2 0 0 0 9 9 256 0.5"),
        ["points3D.txt, line 3", "256"],
    ),
    "broken JSON": (lambda f: json_text(f, '{"frames": [\n{"file_path": }'), ["transforms.json", "line 2"]),
    "JSON nested without end": (lambda f: json_text(f, "[" * 200_000), ["transforms.json", "not valid JSON"]),
    "JSON in bytes": (
        lambda f: (f / "transforms.json").write_bytes(b"\xff\xfe\x00\x80"),
        ["transforms.json", "not valid JSON"],
    ),
    "JSON that is a list": (lambda f: json_text(f, "[1, 2]"), ["transforms.json", "no frames"]),
    "no frames": (lambda f: json_text(f, '{"w": 3}'), ["transforms.json has no frames"]),
    "frame that is a number": (lambda f: json_text(f, '{"frames": [5]}'), ["frame 1"]),
    "frame without a file": (lambda f: json_with(f, frame={"file_path": None}), ["frame 2", "no file_path"]),
    "no intrinsics": (
        lambda f: json_with(f, fl_x=None, fl_y=None, fov=60),
        ["frame 1", "no intrinsics: fl_x", "which has file_path, transform_matrix", "(cx, cy, fov, h, w)"],
    ),
    "four intrinsics as K": (
        lambda f: json_with(f, fl_x=None, fl_y=None, K=[50, 50, 24, 16]),
        ["frame 1", "has a K that is no matrix of 3 x 3 numbers; correct the file"],
    ),
    "pixels that lean": (
        lambda f: json_with(f, K=[[50, 3, 24], [0, 50, 16], [0, 0, 1]]),
        ["transforms.json", "K with the skew 3"],
    ),
    "five numbers of distortion": (
        lambda f: json_with(f, frame={"distortion_params": [0.1, 0, 0, 0, 0]}),
        ["frame 2", "distortion_params that are not the 6 numbers k1, k2, k3, k4, p1, p2"],
    ),
    "f-theta lens": (lambda f: json_with(f, ftheta_p0=0.0), ["frame 1", "ftheta_p0", "undistort"]),
    "no perspective": (lambda f: json_with(f, orthographic=True), ["orthographic", "not supported"]),
    "panorama of equal areas": (lambda f: json_with(f, equirectangular=True), ["equirectangular", "latlong"]),
    "focal length that is a text": (
        lambda f: json_with(f, frame={"fl_x": "57 px"}),
        ["frame 2", "fl_x", "not a number"],
    ),
    "focal length of 400 digits": (lambda f: json_with(f, fl_x=10**400), ["frame 1", "fl_x", "not a number"]),
    "size of zero": (lambda f: json_with(f, w=0), ["frame 1", "0 x 32"]),
    "no matrix at all": (
        lambda f: json_text(f, '{"frames": [{"file_path": "images/view_000.png", "pose": []}]}'),
        ["no frame of", "has a transform_matrix (the first has file_path, pose)"],
    ),
    "angle of 200 degrees": (
        lambda f: json_with(f, fl_x=None, fl_y=None, camera_angle_x=3.5),
        ["frame 1", "camera_angle_x = 3.5"],
    ),
    "matrix of 3 x 3": (
        lambda f: json_with(f, frame={"transform_matrix": [[1, 0, 0]] * 3}),
        ["frame 2 (./images/view_001.png)", "4 x 4"],
    ),
    "matrix with a word": (
        lambda f: json_with(f, frame={"transform_matrix": [[1, 0, 0, "a"]] * 4}),
        ["frame 2", "4 x 4"],
    ),
    "matrix with NaN": (
        lambda f: json_with(f, frame={"transform_matrix": [[1, 0, 0, float("nan")]] * 4}),
        ["frame 2", "transform_matrix"],
    ),
    "matrix that is flat": (
        lambda f: json_with(f, frame={"transform_matrix": [[1, 0, 0, 0]] * 4}),
        ["frame 2", "no rotation"],
    ),
    "matrix that mirrors": (
        lambda f: json_with(f, frame={"transform_matrix": np.diag([-1.0, 1, 1, 1]).tolist()}),
        ["frame 2", "mirrors"],
    ),
    "matrix that shears": (
        lambda f: json_with(f, frame={"transform_matrix": (np.eye(4) + np.eye(4, k=1) * 0.5).tolist()}),
        ["frame 2", "shears"],
    ),
    "camera model that is unknown": (
        lambda f: json_with(f, camera_model="ORTHOPHOTO"),
        ["ORTHOPHOTO", "not supported"],
    ),
    "no frame's file exists": (
        lambda f: json_text(f, json.dumps(transforms(renamed(TINY), "photos"))),
        ["3 listed images do not exist", "photos/other_view_000.png"],
    ),
    "points file cut off": (lambda f: ply_with(f, points_ply(TINY)[:-1]), ["sparse_pc.ply", "4 points"]),
    "points file of 2^60": (
        lambda f: ply_with(f, points_ply(TINY).replace(b"vertex 4", b"vertex %d" % 2**59)),
        ["sparse_pc.ply", str(2**59)],
    ),
    "points file that is none": (lambda f: ply_with(f, b"solid cube"), ["sparse_pc.ply", "not a PLY"]),
    "points file without x": (
        lambda f: ply_with(f, points_ply(TINY).replace(b"float x", b"float q")),
        ["sparse_pc.ply", "not a point cloud"],
    ),
    "Blender without pictures": (blender_without_pictures, ["transforms_train.json", "3 listed images"]),
}


def test_too_many_open_files_are_no_fault_of_the_scene(tmp_path, monkeypatch):
    write_colmap(tmp_path, TINY)

    def refuse(path):
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(colmap_binary, "open_input", refuse)
    with pytest.raises(ValueError, match=r"Too many open files: raise the limit .* `ulimit -n"):
        load_scene(tmp_path)


def test_what_follows_the_points_of_a_file_may_be_of_any_type(tmp_path):
    plain, more = points_ply(TINY), b"element face 0\nproperty list uint8 int64 vertex_indices\nend_header"
    (tmp_path / "plain.ply").write_bytes(plain)
    (tmp_path / "more.ply").write_bytes(plain.replace(b"end_header", more).replace(b"ply\n", b"ply \n", 1))
    (points, colors), (expected, _) = (read_point_ply(tmp_path / name) for name in ("more.ply", "plain.ply"))
    assert np.array_equal(points, expected) and len(colors) == len(points) == 4
    (tmp_path / "wide.ply").write_bytes(plain.replace(b"float x", b"int64 x"))
    with pytest.raises(
        ValueError, match="makes no sense: 'property int64 x'; save it as a plain point cloud"
    ):
        read_point_ply(tmp_path / "wide.ply")


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_folder_gives_one_clear_sentence(tmp_path, kind):
    make, words = BROKEN[kind]
    folder = tmp_path / "scene"
    folder.mkdir()
    make(folder)
    before = sorted(str(p) for p in folder.rglob("*"))
    text = refusal(folder)
    for word in words:
        assert word in text, text
    assert sorted(str(p) for p in folder.rglob("*")) == before  # nothing was changed


def test_a_folder_of_runs_is_no_capture_whatever_pictures_they_hold(tmp_path):
    for name in ("garden", "bicycle"):
        (tmp_path / name / "renders").mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
        write_picture(tmp_path / name / "renders/picture.png", np.zeros((9, 9, 3), np.uint8))
    with pytest.raises(ValueError, match=r"holds no scene but runs \(bicycle, garden\): name one of them"):
        load_scene(tmp_path)


def test_one_picture_names_its_folder(tmp_path):
    write_picture(tmp_path / "a.jpg", np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"a\.jpg is a JPEG picture; give the folder that it lies in$"):
        load_scene(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="give the folder of a scene: photos or a video"):
        load_scene(tmp_path / "nowhere")


def test_path_that_is_no_folder(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "scene.xyz").write_bytes(b"\0" * 100)
    assert "file of unknown type" in refusal(tmp_path / "scene.xyz")
    (tmp_path / "video.mp4").write_bytes(b"\0" * 100)
    assert "splatstudio poses " in refusal(tmp_path / "video.mp4")


def test_settings_out_of_range(tmp_path):
    colmap(tmp_path)
    assert "downscale is 0" in refusal(tmp_path, downscale=0)
    assert "test_every is -1" in refusal(tmp_path, test_every=-1)
    assert "photos holiday is not there: name another one with --images" in refusal(
        tmp_path, images_folder="holiday"
    )


@contextlib.contextmanager
def plain_user():
    """Let nobody's rights hold for a while when root runs the tests: root may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="Windows keeps permissions otherwise")
@pytest.mark.parametrize("name", [f"{MODEL}/cameras.bin", "images/view_001.png", "images", "sparse", "."])
def test_permission_denied(name):
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, whose parents are closed to others
        os.chmod(folder, 0o755)
        scene = colmap(Path(folder) / "scene")
        load_scene(scene)
        (scene / name).chmod(0)
        try:
            with plain_user():
                assert "ermission" in refusal(scene)
        finally:
            (scene / name).chmod(0o755)


@pytest.mark.parametrize("file", ["cameras.bin", "images.bin", "points3D.bin"])
def test_truncation_at_every_byte_names_the_file(tmp_path, file):
    write_colmap(tmp_path, TINY)
    path = tmp_path / MODEL / file
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=file) as caught:
            load_scene(tmp_path)
        assert "damaged at" in str(caught.value), length
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="1 bytes follow after the last record"):
        load_scene(tmp_path)


@pytest.mark.parametrize("content", [cameras_bin, images_bin, points_bin])
def test_any_changed_byte_gives_a_scene_or_a_sentence(tmp_path, content):
    write_colmap(tmp_path, TINY)
    name = {cameras_bin: "cameras.bin", images_bin: "images.bin", points_bin: "points3D.bin"}[content]
    path = tmp_path / MODEL / name
    whole = content(TINY)
    for position in range(0, len(whole), 3):
        for value in (0x00, 0x7F, 0xFF):
            path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            try:
                scene = load_scene(tmp_path)
            except ValueError:
                continue
            assert np.isfinite(scene.points).all() and np.isfinite(scene.transform).all()
            assert all(np.isfinite(camera.viewmat).all() for camera in scene.cameras)


def test_damaged_photos_are_left_out_and_named(tmp_path: Path) -> None:
    write_colmap(tmp_path, TINY)
    names = sorted(file.name for file in (tmp_path / "images").iterdir())
    (tmp_path / "images" / names[0]).write_bytes(b"")
    scene = load_scene(tmp_path)
    assert [view.name for view in scene.views] == names[1:]
    told = f"1 photo is no picture or damaged and cannot be used: {names[0]}"
    assert told in scene.notes
    with pytest.raises(ValueError, match=f"{names[0]} cannot be held out: {told}"):
        load_scene(tmp_path, test_images=names[:1])
    for name in names:
        (tmp_path / "images" / name).write_bytes(b"<html>")
    with pytest.raises(ValueError, match=rf"{names[0]} cannot be read: it is no picture or is damaged"):
        load_scene(tmp_path)


def test_nobody_is_asked_to_remove_a_frame_for_what_the_file_tells_of_all(tmp_path: Path) -> None:
    json_with(tmp_path, fl_x=-5)
    assert refusal(tmp_path).endswith("which is not positive; correct the file")
    json_with(tmp_path, frame={"fl_x": -5})
    assert refusal(tmp_path).endswith("which is not positive; correct the file or remove the frame")
