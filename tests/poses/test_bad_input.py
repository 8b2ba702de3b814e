"""What cannot give poses says so in one sentence and leaves nothing; else what was left out is told."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from textured_rooms import (
    HEIGHT,
    WIDTH,
    ring,
    table_with_boxes,
    write_photos,
    write_video,
)

from splatstudio.poses.estimate import estimate_poses


def icons(folder: Path) -> None:
    for number in range(5):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(folder / f"icon_{number}.png")


def white_walls(folder: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(3):
        wall = np.clip(235 + random.normal(0, 1.5, (HEIGHT, WIDTH, 3)), 0, 255).astype(np.uint8)
        cv2.imwrite(str(folder / f"wall_{number}.jpg"), wall)


def two_and_a_copy(folder: Path) -> None:
    first, _ = write_photos(folder, table_with_boxes(), ring(20)[:2])
    shutil.copy(first, folder / "the same.jpg")


def one_place(folder: Path) -> None:
    camera = ring(20)[0]
    for number, degrees in enumerate((-6, 0, 6)):
        c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        turn = np.array([[c, 0, s, 0], [0, 1, 0, 0], [-s, 0, c, 0], [0, 0, 0, 1]])
        write_photos(folder, table_with_boxes(), (turn @ camera)[None], prefix=f"turn_{number}")


def damaged(folder: Path) -> None:
    files = write_photos(folder, table_with_boxes(), ring(20)[:4])
    for file in files[:3]:
        file.write_bytes(file.read_bytes()[:9000])
    files[3].write_text("no picture")


BAD = {
    "empty": (lambda folder: None, "holds no photos and no videos"),
    "icons": (icons, r"no photos that can be used.*icon_0.png and 4 more: 32 x 32 pixels: too small"),
    "two and a copy": (
        two_and_a_copy,
        r"2 photos.*at least 3.*the same.jpg: the same file as room_000.jpg",
    ),
    "damaged": (
        damaged,
        r"room_000.jpg and 2 more: is cut off.*room_003.jpg: cannot be read: it is no picture",
    ),
    "white walls": (white_walls, "3 of the 3 photos of .* show too little to recognize"),
    "one place": (one_place, "taken from nearly one place.*walk around the subject"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_folder_that_gives_no_poses_says_why_and_is_left_as_it_was(kind: str, tmp_path: Path) -> None:
    make, sentence = BAD[kind]
    make(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=sentence) as refused:
        estimate_poses(tmp_path)
    assert "\n" not in str(refused.value) and "  " not in str(refused.value)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_videos_that_give_no_poses_say_why(tmp_path: Path) -> None:
    walls = table_with_boxes()
    still = write_video(tmp_path / "still.mp4", walls, np.stack([ring(20)[0]] * 16))
    whole = write_video(tmp_path / "whole.mp4", walls, ring(60)[:12])
    whole.write_bytes(whole.read_bytes()[:40000])
    with pytest.raises(ValueError, match=r"still.mp4 cannot be used: nothing moves in it"):
        estimate_poses(still)
    with pytest.raises(ValueError, match=r"whole.mp4 cannot be used: it is damaged or cut off"):
        estimate_poses(whole)
    assert {path.name for path in tmp_path.iterdir()} == {"still.mp4", "whole.mp4"}


def test_a_folder_that_may_not_be_written_to_says_so(tmp_path: Path) -> None:
    write_photos(tmp_path, table_with_boxes(), ring(20)[:3])
    (tmp_path / ".splatstudio").write_text("a file is in the way")
    with pytest.raises(ValueError, match=r"cannot be made .*copy these to a folder that may be written to"):
        estimate_poses(tmp_path)


def test_two_scenes_a_copy_an_icon_and_blur_in_one_folder_are_told_apart(tmp_path: Path) -> None:
    one = write_photos(tmp_path, table_with_boxes(), ring(20)[:6], prefix="a")
    write_photos(tmp_path, table_with_boxes(5000), ring(20)[:4], prefix="b")
    for number, file in enumerate(
        write_photos(tmp_path, table_with_boxes(), ring(20)[6:8], prefix="blurred")
    ):
        pixels = np.asarray(cv2.imread(str(file)))
        cv2.imwrite(str(file), cv2.GaussianBlur(pixels, (0, 0), 14 + number))
    shutil.copy(one[0], tmp_path / "z copy.jpg")
    Image.new("RGB", (48, 48)).save(tmp_path / "logo.png")
    report = estimate_poses(tmp_path)
    assert [photo.name for photo in report.posed] == [f"a_{i:03d}.jpg" for i in range(6)]
    (group,) = report.groups
    assert group.names == tuple(f"b_{i:03d}.jpg" for i in range(4)) and group.model == 1
    reasons = {photo.name: photo.reason for photo in report.left_out}
    assert reasons["b_001.jpg"].startswith("one of another group of 4")
    assert re.match("blurred: [0-9]% of the usual sharpness", reasons["blurred_000.jpg"])
    assert reasons["z copy.jpg"] == "the same file as a_000.jpg" and "too small" in reasons["logo.png"]
    assert any("that the 4 photos of" in advice for advice in report.advice)
    sheet = np.asarray(Image.open(Path(report.store) / "contact-sheet.jpg"))
    # Four of the other group, two blurred ones, the copy and the icon: each group and reason has its rows.
    cells = 8 + 4 * (22 + 8) + (2 + 1 + 1 + 1) * (200 + 22 + 8)
    assert sheet.shape == (cells, 8 + 3 * 208, 3)
    assert sheet[38:200, 8:208].std() > 20, "the first of the other group"
    text = (Path(report.store) / "report.txt").read_text()
    assert "6 of 14 photos have a pose" in text and "logo.png: 48 x 48 pixels: too small" in text


def test_three_of_ten_blurred_photos_are_named_and_the_others_placed(tmp_path: Path) -> None:
    files = write_photos(tmp_path, table_with_boxes(), ring(40)[:10])
    blurred = files[1::3]
    for file in blurred:
        cv2.imwrite(str(file), cv2.GaussianBlur(np.asarray(cv2.imread(str(file))), (0, 0), 12))
    report = estimate_poses(tmp_path)
    sharp = {file.name for file in files if file not in blurred}
    assert {photo.name for photo in report.posed} == sharp and report.error < 0.6
    reasons = {photo.name: photo.reason for photo in report.left_out}
    assert set(reasons) == {file.name for file in blurred}
    assert all(reason.startswith("blurred: ") for reason in reasons.values())


def test_three_photos_give_poses_and_the_advice_to_take_more(tmp_path: Path) -> None:
    write_photos(tmp_path, table_with_boxes(), ring(20)[:3])
    report = estimate_poses(tmp_path)
    assert len(report.posed) == 3
    assert "3 photos make a rough model: 20 to 200, all around, are good" in report.advice
