"""The coordinates of Metashape's and RealityScan's projects, and the points that were exported in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blob_models import blobs
from poses_of_programs import TINY, WRITERS, camera_to_world, write_metashape
from scene_builder import write_blender
from scipy.spatial.transform import Rotation

from splatstudio.cameras.camera import rigid
from splatstudio.formats.ply import write_ply
from splatstudio.scene.load import load_scene
from splatstudio.scene.point_ply import MOST_POINTS
from splatstudio.scene.realityscan import read_realityscan
from splatstudio.scene.scene import Scene

TURN = Rotation.from_euler("xyz", [100, 20, -50], degrees=True).as_matrix()
LEVEL = np.array([0.0, 0, 1])


def with_transform(folder: Path, rotation: np.ndarray, place: tuple[float, ...], scale: float) -> Path:
    """Write Metashape's poses of the tiny scene with a transform of their component."""
    file = write_metashape(folder) / "cameras.xml"
    transform = (
        '<components><component id="0"><transform>'
        f"<rotation>{' '.join(map(str, rotation.ravel()))}</rotation>"
        f"<translation>{' '.join(map(str, place))}</translation><scale>{scale}</scale>"
        "</transform></component></components><cameras>"
    )
    file.write_text(file.read_text().replace("<cameras>", transform, 1))
    return folder


def poses_of(scene: Scene) -> list[np.ndarray]:
    """Return camera to world [4, 4] in the coordinates of the scene's files."""
    back = np.linalg.inv(scene.transform)
    return [np.linalg.inv(camera.transformed(back).viewmat) for camera in scene.cameras]


def up_of(scene: Scene) -> np.ndarray:
    up = scene.transform[:3, :3] @ LEVEL
    return up / np.linalg.norm(up)


def write_points(file: Path, points: np.ndarray, colors: np.ndarray = TINY.colors) -> None:
    kind = "property uchar"
    header = f"ply\nformat ascii 1.0\nelement vertex {len(points)}\nproperty float x\nproperty float y\n"
    header += f"property float z\n{kind} red\n{kind} green\n{kind} blue\nend_header\n"
    rows = (" ".join(map(str, [*p, *c])) for p, c in zip(points.tolist(), colors.tolist(), strict=True))
    file.write_text(header + "\n".join(rows) + "\n")


def test_poses_of_metashape_are_told_in_the_coordinates_of_its_project(tmp_path: Path) -> None:
    scene = load_scene(with_transform(tmp_path / "a", TURN, (100.0, -20.0, 7.0), 12.5))
    world = rigid(12.5 * TURN, np.array([100.0, -20.0, 7.0]))
    for index, pose in enumerate(poses_of(scene)):
        expected = world @ camera_to_world(index)
        np.testing.assert_allclose(pose[:3, 3], expected[:3, 3], atol=1e-5)
        np.testing.assert_allclose(pose[:3, :3], expected[:3, :3] / 12.5, atol=1e-6)
    np.testing.assert_allclose(up_of(scene), LEVEL, atol=1e-6)


def test_poses_on_the_globe_are_told_in_meters_east_north_and_up(tmp_path: Path) -> None:
    # Greenwich's observatory as WGS 84 has it: 51.4779 degrees north, 0.0015 west, 46 m high.
    place = (3_980_601.0, -104.0, 4_966_825.0)
    scene = load_scene(with_transform(tmp_path / "a", np.eye(3), place, 2.0))
    latitude, longitude = np.deg2rad(51.4779), np.deg2rad(-0.0015)
    north = np.array(
        [
            -np.sin(latitude) * np.cos(longitude),
            -np.sin(latitude) * np.sin(longitude),
            np.cos(latitude),
        ]
    )
    up = np.array(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)]
    )
    axes = np.stack([np.cross(north, up), north, up])
    for index, pose in enumerate(poses_of(scene)):
        np.testing.assert_allclose(pose[:3, 3], 2.0 * axes @ camera_to_world(index)[:3, 3], atol=2e-3)
    np.testing.assert_allclose(up_of(scene), LEVEL, atol=1e-6)


@pytest.mark.parametrize(
    ("rotation", "scale", "sentence"),
    [
        (2 * TURN, 1.0, "transform, has a rotation or a scale that cannot be"),
        (TURN, -1.0, "transform, has a rotation or a scale that cannot be"),
        (TURN[:2], 1.0, "transform, has rotation that is not 9 numbers"),
    ],
)
def test_a_damaged_transform_is_told(
    tmp_path: Path, rotation: np.ndarray, scale: float, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_scene(with_transform(tmp_path / "a", rotation, (1.0, 0.0, 0.0), scale))


def test_a_project_that_nobody_placed_keeps_its_coordinates(tmp_path: Path) -> None:
    scene = load_scene(with_transform(tmp_path / "a", np.eye(3), (0.0, 0.0, 0.0), 1.0))
    for index, pose in enumerate(poses_of(scene)):
        np.testing.assert_allclose(pose, camera_to_world(index), atol=1e-6)


def test_of_several_chunks_that_with_most_poses_is_read(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "a")
    file = folder / "cameras.xml"
    file.write_text(file.read_text().replace("<chunk ", '<chunk label="empty"/><chunk ', 1))
    assert len(load_scene(folder).views) == len(TINY.names)


def test_positions_of_realityscan_in_degrees_are_refused(tmp_path: Path) -> None:
    header = "#name,x,y,alt,heading,pitch,roll,f,px,py\n"
    # A flight of 80 x 110 m at 60 m, up and down by a few meters.
    rows = [
        f"{i}.jpg,{-34.8287 + 1.1e-4 * (i % 9)},{-7.1633 + 1e-4 * (i // 9)},{60 + i % 4},0,10,0,24,0,0"
        for i in range(90)
    ]
    file = tmp_path / "a.csv"
    file.write_text(header + "\n".join(rows))
    with pytest.raises(ValueError, match=r"a\.csv tells x and y in degrees, it seems: export"):
        read_realityscan(file)
    # The same in meters, and around a tower from its foot to its top.
    for along, up in ((10.0, 1.0), (0.5, 50.0)):
        rows = [
            f"{i}.jpg,{along * (i % 9)},{along * (i // 9)},{up * (i % 4)},0,10,0,24,0,0" for i in range(90)
        ]
        file.write_text(header + "\n".join(rows))
        assert len(read_realityscan(file).frames) == 90


@pytest.mark.parametrize("program", ["Metashape", "RealityScan"])
def test_a_training_starts_from_the_points_that_lie_beside_the_poses(tmp_path: Path, program: str) -> None:
    folder = WRITERS[program](tmp_path / "a")
    write_points(folder / "Cloud.PLY", TINY.points)
    write_ply(folder / "a model.ply", blobs(num=20))
    scene = load_scene(folder)
    back = np.linalg.inv(scene.transform)
    np.testing.assert_allclose(scene.points @ back[:3, :3].T + back[:3, 3], TINY.points, atol=1e-5)
    np.testing.assert_array_equal(scene.colors, TINY.colors)
    assert f"training starts from the points of {folder / 'Cloud.PLY'}" in scene.notes
    write_points(folder / "dense.ply", TINY.points)
    assert any("which of Cloud.PLY, dense.ply holds the points" in note for note in load_scene(folder).notes)
    write_points(folder / "points3D.ply", TINY.points[:5], TINY.colors[:5])
    assert len(load_scene(folder).points) == 5, "it is called what others call it"


def test_points_that_do_not_fit_are_left_aside_with_a_reason(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "a")
    file = folder / "points.ply"
    away = poses_of(load_scene(folder))[0][:3, 3] * 1000
    write_points(file, TINY.points + away)
    scene = load_scene(folder)
    assert not len(scene.points)
    assert any("points.ply are not where the cameras look; export" in note for note in scene.notes)
    write_points(file, TINY.points)
    file.write_bytes(file.read_bytes()[:-40])
    scene = load_scene(folder)
    assert not len(scene.points) and any("points.ply is damaged" in note for note in scene.notes)
    file.write_text("hello")
    assert any("points.ply is not a PLY" in note for note in load_scene(folder).notes)
    write_points(file, TINY.points[:0], TINY.colors[:0])
    assert any("points.ply holds no points" in note for note in load_scene(folder).notes)
    write_ply(file, blobs(num=20))
    assert any("points.ply holds splats, no points" in note for note in load_scene(folder).notes)


def test_a_cloud_goes_before_a_mesh(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "a")
    write_points(folder / "cloud.ply", TINY.points)
    write_points(folder / "a mesh.ply", TINY.points[:9], TINY.colors[:9])
    text = (folder / "a mesh.ply").read_text()
    faces = "element face 1\nproperty list uchar int vertex_indices\nend_header"
    (folder / "a mesh.ply").write_text(text.replace("end_header", faces) + "3 0 1 2\n")
    assert len(load_scene(folder).points) == len(TINY.points)
    (folder / "cloud.ply").unlink()
    assert len(load_scene(folder).points) == 9, "its corners, where there is nothing better"


def test_points_that_come_later_leave_the_frame_in_which_runs_go_on(tmp_path: Path) -> None:
    """A mesh or cloud of one's own, put beside the poses, must not part a run from its scene."""
    # Parallel cameras: their frame would follow points that are theirs.
    alike = np.repeat(TINY.viewmats[:1], len(TINY.names), axis=0)
    alike[:, :2, 3] += np.random.default_rng(0).normal(size=(len(TINY.names), 2)) * 0.3
    folder = write_blender(tmp_path / "a", replace(TINY, viewmats=alike))
    before = load_scene(folder)
    far = TINY.points * 1.5 + [0.3, 0.2, 0.1]
    write_points(folder / "points.ply", far)
    after = load_scene(folder)
    assert len(after.points) == len(far) and not len(before.points)
    np.testing.assert_array_equal(after.transform, before.transform)


def test_of_a_dense_cloud_every_few_points_are_taken(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "a")
    times = 2 * MOST_POINTS // len(TINY.points)
    points = np.repeat(TINY.points, times, axis=0).astype("<f4")
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n"
    header += "property float x\nproperty float y\nproperty float z\nend_header\n"
    (folder / "points.ply").write_bytes(header.encode() + points.tobytes())
    scene = load_scene(folder)
    assert MOST_POINTS / 2 <= len(scene.points) <= MOST_POINTS
    assert any(f"one in 2 of its {len(points):,}" in note for note in scene.notes)
