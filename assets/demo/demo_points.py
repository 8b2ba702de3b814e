"""Sparse points for the demo scene as structure from motion would give them.

Corners are found in the photos, their rays are cast into the scene, each point is looked for in the
other views (in the frame, not hidden, seen from a similar side and distance), the observations get the noise
of a feature detector, and the point is triangulated from those noisy observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from demo_geometry import Dome, dot, trace
from demo_materials import Plain
from demo_render import Pinhole
from demo_scene import scene

CELL = 7  # pixels: at most one corner a cell
NEW_POINTS = 170  # corners a view that start a point, before the short tracks are dropped
KEYPOINT_SIGMA = 0.3  # pixels, a detector's noise along each axis
WORST_ERROR = 0.9  # pixels, observations above are outliers and left out
LONGEST_TRACK = 7


@dataclass(frozen=True, eq=False)
class SparsePoints:
    """P points and O observations: position [P, 3], color uint8 [P, 3], and for each observation the view,
    the point and the keypoint's pixel coordinates [O, 2]."""

    position: np.ndarray
    color: np.ndarray
    view: np.ndarray
    point: np.ndarray
    keypoint: np.ndarray


def _box(a: np.ndarray) -> np.ndarray:
    """Return the sums over 5x5 windows."""
    p = np.pad(a, 2, mode="edge")
    rows = sum(p[i : i + a.shape[0]] for i in range(5))
    assert isinstance(rows, np.ndarray)
    out = sum(rows[:, i : i + a.shape[1]] for i in range(5))
    assert isinstance(out, np.ndarray)
    return out


def corners(photo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the strongest corner of every cell, [K, 2] px, and its strength (Shi, Tomasi 1994)."""
    gray = photo.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    gy, gx = (np.asarray(slope) for slope in np.gradient(gray))
    a, b, c = _box(np.square(gx)), _box(np.multiply(gx, gy)), _box(np.square(gy))
    strength = (a + c) / 2 - np.sqrt(((a - c) / 2) ** 2 + b * b)
    margin = 8
    strength[:margin], strength[-margin:], strength[:, :margin], strength[:, -margin:] = 0, 0, 0, 0
    height, width = (n // CELL * CELL for n in strength.shape)
    cells = strength[:height, :width].reshape(height // CELL, CELL, width // CELL, CELL).transpose(0, 2, 1, 3)
    cells = cells.reshape(height // CELL, width // CELL, -1)
    best = cells.argmax(-1)
    y = np.arange(height // CELL)[:, None] * CELL + best // CELL
    x = np.arange(width // CELL)[None, :] * CELL + best % CELL
    value = cells.max(-1)
    good = value > 250
    return np.stack([x[good], y[good]], 1) + 0.5, value[good]


def _choose(
    photo: np.ndarray, camera: Pinhole, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return new points of one view: positions [3, K], shape numbers [K], outward normals [3, K]."""
    xy, strength = corners(photo)
    xy = xy + rng.uniform(-0.5, 0.5, xy.shape)
    shapes = scene()
    o, d = camera.rays(xy[:, 0], xy[:, 1])
    hits = trace(shapes, o, d)
    flat = np.ones(len(xy), bool)
    # A corner made by one thing in front of another does not stay where it is from other sides.
    for dx, dy in ((2.5, 0), (-2.5, 0), (0, 2.5), (0, -2.5)):
        near = trace(shapes, *camera.rays(xy[:, 0] + dx, xy[:, 1] + dy))
        flat &= (near.shape == hits.shape) & (np.abs(near.t - hits.t) < 0.04 * hits.t)
    chance = np.sqrt(strength)
    for number, shape in enumerate(shapes):
        mine = hits.shape == number
        glossy = isinstance(shape.material, Plain) and shape.material.rough < 0.1
        rare = 0.02 if glossy else 0.10 if isinstance(shape, Dome) else 1.0
        chance[mine] *= rare * (1.0 if np.hypot(*shape.center[:2, 0]) < 1 else 0.8)
    chance[hits.t > 12] *= 0.25
    chance[~flat] = 0
    count = min(NEW_POINTS, int((chance > 0).sum()))
    pick = rng.choice(len(xy), count, replace=False, p=chance / chance.sum())
    p = o[:, pick] + d[:, pick] * hits.t[pick]
    normals = np.zeros_like(p)
    for number in np.unique(hits.shape[pick]):
        index, shape = np.flatnonzero(hits.shape[pick] == number), shapes[number]
        local, direction = shape.local(p[:, index], d[:, pick][:, index])
        n = shape.normal(local, hits.sub[pick][index])
        normals[:, index] = shape.rotation.T @ np.where(dot(n, direction) > 0, -n, n)
    return p, hits.shape[pick], normals


def _seen(
    p: np.ndarray, number: np.ndarray, normal: np.ndarray, camera: Pinhole, source: Pinhole
) -> np.ndarray:
    """Return the chance [K] that a matcher finds points of view `source` in view `camera`; 0 where hidden."""
    xy, depth = camera.project(p)
    inside = (depth > 0) & (xy > 4).all(0) & (xy[0] < camera.width - 4) & (xy[1] < camera.height - 4)
    here, there = p - camera.position[:, None], p - source.position[:, None]
    distance, before = np.linalg.norm(here, axis=0), np.linalg.norm(there, axis=0)
    cosine = np.clip((here * there).sum(0) / (distance * before), -1, 1)
    slant = -(here * normal).sum(0) / distance
    angle = np.degrees(np.arccos(cosine))
    chance = 0.9 * np.exp(-((angle / 30) ** 2)) * np.exp(-((np.log(distance / before) / 0.6) ** 2))
    chance = np.where(inside & (slant > 0.12), chance, 0)
    live = np.flatnonzero(chance > 0.02)
    out = np.zeros(p.shape[1])
    d = (here[:, live] / distance[live]).astype(np.float32)
    o = np.broadcast_to(camera.position.astype(np.float32)[:, None], d.shape).copy()
    hits = trace(scene(), o, d)
    open_view = (hits.shape == number[live]) & (np.abs(hits.t - distance[live]) < 0.002 * distance[live])
    out[live] = np.where(open_view, chance[live], 0)
    return out


def triangulate(
    cameras: Sequence[Pinhole], points: np.ndarray, view: np.ndarray, point: np.ndarray, keypoint: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions [P, 3] of least squared error and the errors of the observations [O]."""
    rotations = np.stack([c.rotation for c in cameras])[view]
    centers = np.stack([c.position for c in cameras])[view]
    focal, middle = cameras[0].focal, np.array([cameras[0].width / 2, cameras[0].height / 2])
    x = points.astype(np.float64).copy()
    residual = np.zeros_like(keypoint)
    for step in range(6):
        q = np.einsum("oij,oj->oi", rotations, x[point] - centers)
        residual = q[:, :2] / q[:, 2:] * focal + middle - keypoint
        if step == 5:
            break
        j = (rotations[:, :2] - (q[:, :2] / q[:, 2:])[..., None] * rotations[:, 2:]) * (focal / q[:, 2:])[
            ..., None
        ]
        hessian, gradient = np.zeros((len(x), 3, 3)), np.zeros((len(x), 3))
        np.add.at(hessian, point, np.einsum("oki,okj->oij", j, j))
        np.add.at(gradient, point, np.einsum("oki,ok->oi", j, residual))
        damping = 1e-6 * np.trace(hessian, axis1=1, axis2=2)[:, None, None] * np.eye(3) + 1e-12 * np.eye(3)
        x -= np.linalg.solve(hessian + damping, gradient[..., None])[..., 0]
    return x, np.linalg.norm(residual, axis=1)


def sparse_points(cameras: Sequence[Pinhole], photos: Sequence[np.ndarray]) -> SparsePoints:
    """Return the sparse points of the scene from its cameras and photos (uint8 [H, W, 3] each)."""
    rng = np.random.default_rng(401)
    starts, views, points, keypoints, first = [], [], [], [], 0
    for source, camera in enumerate(cameras):
        p, number, normal = _choose(photos[source], camera, rng)
        chance = np.stack([_seen(p, number, normal, other, camera) for other in cameras])
        chance[source] = 2.0
        draw = chance - rng.random(chance.shape)
        # The likeliest matches stay when a track would be longer than needed.
        order = np.argsort(-draw, axis=0)[:LONGEST_TRACK]
        columns = np.broadcast_to(np.arange(p.shape[1]), order.shape)
        taken = np.take_along_axis(draw, order, 0) > 0
        order, columns = order[taken], columns[taken]
        xy = np.stack(
            [
                cameras[v].project(p[:, c : c + 1].astype(np.float64))[0][:, 0]
                for v, c in zip(order, columns, strict=True)
            ]
        )
        starts.append(p.T)
        views.append(order)
        points.append(columns + first)
        keypoints.append(xy + rng.normal(0, KEYPOINT_SIGMA, xy.shape))
        first += p.shape[1]
    return _cleaned(
        cameras,
        photos,
        np.concatenate(starts),
        np.concatenate(views),
        np.concatenate(points),
        np.concatenate(keypoints),
    )


def _cleaned(
    cameras: Sequence[Pinhole],
    photos: Sequence[np.ndarray],
    starts: np.ndarray,
    view: np.ndarray,
    point: np.ndarray,
    keypoint: np.ndarray,
) -> SparsePoints:
    """Triangulate, leave out outliers and points seen in fewer than three views, and take the colors."""
    position = starts.astype(np.float64)
    for _ in range(8):
        counts = np.bincount(point, minlength=len(position))
        keep = counts[point] >= 3
        view, point, keypoint = view[keep], point[keep], keypoint[keep]
        used, point = np.unique(point, return_inverse=True)
        position, error = triangulate(cameras, position[used], view, point, keypoint)
        fine = error < WORST_ERROR
        if fine.all():
            break
        view, point, keypoint = view[fine], point[fine], keypoint[fine]
    else:
        raise RuntimeError("outliers remain after eight rounds; lower KEYPOINT_SIGMA")
    colors = np.stack([photos[v][int(y), int(x)] for v, (x, y) in zip(view, keypoint, strict=True)]).astype(
        float
    )
    total = np.zeros((len(position), 3))
    np.add.at(total, point, colors)
    color = (total / np.bincount(point)[:, None] + 0.5).astype(np.uint8)
    order = np.lexsort((view, point))
    return SparsePoints(position, color, view[order], point[order], keypoint[order])
