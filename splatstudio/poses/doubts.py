"""Whether places that look alike were taken for one: by matches that contradict, and by those that lack."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pycolmap

from splatstudio.poses.records import DoubtfulLink

LINK_MATCHES = 30  # from which on a pair says something about the poses
AGREES_WITHIN = 8.0  # pixels, as Sampson distance
CONTRADICTED = 0.3  # the share of agreeing matches below which a link contradicts the poses
# Contradicted matches of a photo beside those that agree. Measured: 0.88 where one of two equal boxes
# was taken for the other, 0 with different boxes, 0.15 before a wallpaper that repeats.
DOUBTED = 0.25
# A contradicted link beside the strongest that agree of its two photos, and how many such links there
# must be. Measured: 0.77, 0.59, 0.34 and 0.32 where a house was folded whose back looks as its front, 0.13 at
# most in fox, whose 154 contradicted links are weak; none in drone, banana and drawn rooms.
STRONG, STRONGEST, FEWEST_STRONG = 0.3, 4, 2
GRID = 8
CELL_POINTS = 4  # of each of two photos, from which on a cell of the grid should have some in common
FEWEST_CELLS = 6
NEARLY_ONE_VIEW = 12.0  # degrees between the rays of two photos, within which they show the same
# The share of such cells, and of the pairs that have so many. Measured: 6 of 7 and 15 of 38 pairs where equal
# boxes stood in two rooms, none with different boxes; 2 of 46 in the demo, none in three real captures.
SILENT, SILENT_PAIRS, FEWEST_PAIRS = 0.25, 0.12, 3


@dataclass(frozen=True, eq=False)
class _Seen:
    """What one photo sees of the model: the numbers of its points, their places, and its pixels."""

    name: str
    points: np.ndarray  # [N] their numbers
    places: np.ndarray  # [N, 3]
    pixels: np.ndarray  # [N, 2]
    center: np.ndarray
    pose: np.ndarray  # [3, 4]
    camera: pycolmap.Camera


def doubtful_links(model: pycolmap.Reconstruction, database: pycolmap.Database) -> tuple[DoubtfulLink, ...]:
    """Return the pairs of photos that say that one of two places was taken for the other, worst first.

    Two signs are looked for. Where such places are linked with each other, too, links between true neighbors
    contradict the poses. Where they are not, photos of both come to stand side by side, show the same
    thing in the middle, and have nothing in common around it.
    """
    posed = {number: _seen(model, number) for number in model.reg_image_ids()}
    ids, geometries = database.read_two_view_geometries()
    pairs = {
        pycolmap.pair_id_to_image_pair(pair): geometry.inlier_matches
        for pair, geometry in zip(ids, geometries, strict=True)
    }
    pairs = {pair: matches for pair, matches in pairs.items() if pair[0] in posed and pair[1] in posed}
    found = [*_contradicted(posed, pairs, database), *_silent(posed, pairs)]
    return tuple(sorted(found, key=lambda link: -link.num_matches))


def _seen(model: pycolmap.Reconstruction, number: int) -> _Seen:
    image = model.image(number)
    pose = image.cam_from_world()
    assert pose is not None, "only photos with a pose are asked"
    observed = image.get_observation_points2D()
    points = np.array([point.point3D_id for point in observed], dtype=np.int64)
    places = np.array([model.point3D(point).xyz for point in points.tolist()]).reshape(-1, 3)
    pixels = np.array([point.xy for point in observed]).reshape(-1, 2)
    center = np.asarray(image.projection_center())
    return _Seen(
        image.name, points, places, pixels, center, np.asarray(pose.matrix()), model.camera(image.camera_id)
    )


def _contradicted(
    posed: dict[int, _Seen], pairs: dict[tuple[int, int], np.ndarray], database: pycolmap.Database
) -> list[DoubtfulLink]:
    """Return the contradicted links of photos that have many of them, and those between true neighbors.

    Patterns that repeat, as on wallpaper, make false links, too, but those are few beside the links that
    agree: a photo is doubted when its contradicted matches are many beside them. A link as strong as
    those of neighbors is one: where it does not fit, the model is folded, if only at a seam.
    """
    size = float(np.median(np.ptp(np.stack([seen.center for seen in posed.values()]), axis=0)))
    links: list[tuple[int, int, DoubtfulLink]] = []
    agreeing, contradicted = Counter[int](), Counter[int]()
    fitting: dict[int, list[int]] = {number: [] for number in posed}  # matches of each link that agrees
    for (first, second), matches in pairs.items():
        one, other = posed[first], posed[second]
        if len(matches) < LINK_MATCHES or np.linalg.norm(one.center - other.center) < 0.01 * size:
            continue  # of one place: there is no epipolar geometry
        keypoints = [database.read_keypoints(number)[:, :2] for number in (first, second)]
        share = _agreeing(one, other, *(k[matches[:, side]] for side, k in enumerate(keypoints)))
        counts = contradicted if share < CONTRADICTED else agreeing
        counts.update({first: len(matches), second: len(matches)})
        if share >= CONTRADICTED:
            fitting[first].append(len(matches))
            fitting[second].append(len(matches))
        else:
            links.append((first, second, DoubtfulLink(one.name, other.name, len(matches), share)))
    doubted = {number for number, count in contradicted.items() if count > DOUBTED * agreeing[number]}
    strong = [(a, b) for a, b, link in links if link.num_matches >= STRONG * _usual(fitting[a], fitting[b])]
    seams = set(strong) if len(strong) >= FEWEST_STRONG else set[tuple[int, int]]()
    return [link for a, b, link in links if {a, b} & doubted or (a, b) in seams]


def _usual(*links: list[int]) -> float:
    """Return how many matches the strongest links of photos have; infinity where there are none."""
    strongest = [count for each in links for count in sorted(each)[-STRONGEST:]]
    return float(np.median(strongest)) if strongest else float("inf")


def _agreeing(one: _Seen, other: _Seen, pixels: np.ndarray, others_pixels: np.ndarray) -> float:
    """Return the share of matches [M, 2] that lie where the poses of their two photos allow."""
    rays = [
        np.asarray(seen.camera.cam_from_img(place.astype(np.float64)))
        for seen, place in ((one, pixels), (other, others_pixels))
    ]
    turn = other.pose[:, :3] @ one.pose[:, :3].T
    shift = other.pose[:, 3] - turn @ one.pose[:, 3]
    relative = pycolmap.Rigid3d(np.c_[turn, shift])
    essential = pycolmap.essential_matrix_from_pose(relative)
    squared = np.array(pycolmap.compute_squared_sampson_error(rays[0], rays[1], essential))
    return float(np.mean(squared < (AGREES_WITHIN / one.camera.mean_focal_length()) ** 2))


def _silent(posed: dict[int, _Seen], pairs: dict[tuple[int, int], np.ndarray]) -> list[DoubtfulLink]:
    """Return the pairs that were compared, show the same by their poses, and have little of it in common.

    None where they are so few that chance makes them.
    """
    found: list[DoubtfulLink] = []
    num_near = 0
    for (first, second), matches in pairs.items():
        shares = [_silent_share(posed[a], posed[b]) for a, b in ((first, second), (second, first))]
        known = [share for share in shares if share is not None]
        num_near += len(known) == 2
        if len(known) == 2 and min(known) > SILENT:
            link = DoubtfulLink(posed[first].name, posed[second].name, len(matches), 1 - min(known))
            found.append(link)
    return found if len(found) >= max(FEWEST_PAIRS, SILENT_PAIRS * num_near) else []


def _silent_share(one: _Seen, other: _Seen) -> float | None:
    """Return the share of the cells of `other` in which both have points by the model, but none in common.

    None where they do not look at the same from nearly one direction.
    """
    if not len(one.places) or not len(other.places):
        return None
    inside = one.places @ other.pose[:, :3].T + other.pose[:, 3]
    pixels = np.asarray(other.camera.img_from_cam(inside))
    size = np.array([other.camera.width, other.camera.height])
    with np.errstate(invalid="ignore"):
        shown = (inside[:, 2] > 0) & ((pixels >= 0) & (pixels < size)).all(axis=1)
    if shown.sum() < CELL_POINTS * FEWEST_CELLS:
        return None
    rays = [_unit(one.places[shown] - seen.center) for seen in (one, other)]
    angles = np.degrees(np.arccos(np.einsum("ni,ni->n", *rays).clip(-1, 1)))
    if not np.median(angles) < NEARLY_ONE_VIEW:
        return None
    common = np.isin(one.points[shown], other.points)
    theirs = _per_cell(other.pixels, size)
    projected = _per_cell(pixels[shown], size)
    shared = _per_cell(pixels[shown][common], size)
    both = (theirs >= CELL_POINTS) & (projected >= CELL_POINTS)
    return float((shared[both] == 0).mean()) if both.sum() >= FEWEST_CELLS else None


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _per_cell(pixels: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return how many pixels [N, 2] lie in each cell of a grid over a picture of `size`."""
    cells = (pixels / size * GRID).astype(int).clip(0, GRID - 1)
    return np.bincount(cells[:, 1] * GRID + cells[:, 0], minlength=GRID**2)
