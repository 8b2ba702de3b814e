"""Raw photos: developed upright with their EXIF, skipped beside their picture, told without rawpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from raw_files import write_dng
from textured_rooms import draw_photo, ring, table_with_boxes, write_photos

from splatstudio.poses import raw
from splatstudio.poses.input import find_sources, manifest_of
from splatstudio.poses.records import Manifest
from splatstudio.poses.store import PoseStore

pytest.importorskip("rawpy")
EXIF_IFD, FOCAL_LENGTH, FOCAL_35, SIDEWAYS = 0x8769, 37386, 41989, 6


def read(folder: Path) -> tuple[PoseStore, Manifest]:
    store = PoseStore(folder)
    store.path.mkdir(parents=True, exist_ok=True)
    return store, manifest_of(store, None, lambda *_: None)


def test_they_are_developed_upright_with_camera_and_lens(tmp_path: Path) -> None:
    drawn = [draw_photo(table_with_boxes(), camera) for camera in ring(20)[:3]]
    for number, picture in enumerate(drawn):
        write_dng(tmp_path / f"IMG_{number}.DNG", picture, orientation=SIDEWAYS if number == 2 else 1)
    store, manifest = read(tmp_path)
    assert [photo.left_out for photo in manifest.photos] == ["", "", ""]
    assert len({photo.camera for photo in manifest.photos[:2]}) == 1
    assert "Maker Model 5 24.0 35" in manifest.photos[0].camera
    with Image.open(store.images / "IMG_0.DNG.jpg") as image:
        exif = image.getexif()
        details = exif.get_ifd(EXIF_IFD)
        assert (exif[271], exif[272]) == ("Maker", "Model 5")
        assert (details[FOCAL_LENGTH], details[FOCAL_35]) == (24.0, 35)
        assert 262 not in exif and 274 not in exif, "what describes the raw file"
        developed = np.asarray(image.convert("RGB")).astype(float)
    middle = np.corrcoef(developed[8:-8, 8:-8].ravel(), drawn[0][8:-8, 8:-8].astype(float).ravel())[0, 1]
    assert developed.shape == drawn[0].shape and middle > 0.95
    with Image.open(store.images / "IMG_2.DNG.jpg") as image:
        assert image.size == (drawn[2].shape[0], drawn[2].shape[1]), "it stands upright"


def test_the_picture_beside_a_raw_file_goes_first_and_damage_is_told(tmp_path: Path) -> None:
    write_photos(tmp_path, table_with_boxes(), ring(20)[:3])
    (tmp_path / "room_000.CR2").write_bytes(b"raw")
    (tmp_path / "other.NEF").write_bytes(b"II*\0 no raw file")
    _, manifest = read(tmp_path)
    left = {photo.source: photo.left_out for photo in manifest.photos if photo.left_out}
    assert left["room_000.CR2"] == "a raw file: the picture of the same name beside it is used"
    assert left["other.NEF"].startswith("cannot be decoded: ") and len(left) == 2


def test_without_rawpy_the_line_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dng(tmp_path / "IMG_0.dng", draw_photo(table_with_boxes(), ring(20)[0]))
    monkeypatch.setattr("splatstudio.poses.input.reads_raw", lambda: False)
    sources = find_sources(tmp_path)
    assert not sources.photos
    ((_, reason),) = sources.not_read
    assert reason == 'a raw file: pip install "splatstudio[raw]", or export it as JPEG or TIFF'


def test_a_raw_file_that_is_no_tiff_inside_tells_its_focal_length_alone(tmp_path: Path) -> None:
    assert dict(raw._exif_of(b"FUJIFILMCCD-RAW ")) == {}
    assert dict(raw._exif_of(b"")) == {}
