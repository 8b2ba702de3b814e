"""Real captures: two encodings, two formats and two reconstructions of the same photos agree."""

from pathlib import Path

import numpy as np
import pytest

from splatstudio.scene.images import PhotoLoader
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene

SCENES = Path(__file__).resolve().parents[3] / "shared" / "scenes"
pytestmark = pytest.mark.skipif(not SCENES.is_dir(), reason="the captures are not beside the repository")

FOX_TEST = ["0001", "0012", "0027", "0042", "0073", "0089", "0110"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def file_poses(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [C, 3] and camera-to-world rotations [C, 3, 3] in the files' frame."""
    cameras = [camera.transformed(np.linalg.inv(scene.transform)) for camera in scene.cameras]
    return np.stack([c.position for c in cameras]), np.stack([c.viewmat[:3, :3].T for c in cameras])


def test_banana_is_the_same_from_binary_and_from_text():
    binary, text = load_scene(SCENES / "banana"), load_scene(SCENES / "banana-txt")
    assert [v.name for v in binary.views] == [v.name for v in text.views] and len(binary.views) == 14
    for a, b in zip(binary.cameras, text.cameras, strict=True):
        np.testing.assert_array_equal(a.viewmat, b.viewmat)
        np.testing.assert_array_equal(a.K, b.K)
    np.testing.assert_array_equal(binary.points, text.points)
    np.testing.assert_array_equal(binary.colors, text.colors)
    np.testing.assert_array_equal(binary.transform, text.transform)
    assert len(binary.points) == 7137 and binary.notes == ()
    assert binary.test_indices == text.test_indices
    assert [binary.views[i].name for i in binary.test_indices] == ["DSC_0423.jpg", "DSC_0432.jpg"]
    camera = binary.cameras[0]
    assert (camera.width, camera.height) == (960, 638)
    np.testing.assert_allclose(camera.K[[0, 1, 0, 1], [0, 1, 2, 2]], [1669.97, 1668.80, 480, 319], atol=0.01)


@pytest.mark.parametrize("name", ["fox", "fox-colmap"])
def test_fox_split(name):
    scene = load_scene(SCENES / name)
    assert len(scene.views) == 50 and len(scene.train_indices) == 43
    assert [Path(scene.views[i].name).stem for i in scene.test_indices] == FOX_TEST


def test_fox_names_its_17_missing_files_in_one_note():
    scene = load_scene(SCENES / "fox")
    assert len(scene.notes) == 1 and scene.notes[0].startswith("17 listed images do not exist")
    assert scene.points.shape == (0, 3)


def test_two_reconstructions_of_fox_agree_after_a_similarity():
    (a, ra), (b, rb) = (file_poses(load_scene(SCENES / name)) for name in ("fox", "fox-colmap"))
    # Umeyama's similarity from b to a.
    ca, cb = a - a.mean(0), b - b.mean(0)
    u, s, vt = np.linalg.svd(ca.T @ cb)
    flip = np.diag([1, 1, np.sign(np.linalg.det(u @ vt))])
    rotation, scale = u @ flip @ vt, (s * np.diag(flip)).sum() / (cb**2).sum()
    error = np.linalg.norm(scale * cb @ rotation.T - ca, axis=1)
    assert error.mean() < 0.006 and error.max() < 0.013
    turn = np.einsum("nji,jk,nkl->nil", ra, rotation, rb)
    angles = np.degrees(np.arccos(np.clip((np.trace(turn, axis1=1, axis2=2) - 1) / 2, -1, 1)))
    assert angles.mean() < 0.8


def test_colors_of_the_points_are_seen_where_they_project():
    # Cameras, points, distortion-free photos and reduction fit together: each point's color is found
    # at its pixel. Shifted by 20 pixels it is not.
    scene = load_scene(SCENES / "banana", downscale=2)
    errors = {0: [], 20: []}
    for index in (1, 7):
        camera, rgb = scene.cameras[index], scene.photo(index).rgb.astype(float)
        p = (scene.points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]) @ camera.K.T
        for shift, found in errors.items():
            x, y = np.floor(p[:, 0] / p[:, 2]).astype(int) + shift, np.floor(p[:, 1] / p[:, 2]).astype(int)
            inside = (p[:, 2] > 0) & (x >= 0) & (x < camera.width) & (y >= 0) & (y < camera.height)
            found.append(np.abs(rgb[y[inside], x[inside]] - scene.colors[inside]).mean())
    assert np.mean(errors[0]) < 0.75 * np.mean(errors[20])


def test_undistorted_fox_photos_have_their_cameras_size():
    scene = load_scene(SCENES / "fox", downscale=4)
    with PhotoLoader(scene) as loader:
        for index in (0, 25):
            photo, camera = loader.get(index), scene.cameras[index]
            assert photo.rgb.shape == (camera.height, camera.width, 3) and photo.mask is None
            assert photo.rgb.std() > 20


def test_photos_without_poses_are_refused_and_left_alone():
    with pytest.raises(
        ValueError, match=r"16 photos but no camera poses.*nothing was changed.*splatstudio poses"
    ):
        load_scene(SCENES / "raw-photos" / "banana")
