"""Shapes of the demo scene and the closest hit of many rays at once.

Vectors are float32 arrays [3, N] (one row a coordinate), lengths are meters, z is up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

INFINITY = np.float32(np.inf)
Place = Sequence[float] | np.ndarray
CHUNK = 1 << 15  # rays handled together: their temporaries stay in the processor's cache


def vec(*values: float) -> np.ndarray:
    """Return a float32 column [3, 1]."""
    return np.array(values, np.float32).reshape(3, 1)


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the scalar products of the columns, [N]."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def normalized(a: np.ndarray) -> np.ndarray:
    """Return the columns scaled to length 1."""
    return a / np.sqrt(np.maximum(dot(a, a), 1e-20))


def yaw_matrix(degrees: float) -> np.ndarray:
    """Return the rotation [3, 3] that takes world axes to axes turned by `degrees` about z."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]], np.float32)


class Shape:
    """Something rays can hit, in a local frame with a bounding sphere around `middle`."""

    def __init__(self, material: Any, center: Place, bound: float, *, yaw: float = 0.0) -> None:
        self.material = material
        self.center = vec(*center)
        self.middle = self.center
        self.bound = np.float32(bound)
        self.rotation = yaw_matrix(yaw)

    def candidates(self, o: np.ndarray, d: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Return the indices of the rays that meet the bounding sphere before `t`."""
        to = [self.middle[i] - o[i] for i in range(3)]
        along = to[0] * d[0] + to[1] * d[1] + to[2] * d[2]
        miss2 = to[0] * to[0] + to[1] * to[1] + to[2] * to[2] - along * along
        return np.flatnonzero((miss2 < self.bound**2) & (along > -self.bound) & (along - self.bound < t))

    def local(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return points and directions in the shape's own frame."""
        return self.rotation @ (o - self.center), self.rotation @ d

    def hit(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        """Return the distance to the first hit (inf for none) and the part's number, local rays."""
        raise NotImplementedError

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        """Return the outward unit normals at local points."""
        raise NotImplementedError


def _nearest_root(b: np.ndarray, c: np.ndarray, tmin: float = 1e-5) -> np.ndarray:
    """Return the smallest root above `tmin` of t^2 + 2 b t + c = 0, inf for none."""
    disc = b * b - c
    root = np.sqrt(np.maximum(disc, 0))
    t = np.where(-b - root > tmin, -b - root, -b + root)
    return np.where((disc > 0) & (t > tmin), t, INFINITY)


class Sphere(Shape):
    """A ball of `radius`."""

    def __init__(self, material: Any, center: Place, radius: float, *, yaw: float = 0.0) -> None:
        super().__init__(material, center, radius, yaw=yaw)
        self.radius = np.float32(radius)

    def hit(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        return _nearest_root(dot(o, d), dot(o, o) - self.radius**2), 0

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        return p / self.radius


class Dome(Sphere):
    """The far surroundings: a sphere seen from the inside."""

    def candidates(self, o: np.ndarray, d: np.ndarray, t: np.ndarray) -> np.ndarray:
        return np.flatnonzero(t == INFINITY)

    def hit(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        b = dot(o, d)
        return -b + np.sqrt(np.maximum(b * b - dot(o, o) + self.radius**2, 0)), 0

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        return -p / self.radius


class Ground(Shape):
    """The plane z = 0 out to the radius `bound`."""

    def candidates(self, o: np.ndarray, d: np.ndarray, t: np.ndarray) -> np.ndarray:
        return np.flatnonzero(
            (d[2] < -1e-4) & (o[2] > 1e-5) & (o[2] < t * -np.minimum(d[2], np.float32(-1e-4)))
        )

    def hit(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        t = -o[2] / d[2]
        x, y = o[0] + t * d[0], o[1] + t * d[1]
        return np.where(x * x + y * y < self.bound**2, t, INFINITY), 0

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        return np.broadcast_to(vec(0, 0, 1), p.shape)


class Disc(Shape):
    """An upright cylinder with caps, a round plate: part 0 the top, 1 the underside, 2 the rim."""

    def __init__(self, material: Any, center: Place, radius: float, height: float) -> None:
        super().__init__(material, center, float(np.hypot(radius, height)))
        self.radius, self.height = np.float32(radius), np.float32(height)

    def hit(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        inverse = 1.0 / np.where(np.abs(d[2]) < 1e-8, np.float32(1e-8), d[2])
        best, sub = np.full(o.shape[1], INFINITY), np.zeros(o.shape[1], np.int16)
        a = np.maximum(d[0] ** 2 + d[1] ** 2, 1e-12)
        side = _nearest_root((o[0] * d[0] + o[1] * d[1]) / a, (o[0] ** 2 + o[1] ** 2 - self.radius**2) / a)
        z = o[2] + np.where(np.isfinite(side), side, 0) * d[2]
        tries = [((0 - o[2]) * inverse, 0), ((-self.height - o[2]) * inverse, 1)]
        for t, number in tries:
            flat = (o[0] + t * d[0]) ** 2 + (o[1] + t * d[1]) ** 2 <= self.radius**2
            better = flat & (t > 1e-5) & (t < best)
            best, sub = np.where(better, t, best), np.where(better, number, sub)
        better = (z < 0) & (z > -self.height) & (side < best)
        return np.where(better, side, best), np.where(better, 2, sub)

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        rim = sub == 2
        flat = np.where(sub == 0, 1.0, -1.0)
        return np.stack(
            [
                np.where(rim, p[0] / self.radius, 0),
                np.where(rim, p[1] / self.radius, 0),
                np.where(rim, 0, flat),
            ]
        ).astype(np.float32)


class Boxes(Shape):
    """Axis-aligned boxes in one local frame; the part's number is the box's."""

    def __init__(
        self,
        material: Any,
        center: Place,
        boxes: Sequence[tuple[Sequence[float], Sequence[float]]],
        *,
        yaw: float = 0.0,
    ) -> None:
        self.low = np.array([low for low, _ in boxes], np.float32)
        self.high = np.array([high for _, high in boxes], np.float32)
        middle = (self.low.min(0) + self.high.max(0)) / 2
        super().__init__(material, center, float(np.linalg.norm(self.high.max(0) - middle)), yaw=yaw)
        self.middle = self.center + self.rotation.T @ middle[:, None]

    def hit(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        inverse = 1.0 / np.where(np.abs(d) < 1e-8, np.float32(1e-8), d)
        best, sub = np.full(o.shape[1], INFINITY), np.zeros(o.shape[1], np.int16)
        for number, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            a, b = (low[:, None] - o) * inverse, (high[:, None] - o) * inverse
            enter, leave = np.minimum(a, b).max(0), np.maximum(a, b).min(0)
            better = (enter <= leave) & (enter > 1e-5) & (enter < best)
            best, sub = np.where(better, enter, best), np.where(better, np.int16(number), sub)
        return best, sub

    def box_coordinates(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        """Return each point's place in its own box, -1..1 along every axis, [3, N]."""
        low, high = self.low[sub].T, self.high[sub].T
        return (2 * p - low - high) / (high - low)

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        half = (self.high[sub].T - self.low[sub].T) / 2
        q = self.box_coordinates(p, sub)
        axis = np.argmin((1 - np.abs(q)) * half, axis=0)
        n = np.zeros_like(p)
        columns = np.arange(p.shape[1])
        n[axis, columns] = np.sign(q[axis, columns])
        # A real edge is worn round: bend the normal over the last 1.5 mm.
        return normalized(n + np.sign(q) * 0.7 * np.clip(1 - (1 - np.abs(q)) * half / 0.0015, 0, 1))


class SdfShape(Shape):
    """A shape given by a signed distance function of local points, by sphere tracing."""

    def __init__(
        self,
        material: Any,
        center: Place,
        bound: float,
        sdf: Callable[[np.ndarray], np.ndarray],
        *,
        middle: Place = (0, 0, 0),
        yaw: float = 0.0,
    ) -> None:
        super().__init__(material, center, bound, yaw=yaw)
        self.local_middle = vec(*middle)
        self.middle = self.center + self.rotation.T @ self.local_middle
        self.sdf = sdf

    def hit(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        to = self.local_middle - o
        along = dot(to, d)
        half = np.sqrt(np.maximum(self.bound**2 - dot(to, to) + along * along, 0))
        t, end = np.maximum(along - half, 0), along + half
        result = np.full(o.shape[1], INFINITY)
        live = np.arange(o.shape[1])
        for _ in range(64):
            if live.size == 0:
                break
            distance = self.sdf(o[:, live] + d[:, live] * t[live])
            touched = distance < 1.5e-4
            result[live[touched]] = t[live[touched]]
            t[live] += distance
            live = live[~touched & (t[live] < end[live])]
        return result, 0

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        step = 4e-4
        axes = np.eye(3, dtype=np.float32)[:, :, None] * np.float32(step)
        return normalized(np.stack([self.sdf(p + e) - self.sdf(p - e) for e in axes]))


class Revolved(SdfShape):
    """A closed outline (radius, height) [K, 2] turned about the z axis; its distance field is tabulated."""

    CELL = 0.0008

    def __init__(self, material: Any, center: Place, outline: np.ndarray, *, yaw: float = 0.0) -> None:
        low, high = outline.min(0), outline.max(0)
        middle = (0.0, 0.0, float(low[1] + high[1]) / 2)
        bound = float(np.hypot(outline[:, 0], outline[:, 1] - middle[2]).max()) + 0.002
        super().__init__(material, center, bound, self.distance, middle=middle, yaw=yaw)
        # The table reaches past the axis so that the gradient there is right.
        cell = max(self.CELL, float((high - low).max()) / 420)
        self.cell, self.origin = cell, np.array([-2 * cell, low[1] - 4 * cell])
        counts = np.ceil((high - self.origin) / cell).astype(int) + 5
        r = np.abs(self.origin[0] + cell * np.arange(counts[0]))
        z = self.origin[1] + cell * np.arange(counts[1])
        table = _outline_distance(outline, r, z)
        slopes = np.gradient(table, cell)
        self.table = np.stack([table, *slopes], -1).astype(np.float32).reshape(-1, 3)
        self.counts = counts

    def lookup(self, p: np.ndarray, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bilinear table values [channels, N] and the distance to the table's border [N]."""
        r = np.sqrt(p[0] * p[0] + p[1] * p[1])
        x, y = (r - self.origin[0]) / self.cell, (p[2] - self.origin[1]) / self.cell
        cx, cy = np.clip(x, 0, self.counts[0] - 1.001), np.clip(y, 0, self.counts[1] - 1.001)
        i, j = cx.astype(np.int32), cy.astype(np.int32)
        fx, fy = (cx - i).astype(np.float32), (cy - j).astype(np.float32)
        base, stride = i * int(self.counts[1]) + j, int(self.counts[1])
        outside = np.hypot(x - cx, y - cy) * self.cell
        values = []
        for channel in range(channels) if channels == 1 else (1, 2):
            column = self.table[:, channel]
            lower = column[base] * (1 - fy) + column[base + 1] * fy
            upper = column[base + stride] * (1 - fy) + column[base + stride + 1] * fy
            values.append(lower * (1 - fx) + upper * fx)
        return np.stack(values), outside.astype(np.float32)

    def distance(self, p: np.ndarray) -> np.ndarray:
        """Return a lower bound of the distance to the surface, exact near it, [N]."""
        value, outside = self.lookup(p, 1)
        # Beyond a convex border the distance is at least this.
        return np.where(outside > 0, np.sqrt(value[0] ** 2 + outside**2), value[0])

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        slope, _ = self.lookup(p, 2)
        r = np.maximum(np.hypot(p[0], p[1]), 1e-6)
        return normalized(np.stack([slope[0] * p[0] / r, slope[0] * p[1] / r, slope[1]]))


def _outline_distance(outline: np.ndarray, r: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return the signed distance [R, Z] to a closed polygon; segments on the axis do not count."""
    px, py = np.meshgrid(r, z, indexing="ij")
    best, inside = np.full(px.shape, np.inf), np.zeros(px.shape, bool)
    for (ax, ay), (bx, by) in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        ex, ey = bx - ax, by - ay
        if ey != 0:
            crosses = ((ay > py) != (by > py)) & (px < ax + (py - ay) / ey * ex)
            inside ^= crosses
        if max(ax, bx) < 1e-9 or ex * ex + ey * ey == 0:
            continue
        s = np.clip(((px - ax) * ex + (py - ay) * ey) / (ex * ex + ey * ey), 0, 1)
        best = np.minimum(best, np.hypot(px - ax - s * ex, py - ay - s * ey))
    return np.where(inside, -best, best)


class Leaves(Shape):
    """Many leaves, each a patch of a big sphere cut to a leaf's outline; the part's number is the leaf's.

    `bases` [L, 3] local, `axes` [L, 3, 3] with rows along, side, up; `sizes` [L, 2] length and half width.
    """

    CURVATURE = 1.3  # radius of the bend in leaf lengths

    def __init__(
        self, material: Any, center: Place, bases: np.ndarray, axes: np.ndarray, sizes: np.ndarray
    ) -> None:
        self.bases, self.axes = bases.astype(np.float32), axes.astype(np.float32)
        self.sizes = sizes.astype(np.float32)
        self.radii = self.sizes[:, 0] * np.float32(self.CURVATURE)
        self.spheres = self.bases - self.axes[:, 2] * self.radii[:, None]
        self.middles = self.bases + self.axes[:, 0] * self.sizes[:, :1] * 0.5
        middle = (self.middles.min(0) + self.middles.max(0)) / 2
        reach = np.linalg.norm(self.middles - middle, axis=1) + self.sizes[:, 0] * 0.75
        super().__init__(material, center, float(reach.max()))
        self.middle = self.center + middle[:, None]

    def hit(self, o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | int]:
        best, sub = np.full(o.shape[1], INFINITY), np.zeros(o.shape[1], np.int16)
        for number in range(len(self.bases)):
            to = self.middles[number][:, None] - o
            along = dot(to, d)
            reach = self.sizes[number, 0] * np.float32(0.62)
            near = np.flatnonzero((dot(to, to) - along * along < reach**2) & (along > -reach))
            if near.size == 0:
                continue
            lo, ld = o[:, near], d[:, near]
            from_sphere = lo - self.spheres[number][:, None]
            b = dot(from_sphere, ld)
            disc = b * b - dot(from_sphere, from_sphere) + self.radii[number] ** 2
            root = np.sqrt(np.maximum(disc, 0))
            for t in (-b - root, -b + root):
                u, v = self._uv(lo + t * ld, number)
                good = (disc > 0) & (t > 1e-4) & (t < best[near]) & self._inside(u, v)
                best[near[good]], sub[near[good]] = t[good], number
        return best, sub

    def _uv(self, p: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        q = p - self.bases[number][:, None]
        along, side, up = self.axes[number] @ q
        length, half = self.sizes[number]
        # The far side of the sphere is no leaf.
        return np.where(up > -self.radii[number], along / length, -1), side / half

    @staticmethod
    def _inside(u: np.ndarray, v: np.ndarray) -> np.ndarray:
        s = np.clip(u, 0, 1)
        width = np.maximum(np.sin(np.pi * s**0.8), 0) ** 0.8 * (1 - 0.35 * s)
        return (u > 0) & (u < 1) & (np.abs(v) < width)

    def uv(self, p: np.ndarray, sub: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where on its leaf each point is: along 0..1, across -1..1."""
        q = p - self.bases[sub].T
        along, side = self.axes[sub, 0].T, self.axes[sub, 1].T
        return dot(q, along) / self.sizes[sub, 0], dot(q, side) / self.sizes[sub, 1]

    def normal(self, p: np.ndarray, sub: np.ndarray) -> np.ndarray:
        return (p - self.spheres[sub].T) / self.radii[sub]


@dataclass(frozen=True, eq=False)
class Hits:
    """The first hit of N rays: distance (inf for none), shape number (-1 for none), part number."""

    t: np.ndarray
    shape: np.ndarray
    sub: np.ndarray


def trace(shapes: Sequence[Shape], o: np.ndarray, d: np.ndarray) -> Hits:
    """Return the first hits of rays from `o` along unit `d`, both [3, N]."""
    n = o.shape[1]
    t, which, sub = np.full(n, INFINITY), np.full(n, -1, np.int16), np.zeros(n, np.int16)
    for start in range(0, n, CHUNK):
        part = slice(start, start + CHUNK)
        po, pd, pt = o[:, part], d[:, part], t[part]
        for number, shape in enumerate(shapes):
            index = shape.candidates(po, pd, pt)
            if index.size == 0:
                continue
            found, parts = shape.hit(*shape.local(po[:, index], pd[:, index]))
            better = found < pt[index]
            index = index[better]
            pt[index], which[part][index] = found[better], number
            sub[part][index] = parts[better] if isinstance(parts, np.ndarray) else parts
    return Hits(t, which, sub)
