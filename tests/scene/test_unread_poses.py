"""Camera poses of programs whose files are not read are told, and videos among what has no poses."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from scene_builder import tiny_scene, write_pictures, write_transforms

from splatstudio.scene.load import load_scene
from splatstudio.scene.unread_poses import PROGRAMS, unread_poses

TINY = tiny_scene(3)


def numpy_file(zipped: bool) -> bytes:
    content = io.BytesIO()
    np.savez(content, world_mat_0=np.eye(4)) if zipped else np.save(content, np.zeros((3, 17)))
    return content.getvalue()


FILES = {
    "Meshroom": ("cameras.sfm", b'{"version": ["1", "2", "3"], "poses": []}'),
    "OpenMVG": ("sfm_data.json", b'{"views": [], "extrinsics": [\n {"key": 0}]}'),
    "LLFF": ("poses_bounds.npy", numpy_file(zipped=False)),
    "NeuS": ("cameras_sphere.npz", numpy_file(zipped=True)),
    "MVSNet": ("cams/00000000_cam.txt", b"extrinsic\n1 0 0 0\n"),
    "RealityScan": ("images/view_000.xmp", b"<x:xmpmeta><xcr:Rotation>1 0 0 0 1 0 0 0 1</xcr:Rotation>"),
    "Bundler": ("bundle/bundle.out", b"# Bundle file v0.3\n3 10\n"),
    "VisualSFM": ("model.NVM", b"NVM_V3\n\n3\n"),
    "Tanks and Temples": ("Barn_COLMAP_SfM.log", b"0 0 0\n1.0 0.0 -2e-3 0\n0 1 0 0\n"),
    "Stray Scanner": ("odometry.csv", b"timestamp, frame, x, y, z, qx, qy, qz, qw\n"),
}
ADVICE = {
    "Meshroom": "export them as COLMAP with `aliceVision_exportColmap`",
    "OpenMVG": "export them as COLMAP with `openMVG_main_openMVG2Colmap`",
    "RealityScan": "export internal and external camera parameters (.csv) from RealityScan",
    **dict.fromkeys(("LLFF", "NeuS", "MVSNet"), "open the COLMAP scene that they were made from"),
}


def scene_with(folder: Path, file: str, content: bytes) -> Path:
    write_pictures(folder / "images", TINY)
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes(content)
    return folder


def test_every_program_is_tried() -> None:
    assert FILES.keys() == {program.name for program in PROGRAMS}


@pytest.mark.parametrize("program", FILES)
def test_poses_that_are_not_read_are_told_with_what_to_do(
    tmp_path: Path, command: CommandLine, program: str
) -> None:
    file, content = FILES[program]
    folder = scene_with(tmp_path, file, content)
    with pytest.raises(ValueError) as caught:
        load_scene(folder)
    told = f"those of {program} in {file} are not read"
    assert "holds 3 photos but no camera poses that can be read" in str(caught.value)
    assert f"`splatstudio poses {folder}` estimates them; {told}" in str(caught.value)
    assert ADVICE.get(program, told) in str(caught.value)
    code, output = command("info", folder / file)
    output = " ".join(output.split())
    assert code == 2 and f"holds camera poses of {program}, which are not read: give the folder" in output
    assert ADVICE.get(program, "are estimated anew") in output


NO_POSES = {
    "images/DJI_0001.xmp": b'<x:xmpmeta drone-dji:GimbalYawDegree="+3.1">',
    "sfm_data.json": b'{"views": [1], "extrinsics": []}',
    "sfm.json": b'{"views": []}',
    "training.log": b"step 1 of 3\n0 0 0\n",
    "cameras.npz": b"text",
    "points.out": b"done\n",
    "poses_bounds.npy/readme.txt": b"",
}


@pytest.mark.parametrize("file", NO_POSES)
def test_files_that_are_only_called_alike_are_no_poses(tmp_path: Path, file: str) -> None:
    folder = scene_with(tmp_path, file, NO_POSES[file])
    assert unread_poses(folder) is None
    with pytest.raises(ValueError, match=r"no camera poses, which training needs.*estimates them$"):
        load_scene(folder)


def test_beside_poses_that_are_read_nothing_is_said(tmp_path: Path) -> None:
    write_transforms(tmp_path, TINY)
    scene_with(tmp_path, *FILES["LLFF"])
    assert not any("LLFF" in note for note in load_scene(tmp_path).notes)


def test_who_has_poses_estimated_is_told_before_once(tmp_path: Path, command: CommandLine) -> None:
    folder = scene_with(tmp_path, *FILES["Meshroom"])
    for photo in list((folder / "images").iterdir())[1:]:
        photo.unlink()
    _, output = command("poses", folder)
    output = " ".join(output.split())
    assert output.count("estimated anew; those of Meshroom in cameras.sfm are not read; to use") == 1


def test_videos_are_told_as_photos_are(tmp_path: Path, command: CommandLine) -> None:
    (tmp_path / "depth").mkdir()
    (tmp_path / "rgb.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    told = f"`splatstudio poses {tmp_path}` estimates them"
    with pytest.raises(ValueError, match=f"{tmp_path} holds 1 video but no camera poses.*{told}"):
        load_scene(tmp_path)
    write_pictures(tmp_path, TINY)
    with pytest.raises(ValueError, match="holds 3 photos and 1 video but no camera poses"):
        load_scene(tmp_path)
    code, output = command("info", tmp_path / "rgb.mp4")
    assert code == 2 and "is a video, whose camera poses are not known yet" in " ".join(output.split())
