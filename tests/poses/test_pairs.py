"""Which photos are compared: all of a few, neighbors of many, and loops of a video are closed."""

from __future__ import annotations

import numpy as np

from splatstudio.poses.pairs import EXHAUSTIVE, in_blocks, nearest, pairs_of_frames, pairs_of_photos


def along_a_street(num: int, seed: int = 0) -> list[np.ndarray]:
    """Return descriptors of photos along a street: neighbors show much of the same."""
    random = np.random.default_rng(seed)
    street = random.integers(0, 256, (num * 20 + 400, 128)).astype(np.uint8)
    return [street[i * 20 : i * 20 + 400] for i in range(num)]


def test_each_of_a_few_photos_is_compared_with_each_other() -> None:
    assert pairs_of_photos(6, lambda i: np.zeros((0, 128)), None) == {
        (i, j) for i in range(6) for j in range(i + 1, 6)
    }


def test_of_many_photos_those_that_look_alike_are_compared() -> None:
    num = EXHAUSTIVE + 10
    shown = along_a_street(num)
    order = np.random.default_rng(1).permutation(num)
    pairs = pairs_of_photos(num, lambda i: shown[order[i]], None)
    assert len(pairs) < 0.4 * num * (num - 1) / 2
    place = np.argsort(order)
    near = {(min(a, b), max(a, b)) for i in range(num - 2) for a, b in [(int(place[i]), int(place[i + 2]))]}
    assert len(near & pairs) > 0.97 * len(near)


def test_a_video_that_comes_back_is_closed_and_two_videos_are_joined() -> None:
    num = 60
    shown = along_a_street(num)
    shown[-3:] = [each.copy() for each in shown[:3]]  # where it began
    pairs = pairs_of_frames([0] * num, lambda i: shown[i])
    assert {(0, 57), (1, 58), (2, 59)} <= pairs and {(i, i + 1) for i in range(num - 1)} <= pairs
    assert len(pairs) < 0.6 * num * (num - 1) / 2
    two = pairs_of_frames([0] * 30 + [1] * 30, lambda i: shown[i % 30])
    assert {(i, i + 30) for i in range(30)} <= two


def test_photos_without_features_are_no_hindrance() -> None:
    shown = [np.zeros((0, 128), np.uint8) if i % 2 else each for i, each in enumerate(along_a_street(20))]
    assert {(i, i + 1) for i in range(19)} <= pairs_of_frames([0] * 20, lambda i: shown[i])


def test_neighbors_by_place_leave_out_those_without() -> None:
    places = np.c_[np.arange(6.0), np.zeros(6), np.zeros(6)]
    places[3] = np.nan
    assert nearest(places, 1) == {(0, 1), (1, 2), (4, 5)}


def test_pairs_come_in_groups_of_few_photos() -> None:
    pairs = {(i, j) for i in range(70) for j in range(i + 1, 70)}
    blocks = in_blocks(pairs)
    assert sorted(pair for block in blocks for pair in block) == sorted(pairs)
    assert max(len({number for pair in block for number in pair}) for block in blocks) <= 32
