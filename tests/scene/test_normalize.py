"""The normalized frame is sensible and finite for every arrangement of cameras."""

import numpy as np
import pytest
from scene_builder import tiny_scene, write_colmap

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.scene.load import load_scene
from splatstudio.scene.normalize import normalizing_transform

NO_POINTS = np.zeros((0, 3))


def normalized(viewmats: np.ndarray, points: np.ndarray = NO_POINTS):
    """Return the transform, the cameras' positions, forward and up vectors in the normalized frame."""
    transform = normalizing_transform(viewmats, points)
    assert np.isfinite(transform).all()
    rotation = transform[:3, :3] / np.cbrt(np.linalg.det(transform[:3, :3]))
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-9)
    cameras = [Camera(v, np.eye(3), 1, 1).transformed(transform) for v in viewmats]
    positions = np.stack([c.position for c in cameras])
    forward = np.stack([c.viewmat[2, :3] for c in cameras])
    up = np.stack([-c.viewmat[1, :3] for c in cameras])
    return transform, positions, forward, up


def random_similarity(seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    q, _ = np.linalg.qr(random.normal(size=(3, 3)))
    matrix = np.eye(4)
    matrix[:3, :3] = q * np.sign(np.linalg.det(q)) * random.uniform(0.01, 100)
    matrix[:3, 3] = random.normal(size=3) * 1000
    return matrix


def moved(viewmats: np.ndarray, similarity: np.ndarray) -> np.ndarray:
    return np.stack([Camera(v, np.eye(3), 1, 1).transformed(similarity).viewmat for v in viewmats])


@pytest.mark.parametrize("seed", range(5))
def test_orbit_in_any_frame_comes_to_stand_upright_around_the_origin(seed):
    viewmats = moved(tiny_scene(12).viewmats, random_similarity(seed))
    _, positions, forward, up = normalized(viewmats)
    np.testing.assert_allclose(np.linalg.norm(positions - positions.mean(0), axis=1).max(), 1, atol=1e-9)
    # The ring looked at the origin with z up: exactly so again, up to a turn around z.
    np.testing.assert_allclose(np.cross(positions, forward), 0, atol=1e-6)
    assert (up[:, 2] > 0.9).all() and (positions[:, 2] > 0.2).all()
    np.testing.assert_allclose(positions[::2, 2], positions[0, 2], atol=1e-6)


def test_level_axis_beats_the_mean_up_of_a_partial_orbit():
    # A quarter orbit looking 40 degrees down: the mean of the up vectors leans forward by about as much.
    angles = np.linspace(0, np.pi / 2, 10)
    viewmats = np.stack(
        [
            look_at(np.array([3 * np.cos(a), 3 * np.sin(a), 2.5]), np.zeros(3), np.array([0.0, 0, 1]))
            for a in angles
        ]
    )
    _, positions, _, _ = normalized(moved(viewmats, random_similarity(3)))
    np.testing.assert_allclose(positions[:, 2], positions[0, 2], atol=1e-6)


def test_one_camera_on_its_side_does_not_tilt_the_rest():
    viewmats = tiny_scene(12).viewmats.copy()
    quarter = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    viewmats[4, :3] = quarter @ viewmats[4, :3]
    _, _, _, up = normalized(viewmats)
    assert (np.delete(up, 4, axis=0)[:, 2] > 0.9).all()


@pytest.mark.parametrize("orientation", [6, 8, 3])
def test_pictures_stored_on_their_side_tell_up_by_their_orientation(orientation):
    # A viewer turns the stored picture (6: a quarter clockwise) because the camera was turned the other way.
    turn = {6: [[0, 1], [-1, 0]], 8: [[0, -1], [1, 0]], 3: [[-1, 0], [0, -1]]}[orientation]
    rolled = tiny_scene(12).viewmats.copy()
    rolled[:, :2] = np.einsum("ij,njk->nik", np.array(turn, float), rolled[:, :2])
    transform = normalizing_transform(rolled, NO_POINTS, (orientation,) * 12)
    up = np.array([0, 0, 1.0]) @ transform[:3, :3].T
    assert up[2] / np.linalg.norm(up) > 0.999


def test_pictures_on_their_side_without_a_tag_tell_up_by_the_plane_of_their_ring():
    rolled = tiny_scene(12).viewmats.copy()
    rolled[:, :2] = np.einsum("ij,njk->nik", np.array([[0.0, 1], [-1, 0]]), rolled[:, :2])
    up = np.array([0, 0, 1.0]) @ normalizing_transform(rolled, NO_POINTS)[:3, :3].T
    assert up[2] / np.linalg.norm(up) > 0.95


def test_single_camera_without_and_with_points():
    viewmats = look_at(np.array([5.0, 6, 7]), np.zeros(3), np.array([0.0, 0, 1]))[None]
    transform, positions, forward, up = normalized(viewmats)
    assert up[0, 2] > 0.99  # nothing else tells up, so the camera looks level
    np.testing.assert_allclose(positions[0] + forward[0], 0, atol=1e-9)
    points = np.random.default_rng(0).normal(size=(100, 3))
    transform, positions, forward, _ = normalized(viewmats, points)
    inside = points @ transform[:3, :3].T + transform[:3, 3]
    np.testing.assert_allclose(np.median(np.linalg.norm(inside - positions[0], axis=1)), 1, atol=1e-9)
    assert np.abs(np.median(inside @ forward[0])) < 0.05


def test_cameras_at_one_point_looking_outward():
    angles = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    at = np.array([100.0, 50, 3])
    viewmats = np.stack(
        [look_at(at, at + np.array([np.cos(a), np.sin(a), 0]), np.array([0.0, 0, 1])) for a in angles]
    )
    points = at + 20 * np.random.default_rng(1).normal(size=(200, 3))
    for cloud in (NO_POINTS, points):
        transform, positions, _, up = normalized(viewmats, cloud)
        np.testing.assert_allclose(positions, 0, atol=1e-9)
        assert (up[:, 2] > 0.999).all()
    inside = np.linalg.norm(points @ transform[:3, :3].T + transform[:3, 3], axis=1)
    np.testing.assert_allclose(np.median(inside), 1, atol=1e-6)


def test_ring_of_cameras_looking_outward_is_centered_on_the_ring():
    angles = np.linspace(0, 2 * np.pi, 8, endpoint=False)
    out = np.stack([np.cos(angles), np.sin(angles), np.zeros(8)], axis=1)
    viewmats = np.stack([look_at(2 * p, 3 * p, np.array([0.0, 0, 1])) for p in out])
    _, positions, _, _ = normalized(viewmats)
    np.testing.assert_allclose(np.linalg.norm(positions, axis=1), 1, atol=1e-9)


def test_parallel_cameras_look_at_the_points_ahead():
    viewmats = np.stack(
        [look_at(np.array([x, 0.0, 0]), np.array([x, 10.0, 0]), np.array([0.0, 0, 1])) for x in range(5)]
    )
    points = np.array([2.0, 30, 0]) + np.random.default_rng(2).normal(size=(500, 3))
    transform, positions, forward, _ = normalized(viewmats, points)
    inside = points @ transform[:3, :3].T + transform[:3, 3]
    assert np.abs(np.median(inside, axis=0)).max() < 0.1
    np.testing.assert_allclose(positions[:, [0, 2]].mean(0), 0, atol=1e-6)
    _, positions, forward, _ = normalized(viewmats)
    np.testing.assert_allclose(positions.mean(0) + forward[0], 0, atol=1e-9)


def test_cameras_held_every_way_are_still_finite():
    random = np.random.default_rng(5)
    viewmats = np.stack(
        [look_at(p, np.zeros(3), random.normal(size=3)) for p in random.normal(size=(30, 3)) * 4]
    )
    normalized(viewmats)
    opposite = np.stack([viewmats[0], np.diag([-1.0, -1, 1, 1]) @ viewmats[0]])
    normalized(opposite)


def test_single_view_scene_loads_and_trains_on_its_view(tmp_path):
    scene = load_scene(write_colmap(tmp_path, tiny_scene(1)))
    assert scene.train_indices == (0,) and scene.test_indices == ()
    assert np.isfinite(scene.points).all() and scene.extent == 1.0


def test_transform_maps_the_files_frame_to_the_scenes(tmp_path):
    tiny = tiny_scene()
    scene = load_scene(write_colmap(tmp_path, tiny))
    expected = tiny.points @ scene.transform[:3, :3].T + scene.transform[:3, 3]
    np.testing.assert_allclose(scene.points, expected, atol=1e-6)
    positions = np.stack([camera.position for camera in scene.cameras])
    radius = np.linalg.norm(positions - positions.mean(0), axis=1).max()
    np.testing.assert_allclose(radius, scene.extent, atol=1e-9)


def survey(num: int = 16, tilt: float = 0.03, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return cameras that fly over the ground in rows and look down, the way they fly up, and points."""
    random = np.random.default_rng(seed)
    viewmats = []
    for i in range(num):
        row, place = divmod(i, 4)
        position = np.array([row, 1.3 * (place if row % 2 == 0 else 3 - place), 3.0 + 0.02 * random.normal()])
        down = np.array([tilt * (-1) ** i, tilt * (-1) ** (i // 2), -1.0])
        ahead = np.array([0.0, 1.0 if row % 2 == 0 else -1.0, 0.0])
        viewmats.append(look_at(position, position + down, ahead))
    points = random.uniform([-1, -1, 0], [4, 5, 0.3], (300, 3))
    return np.stack(viewmats), points


@pytest.mark.parametrize("turned", [False, True])
def test_a_survey_from_above_lies_flat_whichever_way_it_was_flown(turned):
    """A drone that keeps its heading tells nothing of up by how it is held."""
    viewmats, points = survey()
    if not turned:
        viewmats[[i for i in range(16) if (i // 4) % 2], :2] *= -1  # about its view direction
    similarity = random_similarity(5)
    away = points @ similarity[:3, :3].T + similarity[:3, 3]
    _, positions, forward, _ = normalized(moved(viewmats, similarity), away)
    assert (forward[:, 2] < -0.98).all()
    np.testing.assert_allclose(positions[:, 2], positions[:, 2].mean(), atol=0.05)


def test_axes_that_meet_by_chance_far_below_the_ground_leave_the_origin_on_it():
    viewmats, points = survey(tilt=0.0)
    middle = np.array([1.5, 1.95, 0])
    for i, viewmat in enumerate(viewmats):
        position = Camera(viewmat, np.eye(3), 1, 1).position
        viewmats[i] = look_at(position, middle - (0, 0, 30), np.array([0.0, 1, 0]))
    transform, positions, _, _ = normalized(viewmats, points)
    ground = points @ transform[:3, :3].T + transform[:3, 3]
    assert np.abs(np.median(ground[:, 2])) < 0.1 < 0.5 < positions[:, 2].min()


@pytest.mark.parametrize(
    ("places", "tilt", "steps"),
    [
        ((1.0, 0.3), 0.03, 0.0),  # along a wall, at a few heights
        ((0.2, 0.2), 0.03, 0.0),  # a few pictures from where somebody stands
        ((1.0, 1.0), 0.3, 0.0),  # around an object, from its front
        ((1.0, 1.0), 0.03, 0.3),  # nearer and farther
    ],
)
def test_pictures_of_a_wall_stand_upright(places, tilt, steps):
    viewmats, points = survey(tilt=tilt)
    wall = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # the ground of a survey, put up
    upright = []
    for i, viewmat in enumerate(viewmats):
        position = Camera(viewmat, np.eye(3), 1, 1).position * (*places, 1.0) + (0, 0, steps * (i % 3))
        if (i // 4) % 2:
            viewmat[:2] *= -1
        rotation = viewmat[:3, :3] @ wall.T
        upright.append(np.eye(4))
        upright[-1][:3, :3], upright[-1][:3, 3] = rotation, -rotation @ wall @ position
    _, _, forward, up = normalized(np.stack(upright), points @ wall.T)
    assert (up[:, 2] > 0.7).all() and (np.abs(forward[:, 2]) < 0.7).all()
