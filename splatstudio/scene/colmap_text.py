"""Read COLMAP's cameras.txt, images.txt and points3D.txt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from splatstudio.scene.capture import read_file
from splatstudio.scene.colmap_model import (
    MODELS_BY_NAME,
    ColmapImage,
    are_observations,
    colmap_lens,
    colmap_pose,
    unsupported_model,
)
from splatstudio.scene.lens import Lens


def read_cameras(path: Path) -> dict[int, Lens]:
    """Return the cameras of `path` by id; raises ValueError naming the line that cannot be read."""
    lenses = {}
    for number, line in _lines(path):
        words, where = line.split(), f"{path}, line {number},"
        if not line.strip():
            continue
        if len(words) < 4:
            raise _unreadable(
                where, f"has {len(words)} columns; a camera has an id, a model, a size and parameters"
            )
        model = MODELS_BY_NAME.get(words[1])
        if model is None:
            raise unsupported_model(words[1], where)
        if len(words) != 4 + model.num_params:
            raise _unreadable(
                where, f"has {len(words)} columns; a {model.name} camera has {4 + model.num_params}"
            )
        camera_id, width, height = _integers([words[0], *words[2:4]], where)
        lenses[camera_id] = colmap_lens(model, (width, height), _numbers(words[4:], where), where)
    return lenses


def read_images(path: Path) -> list[ColmapImage]:
    """Return the registered images of `path`; raises ValueError naming the line that cannot be read."""
    images = []
    for number, line, (observations_at, observations) in _records(path):
        where = f"{path}, line {number},"
        words = line.split(maxsplit=9)  # the last column is a file name, which may hold blanks
        if len(words) != 10:
            raise _unreadable(
                where, f"has {len(words)} columns; an image has 10: id, 4 of rotation, 3 of position, ..."
            )
        _, camera_id = _integers([words[0], words[8]], where)
        pose = np.array(_numbers(words[1:8], where))
        name = words[9].strip()
        images.append(
            ColmapImage(name, camera_id, colmap_pose(pose[:4], pose[4:], f"{where} image {name!r}"))
        )
        # Numbers of points that are none are told by whoever needs them.
        if len(observations.split()) % 3 or _is_image(observations):
            raise ValueError(
                f"{path}, line {observations_at}, holds observations of image {name!r} but not three "
                f"columns each; export the model again"
            )
    return images


def read_observed_points(path: Path) -> dict[str, np.ndarray]:
    """Return the ids [M] uint64 of the points that each image observes, by the image's name.

    Raises ValueError naming the line that cannot be read.
    """
    observed = {}
    for _, line, (number, observations) in _records(path):
        ids = _integers(observations.split()[2::3], f"{path}, line {number},")
        observed[line.split(maxsplit=9)[-1].strip()] = np.array([i for i in ids if i >= 0], np.uint64)
    return observed


def _records(path: Path) -> list[tuple[int, str, tuple[int, str]]]:
    """Return the line of each image, by its number, and the one after it: its observations, perhaps none.

    Some programs leave all lines of observations out. Such a file is told by lines that cannot hold any.
    """
    lines = list(_lines(path))
    records, rest = [], iter(lines)
    for number, line in rest:
        if line.strip():
            records.append((number, line, next(rest, (number + 1, ""))))
    if all(are_observations(observations) for _, _, (_, observations) in records):
        return records
    while not lines[-1][1].strip():
        lines.pop()
    if all(_is_image(line) for _, line in lines):
        return [(number, line, (number, "")) for number, line in lines]
    return records  # of which one is refused


def _is_image(line: str) -> bool:
    words = line.split(maxsplit=9)
    try:
        [float(word) for word in words[1:8]]
    except ValueError:
        return False
    return len(words) == 10 and words[0].isdecimal() and words[8].isdecimal()


def read_points(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids [P] uint64, positions [P, 3] float64 and colors [P, 3] uint8.

    Raises ValueError naming the line that cannot be read.
    """
    ids, positions, colors = [], [], []
    for number, line in _lines(path):
        words = line.split()
        if not words:
            continue
        where = f"{path}, line {number},"
        if len(words) < 8 or len(words) % 2:
            raise _unreadable(
                where, f"has {len(words)} columns; a point has 8 and two for each image that saw it"
            )
        point_id, *rgb = _integers([words[0], *words[4:7]], where)
        if not (all(0 <= c <= 255 for c in rgb) and 0 <= point_id < 2**64):
            raise _unreadable(where, f"has the id {point_id} and the color {rgb}; colors are 0 to 255")
        ids.append(point_id)
        positions.append(_numbers(words[1:4], where))
        colors.append(rgb)
    return (
        np.array(ids, np.uint64),
        np.array(positions, np.float64).reshape(-1, 3),
        np.array(colors, np.uint8).reshape(-1, 3),
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    # Names may be no text: see ImageFolder. Some editors put a mark before it.
    text = read_file(path, "the COLMAP file").decode("utf-8-sig", "backslashreplace")
    # Not splitlines(): that also splits at characters that may stand in a file name.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("#"):
            yield number, line.rstrip("\r")


def _unreadable(where: str, what: str) -> ValueError:
    return ValueError(f"{where} {what}; export the model again")


def _numbers(words: list[str], where: str) -> list[float]:
    try:
        return [float(word) for word in words]
    except ValueError:
        raise _unreadable(where, f"has a word where a number should be: {' '.join(words)[:80]!r}") from None


def _integers(words: list[str], where: str) -> list[int]:
    try:
        return [int(word) for word in words]
    except ValueError:
        raise _unreadable(
            where, f"has no whole number where one should be: {' '.join(words)[:80]!r}"
        ) from None
