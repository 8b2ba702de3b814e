"""COLMAP's camera models, held to COLMAP's own camera mathematics.

`lens_models.json` has what `Camera.img_from_cam` of pycolmap says of a camera of each model: that library
and Pillow get into each other's way in one process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scene_builder import tiny_scene, write_colmap, write_picture

from splatstudio.cameras.camera import Camera
from splatstudio.scene.capture import View
from splatstudio.scene.colmap_model import MODELS_BY_NAME, colmap_lens
from splatstudio.scene.lens import Lens, distort, faces, pinhole, pinhole_radius, undistort
from splatstudio.scene.lens_models import project
from splatstudio.scene.load import load_scene
from splatstudio.scene.opensfm import PROJECTIONS
from splatstudio.scene.photo import read_photo

KNOWN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data/lens_models.json").read_text())
RAYS = np.array(KNOWN["rays"])
TOLERANCE = 0.01  # pixels
SHOWN = {
    "FULL_OPENCV": (0.2, 0.05, 0.001, -0.002, 0.01, 0.25, 0.06, 0.005),
    "FOV": (0.7,),
    "THIN_PRISM_FISHEYE": (0.05, -0.02, 0.002, -0.003, 0.004, -0.001, 0.003, -0.002),
    "DIVISION": (-0.15,),
    "EUCM": (0.6, 1.1),
}


def lens_of(name: str) -> Lens:
    params = [float(value) for value in KNOWN["cameras"][name]["params"]]
    return colmap_lens(MODELS_BY_NAME[name], (1000, 760), params, "a camera")


@pytest.mark.parametrize("name", list(KNOWN["cameras"]))
def test_every_model_shows_what_colmap_s_does(name: str) -> None:
    lens = lens_of(name)
    focal, center = np.array([lens.fx, lens.fy]), np.array([lens.cx, lens.cy])
    pixels = project(lens.kind, lens.distortion, RAYS) * focal + center
    assert np.abs(pixels - np.array(KNOWN["cameras"][name]["pixels"])).max() < TOLERANCE
    # And back, as far as the lens can be inverted.
    points = RAYS[np.linalg.norm(RAYS[:, :2], axis=1) < 0.95 * pinhole_radius(lens), :2]
    assert len(points) > 8
    assert np.abs((undistort(lens, distort(lens, points)) - points) * focal).max() < TOLERANCE


@pytest.mark.parametrize("prism", [(), (0.004, -0.001, 0.003, -0.002)])
def test_a_fisheye_of_opensfm_bends_each_point_by_what_it_was_before(prism: tuple[float, ...]) -> None:
    """Its formula, written out: Aria's, with the same names, acts on what is bent already."""
    k1, k2, p1, p2 = -0.02, 0.01, 0.003, -0.001
    s0, s1, s2, s3 = prism or (0.0, 0.0, 0.0, 0.0)
    for direction in ((0.8, 0.5, 1.0), (-0.5, 0.9, 1.0), (0.1, 0.0, 1.0)):
        radius = np.hypot(*direction[:2])
        x, y = np.array(direction[:2]) / radius * np.arctan2(radius, direction[2])
        s = x * x + y * y
        radial = 1 + k1 * s + k2 * s * s
        expected = [
            x * radial + 2 * p1 * x * y + p2 * (s + 2 * x * x) + s0 * s + s1 * s * s,
            y * radial + 2 * p2 * x * y + p1 * (s + 2 * y * y) + s2 * s + s3 * s * s,
        ]
        names = "fisheye624" if prism else "fisheye62"
        kind, coefficients = PROJECTIONS[names]
        values = {"k1": k1, "k2": k2, "p1": p1, "p2": p2, "s0": s0, "s1": s1, "s2": s2, "s3": s3}
        shown = project(kind, [values.get(name, 0.0) for name in coefficients], np.array(direction))
        assert shown == pytest.approx(expected, abs=1e-12)


def test_a_panorama_shows_all_directions_where_colmap_s_does() -> None:
    lens = colmap_lens(MODELS_BY_NAME["EQUIRECTANGULAR"], (1000, 500), [1000.0, 500.0], "a camera")
    plane = project(lens.kind, lens.distortion, np.array(KNOWN["panorama"]["rays"]))
    pixels = plane * [lens.fx, lens.fy] + [lens.cx, lens.cy]
    assert np.abs(pixels - np.array(KNOWN["panorama"]["pixels"])).max() < TOLERANCE


def test_no_ground_shows_above_the_zenith_of_a_panorama(tmp_path: Path) -> None:
    lens = colmap_lens(MODELS_BY_NAME["EQUIRECTANGULAR"], (256, 128), [256.0, 128.0], "a camera")
    half = np.zeros((128, 256, 3), np.uint8)
    half[64:] = 255
    path = tmp_path / "a.png"
    write_picture(path, half)
    shown = {}
    for face in faces(lens):
        camera = Camera(np.eye(4), face.lens.K, face.lens.width, face.lens.height)
        shown[face.name] = read_photo(View("a.png", camera, path, lens, face=face.name)).rgb
    darkest, brightest = ({view.max() for view in shown.values()}, {view.min() for view in shown.values()})
    assert 0 in darkest and 255 in brightest, "one view is all sky, and one all ground"


@pytest.mark.parametrize("name", SHOWN)
def test_a_photo_through_the_lens_shows_what_its_camera_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_colmap(tmp_path, tiny_scene(1, width=240, height=160), model=name, distortion=SHOWN[name])
    lens = load_scene(tmp_path).views[0].lens
    u, v = np.meshgrid(np.arange(240) + 0.5, np.arange(160) + 0.5)
    plane = np.stack([(u - lens.cx) / lens.fx, (v - lens.cy) / lens.fy], axis=-1)
    seen = undistort(lens, plane.reshape(-1, 2)).reshape(plane.shape)

    def pattern(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.stack([127.5 + 110 * np.sin(9 * x + 1), 127.5 + 110 * np.cos(11 * y), 0 * x + 99], axis=-1)

    picture = np.rint(pattern(seen[..., 0], seen[..., 1])).astype(np.uint8)
    write_picture(tmp_path / "images/view_000.png", picture)
    scene = load_scene(tmp_path)
    camera, photo = scene.cameras[0], scene.photo(0)
    x = (np.arange(camera.width) + 0.5 - camera.K[0, 2]) / camera.K[0, 0]
    y = (np.arange(camera.height) + 0.5 - camera.K[1, 2]) / camera.K[1, 1]
    error = np.abs(photo.rgb - pattern(*np.meshgrid(x, y)))
    assert photo.mask is None and error.mean() < 1.0 and error.max() < 8
    assert camera.width > 190


def test_what_lies_behind_a_lens_is_shown_by_those_that_see_it_alone() -> None:
    behind = np.array([[1.0, 0.2, -0.3]])
    far_behind = np.array([[1.0, 0.2, -2.0]])
    assert np.isnan(project("brown", (), behind)).all()
    assert np.isnan(project("eucm", (0.4, 1.0), far_behind)).all()
    (fisheye,) = project("fisheye", (), behind)
    assert np.hypot(*fisheye) == pytest.approx(np.arctan2(np.hypot(1.0, 0.2), -0.3))


def test_a_rational_model_whose_divisor_vanishes_shows_what_is_before_that() -> None:
    lens = Lens(400, 300, 100, 100, 200, 150, "rational", (0.0, 0.0, 0.0, 0.0, 0.0, -0.5, 0.0, 0.0))
    assert 0.9 < pinhole_radius(lens) < 2**0.5
    assert pinhole(lens).width > 50
