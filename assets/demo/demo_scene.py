"""The demo scene: a garden table with things on it, on brick paving, between planters, a bench and trees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from demo_geometry import Boxes, Disc, Dome, Ground, Leaves, Place, Revolved, SdfShape, Shape, Sphere
from demo_materials import (
    Apple,
    Book,
    Far,
    Foliage,
    GroundCover,
    Mat,
    Material,
    Mug,
    Oak,
    PaintedVase,
    Plain,
    Soil,
    StripedBall,
)

TABLE = 0.74  # height of the table top, meters
DOME_CENTER, DOME_RADIUS = (0.0, 0.0, 1.3), 60.0


def smooth_outline(corners: Sequence[tuple[float, float]], steps: int = 8) -> np.ndarray:
    """Return a Catmull-Rom curve [K, 2] through (radius, height) points, its ends kept."""
    c = np.array([corners[0], *corners, corners[-1]], float)
    s = (np.arange(steps) / steps)[:, None]
    pieces = []
    for a, b, d, e in zip(c[:-3], c[1:-2], c[2:-1], c[3:], strict=True):
        pieces.append(b + 0.5 * s * (d - a + s * (2 * a - 5 * b + 4 * d - e + s * (3 * (b - d) + e - a))))
    return np.maximum(np.concatenate([*pieces, c[-1:]]), (0, -1))


def vessel(outer: Sequence[tuple[float, float]], wall: float, floor: float) -> np.ndarray:
    """Return the closed outline of a hollow vessel from its outer curve, bottom to rim."""
    curve = smooth_outline(outer)
    rim = curve[-1]
    inner = curve[curve[:, 1] > floor][::-1] - (wall, 0)
    lip = [rim + np.array([-0.15, 0.45]) * wall, rim + np.array([-0.85, 0.45]) * wall]
    return np.concatenate([[(0, curve[0, 1])], curve, lip, inner, [(0, floor)]])


def _capsule(
    a: Sequence[float], b: Sequence[float], radius: float, material: Material, center: Place
) -> Shape:
    start, end = np.array(a, np.float32)[:, None], np.array(b, np.float32)[:, None]
    axis = end - start
    middle = ((start + end) / 2).ravel()

    def sdf(p: np.ndarray) -> np.ndarray:
        q = p - start
        s = np.clip((q * axis).sum(0) / (axis * axis).sum(), 0, 1)
        q = q - axis * s
        return np.sqrt(q[0] ** 2 + q[1] ** 2 + q[2] ** 2) - np.float32(radius)

    return SdfShape(material, center, float(np.linalg.norm(axis)) / 2 + radius, sdf, middle=tuple(middle))


def _furniture() -> list[Shape]:
    oak, dark = Oak(), Oak("b79a86", along="z")
    legs = [
        ((x - 0.035, y - 0.035, -TABLE), (x + 0.035, y + 0.035, -0.04))
        for x, y in ((0.36, 0.36), (-0.36, 0.36), (-0.36, -0.36), (0.36, -0.36))
    ]
    aprons = [((-0.36, s - 0.012, -0.12), (0.36, s + 0.012, -0.035)) for s in (-0.36, 0.36)]
    aprons += [((s - 0.012, -0.36, -0.12), (s + 0.012, 0.36, -0.035)) for s in (-0.36, 0.36)]
    slats = [((-0.75, y, 0.42), (0.75, y + 0.11, 0.45)) for y in (-0.2, -0.07, 0.06)]
    slats += [((-0.75, 0.20, z), (0.75, 0.225, z + 0.10)) for z in (0.54, 0.68, 0.82)]
    posts = [
        ((x - 0.03, y - 0.03, 0.0), (x + 0.03, y + 0.03, h))
        for x in (-0.66, 0.66)
        for y, h in ((-0.15, 0.42), (0.17, 0.92))
    ]
    bench = Oak("c9c0b4")
    return [
        Disc(oak, (0, 0, TABLE), 0.62, 0.035),
        Boxes(dark, (0, 0, TABLE), legs + aprons, yaw=8),
        Boxes(bench, (2.6, 1.75, 0), slats + posts, yaw=-56),
    ]


def _books() -> list[Shape]:
    shapes: list[Shape] = []
    z = TABLE
    stack = (
        ("GARDEN", "6e2b25", "d9b860", 0.036, 32, (0.30, 0.20), 101),
        ("SPLATS", "274b6d", "e2c878", 0.030, 21, (0.295, 0.205), 111),
        ("LIGHT", "4c6148", "e8e0c8", 0.024, 44, (0.305, 0.195), 121),
    )
    for title, paint, ink, thick, yaw, (x, y), seed in stack:
        w, d, c = 0.12, 0.085, 0.003
        boxes = [
            ((-w, -d, 0), (w, d, c)),
            ((-w, -d, thick - c), (w, d, thick)),
            ((-w, -d - 0.002, 0), (w, -d + 0.003, thick)),
            ((-w + 0.005, -d + 0.001, c), (w - 0.005, d - 0.006, thick - c)),
        ]
        shapes.append(Boxes(Book(title, paint, ink, seed), (x, y, z), boxes, yaw=yaw))
        z += thick + 0.0005
    outline = smooth_outline(
        [
            (0, 0.006),
            (0.012, 0.002),
            (0.024, 0.004),
            (0.034, 0.020),
            (0.039, 0.042),
            (0.033, 0.060),
            (0.018, 0.066),
            (0.006, 0.060),
            (0, 0.055),
        ]
    )
    apple = (0.355, 0.205, z)
    shapes.append(Revolved(Apple("a02318", rough=0.22, f0=0.04, amount=0.05), apple, outline))
    shapes.append(_capsule((0, 0, 0.054), (0.006, 0.003, 0.080), 0.0018, Plain("4a3420", rough=0.8), apple))
    return shapes


def _mug() -> list[Shape]:
    place = (-0.27, -0.12, TABLE + 0.003)
    material = Mug("d8cdb8", rough=0.16, f0=0.045, amount=0.05)
    outer = [(0.028, 0.0), (0.034, 0.001), (0.040, 0.010), (0.043, 0.040), (0.042, 0.075), (0.043, 0.094)]

    def handle(p: np.ndarray) -> np.ndarray:
        x, z = p[0] - 0.041, (p[2] - 0.050) * 0.86
        ring = np.hypot(np.hypot(x, z) - 0.026, p[1] * 0.75) - 0.0052
        return np.maximum(ring, 0.0385 - np.hypot(p[0], p[1])) * 0.8

    return [
        Revolved(material, place, vessel(outer, 0.0035, 0.006), yaw=150),
        SdfShape(material, place, 0.045, handle, middle=(0.052, 0, 0.05), yaw=150),
        Disc(Soil("2a140a", wet=True), (place[0], place[1], place[2] + 0.078), 0.0395, 0.002),
    ]


def _leaf_axes(direction: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Return rows along, side, up [L, 3, 3] from directions and rough up vectors."""
    along = direction / np.linalg.norm(direction, axis=1, keepdims=True)
    side = np.cross(up, along)
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    return np.stack([along, side, np.cross(along, side)], axis=1)


def _potted_plant() -> list[Shape]:
    place = np.array([-0.02, 0.06, TABLE])
    clay = Plain("b5694a", rough=0.75, f0=0.03, amount=0.16, scale=9, bump=0.05)
    outer = [(0.045, 0.0), (0.050, 0.002), (0.056, 0.045), (0.062, 0.082), (0.068, 0.084), (0.069, 0.105)]
    saucer = [(0.05, 0.0), (0.066, 0.001), (0.072, 0.014), (0.074, 0.016)]
    rng = np.random.default_rng(201)
    count = 46
    turn = np.arange(count) * 2.39996 + rng.normal(0, 0.2, count)
    rise = np.linspace(0.05, 1, count)
    lift = 0.25 + 1.0 * rise + rng.normal(0, 0.10, count)
    out = np.stack([np.cos(turn) * np.cos(lift), np.sin(turn) * np.cos(lift), np.sin(lift)], 1)
    flat = np.stack([np.cos(turn), np.sin(turn), np.zeros(count)], 1)
    bases = flat * (0.012 + 0.035 * rng.random((count, 1))) * (1.2 - rise[:, None])
    bases[:, 2] = 0.105 + 0.15 * rise**1.2
    sizes = np.stack(
        [rng.uniform(0.075, 0.125, count) * (1.15 - 0.35 * rise), rng.uniform(0.017, 0.024, count)], 1
    )
    axes = _leaf_axes(out, np.array([0, 0, 1.0]) + 0.3 * rng.normal(size=(count, 3)))
    shapes: list[Shape] = [
        Revolved(clay, place + np.array([0, 0, 0.006]), vessel(outer, 0.006, 0.01)),
        Revolved(clay, place, vessel(saucer, 0.004, 0.005)),
        Disc(Soil("3a2a1d"), place + np.array([0, 0, 0.100]), 0.062, 0.004),
        Leaves(Foliage("2c5a22", "7fa545", 202), place, bases, axes, sizes),
    ]
    stem = Plain("5c6b35", rough=0.6)
    for k in range(5):
        a = k * 1.2566 + 0.4
        foot, tip = (
            (0.012 * np.cos(a), 0.012 * np.sin(a), 0.10),
            (0.03 * np.cos(a), 0.03 * np.sin(a), 0.20 + 0.01 * k),
        )
        shapes.append(_capsule(foot, tip, 0.0022, stem, place))
    return shapes


def _fruit_and_toys() -> list[Shape]:
    orange = Plain("d9791c", rough=0.35, f0=0.04, scale=30, amount=0.06, bump=0.10)
    lemon_outline = smooth_outline(
        [
            (0, -0.040),
            (0.006, -0.038),
            (0.014, -0.031),
            (0.027, -0.012),
            (0.027, 0.012),
            (0.014, 0.031),
            (0.006, 0.037),
            (0, 0.039),
        ]
    )
    lacquer = Plain("0d2b4e", rough=0.03, f0=0.16, amount=0.02)
    toy = Oak("ffffff")
    blocks = [((-0.032, -0.032, 0.0), (0.032, 0.032, 0.064))]
    red, green = (
        Plain("b23a2a", rough=0.4, f0=0.04, amount=0.08),
        Plain("35745c", rough=0.4, f0=0.04, amount=0.08),
    )
    return [
        Sphere(lacquer, (0.20, -0.25, TABLE + 0.10), 0.10),
        Sphere(
            StripedBall("b8301f", rough=0.3, f0=0.04, amount=0.05, scale=12),
            (-0.08, -0.36, TABLE + 0.07),
            0.07,
            yaw=25,
        ),
        Sphere(orange, (-0.43, 0.14, TABLE + 0.038), 0.038),
        Sphere(orange, (-0.37, 0.21, TABLE + 0.036), 0.036, yaw=70),
        Revolved(
            Plain("e3c23a", rough=0.35, f0=0.04, scale=30, amount=0.05, bump=0.07),
            (-0.46, 0.02, TABLE + 0.040),
            lemon_outline,
        ),
        Boxes(toy, (0.49, -0.02, TABLE), blocks, yaw=20),
        Boxes(red, (0.445, -0.11, TABLE), blocks, yaw=-14),
        Boxes(green, (0.475, -0.06, TABLE + 0.064), blocks, yaw=48),
    ]


def _fallen_leaves() -> Shape:
    rng = np.random.default_rng(211)
    places = np.array(
        [(0.12, 0.41), (0.19, 0.46), (-0.33, 0.33), (0.02, -0.13), (0.33, -0.02), (-0.12, -0.50)]
    )
    bases = np.column_stack([places, np.full(len(places), 0.004)])
    turn = rng.uniform(0, 2 * np.pi, len(places))
    out = np.stack([np.cos(turn), np.sin(turn), np.full(len(places), 0.22)], 1)
    axes = _leaf_axes(out, np.array([0, 0, 1.0]) + 0.12 * rng.normal(size=(len(places), 3)))
    sizes = np.stack([rng.uniform(0.045, 0.065, len(places)), rng.uniform(0.012, 0.017, len(places))], 1)
    return Leaves(Foliage("8a4a1c", "c9a13c", 212), (0, 0, TABLE), bases, axes, sizes)


def _vase() -> Shape:
    outer = [
        (0.048, 0.0), (0.056, 0.004), (0.078, 0.050), (0.104, 0.120), (0.108, 0.170),
        (0.092, 0.220), (0.060, 0.260), (0.040, 0.285), (0.038, 0.305), (0.052, 0.332), (0.058, 0.338),
    ]  # fmt: skip
    material = PaintedVase("b4623f", rough=0.42, f0=0.04, amount=0.10, scale=8)
    return Revolved(material, (-0.16, 0.36, TABLE), vessel(outer, 0.006, 0.012))


def _planter(place: tuple[float, float], seed: int, size: float, greens: tuple[str, str]) -> list[Shape]:
    rng = np.random.default_rng(seed)
    center = np.array([*place, 0.0])
    outer = [
        (0.15 * size, 0.0),
        (0.17 * size, 0.01),
        (0.21 * size, 0.30 * size),
        (0.225 * size, 0.36 * size),
        (0.25 * size, 0.37 * size),
        (0.25 * size, 0.44 * size),
    ]
    clay = Plain("a86a4e", rough=0.8, f0=0.02, amount=0.22, scale=3)
    count = 210
    points = rng.normal(size=(count, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points[:, 2] = np.abs(points[:, 2]) * 1.15 - 0.18
    bases = points * rng.uniform(0.5, 1.0, (count, 1)) * 0.30 * size + (0, 0, 0.55 * size)
    axes = _leaf_axes(
        points + 0.6 * rng.normal(size=(count, 3)), np.array([0, 0, 1.0]) + 0.5 * rng.normal(size=(count, 3))
    )
    sizes = np.stack([rng.uniform(0.12, 0.20, count) * size, rng.uniform(0.03, 0.048, count) * size], 1)
    shapes: list[Shape] = [
        Revolved(clay, center, vessel(outer, 0.02 * size, 0.05)),
        Disc(Soil("33261b"), center + np.array([0, 0, 0.42 * size]), 0.232 * size, 0.02),
        Leaves(Foliage(*greens, seed + 1), center, bases, axes, sizes),
    ]
    return shapes


@cache
def scene() -> tuple[Shape, ...]:
    """Return all shapes, the ground and the dome last."""
    shapes: list[Shape] = [
        *_furniture(),
        *_books(),
        *_mug(),
        *_potted_plant(),
        *_fruit_and_toys(),
        _vase(),
        _fallen_leaves(),
    ]
    shapes.append(Boxes(Mat(), (-0.26, -0.14, TABLE), [((-0.23, -0.16, 0), (0.23, 0.16, 0.0025))], yaw=24))
    shapes += _planter((-2.55, 1.55), 301, 1.15, ("2f5527", "8aa34a"))
    shapes += _planter((-1.2, -2.85), 311, 1.0, ("3a5a3a", "8fae6a"))
    shapes += _planter((2.75, -1.35), 321, 1.25, ("4d5a22", "b0a84c"))
    shapes.append(Ground(GroundCover(), (0, 0, 0), 59.9))
    shapes.append(Dome(Far(), DOME_CENTER, DOME_RADIUS))
    return tuple(shapes)
