"""Camera paths: the curve through keyframes, and the ready-made ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from path_builder import Z, difference, random_keys, turned

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.cameras.camera_path import (
    CameraPath,
    FrameFormat,
    Keyframe,
    keyframe_of,
    orbit,
    orbit_of,
    spiral,
)
from splatstudio.scene.load import load_scene

DEMO = Path(__file__).parents[2] / "assets" / "demo"
SCENES = Path(__file__).parents[3] / "shared" / "scenes"


def angle_between(first: Camera, second: Camera) -> float:
    cosine = (np.trace(first.viewmat[:3, :3] @ second.viewmat[:3, :3].T) - 1) / 2
    return math.acos(min(max(cosine, -1.0), 1.0))


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("tension", [-0.5, 0.0, 1.0])
def test_the_curve_passes_through_its_keyframes(loop: bool, tension: float) -> None:
    keys = tuple(replace(key, seconds=0.5 + i) for i, key in enumerate(random_keys(1, 5)))
    path = CameraPath(keys, loop=loop, tension=tension)
    assert path.duration == pytest.approx(1.5 + 2.5 + 3.5 + 4.5 + (0.5 if loop else 0.0))
    for time, key in zip(path.arrivals, keys, strict=False):
        assert difference(path.camera_at(time), key) < 1e-9
    if loop:
        assert difference(path.camera_at(path.duration), keys[0]) < 1e-9


def test_frames_begin_and_end_where_the_path_does() -> None:
    path = CameraPath(random_keys(2, 3), default_seconds=1.0, fps=10)
    cameras = path.cameras()
    assert len(cameras) == 21
    for index, key in zip((0, 10, 20), path.keyframes, strict=True):
        assert difference(cameras[index], key) < 1e-9
    # A loop's last frame is one frame away from its first, not equal to it.
    cameras = replace(path, loop=True).cameras()
    assert len(cameras) == 30
    steps = [angle_between(a, b) for a, b in zip(cameras, [*cameras[1:], cameras[0]], strict=True)]
    assert 1e-3 < steps[-1] < 2 * max(steps[:-1])


@pytest.mark.parametrize("num", [2, 3, 5])
def test_a_loop_closes_smoothly(num: int) -> None:
    path = CameraPath(random_keys(num, num), loop=True)
    h = 1e-4

    def velocity(time: float) -> np.ndarray:
        before, after = path.camera_at(time), path.camera_at(time + h)
        return (after.camera_to_world - before.camera_to_world) / h

    before, after = velocity(path.duration - h), velocity(0.0)
    assert np.abs(after).max() > 0.05 or num == 2
    assert np.abs(before - after).max() < 0.02 * max(1.0, np.abs(after).max())


def test_the_curve_is_smooth_inside() -> None:
    keys = tuple(replace(key, seconds=[2.0, 0.4, 3.0, 1.0][i % 4]) for i, key in enumerate(random_keys(3, 7)))
    path = CameraPath(keys)
    poses = np.stack([path.camera_at(t).camera_to_world for t in np.linspace(0, path.duration, 4001)])
    velocity = np.diff(poses, axis=0) / (path.duration / 4000)
    # A corner would change the velocity by about itself from one sample to the next.
    assert np.abs(np.diff(velocity, axis=0)).max() < 0.1 * np.abs(velocity).max()


def test_time_and_field_of_view_never_run_back() -> None:
    poses = [np.eye(4) for _ in range(6)]
    for i, pose in enumerate(poses):
        pose[0, 3] = i
    times, fovs = [None, 0.05, 4.0, 0.05, 0.05, 3.0], [0.3, 0.3, 2.9, 2.9, 0.4, 0.4]
    keys = [Keyframe(pose, fov, time) for pose, fov, time in zip(poses, fovs, times, strict=True)]
    path = CameraPath(tuple(keys), fps=200)
    cameras = path.cameras()
    assert (np.diff([camera.position[0] for camera in cameras]) > -1e-9).all()
    fov = np.array([camera.fov_y for camera in cameras])
    assert fov.min() > 0.3 - 1e-9 and fov.max() < 2.9 + 1e-9


def test_one_keyframe_is_a_still_and_none_is_nothing() -> None:
    key = random_keys(4, 1, seconds=0.5)[0]
    for loop in (False, True):
        cameras = CameraPath((key,), loop=loop, fps=10).cameras()
        assert len(cameras) == 5 and max(difference(camera, key) for camera in cameras) < 1e-9
    empty = CameraPath(())
    assert list(empty.cameras()) == [] and empty.duration == 0.0


def test_two_keyframes_are_joined_by_the_shorter_turn_at_constant_speed() -> None:
    first, second = np.eye(4), np.eye(4)
    second[:3, :3], second[:3, 3] = turned(Z, math.radians(-170)), [1.0, 2.0, 3.0]
    path = CameraPath((Keyframe(first, 1.0), Keyframe(second, 1.0)), fps=20)
    steps = [angle_between(a, b) for a, b in zip(path.cameras(), path.cameras()[1:], strict=False)]
    assert sum(steps) == pytest.approx(math.radians(170), abs=1e-6)
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([-1.0, 0.0, 0.7, 1.0]),
)
def test_repeated_and_opposite_keyframes_stay_finite_and_rigid(
    chosen: list[int], loop: bool, tension: float
) -> None:
    # Half turns about several axes: the cases in which quaternions have no shorter way, or change sign.
    rotations = [np.eye(3), turned(Z, math.pi), np.diag([1.0, -1, -1]), np.diag([-1.0, 1, -1])]
    rotations += [turned(Z, 1e-9), turned(np.ones(3), 2 * math.pi / 3)]
    keys: list[Keyframe] = []
    for index in chosen:
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = rotations[index], [index, index % 2, 0.0]
        keys.append(Keyframe(pose, 0.5 + 0.2 * index))
    cameras = CameraPath(tuple(keys), loop=loop, tension=tension, fps=7).cameras()
    for camera in cameras:
        assert np.isfinite(camera.viewmat).all() and np.isfinite(camera.K).all()
        assert np.abs(camera.viewmat[:3, :3] @ camera.viewmat[:3, :3].T - np.eye(3)).max() < 1e-9
        assert np.linalg.det(camera.viewmat[:3, :3]) > 0.99


def test_the_turn_is_the_shorter_one_through_a_full_revolution() -> None:
    # Eight keyframes around: a naive quaternion per keyframe changes its sign on the way.
    keys = []
    for i in range(8):
        pose = np.eye(4)
        pose[:3, :3] = turned(Z, 2 * math.pi * i / 8)
        keys.append(Keyframe(pose, 1.0))
    cameras = CameraPath(tuple(keys), loop=True, default_seconds=1.0, fps=10).cameras()
    steps = [angle_between(a, b) for a, b in zip(cameras, [*cameras[1:], cameras[0]], strict=True)]
    assert max(steps) == pytest.approx(2 * math.pi / 80, rel=1e-3) == min(steps)


def test_transforming_the_path_transforms_its_cameras() -> None:
    similarity = np.eye(4)
    similarity[:3, :3], similarity[:3, 3] = 2.5 * turned(np.array([1.0, 2, 3]), 1.1), [4, 5, 6]
    path = CameraPath(random_keys(5, 4), loop=True, fps=5)
    for before, after in zip(path.cameras(), path.transformed(similarity).cameras(), strict=True):
        assert np.abs(before.transformed(similarity).viewmat - after.viewmat).max() < 1e-9


def test_a_keyframe_shows_what_its_camera_shows() -> None:
    camera = Camera(look_at(np.array([1.0, 2, 3]), np.zeros(3), Z), np.diag([500.0, 500, 1]), 640, 400)
    again = CameraPath((keyframe_of(camera),), width=640, height=400).cameras()[0]
    assert np.abs(again.viewmat - camera.viewmat).max() < 1e-12
    assert again.K[0, 0] == pytest.approx(500) and again.K[1, 1] == pytest.approx(500)
    assert again.K[0, 2] == 320 and again.K[1, 2] == 200


def test_format_replaces_size_rate_and_length() -> None:
    keys = (*random_keys(6, 2), *random_keys(7, 2, seconds=4.0))
    path = CameraPath(keys, width=640, height=400, default_seconds=2.0)
    changed = path.formatted(FrameFormat(width=320, fps=12, seconds=5.0))
    assert (changed.width, changed.height, changed.fps) == (320, 200, 12)
    assert changed.arrivals == pytest.approx(path.arrivals / 2) and len(changed.cameras()) == 61
    assert path.formatted(FrameFormat(height=100)).width == 160
    assert path.formatted(FrameFormat()).frame_times == pytest.approx(path.frame_times)
    for wrong in (FrameFormat(width=0), FrameFormat(fps=0), FrameFormat(seconds=0), FrameFormat(seconds=1e9)):
        with pytest.raises(ValueError, match=r"pixels|frames a second|seconds"):
            path.formatted(wrong)


def test_orbit_is_level_round_and_steady() -> None:
    center, up = np.array([1.0, -2.0, 0.5]), np.array([0.0, 1.0, 1.0]) / math.sqrt(2)
    path = orbit(center, 3.0, 1.0, up=up, start=center + np.array([5.0, 0, 0]), seconds=6.0)
    cameras = path.cameras()
    assert len(cameras) == 180
    offsets = np.stack([camera.position for camera in cameras]) - center
    assert offsets @ up == pytest.approx(np.ones(180), abs=1e-6)
    assert np.linalg.norm(offsets - up, axis=1) == pytest.approx(np.full(180, 3.0), rel=1e-3)
    assert offsets[0] == pytest.approx(up + np.array([3.0, 0, 0]))
    turns = [angle_between(a, b) for a, b in zip(cameras, [*cameras[1:], cameras[0]], strict=True)]
    assert max(turns) / min(turns) < 1 + 1e-5
    speeds = np.linalg.norm(offsets - np.roll(offsets, 1, axis=0), axis=1)
    assert speeds.max() / speeds.min() < 1.02
    for camera in cameras:
        assert abs(camera.viewmat[0, :3] @ up) < 1e-9, "the horizon is level"
        seen = camera.viewmat @ np.append(center, 1.0)
        assert np.abs(seen[:2]).max() < 2e-3 * seen[2], "the center stays in the middle"


def ring_of_cameras(azimuths: np.ndarray, *, radius: float = 1.0, height: float = 0.4) -> list[Camera]:
    K = np.array([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]])
    positions = [[radius * math.cos(a), radius * math.sin(a), height] for a in azimuths]
    return [Camera(look_at(np.array(p), np.zeros(3), Z), K, 320, 240) for p in positions]


@pytest.mark.parametrize(("photo", "video"), [((1600, 1200), (1600, 1200)), ((3000, 4000), (1440, 1920))])
def test_a_video_has_the_photos_shape_and_a_size_of_use(
    photo: tuple[int, int], video: tuple[int, int]
) -> None:
    cameras = [camera.resized(*photo) for camera in ring_of_cameras(np.linspace(0.0, 6.0, 20))]
    path = orbit_of(cameras, seconds=2.0)
    assert (path.width, path.height) == video


def test_orbit_of_a_full_capture_goes_around_at_its_height() -> None:
    cameras = ring_of_cameras(np.linspace(0, 2 * math.pi, 20, endpoint=False))
    path = orbit_of(cameras, seconds=2.0)
    assert (path.width, path.height) == (1280, 960), "a video is no stamp, whatever the photos are"
    offsets = np.stack([camera.position for camera in path.cameras()])
    assert offsets[:, 2] == pytest.approx(np.full(60, 0.4), abs=1e-6)
    azimuths = np.unwrap(np.arctan2(offsets[:, 1], offsets[:, 0]))
    assert azimuths[-1] - azimuths[0] == pytest.approx(2 * math.pi * 59 / 60, abs=1e-3)
    assert path.cameras()[0].fov_y == pytest.approx(cameras[0].fov_y)


def test_orbit_of_a_tilted_capture_is_tilted_and_steady() -> None:
    # As where the ground is not quite level in the scene's frame: from the front low, from the back high.
    K = np.array([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]])
    positions: list[np.ndarray] = []
    for azimuth in np.linspace(0, 2 * math.pi, 24, endpoint=False):
        elevation = 0.7 - 0.5 * math.cos(azimuth)
        level = math.cos(elevation)
        place = [level * math.cos(azimuth), level * math.sin(azimuth), math.sin(elevation)]
        positions.append((1.0 + 0.1 * math.sin(azimuth)) * np.array(place))
    cameras = orbit_of([Camera(look_at(p, np.zeros(3), Z), K, 320, 240) for p in positions]).cameras()
    places = np.stack([camera.position for camera in cameras])
    nearest = np.linalg.norm(places[:, None] - np.stack(positions), axis=2).min(axis=1)
    assert nearest.max() < 0.15, "half the distance of two cameras"
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    assert steps.max() < 1.05 * steps.min()
    assert max(abs(camera.viewmat[0, 2]) for camera in cameras) < 0.01, "the horizon is level"


@pytest.mark.parametrize("middle", [0.0, math.pi, 2.5])
def test_orbit_of_a_partial_capture_stays_where_photos_are(middle: float) -> None:
    cameras = ring_of_cameras(middle + np.linspace(-0.6, 0.6, 9))
    path = orbit_of(cameras)
    offsets = np.stack([camera.position for camera in path.cameras()])
    azimuths = (np.arctan2(offsets[:, 1], offsets[:, 0]) - middle + math.pi) % (2 * math.pi) - math.pi
    assert azimuths.min() == pytest.approx(-0.6, abs=0.01) and azimuths.max() == pytest.approx(0.6, abs=0.01)
    assert max(abs(camera.viewmat[0, 2]) for camera in path.cameras()) < 1e-9


def test_spiral_of_a_forward_facing_capture_stays_near_its_cameras() -> None:
    rng = np.random.default_rng(0)
    positions = np.array([-2.0, 0.0, 0.0]) + rng.uniform(-0.3, 0.3, (20, 3)) * [0.2, 1.0, 1.0]
    K = np.array([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]])
    cameras = [Camera(look_at(p, np.zeros(3), Z), K, 320, 240) for p in positions]
    offsets = np.stack([camera.position for camera in spiral(cameras).cameras()])
    assert (offsets.min(axis=0) > positions.min(axis=0) - 0.1).all()
    assert (offsets.max(axis=0) < positions.max(axis=0) + 0.1).all()
    assert np.ptp(offsets[:, 1]) > 0.25 and np.ptp(offsets[:, 2]) > 0.25
    assert np.ptp(offsets[:, 0]) > 0.02, "it goes forward and back as well"


def test_spiral_of_a_full_capture_winds_between_its_heights() -> None:
    low = ring_of_cameras(np.linspace(0, 6, 12), radius=1.0, height=0.1)
    high = ring_of_cameras(np.linspace(0, 6, 12), radius=0.6, height=0.9)
    offsets = np.stack([camera.position for camera in spiral([*low, *high]).cameras()])
    assert offsets[:, 2].min() == pytest.approx(0.1, abs=0.01)
    assert offsets[:, 2].max() == pytest.approx(0.9, abs=0.01)
    radii = np.linalg.norm(offsets[:, :2], axis=1)
    assert radii[np.argmin(offsets[:, 2])] == pytest.approx(1.0, abs=0.02)
    assert radii[np.argmax(offsets[:, 2])] == pytest.approx(0.6, abs=0.02)
    turned_by = np.unwrap(np.arctan2(offsets[:, 1], offsets[:, 0]))
    assert turned_by[-1] - turned_by[0] == pytest.approx(4 * math.pi, rel=0.01)


@pytest.mark.parametrize("make", [orbit_of, spiral])
@pytest.mark.parametrize("scene", [DEMO, SCENES / "banana", SCENES / "fox-colmap"])
def test_ready_paths_of_real_scenes_look_at_the_subject(make, scene: Path) -> None:
    if not (scene / "sparse").exists():
        pytest.skip(f"{scene.name} is not here")
    for camera in make(load_scene(scene).cameras).cameras()[::7]:
        assert np.isfinite(camera.viewmat).all()
        x, y, depth, _ = camera.viewmat[:, 3]  # of the origin, the point of attention
        assert depth > 0.1 and max(abs(x), abs(y)) < 0.01 * depth
        assert abs(camera.viewmat[0, 2]) < 0.01, "the horizon is level"


def test_ready_paths_say_what_they_cannot_do() -> None:
    above = Camera(look_at(np.array([0.0, 0, 3]), np.zeros(3), Z), np.eye(3), 10, 10)
    for wrong in (lambda: orbit(np.zeros(3), 0.0, 1.0), lambda: orbit_of([]), lambda: orbit_of([above])):
        with pytest.raises(ValueError, match=r"orbit|cameras"):
            wrong()
    assert len(spiral([above], seconds=1).cameras()) == 30
