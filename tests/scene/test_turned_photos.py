"""Photos whose size does not tell whether cameras count their EXIF orientation: turned by 180°, square."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scene_builder import picture, points_bin, tiny_scene, write_colmap

from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import oriented

INVERSE = {2: 2, 3: 3, 4: 4, 6: 8}


def write_scene(folder: Path, orientations: list[int], *, turned: bool, square: bool = False) -> Path:
    """Write a scene of COLMAP with an EXIF orientation in each photo, whose cameras count it or do not."""
    tiny = tiny_scene(len(orientations), width=64, height=64 if square else 48, num_points=150)
    write_colmap(folder, tiny)
    for index, orientation in enumerate(orientations):
        stored = picture(tiny, index)[..., :3]
        (folder / f"images/view_{index:03d}.png").unlink()
        exif = Image.Exif()
        exif[0x0112] = orientation
        pixels = oriented(stored, INVERSE[orientation]) if turned and orientation != 1 else stored
        Image.fromarray(pixels).save(folder / f"images/view_{index:03d}.jpg", quality=95, exif=exif)
    return folder


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(("orientation", "square"), [(3, False), (2, False), (4, False), (6, True)], ids=str)
def test_the_colors_of_the_points_tell(tmp_path: Path, orientation: int, square: bool, turned: bool) -> None:
    orientations = [1, orientation, orientation, orientation, 1]
    scene = load_scene(write_scene(tmp_path, orientations, turned=turned, square=square))
    assert [view.orientation for view in scene.views] == (orientations if turned else [1] * 5)
    assert not any("EXIF" in note for note in scene.notes)
    plain = load_scene(write_scene(tmp_path / "plain", [1] * 5, turned=False, square=square))
    photo, expected = scene.photo(1).rgb.astype(int), plain.photo(1).rgb
    assert np.abs(photo - expected).mean() < 4, "the picture that the camera was computed from"


def test_where_nothing_tells_photos_are_as_stored_and_that_is_said(tmp_path: Path) -> None:
    write_scene(tmp_path, [1, 3, 3], turned=True)
    (tmp_path / "sparse/0/points3D.bin").write_bytes(bytes(8))
    scene = load_scene(tmp_path)
    told = " ".join(note for note in scene.notes if "EXIF" in note)
    assert [view.orientation for view in scene.views] == [1, 1, 1]
    assert told.startswith("2 photos have an EXIF orientation of which nothing tells") and "as stored" in told


def test_what_the_size_of_one_photo_tells_holds_for_the_others(tmp_path: Path) -> None:
    tiny = tiny_scene(4, width=64, height=48)
    write_colmap(tmp_path, tiny)
    (tmp_path / "sparse/0/points3D.bin").write_bytes(bytes(8))
    for index, orientation in ((0, 3), (1, 6)):
        (tmp_path / f"images/view_{index:03d}.png").unlink()
        exif = Image.Exif()
        exif[0x0112] = orientation
        pixels = oriented(picture(tiny, index)[..., :3], INVERSE[orientation])
        Image.fromarray(pixels).save(tmp_path / f"images/view_{index:03d}.jpg", exif=exif)
    scene = load_scene(tmp_path)
    assert [view.orientation for view in scene.views] == [3, 6, 1, 1]
    assert not any("EXIF" in note for note in scene.notes)


def test_a_damaged_photo_is_told_by_who_needs_it(tmp_path: Path) -> None:
    write_scene(tmp_path, [3, 3, 3], turned=True)
    photo = tmp_path / "images/view_001.jpg"
    photo.write_bytes(photo.read_bytes()[:-200] + b"\xff\xd9")  # it has an end, and lacks what is before
    assert [view.orientation for view in load_scene(tmp_path).views] == [3, 3, 3]


@pytest.mark.parametrize("turned", [True, False])
def test_points_without_colors_tell_nothing(tmp_path: Path, turned: bool) -> None:
    tiny = tiny_scene(3, width=64, height=48, num_points=150)
    write_scene(tmp_path, [3, 3, 3], turned=turned)
    (tmp_path / "sparse/0/points3D.bin").write_bytes(points_bin(replace(tiny, colors=0 * tiny.colors)))
    scene = load_scene(tmp_path)
    assert [view.orientation for view in scene.views] == [1, 1, 1]
    assert any("nothing tells" in note for note in scene.notes)


def test_the_photo_in_its_full_size_lies_as_its_smaller_copy(tmp_path: Path) -> None:
    write_scene(tmp_path, [3, 3, 3], turned=True)
    (tmp_path / "images_2").mkdir()
    for file in (tmp_path / "images").iterdir():
        with Image.open(file) as whole:
            whole.resize((32, 24)).save(tmp_path / "images_2" / file.name, exif=whole.getexif())
    scene = load_scene(tmp_path, downscale=2)
    photo, whole = scene.photo(1).rgb.astype(int), scene.whole_photo(1).rgb
    assert photo.shape == (24, 32, 3) and whole.shape == (48, 64, 3)
    half = np.asarray(Image.fromarray(whole).resize((32, 24)))
    assert np.abs(photo - half).mean() < 0.5 * np.abs(photo - half[::-1, ::-1]).mean()


def test_a_mask_of_a_square_photo_is_upright(tmp_path: Path) -> None:
    write_scene(tmp_path, [6, 6, 6], turned=True, square=True)
    mask = np.full((64, 64), 255, np.uint8)
    mask[:20] = 0
    (tmp_path / "masks").mkdir()
    for index in range(3):
        Image.fromarray(mask).save(tmp_path / f"masks/view_{index:03d}.png")
    found = load_scene(tmp_path).photo(1).mask
    assert found is not None and not found[:20].any() and found[20:].all()
