"""A model in coordinates of its own brought to the points of a scene: turned, scaled and shifted.

Iterative closest points (Besl and McKay 1992), trimmed, in both directions so that nothing shrinks, from the
turns that bring the principal axes of one onto those of the other and those that exchange axes.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.spatial import KDTree

FEW, MANY = 400, 4000  # positions that are compared in the first rounds, and in the last
FIRST_ROUNDS, LAST_ROUNDS = 12, 25
BEST_STARTS = 4  # of 48, which are followed to the end
KEPT = 0.75  # of the pairs; the others show what the other side lacks
CENTRAL = 2.0  # of the median distance from the middle, within which principal axes are measured


def similarity_between(model: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the similarity [4, 4] that brings positions [N, 3] of a model to the points [P, 3] of its scene.

    Both need two positions or more. Where they are not of one scene the result means nothing: who asks
    compares afterwards. The same for the same input.
    """
    generator = np.random.default_rng(0)
    few = [part[generator.permutation(len(part))[:FEW]] for part in (model, points)]
    many = [part[generator.permutation(len(part))[:MANY]] for part in (model, points)]
    (middle, size), (center, radius) = _middle(many[0]), _middle(many[1])
    scale = radius / max(size, 1e-12)
    starts = []
    for turn in _turns(_axes(many[0]), _axes(many[1])):
        start = _similarity(scale, turn, center - scale * turn @ middle)
        starts.append(_closest(few[0], few[1], start, FIRST_ROUNDS))
    starts.sort(key=lambda pair: pair[1])
    ends = [_closest(many[0], many[1], start, LAST_ROUNDS) for start, _ in starts[:BEST_STARTS]]
    return min(ends, key=lambda pair: pair[1])[0]


def _middle(positions: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the median position and the median distance from it."""
    middle = np.median(positions, axis=0)
    return middle, float(np.median(np.linalg.norm(positions - middle, axis=1)))


def _axes(positions: np.ndarray) -> np.ndarray:
    """Return the principal axes [3, 3] of what is central, as the columns of a rotation."""
    middle, size = _middle(positions)
    central = positions[np.linalg.norm(positions - middle, axis=1) <= CENTRAL * size]
    axes = np.linalg.svd(central - central.mean(axis=0), full_matrices=False)[2].T
    axes[:, 0] *= np.sign(np.linalg.det(axes))
    return axes


def _turns(model: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
    """Return the 24 rotations that exchange coordinate axes, and those that bring axes to the other's."""
    identity = np.eye(3)
    signed = [
        identity[list(order)] * np.array(signs)
        for order in permutations(range(3))
        for signs in product((1.0, -1.0), repeat=3)
    ]
    turns = [matrix for matrix in signed if np.linalg.det(matrix) > 0]
    return [*turns, *(points @ turn @ model.T for turn in turns)]


def _closest(
    model: np.ndarray, points: np.ndarray, start: np.ndarray, rounds: int
) -> tuple[np.ndarray, float]:
    """Return `start`, improved, and the median distances that are left, from both sides."""
    from scipy.spatial import KDTree  # takes a third of a second to load

    tree, similarity = KDTree(points), start
    for _ in range(rounds):
        moved = model @ similarity[:3, :3].T + similarity[:3, 3]
        to_points, to_model = _nearest(tree, moved), _nearest(KDTree(moved), points)
        pairs = (
            np.concatenate([model[to_points[0]], model[to_model[1]]]),
            np.concatenate([points[to_points[1]], points[to_model[0]]]),
        )
        similarity = _best(*pairs)
    moved = model @ similarity[:3, :3].T + similarity[:3, 3]
    left = np.median(tree.query(moved)[0]) + np.median(KDTree(moved).query(points)[0])
    return similarity, float(left)


def _nearest(tree: KDTree, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions that have a near one in the tree, by index, and which that is."""
    distances, index = tree.query(positions)
    kept = np.argsort(distances, kind="stable")[: max(2, int(KEPT * len(positions)))]
    return kept, np.asarray(index)[kept]


def _best(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the similarity of least squares between pairs; its scale is that of both spreads (Horn 1987)."""
    middle, center = source.mean(axis=0), target.mean(axis=0)
    spread, wanted = source - middle, target - center
    u, _, vt = np.linalg.svd(wanted.T @ spread)
    turn = u @ np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ vt))]) @ vt
    scale = float(np.sqrt((wanted**2).sum() / max((spread**2).sum(), 1e-24)))
    return _similarity(scale, turn, center - scale * turn @ middle)


def _similarity(scale: float, turn: np.ndarray, shift: np.ndarray) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = scale * turn, shift
    return matrix
