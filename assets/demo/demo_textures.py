"""Procedural images for the demo scene: noise, wood, paving, grass, cloth, covers. All linear light, float32.

A surface texture has the channels red, green, blue, slope along u, slope along v (height change a meter), so
that one lookup gives color and relief.
"""

from __future__ import annotations

from functools import cache

import numpy as np


class Texture:
    """An image [H, W, C] with its pyramid; v runs down the rows, both coordinates wrap unless `clamp`."""

    def __init__(self, image: np.ndarray, *, clamp: bool = False) -> None:
        self.clamp = clamp
        self.levels = [np.ascontiguousarray(image, np.float32)]
        while min(self.levels[-1].shape[:2]) >= 4:
            a = self.levels[-1]
            a = a[: a.shape[0] // 2 * 2, : a.shape[1] // 2 * 2]
            self.levels.append((a[::2, ::2] + a[1::2, ::2] + a[::2, 1::2] + a[1::2, 1::2]) * np.float32(0.25))

    def sample(self, u: np.ndarray, v: np.ndarray, texels: np.ndarray | float = 1.0) -> np.ndarray:
        """Return [C, N] at u, v in 0..1, averaged over about `texels` pixels of the full image."""
        lod = np.clip(np.log2(np.maximum(np.broadcast_to(texels, u.shape), 1.0)), 0, len(self.levels) - 1.001)
        level = lod.astype(np.int32)
        out = np.empty((self.levels[0].shape[2], u.size), np.float32)
        for number in np.unique(level):
            index = np.flatnonzero(level == number)
            mix = (lod[index] - number).astype(np.float32)
            fine = self._bilinear(self.levels[number], u[index], v[index])
            coarse = self._bilinear(self.levels[number + 1], u[index], v[index])
            out[:, index] = fine + (coarse - fine) * mix
        return out

    def _bilinear(self, image: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        height, width, channels = image.shape
        x, y = u * width - 0.5, v * height - 0.5
        x0, y0 = np.floor(x), np.floor(y)
        fx, fy = (x - x0).astype(np.float32)[:, None], (y - y0).astype(np.float32)[:, None]
        x0, y0 = x0.astype(np.int64), y0.astype(np.int64)
        if self.clamp:
            xs = np.clip(x0, 0, width - 1), np.clip(x0 + 1, 0, width - 1)
            ys = np.clip(y0, 0, height - 1), np.clip(y0 + 1, 0, height - 1)
        else:
            xs, ys = (x0 % width, (x0 + 1) % width), (y0 % height, (y0 + 1) % height)
        flat = image.reshape(-1, channels)
        top = flat[ys[0] * width + xs[0]] * (1 - fx) + flat[ys[0] * width + xs[1]] * fx
        bottom = flat[ys[1] * width + xs[0]] * (1 - fx) + flat[ys[1] * width + xs[1]] * fx
        return (top * (1 - fy) + bottom * fy).T


def rgb(code: str) -> np.ndarray:
    """Return the linear color of a hexadecimal sRGB code."""
    s = np.array([int(code[i : i + 2], 16) for i in (0, 2, 4)]) / 255.0
    return np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4).astype(np.float32)


def mix(a: np.ndarray, b: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return a + (b - a) * weight."""
    return a + (b - a) * weight


def smoothstep(low: float, high: float, x: np.ndarray) -> np.ndarray:
    """Return a smooth ramp from 0 at `low` to 1 at `high`."""
    s = np.clip((x - low) / (high - low), 0, 1)
    return s * s * (3 - 2 * s)


def fractal(
    seed: int,
    height: int,
    width: int,
    *,
    beta: float = 1.6,
    stretch: tuple[float, float] = (1, 1),
    low: float = 0,
) -> np.ndarray:
    """Return tileable 1/f^beta noise [height, width] of mean 0 and deviation 1.

    `stretch` (down, across) makes features longer that way; frequencies below `low` a tile are left out.
    """
    rng = np.random.default_rng(seed)
    fy = np.fft.fftfreq(height)[:, None] * height * stretch[0]
    fx = np.fft.rfftfreq(width)[None, :] * width * stretch[1]
    radius = np.hypot(fy, fx)
    amplitude = np.where(radius > low, np.maximum(radius, 1e-9) ** -beta, 0)
    amplitude[0, 0] = 0
    noise = np.fft.irfft2(amplitude * np.fft.rfft2(rng.standard_normal((height, width))), s=(height, width))
    return (noise / noise.std()).astype(np.float32)


def with_relief(color: np.ndarray, height: np.ndarray, texel: tuple[float, float]) -> np.ndarray:
    """Return color and slopes [H, W, 5]; `height` in meters, `texel` the meters a pixel along u and v."""
    slope_u = (np.roll(height, -1, 1) - np.roll(height, 1, 1)) / (2 * texel[0])
    slope_v = (np.roll(height, -1, 0) - np.roll(height, 1, 0)) / (2 * texel[1])
    return np.concatenate([color, slope_u[..., None], slope_v[..., None]], -1).astype(np.float32)


@cache
def wood() -> Texture:
    """Return oiled oak planks, 1.5 m square, planks along u and 12.5 cm wide."""
    size, planks = 1536, 12
    x = np.arange(size)[None, :] / size
    y = np.arange(size)[:, None] / size
    plank = (np.arange(size) * planks // size)[:, None]
    rng = np.random.default_rng(3)
    shift = rng.integers(0, size, planks)
    columns = (np.arange(size)[None, :] + shift[plank]) % size
    rows = np.broadcast_to(np.arange(size)[:, None], columns.shape)
    warp = fractal(4, size, size, beta=2.0, stretch=(1, 7))[rows, columns]
    grain = fractal(5, size, size, beta=0.9, stretch=(1, 45))[rows, columns]
    pores = fractal(6, size, size, beta=0.5, stretch=(1, 22), low=90)[rows, columns]
    across = y * planks - plank
    rings = 0.5 + 0.5 * np.sin(
        2 * np.pi * (7 * (across - rng.random(planks)[plank]) ** 2 + 1.3 * warp + 0.6 * x)
    )
    tone = 0.55 * rings + 0.16 * grain + 0.12 * warp
    color = mix(rgb("b5875c"), rgb("74492b"), np.clip(tone, 0, 1)[..., None])
    color = color * (1 + 0.22 * (rng.random(planks)[plank] - 0.5)[..., None] * np.array([1, 1.1, 1.3]))
    color = color * (1 - 0.45 * smoothstep(1.0, 2.6, pores)[..., None])
    stain = fractal(7, size, size, beta=1.8)
    color = color * (1 - 0.10 * smoothstep(0.2, 1.8, stain)[..., None])
    edge = np.minimum(across, 1 - across) / planks * 1.5  # meters to the plank's edge
    gap = 1 - smoothstep(0.0008, 0.0022, edge)
    color = mix(color, rgb("20130a"), (0.92 * gap * np.ones_like(x))[..., None])
    height = 0.0008 * smoothstep(0.0, 0.005, edge) + 0.00008 * grain - 0.00022 * smoothstep(0.8, 2.4, pores)
    return Texture(with_relief(color, height, (1.5 / size, 1.5 / size)))


@cache
def paving() -> Texture:
    """Return clay bricks in running bond, a tile of 2 m square: bricks of 25 x 12.5 cm."""
    size, rows, columns = 1024, 16, 8
    y, x = np.mgrid[0:size, 0:size] / size
    wobble = fractal(11, size, size, beta=1.5) * 0.0016
    yy, xx = (y + wobble) % 1, (x + np.roll(wobble, 300, 0)) % 1
    row = (yy * rows).astype(int) % rows
    bx = (xx * columns + 0.5 * (row % 2)) % columns
    brick = row * columns + bx.astype(int)
    rng = np.random.default_rng(12)
    warm = rng.random(rows * columns)[brick][..., None]
    light = rng.normal(1, 0.13, rows * columns)[brick][..., None]
    fine = fractal(13, size, size, beta=0.7)
    blotch = fractal(14, size, size, beta=1.4)
    color = mix(rgb("a5705a"), rgb("96816f"), warm) * light
    color = color * (1 + 0.10 * fine + 0.10 * blotch)[..., None]
    color = mix(
        color, rgb("cfc4b4"), (0.45 * smoothstep(1.1, 2.2, np.roll(fine + blotch, 500, 1)))[..., None]
    )
    fy, fx = yy * rows % 1, bx % 1
    edge = np.minimum(np.minimum(fy, 1 - fy) * 0.125, np.minimum(fx, 1 - fx) * 0.25) + 0.0012 * fine
    joint = 1 - smoothstep(0.003, 0.009, edge)
    moss = smoothstep(0.1, 1.1, np.roll(blotch, 200, 0))
    grout = mix(rgb("5d5348"), rgb("4d5a2c"), moss[..., None]) * (1 + 0.25 * fine[..., None])
    color = mix(color, grout, joint[..., None])
    height = 0.004 * smoothstep(0.002, 0.013, edge) + 0.0004 * fine
    return Texture(with_relief(np.clip(color, 0.01, 0.9), height, (2 / size, 2 / size)))


@cache
def grass() -> Texture:
    """Return a lawn, a tile of 2 m square."""
    size = 1024
    blades = np.maximum(
        fractal(21, size, size, beta=0.45, stretch=(1, 4), low=60),
        np.maximum(
            fractal(22, size, size, beta=0.45, stretch=(4, 1), low=60),
            fractal(23, size, size, beta=0.5, stretch=(1.4, 1.4), low=70),
        ),
    )
    clumps = fractal(24, size, size, beta=1.3)
    tufts = fractal(27, size, size, beta=0.8, low=14)
    tone = np.clip(0.30 + 0.20 * blades + 0.13 * tufts + 0.09 * clumps, 0, 1)[..., None]
    color = mix(rgb("2a3620"), rgb("7f8955"), tone)
    dry = smoothstep(0.6, 2.2, fractal(25, size, size, beta=1.1))[..., None]
    color = mix(color, rgb("a39a5c") * (0.4 + tone), 0.5 * dry)
    rng = np.random.default_rng(26)
    for cy, cx in rng.integers(4, size - 4, (70, 2)):
        yy, xx = np.mgrid[-4:5, -4:5]
        petals = (np.hypot(yy, xx) < rng.uniform(2.6, 4.2))[..., None]
        heart = (np.hypot(yy, xx) < 1.5)[..., None]
        window = color[cy - 4 : cy + 5, cx - 4 : cx + 5]
        window[:] = np.where(heart, rgb("e0b030"), np.where(petals, rgb("eeeee6"), window))
    return Texture(with_relief(color, 0.004 * blades, (2 / size, 2 / size)))


@cache
def grunge() -> Texture:
    """Return four kinds of wear: coarse, fine, streaks along v, specks; each of mean 0, deviation 1."""
    layers = [
        fractal(31, 512, 512, beta=1.6),
        fractal(32, 512, 512, beta=0.6, low=12),
        fractal(33, 512, 512, beta=0.9, stretch=(25, 1)),
        fractal(34, 512, 512, beta=0.25, low=60),
    ]
    return Texture(np.stack(layers, -1))


@cache
def woven() -> Texture:
    """Return a woven mat of 0.46 x 0.32 m with bands of color and a fringe's worth of thread detail."""
    height, width = 640, 920
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    warp, weft = np.sin(x * np.pi / 4), np.sin(y * np.pi / 4)
    over = np.sin(x * np.pi / 8) * np.sin(y * np.pi / 8) > 0
    thread = np.where(over, np.abs(warp), np.abs(weft))
    cream, blue, rust = rgb("d9cdb2"), rgb("2f4d6b"), rgb("a5482c")
    color = np.broadcast_to(cream, (height, width, 3)).copy()
    u = np.abs(x / width * 2 - 1)
    for low, high, paint in ((0.93, 0.97, rust), (0.74, 0.89, blue), (0.66, 0.70, rust), (0.60, 0.62, blue)):
        color[(u > low) & (u < high)] = paint
    v = y / height * 2 - 1
    diamond = (np.abs(((x / width * 14) % 2) - 1) + np.abs(v * 2.4)) % 0.5
    color[(u < 0.56) & (np.abs(v) < 0.42) & (diamond < 0.16)] = blue
    color[(u < 0.56) & (np.abs(np.abs(v) - 0.56) < 0.025)] = rust
    noise = fractal(41, height, width, beta=0.7)
    color = color * (0.45 + 0.65 * thread + 0.10 * noise)[..., None]
    return Texture(
        with_relief(np.clip(color, 0.01, 1), 0.0003 * thread, (0.46 / width, 0.32 / height)), clamp=True
    )


@cache
def leaf() -> Texture:
    """Return one leaf: u along the rows' width 0..1, v across -1..1 down the rows; brightness and veins."""
    v, u = np.mgrid[-1:1:128j, 0:1:256j]
    side = np.abs(v)
    spacing = (u * 9 - side * 3.2) % 1
    veins = np.maximum(np.exp(-((side / 0.05) ** 2)), 0.6 * np.exp(-(((spacing - 0.5) / 0.10) ** 2)))
    mottle = fractal(51, 128, 256, beta=1.0)
    return Texture(np.stack([veins, mottle], -1), clamp=True)


FONT = {
    "A": "0e11111f111111",
    "D": "1e11111111111e",
    "E": "1f10101e10101f",
    "G": "0e11101711110f",
    "H": "1111111f111111",
    "I": "0e04040404040e",
    "L": "1010101010101f",
    "N": "11191915131311",
    "P": "1e11111e101010",
    "R": "1e11111e141211",
    "S": "0f10100e01011e",
    "T": "1f040404040404",
    " ": "00000000000000",
}


def lettering(text: str) -> np.ndarray:
    """Return a small bitmap [7, 6 n] of the text."""
    rows = [
        [[int(FONT[c][2 * r : 2 * r + 2], 16) >> (4 - b) & 1 for b in range(5)] + [0] for r in range(7)]
        for c in text
    ]
    return np.concatenate([np.array(r, bool) for r in rows], axis=1)


def book_cover(title: str, paint: str, ink: str, seed: int) -> Texture:
    """Return a cloth cover 0.24 x 0.17 m with its title, frame and ornament, [H, W, 5]."""
    height, width = 408, 576
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    weave = np.sin(x * np.pi / 2.0) * np.sin(y * np.pi / 2.0)
    wear = fractal(seed, height, width, beta=1.5)
    color = (
        rgb(paint)
        * (1 + 0.10 * weave + 0.07 * wear + 0.08 * fractal(seed + 1, height, width, beta=0.6))[..., None]
    )
    inset = np.minimum(np.minimum(x, width - 1 - x), np.minimum(y, height - 1 - y))
    marks = (np.abs(inset - 22) < 2.5) | (np.abs(inset - 31) < 1.2)
    distance = np.hypot(x - width / 2, y - height * 0.64)
    angle = np.arctan2(y - height * 0.64, x - width / 2)
    marks |= (distance < 62 + 16 * np.cos(8 * angle)) & (distance > 46 + 16 * np.cos(8 * angle))
    marks |= (distance < 20 + 9 * np.cos(8 * angle + np.pi)) | (np.abs(distance - 92) < 2)
    letters = np.kron(lettering(title), np.ones((8, 8), bool))
    top, left = 62, (width - letters.shape[1]) // 2
    marks[top : top + letters.shape[0], left : left + letters.shape[1]] |= letters
    solid = marks & (wear + fractal(seed + 2, height, width, beta=0.5) < 2.2)
    color = np.where(solid[..., None], rgb(ink) * (1 + 0.08 * weave[..., None]), color)
    color = mix(color, rgb("b8a78c"), (0.5 * (1 - smoothstep(0, 5, inset + 2 * wear)))[..., None])
    relief = 0.00006 * weave - 0.0002 * marks
    return Texture(with_relief(np.clip(color, 0.01, 1), relief, (0.24 / width, 0.17 / height)), clamp=True)
