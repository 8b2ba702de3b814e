"""Two rooms with the same box in both: photographs of one must not stand in the other without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from textured_rooms import FLOOR, Wall, box, ring, write_photographs

from splatstudio.poses.estimate import estimate_poses

NUM = 5


def two_rooms(folder: Path, boxes: tuple[int, int]) -> None:
    """Write photographs of a box in each of two rooms far apart; boxes of one number look the same."""
    walls: list[Wall] = []
    cameras: list[np.ndarray] = []
    for place, (seed, textures) in zip((0.0, 30.0), zip((1000, 2000), boxes, strict=True), strict=True):
        walls += [Wall(FLOOR + np.array([place, 0, 0]), seed), *box((place, 0.1), 1.2, textures)]
        walls += box((place - 1.3, 1.0), 0.5, seed + 10)
        for camera in ring(20)[:NUM]:
            moved = camera.copy()
            moved[:3, 3] -= camera[:3, :3] @ [place, 0, 0]
            cameras.append(moved)
    write_photographs(folder, walls, np.stack(cameras))


@pytest.mark.slow
def test_equal_boxes_that_were_taken_for_one_are_told(tmp_path: Path) -> None:
    two_rooms(tmp_path, (300, 300))
    report = estimate_poses(tmp_path)
    assert len(report.posed) == 2 * NUM, "COLMAP puts one room into the other"
    assert any("may have been taken for one" in note for note in report.notes)
    rooms = [{int(link.first[5:8]) // NUM, int(link.second[5:8]) // NUM} for link in report.doubtful]
    assert rooms and all(pair == {0, 1} for pair in rooms), "only pairs across the rooms are doubted"
