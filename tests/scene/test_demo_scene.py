"""The bundled demo scene: complete, small, consistent in itself, and what its script makes."""

from __future__ import annotations

import importlib
import struct
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from splatstudio.scene.load import load_scene

DEMO = Path(__file__).parents[2] / "assets" / "demo"
NO_POINT = 2**64 - 1


@pytest.fixture
def make_demo(monkeypatch: pytest.MonkeyPatch):
    """Return the script as a module; its neighbors are found beside it."""
    monkeypatch.syspath_prepend(str(DEMO))
    yield importlib.import_module("make_demo")
    for name in [n for n, m in sys.modules.items() if str(DEMO) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


class Reader:
    """A plain reader of little-endian records, written apart from the product's."""

    def __init__(self, path: Path) -> None:
        self.data, self.at = path.read_bytes(), 0

    def take(self, layout: str) -> tuple:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def name(self) -> str:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end].decode()
        self.at = end + 1
        return text

    def rows(self, dtype: list, count: int) -> np.ndarray:
        rows = np.frombuffer(self.data, np.dtype(dtype), count, self.at)
        self.at += rows.nbytes
        return rows


def read_images() -> dict[int, tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Return id -> (name, rotation, translation, keypoint rows)."""
    reader = Reader(DEMO / "sparse" / "0" / "images.bin")
    (count,), images = reader.take("Q"), {}
    for _ in range(count):
        image_id, w, x, y, z, *translation, camera = reader.take("I7dI")
        assert camera == 1
        rotation = np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )
        name = reader.name()
        (rows,) = reader.take("Q")
        images[image_id] = (
            name,
            rotation,
            np.array(translation),
            reader.rows([("xy", "<f8", 2), ("point", "<u8")], rows),
        )
    assert reader.at == len(reader.data)
    return images


def read_points() -> dict[int, tuple[np.ndarray, np.ndarray, float, np.ndarray]]:
    """Return id -> (position, color, error, track rows)."""
    reader = Reader(DEMO / "sparse" / "0" / "points3D.bin")
    (count,), points = reader.take("Q"), {}
    for _ in range(count):
        point_id, px, py, pz, r, g, b, error, length = reader.take("Q3d3BdQ")
        track = reader.rows([("image", "<u4"), ("index", "<u4")], length)
        points[point_id] = (np.array([px, py, pz]), np.array([r, g, b]), error, track)
    assert reader.at == len(reader.data)
    return points


def test_loads_with_all_views_and_points() -> None:
    scene = load_scene(DEMO)
    assert scene.format == "COLMAP"
    assert len(scene.views) == 48
    assert len(scene.test_indices) == 6
    assert 5000 <= len(scene.points) <= 8000
    up = np.stack([-camera.viewmat[1, :3] for camera in scene.cameras])
    # The photographer never turned the camera over: after normalization z is up in every view.
    assert (up[:, 2] > 0.5).all()


def test_is_small() -> None:
    files = [*(DEMO / "images").iterdir(), *(DEMO / "sparse").rglob("*.bin")]
    assert len(files) == 51
    assert sum(file.stat().st_size for file in files) < 4_000_000


def test_photos_decode_and_show_something() -> None:
    photos = [cv2.imread(str(path)) for path in sorted((DEMO / "images").glob("*.jpg"))]
    assert len(photos) == 48
    for photo in photos:
        assert photo is not None
        assert photo.shape == (400, 640, 3)
        # Neither flat nor blown out.
        assert photo.std() > 30
        assert (photo == 255).all(-1).mean() < 0.02


def test_observations_agree_with_the_points() -> None:
    images, points = read_images(), read_points()
    camera = struct.unpack("<QIiQQ4d", (DEMO / "sparse" / "0" / "cameras.bin").read_bytes())
    assert camera[:5] == (1, 1, 1, 640, 400)
    fx, fy, cx, cy = camera[5:]
    observed, errors = 0, []
    for point_id, (position, _, stored, track) in points.items():
        assert len(track) >= 3
        assert len(set(track["image"])) == len(track)
        mine = []
        for image_id, index in track:
            _, rotation, translation, rows = images[int(image_id)]
            assert rows["point"][index] == point_id
            x, y, z = rotation @ position + translation
            assert z > 0
            u, v = rows["xy"][index]
            assert 0 <= u <= 640
            assert 0 <= v <= 400
            mine.append(np.hypot(fx * x / z + cx - u, fy * y / z + cy - v))
        assert np.mean(mine) == pytest.approx(stored, abs=1e-6)
        errors += mine
        observed += len(track)
    assert observed == sum((rows["point"] != NO_POINT).sum() for _, _, _, rows in images.values())
    assert max(errors) < 1.0
    assert 0.1 < np.mean(errors) < 0.5


def test_points_have_the_colors_of_the_photos() -> None:
    images, points = read_images(), read_points()
    photos = {i: cv2.imread(str(DEMO / "images" / name)) for i, (name, *_) in images.items()}
    differences = []
    for _, color, _, track in points.values():
        image_id, index = track[0]
        photo = photos[int(image_id)]
        assert photo is not None
        u, v = images[int(image_id)][3]["xy"][index]
        differences.append(np.abs(photo[int(v), int(u), ::-1].astype(float) - color).mean())
    assert np.median(differences) < 25


def test_the_files_world_is_not_normalized() -> None:
    centers = np.stack([-rotation.T @ translation for _, rotation, translation, _ in read_images().values()])
    ups = np.stack([-rotation[1] for _, rotation, _, _ in read_images().values()])
    assert np.linalg.norm(centers.mean(0)) > 1
    assert abs(ups.mean(0)[2]) / np.linalg.norm(ups.mean(0)) < 0.9


def test_the_script_makes_the_bundled_photo(make_demo) -> None:
    number, width = 41, 160
    view = make_demo.cameras()[number]
    scale = width / view.width
    small = replace(view, focal=view.focal * scale, width=width, height=round(view.height * scale))
    made = make_demo.render(small).astype(float)
    bundled = cv2.imread(str(DEMO / "images" / make_demo.photo_name(number)))
    assert bundled is not None
    # Both sides lose the finest detail, so that the size of a sample's cone does not count.
    bundled = cv2.resize(bundled[..., ::-1], (width, small.height), interpolation=cv2.INTER_AREA).astype(
        float
    )
    error = np.mean((cv2.GaussianBlur(made, (0, 0), 0.8) - cv2.GaussianBlur(bundled, (0, 0), 0.8)) ** 2)
    assert 10 * np.log10(255**2 / error) > 30


def test_rays_agree_with_the_points(make_demo) -> None:
    geometry, scene = importlib.import_module("demo_geometry"), importlib.import_module("demo_scene")
    rotation, scale, shift = make_demo.file_frame()
    views, images, points = make_demo.cameras(), read_images(), read_points()
    for image_id in (3, 30, 45):
        view, rows = views[image_id - 1], images[image_id][3]
        ids = rows["point"][rows["point"] != NO_POINT]
        position = (np.stack([points[int(i)][0] for i in ids]) - shift) @ rotation / scale
        offset = position - view.position
        distance = np.linalg.norm(offset, axis=1)
        d = (offset / distance[:, None]).T.astype(np.float32)
        o = np.broadcast_to(view.position.astype(np.float32)[:, None], d.shape).copy()
        hits = geometry.trace(scene.scene(), o, d)
        # Triangulation noise can carry a point at an outline past it, but only few.
        assert np.mean(np.abs(hits.t - distance) < 0.03 * distance) > 0.95
