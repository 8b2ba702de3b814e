"""Places that look alike: photos of one must not stand in the other without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pose_errors import pose_errors
from textured_rooms import FLOOR, Wall, box, ring, write_photos

from splatstudio.poses.estimate import estimate_poses
from splatstudio.poses.store import PoseStore

NUM = 5
SMALLER = 0.75  # of the photos' sides: what is said of them stays, in half of the time


def two_rooms(folder: Path, boxes: tuple[int, int]) -> None:
    """Write photos of a box in each of two rooms far apart; boxes of one number look the same."""
    walls: list[Wall] = []
    cameras: list[np.ndarray] = []
    for place, (seed, textures) in zip((0.0, 30.0), zip((1000, 2000), boxes, strict=True), strict=True):
        walls += [Wall(FLOOR + np.array([place, 0, 0]), seed), *box((place, 0.1), 1.2, textures)]
        walls += box((place - 1.3, 1.0), 0.5, seed + 10)
        for camera in ring(20)[:NUM]:
            moved = camera.copy()
            moved[:3, 3] -= camera[:3, :3] @ [place, 0, 0]
            cameras.append(moved)
    write_photos(folder, walls, np.stack(cameras), scale=SMALLER)


@pytest.mark.slow
def test_equal_boxes_that_were_taken_for_one_are_told(tmp_path: Path) -> None:
    two_rooms(tmp_path, (300, 300))
    report = estimate_poses(tmp_path)
    assert len(report.posed) == 2 * NUM, "COLMAP puts one room into the other"
    assert any("may have been taken for one" in note for note in report.notes)
    rooms = [{int(link.first[5:8]) // NUM, int(link.second[5:8]) // NUM} for link in report.doubtful]
    assert rooms and all(pair == {0, 1} for pair in rooms), "only pairs across the rooms are doubted"


def house(folder: Path, sides: tuple[int, int, int, int]) -> tuple[float, bool]:
    """Photo a house from all around; return by how many degrees the poses are wrong, and whether that
    is told. `sides` of one number look the same; what stands before them does not."""
    walls = [Wall(FLOOR, 7000)]
    walls += [Wall(wall.corners, seed) for wall, seed in zip(box((0, 0), 1.4, 0), (*sides, 304), strict=True)]
    walls += [*box((0.0, 1.6), 0.45, 800), *box((0.0, -1.6), 0.45, 900)]
    cameras = ring(20, height=1.2)
    files = write_photos(folder, walls, cameras, scale=SMALLER)
    report = estimate_poses(folder)
    known = {file.name: camera for file, camera in zip(files, cameras, strict=True)}
    degrees, _ = pose_errors(PoseStore(folder).sparse / "0", known)
    return degrees, any("may have been taken for one" in note for note in report.notes)


@pytest.mark.slow
def test_a_house_whose_back_looks_as_its_front_is_told_when_it_is_folded(tmp_path: Path) -> None:
    degrees, told = house(tmp_path, (300, 301, 300, 301))
    assert degrees > 20, "COLMAP lays the back onto the front"
    assert told


@pytest.mark.slow
def test_a_house_with_four_different_sides_is_not_doubted(tmp_path: Path) -> None:
    degrees, told = house(tmp_path, (300, 301, 302, 303))
    assert degrees < 0.2 and not told
