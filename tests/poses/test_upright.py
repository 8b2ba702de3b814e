"""Up and size from what the photos' files tell: GPS, gravity, or how the cameras were held."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational
from textured_rooms import ring, table_with_boxes, write_photos

from splatstudio.poses.estimate import estimate_poses
from splatstudio.poses.gravity import gravity_in, turned_upright
from splatstudio.poses.input import manifest_of
from splatstudio.poses.store import PoseStore
from splatstudio.poses.upright import GPS_METERS, _by_gps
from splatstudio.scene.colmap import read_model
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import oriented

METERS = 40.0  # of a unit in the drawn room
NUM = 6
GPS = 0x8825
NORTH, EAST = 1 / 110_574.4, 1 / 111_316.0  # degrees of a meter near the equator


def maker_note(x: float, y: float, z: float) -> bytes:
    """Return what a phone writes of gravity, in the axes of the device: one entry of Apple's maker note."""
    head = b"Apple iOS\0\0\1MM" + struct.pack(">H", 1) + struct.pack(">HHII", 8, 10, 3, 34) + b"\0" * 6
    return head + b"".join(struct.pack(">ii", round(value * 1e6), 1_000_000) for value in (x, y, z))


def test_gravity_is_read_in_the_axes_of_the_picture() -> None:
    # Held upright in landscape with the button at the right, the left side of the device is below.
    assert gravity_in({37500: maker_note(-1, 0, 0)}) == pytest.approx((0, 1, 0), abs=1e-6)
    # Held upright in portrait the foot of the device is below, which is the right side of the stored picture.
    assert gravity_in({37500: maker_note(0, -1, 0)}) == pytest.approx((1, 0, 0), abs=1e-6)
    # Lying on its back it looks down.
    assert gravity_in({37500: maker_note(0, 0, -1)}) == pytest.approx((0, 0, 1), abs=1e-6)
    assert gravity_in({37500: maker_note(0, 0, -1)[:40]}) is None, "cut off"
    assert gravity_in({37500: maker_note(0.5, 0.5, 0.9)}) is None, "shaken"
    assert gravity_in({37500: maker_note(0, -1, 0), 0xA434: "front camera 2.7mm"}) is None
    assert gravity_in({}) is None and gravity_in({37500: b"Nikon\0"}) is None


TURNS = {6: 90, 3: 180, 8: 270}  # how a phone has stored what an EXIF orientation turns upright, degrees


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("suffix", [".heic", ".avif"])
def test_gravity_turns_with_a_converted_picture(tmp_path: Path, orientation: int, suffix: str) -> None:
    pytest.importorskip("pillow_heif").register_heif_opener()
    upright = Image.fromarray(np.repeat(np.linspace(250, 10, 480).astype(np.uint8), 640).reshape(480, 640))
    stored = upright.convert("RGB").rotate(TURNS[orientation], expand=True)
    exif = Image.Exif()
    exif[274] = orientation
    # Where the sky is is up in the stored picture; in the device's axes y is to the left, x to the top.
    down = {6: (0, -1, 0), 3: (1, 0, 0), 8: (0, 1, 0)}[orientation]
    exif.get_ifd(0x8769)[37500] = maker_note(*down)
    for number in range(3):
        stored.rotate(0.1 * number).save(tmp_path / f"{number}{suffix}", exif=exif.tobytes(), quality=90)
    store = PoseStore(tmp_path)
    for photo in manifest_of(store, None, lambda *_: None).photos:
        assert (photo.width, photo.height, photo.orientation) == (640, 480, 1)
        assert photo.gravity == pytest.approx((0, 1, 0), abs=1e-6)
        with Image.open(store.images / photo.name) as image:
            gray = np.asarray(image.convert("L"), np.float64)
        assert gray[:50].mean() > 200 and gray[-50:].mean() < 60, "the sky is above"


def test_vectors_turn_as_pictures_do() -> None:
    place = np.zeros((3, 3), np.uint8)
    for x, y in ((1, 0), (0, 1), (-1, 0)):
        place[:] = 0
        place[1 + y, 1 + x] = 1
        for orientation in range(1, 9):
            (row, column), *_ = np.argwhere(oriented(place, orientation))
            assert turned_upright((x, y, 0.5), orientation) == (column - 1, row - 1, 0.5)


class GpsModel:
    """A walk on a circle, as a model of COLMAP and its images: their places can be transformed."""

    def __init__(self, radius: float) -> None:
        angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
        self.centers = radius * np.stack([np.cos(angles), np.sin(angles), 0.1 * np.sin(3 * angles)], axis=1)
        self.images = [
            SimpleNamespace(name=str(i), projection_center=lambda i=i: self.centers[i]) for i in range(40)
        ]

    def transform(self, similarity: Any) -> None:
        self.centers = np.stack([similarity * center for center in self.centers])


@pytest.mark.parametrize("seed", range(3))
def test_one_bad_fix_gives_a_small_capture_no_size(seed: int) -> None:
    sizes: dict[float, bool] = {}
    for radius in (2.0, 20.0):
        model = GpsModel(radius)
        noise = np.random.default_rng(seed).normal(size=(40, 3)) * GPS_METERS / np.sqrt(3)
        places = {str(i): model.centers[i] + noise[i] for i in range(40)}
        places["0"] = places["0"] + [80.0, 0.0, 0.0]
        told = _by_gps(cast(Any, model), cast(Any, model.images), places)
        sizes[radius] = told is not None
        assert told is None or 2 < float(told[1].split("about ")[1].split(" %")[0]) < 10
    assert sizes == {2.0: False, 20.0: True}


def parts(degrees: float) -> tuple[IFDRational, ...]:
    """Return degrees as EXIF has them: degrees, minutes, seconds."""
    whole, rest = divmod(abs(degrees), 1)
    minutes, rest = divmod(rest * 60, 1)
    return IFDRational(int(whole)), IFDRational(int(minutes)), IFDRational(round(rest * 60 * 1e6), 1_000_000)


def with_gps(file: Path, camera: np.ndarray) -> None:
    """Write into a photo where it was taken, the room lying at the equator."""
    east, north, up = METERS * (-camera[:3, :3].T @ camera[:3, 3])
    exif = Image.Exif()
    latitude, longitude = parts(0.5 + north * NORTH), parts(20 + east * EAST)
    height = IFDRational(round(up * 1000), 1000)
    exif[GPS] = {1: "N", 2: latitude, 3: "E", 4: longitude, 5: 0, 6: height}
    with Image.open(file) as image:
        image.save(file, quality=95, exif=exif)


def test_gps_makes_a_scene_upright_and_of_its_true_size(tmp_path: Path) -> None:
    cameras = ring(20)[:NUM]
    tilted = np.array([[0.8, -0.6, 0, 0], [0.6, 0.8, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    files = write_photos(tmp_path, table_with_boxes(), tilted @ cameras)  # held askew
    for file, camera in zip(files, tilted @ cameras, strict=True):
        with_gps(file, camera)
    report = estimate_poses(tmp_path)
    assert report.up == "GPS" and report.meters is not None and report.meters < 0.5
    assert any("in meters by GPS" in note for note in report.notes)
    images = {image.name: image.viewmat for image in read_model(Path(report.store) / "sparse" / "0").images}
    centers = np.stack([-images[f.name][:3, :3].T @ images[f.name][:3, 3] for f in files])
    true = np.stack([-c[:3, :3].T @ c[:3, 3] for c in cameras]) * METERS
    distances = [np.linalg.norm(places[:, None] - places, axis=2) for places in (centers, true)]
    assert np.abs(distances[0] - distances[1]).max() < 0.01 * distances[1].max()
    assert np.abs((centers - centers.mean(axis=0))[:, 2] - (true - true.mean(axis=0))[:, 2]).max() < 0.3
    scene = load_scene(tmp_path)
    pairs = zip(scene.views, tilted @ cameras, strict=True)
    assert all((view.camera.viewmat[:3, :3].T @ true[:3, :3])[2, 2] > 0.999 for view, true in pairs)
