"""The frame in which gsplat's trainer trains, which it writes nowhere: found from the scene, and the model.

By default it brings the world to a size of its own: upright by the cameras, centered between the points at
which they look, scaled by their median distance, then turned to the principal axes of COLMAP's points. Their
signs depend on the library for linear algebra and on gsplat's version, so the model itself tells them.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from splatstudio.cameras.camera import rigid
from splatstudio.scene.colmap_model import ColmapModel

# Of models of five captures, trained for 300 and 1500 steps, half of the scene's points lay within 0.04 of
# its size from a splat; where the models were turned, scaled or in another frame, beyond 0.11.
TOO_FAR = 0.08
MOST_SPLATS, MOST_POINTS = 200_000, 2000  # of which that is measured
CLEARLY = 0.5  # times as far as where nothing is moved
FEWEST_POINTS = 30


def frame_of_gsplat(model: ColmapModel, means: np.ndarray) -> np.ndarray | None:
    """Return the similarity [4, 4] from COLMAP's world to that of splats with these means [N, 3].

    None where they lie in COLMAP's world itself, as those of most programs and of gsplat with
    --no-normalize-world-space do, and where they lie at the points of `model` in neither.
    """
    finite = means[np.isfinite(means).all(axis=1)]
    points = np.asarray(model.points, np.float64)
    points = points[np.isfinite(points).all(axis=1)]
    if min(len(points), len(finite)) < FEWEST_POINTS or not model.images:
        return None
    size = float(np.median(np.linalg.norm(points - np.median(points, axis=0), axis=1)))
    frames = possible_frames(np.stack([image.viewmat for image in model.images]), points)
    if not size > 0.0 or not frames:
        return None
    from scipy.spatial import KDTree  # takes a third of a second to load

    tree = KDTree(finite[:: math.ceil(len(finite) / MOST_SPLATS)])
    sample = points[:: math.ceil(len(points) / MOST_POINTS)]

    def distance(frame: np.ndarray) -> float:
        """Return how far half of the points are from a splat at most, in the size of the points."""
        scale = float(np.cbrt(np.linalg.det(frame[:3, :3])))
        moved = sample @ frame[:3, :3].T + frame[:3, 3]
        return float(np.median(tree.query(moved)[0])) / (scale * size)

    best = min(frames, key=distance)
    return best if distance(best) <= min(TOO_FAR, CLEARLY * distance(np.eye(4))) else None


def possible_frames(viewmats: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
    """Return the four frames [4, 4] that gsplat may have trained in, by the signs of the principal axes.

    `viewmats` [C, 4, 4] are world to camera (OpenCV), `points` [P, 3] all of COLMAP's. There is none for
    cameras at one point or upright in every way, nor where gsplat mirrors the world: where up is exactly +y.
    """
    first = _upright(viewmats)
    if first is None:
        return []
    moved = points @ first[:3, :3].T + first[:3, 3]
    center = np.median(moved, axis=0)
    _, vectors = np.linalg.eigh(np.cov(moved - center, rowvar=False))
    axes = vectors.T[::-1].copy()  # the longest first
    axes[0] *= np.sign(np.linalg.det(axes))
    frames = []
    for x, y in itertools.product((1.0, -1.0), repeat=2):
        turn = np.array([[x], [y], [x * y]]) * axes
        frames.append(rigid(turn, -turn @ center) @ first)
    return frames


def _upright(viewmats: np.ndarray) -> np.ndarray | None:
    """Return what turns the cameras' mean up to -y, and centers and scales by where they look."""
    rotations = viewmats[:, :3, :3]  # rows: right, down and forward in the world
    positions = -np.einsum("cji,cj->ci", rotations, viewmats[:, :3, 3])
    up, to = -rotations[:, 1].mean(axis=0), np.array([0.0, -1.0, 0.0])
    if not (length := float(np.linalg.norm(up))) > 1e-9:
        return None  # they stand every way
    up /= length
    cosine, cross = float(up @ to), np.cross(up, to)
    if cosine <= -1.0:
        return None
    skew = np.cross(np.eye(3), cross)
    turn = np.eye(3) + skew + skew @ skew / (1.0 + cosine)
    positions, forward = positions @ turn.T, rotations[:, 2] @ turn.T
    # Where each camera's axis comes nearest to the origin.
    nearest = positions - np.sum(positions * forward, axis=1, keepdims=True) * forward
    shift = -np.median(nearest, axis=0)
    distance = float(np.median(np.linalg.norm(positions + shift, axis=1)))
    if not distance > 1e-9 * max(1.0, float(np.abs(positions).max())):
        return None  # they stand at one point
    scale = 1.0 / distance
    return rigid(scale * turn, scale * shift)
