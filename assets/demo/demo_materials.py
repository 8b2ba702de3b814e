"""How the demo scene's surfaces look: color, relief, gloss and light shining through, at local points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from demo_geometry import Boxes, Leaves, Shape, normalized, vec
from demo_panorama import look_up
from demo_textures import Texture, book_cover, grass, grunge, leaf, mix, paving, rgb, smoothstep, wood, woven


@dataclass(frozen=True, eq=False)
class Surface:
    """What shading needs at N points: albedo [3, N], shading normal [3, N] and scalars or [N].

    `rough` is 0 for a mirror to 1, `f0` the reflectance seen head-on, `through` the part of the diffuse light
    that passes to the other side, `emits` whether the albedo is the radiance itself.
    """

    albedo: np.ndarray
    normal: np.ndarray
    rough: np.ndarray | float = 0.8
    f0: np.ndarray | float = 0.0
    through: np.ndarray | float = 0.0
    emits: bool = False


class Material:
    """A surface's look; `bounce` [3] is the light it sends back on average, for indirect light."""

    bounce = vec(0.2, 0.18, 0.16)

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        """Return the surface at local points with unit normals, seen with a pixel of `foot` meters."""
        raise NotImplementedError


def col(code: str) -> np.ndarray:
    """Return a color as a column [3, 1]."""
    return rgb(code)[:, None]


def bumped(n: np.ndarray, u_axis: np.ndarray, v_axis: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return normals tilted by the slopes [2, N] of a height along two tangents."""
    return normalized(n - u_axis * slopes[0] - v_axis * slopes[1])


X, Y, Z = vec(1, 0, 0), vec(0, 1, 0), vec(0, 0, 1)


def wear(u: np.ndarray, v: np.ndarray, texels: np.ndarray | float = 1.0) -> np.ndarray:
    """Return the four kinds of wear [4, N]."""
    return grunge().sample(u, v, texels)


class Far(Material):
    """The panorama."""

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        radius = float(shape.bound)
        return Surface(look_up(p / radius, foot / radius), n, emits=True)


class GroundCover(Material):
    """Brick paving of about 3 m around the table, then lawn."""

    bounce = vec(0.42, 0.36, 0.27)

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        large = wear(p[0] / 17, p[1] / 17)
        ragged = wear(p[0] / 1.7, p[1] / 1.7)
        border = np.hypot(p[0], p[1]) + 0.03 * ragged[0] + 0.02 * ragged[1]
        lawn = smoothstep(3.42, 3.50, border)
        texels = foot * (1024 / 2.0)
        stone = np.zeros((5, p.shape[1]), np.float32)
        near = np.flatnonzero(lawn < 1)
        # The bricks run at an angle to the table's planks.
        a, b = 0.82 * p[0] + 0.57 * p[1], -0.57 * p[0] + 0.82 * p[1]
        stone[:, near] = paving().sample(a[near] / 2, b[near] / 2, texels[near])
        stone[:3] *= 1 + 0.10 * large[0] + 0.05 * ragged[0]
        green = grass().sample(p[0] / 2, p[1] / 2, texels)
        other = grass().sample(p[1] / 3.1 + 0.3, p[0] / 3.1, texels * 0.65)
        # Two lawns of different scale hide the tile; the wear adds tufts that are seen from afar.
        green[:3] = np.sqrt(green[:3] * other[:3]) * (
            1 + 0.14 * large[0] + 0.14 * ragged[1] + 0.10 * ragged[0]
        )
        green[:3] = mix(
            green[:3], green[:3] * col("f0d9a0") * 1.3, 0.35 * smoothstep(0.3, 1.8, large[1] + large[0])
        )
        both = mix(stone, green, lawn)
        tilt = bumped(n, vec(0.82, 0.57, 0), vec(-0.57, 0.82, 0), both[3:] * 0.8)
        return Surface(np.clip(both[:3], 0.005, 1), tilt, 0.6, 0.02 * (1 - lawn))


class Oak(Material):
    """Oiled planks; flat surfaces take the planks' picture, others the plain grain."""

    bounce = vec(0.34, 0.20, 0.10)

    def __init__(self, tint: str = "ffffff", *, along: str = "x") -> None:
        self.tint, self.along = col(tint), along

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        offset = 0.37 * sub
        upright = np.abs(n[2]) < 0.7
        flat = ~upright & (self.along == "x")
        if self.along == "x":
            # A rim's grain follows its edge, kept inside one plank of the picture.
            u = np.where(upright, (p[0] - p[1]) / 1.5, p[0] / 1.5 + 0.5) + offset
            v = np.where(upright, 0.292 + 0.4 * p[2], p[1] / 1.5 + 0.5 + offset / 3)
        else:
            u = np.where(upright, p[2] / 1.5, p[0] / 1.5) + offset
            v = 0.292 + 0.3 * np.clip((p[0] + p[1]) % 0.12 - 0.06, -0.06, 0.06)
        found = wood().sample(u, v, foot * 1024)
        tilt = bumped(n, X, Y, np.where(flat, found[3:], 0))
        gloss = 0.34 + 0.10 * np.clip(wear(p[0] * 2, p[1] * 2)[0], -1, 1.5)
        # No varnish shines in the gaps between the planks.
        f0 = 0.04 * smoothstep(0.02, 0.10, found[0])
        return Surface(found[:3] * self.tint, tilt, gloss, f0)


class Plain(Material):
    """One color with wear, its gloss given: fired clay, paint, lacquer, fruit."""

    def __init__(
        self,
        code: str,
        *,
        rough: float = 0.7,
        f0: float = 0.03,
        scale: float = 6.0,
        amount: float = 0.12,
        bump: float = 0.0,
    ) -> None:
        self.color, self.rough, self.f0 = col(code), rough, f0
        self.scale, self.amount, self.bump = scale, amount, bump
        self.bounce = (0.6 * self.color).astype(np.float32)

    def paint(self, p: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Return the color before wear, [3, 1 or N]."""
        return self.color

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        u, v = np.arctan2(p[1], p[0]) / (2 * np.pi) * 0.25 * self.scale / 3, p[2] * self.scale / 3
        texels = foot * self.scale / 3 * 512
        marks = wear(u + 0.2 * n[2], v, texels)
        color = self.paint(p, n) * (1 + self.amount * (0.6 * marks[0] + 0.5 * marks[1] + 0.3 * marks[3]))
        tilt = n
        if self.bump:
            tilt = normalized(n + self.bump * (marks[1] * X + marks[3] * Y + np.roll(marks[1], 1) * Z))
        return Surface(np.clip(color, 0.004, 0.95), tilt, self.rough, self.f0)


class PaintedVase(Plain):
    """Terracotta with painted bands: zigzag, checks, dots, lines."""

    def paint(self, p: np.ndarray, n: np.ndarray) -> np.ndarray:
        angle, z = np.arctan2(p[1], p[0]) / (2 * np.pi), p[2]
        color = np.broadcast_to(self.color, p.shape).copy()
        cream, ink, teal = col("e6d6b4"), col("2a2322"), col("2f6f73")
        hand = 0.0010 * np.sin(2 * np.pi * 5 * angle) + 0.0006 * np.sin(2 * np.pi * 13 * angle + 1)
        h = z + hand
        for low, high, paint in (
            (0.045, 0.050, ink),
            (0.105, 0.110, ink),
            (0.205, 0.210, ink),
            (0.252, 0.256, ink),
        ):
            color = np.where((h > low) & (h < high), paint, color)
        color = np.where((h > 0.055) & (h < 0.100), cream, color)
        zigzag = np.abs((angle * 18) % 1 - 0.5) * 0.07 + 0.0605
        color = np.where((h > 0.055) & (h < 0.100) & (np.abs(h - zigzag) < 0.0055), teal, color)
        check = ((angle * 28).astype(int) + np.floor((h - 0.118) / 0.0198).astype(int)) % 2 == 0
        band = (h > 0.118) & (h < 0.197)
        color = np.where(band, np.where(check ^ (angle < 0), cream, ink), color)
        dot_u = ((angle * 20) % 1 - 0.5) * 0.027
        spots = (h > 0.213) & (h < 0.249) & (np.hypot(dot_u, h - 0.231) < 0.0088)
        color = np.where(spots, cream, color)
        return np.where(h > 0.296, mix(teal, self.color, smoothstep(0.296, 0.298, 0.596 - h)), color)


class StripedBall(Plain):
    """A lacquered ball with eight gores of color and white seams."""

    def paint(self, p: np.ndarray, n: np.ndarray) -> np.ndarray:
        # The ball lies tilted, so its poles are seen from around.
        q = np.stack([n[0], 0.82 * n[1] + 0.57 * n[2], -0.57 * n[1] + 0.82 * n[2]])
        sector = (np.arctan2(q[1], q[0]) / (2 * np.pi) * 8) % 8
        paints = np.stack(
            [rgb(c) for c in ("b8301f", "e9e2d0", "22577a", "e9e2d0", "d99a1c", "e9e2d0", "3b7a46", "e9e2d0")]
        )
        color = paints[np.minimum(sector.astype(int), 7)].T
        seam = np.abs((sector + 0.5) % 1 - 0.5) * np.hypot(q[0], q[1]) < 0.018
        color = np.where(seam, col("3a2f28"), color)
        return np.where(np.abs(q[2]) > 0.955, col("b8301f"), color)


class Mug(Plain):
    """Speckled cream stoneware with a blue dipped foot."""

    def paint(self, p: np.ndarray, n: np.ndarray) -> np.ndarray:
        angle = np.arctan2(p[1], p[0])
        line = 0.034 + 0.003 * np.sin(3 * angle + 0.5) + 0.0015 * np.sin(7 * angle)
        specks = wear(angle / 6.283 * 1.3, p[2] * 5, 1.0)[3]
        color = mix(self.color, col("2b4a63"), smoothstep(0.0015, -0.0015, p[2] - line) * np.ones_like(angle))
        return mix(color, col("5a4632"), 0.85 * smoothstep(2.1, 2.5, specks))


class Apple(Plain):
    """Red with yellow streaks and a green dimple."""

    def paint(self, p: np.ndarray, n: np.ndarray) -> np.ndarray:
        angle = np.arctan2(p[1], p[0])
        marks = wear(angle / (2 * np.pi), p[2] * 2.0, 1.0)
        ripe = smoothstep(-1.3, 1.2, 0.9 * marks[2] + 1.0 * np.sin(angle + 0.7) + 0.5)
        color = mix(col("d8b24a"), self.color, ripe)
        color = mix(color, col("8a9a3c"), smoothstep(0.028, 0.008, np.hypot(p[0], p[1])) * (p[2] > 0.045))
        return mix(color, col("e8d9a0"), 0.7 * smoothstep(2.2, 2.7, marks[3]))


class Foliage(Material):
    """Leaves: light shines through, veins are paler, every leaf has its own green."""

    bounce = vec(0.09, 0.14, 0.04)

    def __init__(self, dark: str, light: str, seed: int) -> None:
        self.dark, self.light = col(dark), col(light)
        self.tones = np.random.default_rng(seed).random(4096).astype(np.float32)

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        assert isinstance(shape, Leaves)
        u, v = shape.uv(p, sub)
        veins, mottle = leaf().sample(u, v / 2 + 0.5, foot / shape.sizes[sub, 0] * 256)
        color = mix(self.dark, self.light, np.clip(self.tones[sub] + 0.08 * mottle, 0, 1))
        color = mix(color, color * 1.7 + 0.02, 0.55 * veins) * (0.85 + 0.25 * np.clip(np.abs(v) * 1.5, 0, 1))
        side = shape.axes[sub, 1].T
        tilt = normalized(n + side * np.clip(v, -1, 1) * 0.30)
        return Surface(np.clip(color, 0.005, 1), tilt, 0.42, 0.04, 0.40)


class Book(Material):
    """Cloth covers with a title, and pages: parts 0 lower cover, 1 upper cover, 2 spine, 3 pages."""

    def __init__(self, title: str, paint: str, ink: str, seed: int) -> None:
        self.cover: Texture = book_cover(title, paint, ink, seed)
        self.paint, self.ink = col(paint), col(ink)
        self.bounce = (0.6 * self.paint).astype(np.float32)

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        assert isinstance(shape, Boxes)
        q = shape.box_coordinates(p, sub)
        # Covers are 0.24 along x and 0.17 along y, the spine is the face y = low.
        found = self.cover.sample((q[0] + 1) / 2, (1 - q[1]) / 2, foot * 2400)
        flat = (np.abs(n[2]) > 0.8) & (sub < 2)
        cloth = self.cover.sample(p[0] * 3.1 + 0.5, np.full_like(p[2], 0.93), foot * 2400)[:3]
        cloth = self.paint * (0.9 + 0.4 * (cloth - self.paint))
        color = np.where(flat, found[:3], cloth)
        bands = (sub == 2) & ((np.abs(np.abs(q[0]) - 0.78) < 0.02) | (np.abs(np.abs(q[0]) - 0.70) < 0.008))
        label = (
            (sub == 2)
            & (np.abs(q[0]) < 0.42)
            & (np.abs(q[2]) < 0.45)
            & (np.sin(p[0] * 520) * np.sin(p[0] * 173) > -0.1)
        )
        color = np.where(bands | label, self.ink, color)
        lines = wear(p[0] * 0.05 + p[1] * 0.05, p[2] * 0 + 0.5)[1] * 0.02 + 0.10 * np.sin(
            p[2] * 5200
        ) * np.exp(-foot * 900)
        layer = 0.16 * np.sin(p[2] * 1900 + 3 * np.sin(p[2] * 700))
        color = np.where(sub == 3, col("e3d7bb") * (0.80 + lines + layer), color)
        slopes = np.where(flat, found[3:] * 0.6, 0)
        return Surface(np.clip(color, 0.005, 1), bumped(n, X, -Y, slopes), 0.6, 0.035)


class Mat(Material):
    """The woven mat."""

    bounce = vec(0.4, 0.36, 0.3)

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        found = woven().sample(p[0] / 0.46 + 0.5, p[1] / 0.32 + 0.5, foot * 2000)
        return Surface(found[:3], bumped(n, X, Y, np.clip(found[3:], -1, 1) * 0.4), 0.9, 0.0)


class Soil(Material):
    """Dark crumbly soil, and coffee when smooth."""

    bounce = vec(0.03, 0.02, 0.015)

    def __init__(self, code: str, *, wet: bool = False) -> None:
        self.color, self.wet = col(code), wet

    def surface(
        self, shape: Shape, p: np.ndarray, n: np.ndarray, sub: np.ndarray, foot: np.ndarray
    ) -> Surface:
        if self.wet:
            froth = smoothstep(0.6, 1.0, np.hypot(p[0], p[1]) / float(shape.bound))
            return Surface(mix(self.color, self.color * 3.2, froth), n, 0.08, 0.03)
        marks = wear(p[0] * 5, p[1] * 5)
        return Surface(np.clip(self.color * (1 + 0.4 * marks[1] + 0.4 * marks[3]), 0.005, 1), n, 0.9, 0.0)
