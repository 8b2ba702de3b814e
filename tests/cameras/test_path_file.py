"""Files of camera paths: exact round trips, files of other programs, broken files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from path_builder import Z, difference, random_keys, turned

from splatstudio.cameras.camera import look_at
from splatstudio.cameras.camera_path import CameraPath
from splatstudio.cameras.path_file import OPENGL, read_camera_path, write_camera_path


def equal(first: CameraPath, second: CameraPath) -> bool:
    plain = [
        (p.loop, p.tension, p.default_seconds, p.width, p.height, p.fps, len(p.keyframes))
        for p in (first, second)
    ]
    return plain[0] == plain[1] and all(
        np.array_equal(a.camera_to_world, b.camera_to_world)
        and (a.fov_y, a.seconds, a.name) == (b.fov_y, b.seconds, b.name)
        for a, b in zip(first.keyframes, second.keyframes, strict=True)
    )


def test_files_give_back_exactly_what_was_written(tmp_path: Path) -> None:
    keys = (*random_keys(8, 3), replace(random_keys(9, 1, seconds=0.7)[0], name="the door, from below"))
    path = CameraPath(keys, loop=True, tension=0.3, default_seconds=1.1, width=321, height=200, fps=23.976)
    write_camera_path(tmp_path / "path.json", path)
    assert equal(read_camera_path(tmp_path / "path.json"), path)


def test_a_lone_keyframe_of_ours_stays_one_and_that_of_another_program_gives_way(tmp_path: Path) -> None:
    path = CameraPath(random_keys(8, 1), default_seconds=2.0, fps=30.0)
    write_camera_path(tmp_path / "path.json", path)
    values = json.loads((tmp_path / "path.json").read_text())
    assert len(values["camera_path"]) > 1
    assert equal(read_camera_path(tmp_path / "path.json"), path)
    del values["keyframes"][0]["fov_y_radians"]
    assert len(read_values(tmp_path, values).keyframes) == len(values["camera_path"])


def test_the_frames_can_be_left_out(tmp_path: Path) -> None:
    path = CameraPath(random_keys(8, 3), default_seconds=100.0)
    write_camera_path(tmp_path / "path.json", path, with_frames=False)
    assert json.loads((tmp_path / "path.json").read_text())["camera_path"] == []
    assert equal(read_camera_path(tmp_path / "path.json"), path)


def test_files_hold_the_coordinates_of_the_scenes_files(tmp_path: Path) -> None:
    transform = np.eye(4)
    transform[:3, :3], transform[:3, 3] = 0.2 * turned(np.array([1.0, 0, 2]), 0.8), [1, 2, 3]
    path = CameraPath(random_keys(10, 3))
    write_camera_path(tmp_path / "path.json", path, transform)
    record = json.loads((tmp_path / "path.json").read_text())["keyframes"][1]
    in_files = np.reshape(record["matrix"], (4, 4))
    place = transform @ in_files[:, 3]
    assert place[:3] == pytest.approx(path.keyframes[1].camera_to_world[:3, 3])
    again = read_camera_path(tmp_path / "path.json", transform)
    for a, b in zip(path.keyframes, again.keyframes, strict=True):
        assert np.abs(a.camera_to_world - b.camera_to_world).max() < 1e-12 and a.fov_y == b.fov_y


def stock_file(pose: np.ndarray, **changes: object) -> dict[str, object]:
    """Return what nerfstudio's and nerfview's viewers save for keyframes at `pose` and 1 m further right."""
    further = pose.copy()
    further[:3, 3] += pose[:3, 0]
    keyframes = [
        {
            "matrix": (matrix @ OPENGL).ravel().tolist(),
            "fov": fov,
            "aspect": 4 / 3,
            "override_transition_enabled": False,
            "override_transition_sec": None,
        }
        for matrix, fov in ((pose, 75.0), (further, 50.0))
    ]
    frames = [{"camera_to_world": k["matrix"], "fov": k["fov"], "aspect": 4 / 3} for k in keyframes]
    values: dict[str, object] = {
        "default_fov": 75.0,
        "default_transition_sec": 1.5,
        "keyframes": keyframes,
        "camera_type": "perspective",
        "render_height": 960.0,
        "render_width": 1280.0,
        "fps": 24,
        "seconds": 1.5,
        "is_cycle": False,
        "smoothness_value": 0.25,
        "camera_path": frames,
    }
    return {key: value for key, value in {**values, **changes}.items() if value is not ...}


def read_values(folder: Path, values: object, *, scale_ratio: float = 1.0) -> CameraPath:
    file = folder / "camera_path.json"
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    return read_camera_path(file, scale_ratio=scale_ratio)


def test_stock_files_are_read_right(tmp_path: Path) -> None:
    pose = np.linalg.inv(look_at(np.array([0.4, -0.2, 0.1]), np.zeros(3), Z))
    path = read_values(tmp_path, stock_file(pose))
    assert (path.width, path.height, path.fps, path.loop, path.tension) == (1280, 960, 24.0, False, 0.25)
    assert path.duration == 1.5 and len(path.cameras()) == 37
    assert np.abs(path.keyframes[0].camera_to_world - pose).max() < 1e-12
    assert path.keyframes[0].fov_y == math.radians(75) and path.keyframes[1].fov_y == math.radians(50)
    # OpenCV axes: the camera looks along +z, at the origin.
    assert path.camera_at(0.0).viewmat[2, 3] == pytest.approx(math.sqrt(0.21))


def test_nerfviews_scale_ratio_is_undone_on_request(tmp_path: Path) -> None:
    pose = np.linalg.inv(look_at(np.array([4.0, -2.0, 1.0]), np.zeros(3), Z))
    small = pose.copy()
    small[:3, 3] /= 10
    path = read_values(tmp_path, stock_file(small, camera_type=...), scale_ratio=10.0)
    assert np.abs(path.keyframes[0].camera_to_world - pose).max() < 1e-12


def test_old_and_frame_by_frame_files_are_read_right(tmp_path: Path) -> None:
    pose = np.linalg.inv(look_at(np.array([0.4, -0.2, 0.1]), np.zeros(3), Z))
    # The first viewer wrote matrices as text, by columns, and only the whole time.
    text = json.dumps((pose @ OPENGL).T.ravel().tolist())
    old = [{"matrix": text, "fov": 60, "aspect": 1.5, "properties": "[]"} for _ in range(3)]
    path = read_values(tmp_path, stock_file(pose, keyframes=old, default_transition_sec=..., seconds=3))
    assert np.abs(path.keyframes[2].camera_to_world - pose).max() < 1e-12 and path.duration == 3.0
    # Scripts write frames only: each is a keyframe, and each is shown exactly.
    path = read_values(tmp_path, stock_file(pose, keyframes=[]))
    assert len(path.cameras()) == 2 and difference(path.cameras()[1], path.keyframes[1]) < 1e-9
    # Few digits, and a scale that other programs leave in the axes.
    rough = pose.copy()
    rough[:3, :3] = np.round(3.0 * rough[:3, :3], 5)
    path = read_values(tmp_path, stock_file(rough))
    assert np.abs(path.keyframes[0].camera_to_world - pose).max() < 1e-4


MATRIX = np.eye(4).ravel().tolist()
BROKEN = {
    "not JSON": "{",
    "no object": "[1, 2]",
    "deep": "[" * 100_000,
    "no paths": {"fps": 3},
    "keyframes no list": {"keyframes": {"a": 1}},
    "keyframes of numbers": {"keyframes": [1, 2]},
    "matrix missing": {"keyframes": [{"fov": 50}]},
    "matrix too short": {"keyframes": [{"fov": 50, "matrix": MATRIX[:12]}]},
    "matrix of text": {"keyframes": [{"fov": 50, "matrix": ["a"] * 16}]},
    "matrix of garbage text": {"keyframes": [{"fov": 50, "matrix": "x"}]},
    "matrix with NaN": {"keyframes": [{"fov": 50, "matrix": [math.nan, *MATRIX[1:]]}]},
    "matrix with a huge integer": {"keyframes": [{"fov": 50, "matrix": [10**400, *MATRIX[1:]]}]},
    "matrix of zeros": {"keyframes": [{"fov": 50, "matrix": [0.0] * 15 + [1.0]}]},
    "matrix mirrored": {"keyframes": [{"fov": 50, "matrix": [-1.0, *MATRIX[1:]]}]},
    "matrix sheared": {"keyframes": [{"fov": 50, "matrix": [1, 0.5, *MATRIX[2:]]}]},
    "matrix projective": {"keyframes": [{"fov": 50, "matrix": [1, 0, 0, 5, *MATRIX[4:12], 1, 1, 1, 1]}]},
    "fov missing": {"keyframes": [{"matrix": MATRIX}]},
    "fov 0": {"keyframes": [{"fov": 0, "matrix": MATRIX}]},
    "fov 180": {"keyframes": [{"fov": 180, "matrix": MATRIX}]},
    "fov text": {"keyframes": [{"fov": "wide", "matrix": MATRIX}]},
    "fps 0": {"fps": 0, "camera_path": [{"fov": 50, "camera_to_world": MATRIX}]},
    "fps NaN": {"fps": math.nan, "keyframes": [{"fov": 50, "matrix": MATRIX}]},
    "seconds negative": {"default_transition_sec": -1, "keyframes": [{"fov": 50, "matrix": MATRIX}]},
    "seconds endless": {"default_transition_sec": 1e300, "keyframes": [{"fov": 50, "matrix": MATRIX}]},
    "tension": {"smoothness_value": 7, "keyframes": [{"fov": 50, "matrix": MATRIX}]},
    "width huge": {"render_width": 2**60, "keyframes": [{"fov": 50, "matrix": MATRIX}]},
    "width broken": {"render_width": 1.5, "keyframes": [{"fov": 50, "matrix": MATRIX}]},
    "panorama": {"camera_type": "equirectangular", "keyframes": [{"fov": 50, "matrix": MATRIX}]},
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_files_give_one_sentence(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"camera_path\.json") as error:
        read_values(tmp_path, BROKEN[kind])
    assert "\n" not in str(error.value) and 20 < len(str(error.value)) < 300 + len(str(tmp_path))


def test_missing_and_binary_files_give_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.json cannot be read"):
        read_camera_path(tmp_path / "absent.json")
    (tmp_path / "video.json").write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="not a JSON file"):
        read_camera_path(tmp_path / "video.json")
