"""The far surroundings of the demo scene: sky, clouds, hills and a line of trees, as one panorama."""

from __future__ import annotations

from functools import cache

import numpy as np
from demo_textures import Texture, fractal, mix, rgb, smoothstep

WIDTH = 4096
PER_DEGREE = WIDTH / 360
LOWEST = -2.5  # degrees of elevation of the last row
HEIGHT = int((90 - LOWEST) * PER_DEGREE)
LAND = 224  # rows from the bottom that hills and trees can reach
SUN = np.array([-0.42, 0.50, 0.757], np.float32) / np.float32(np.linalg.norm([-0.42, 0.50, 0.757]))


def sky(z: np.ndarray, toward_sun: np.ndarray) -> np.ndarray:
    """Return the clear sky's radiance [3, N] for the sine of the elevation and the cosine to the sun."""
    height = np.clip(z, 0, 1) ** 0.55
    base = mix(np.array([0.72, 0.85, 1.02])[:, None], np.array([0.16, 0.34, 0.76])[:, None], height)
    glow = np.clip(toward_sun, 0, 1) ** 12
    return (base + glow * np.array([0.55, 0.47, 0.34])[:, None]).astype(np.float32)


def _elevations() -> tuple[np.ndarray, np.ndarray]:
    elevation = 90 - (np.arange(HEIGHT) + 0.5)[:, None] / PER_DEGREE
    azimuth = (np.arange(WIDTH) + 0.5)[None, :] / PER_DEGREE
    return elevation, azimuth


def _paint_sky() -> np.ndarray:
    elevation, azimuth = (np.radians(a) for a in _elevations())
    direction = [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth)]
    z = np.sin(elevation) * np.ones_like(azimuth)
    toward_sun = direction[0] * SUN[0] + direction[1] * SUN[1] + z * SUN[2]
    image = sky(z.ravel(), toward_sun.ravel()).T.reshape(HEIGHT, WIDTH, 3)
    # Clouds lie on a plane overhead, so they shrink toward the horizon.
    reach = 0.11 / np.maximum(z + 0.10, 0.05)
    field = Texture(np.stack([fractal(61, 1024, 1024, beta=1.55), fractal(62, 1024, 1024, beta=1.2)], -1))
    u, v = (direction[0] * reach).ravel() + 0.35, (direction[1] * reach).ravel() + 0.2
    density, wisp = field.sample(u, v, 1.5)
    cover = smoothstep(0.15, 1.7, density + 0.35 * wisp).reshape(HEIGHT, WIDTH)
    cover *= smoothstep(0.02, 0.12, z)
    shade = smoothstep(0.6, 2.6, density.reshape(HEIGHT, WIDTH))[..., None]
    cloud = mix(np.array([1.75, 1.72, 1.66]), np.array([0.95, 1.00, 1.08]), 0.7 * shade)
    return mix(image, cloud, 0.85 * cover[..., None]).astype(np.float32)


def _paint_hills(image: np.ndarray) -> None:
    """Paint the ridges into the panorama's lowest rows."""
    elevation = _elevations()[0][-len(image) :]
    ridges = (
        (71, 4.6, 1.5, "8fa6c0", "a3b5c6", 0.05),
        (72, 3.1, 1.2, "6f8b93", "8ea39a", 0.10),
        (73, 1.6, 0.9, "5c6c4a", "868a5c", 0.16),
    )
    for seed, base, amplitude, dark, light, contrast in ridges:
        line = base + amplitude * fractal(seed, 4, WIDTH, beta=2.0, stretch=(30, 1))[:1]
        line = line + 0.05 * fractal(seed + 10, 4, WIDTH, beta=0.6, stretch=(30, 1))[:1]
        fields = fractal(seed + 20, len(image), WIDTH, beta=1.1, stretch=(1, 4))
        grain = fractal(seed + 30, len(image), WIDTH, beta=0.5)
        tone = np.clip(0.5 + 0.35 * fields, 0, 1)[..., None]
        paint = mix(rgb(dark), rgb(light), tone) * (1 + contrast * grain)[..., None] * 1.35
        cover = smoothstep(0, 0.12, line - elevation)[..., None]
        image[:] = mix(image, paint.astype(np.float32), cover)


def _crown(rng: np.random.Generator, azimuth: float, size: float, color: np.ndarray) -> np.ndarray:
    """Return the leaf clusters [B, 7] of one tree: lobes of foliage, lit from above, dark inside."""
    lobes, leaves = int(7 + 5 * size), int(34 + 16 * size)
    tall = rng.uniform(0.85, 1.7)
    lobe = rng.uniform(-1, 1, (lobes, 2))
    lobe /= np.maximum(1, np.linalg.norm(lobe, axis=1, keepdims=True)) * 1.35
    lobe[:, 0] *= np.sqrt(np.clip(1.15 - np.maximum(lobe[:, 1], -0.3), 0.1, 1))
    lobe = lobe[np.argsort(rng.random(lobes))]
    spread = rng.normal(0, 0.17, (lobes, leaves, 2)) * rng.uniform(0.7, 1.2, (lobes, 1, 1))
    place = lobe[:, None] + spread
    light = 0.50 + 0.22 * place[..., 1] + 1.25 * spread[..., 1] + 0.35 * spread[..., 0]
    light = light + rng.normal(0, 0.12, (lobes, leaves))
    blob = np.empty((lobes, leaves, 7))
    blob[..., 0] = azimuth + place[..., 0] * size
    blob[..., 1] = -1.3 + (place[..., 1] + 0.85) * size * tall
    blob[..., 2] = rng.uniform(0.07, 0.19, (lobes, leaves))
    blob[..., 3:6] = color * rng.normal(1, 0.05, (lobes, 1, 1)) * rng.normal(1, 0.05, (lobes, leaves, 3))
    blob[..., 6] = light
    return blob.reshape(-1, 7)


def _tree_blobs(rng: np.random.Generator) -> np.ndarray:
    """Return blobs [B, 7] back to front: azimuth, elevation, radius (degrees), red, green, blue, light."""
    greens = [rgb(c) for c in ("4c5f2f", "3c5230", "66703c", "33482c", "787444", "566433")]
    blobs = []
    for number in range(230):
        near = number / 230
        size = rng.uniform(1.0, 2.9) * (0.75 + 0.9 * near * rng.random())
        color = mix(rgb("7d8f8a"), greens[rng.integers(len(greens))], np.array(0.45 + 0.55 * near))
        blobs.append(_crown(rng, rng.uniform(0, 360), size, color * rng.uniform(0.8, 1.15)))
    count = 16000
    hedge = np.empty((count, 7))
    hedge[:, 0], hedge[:, 2] = rng.uniform(0, 360, count), rng.uniform(0.06, 0.16, count)
    top = -0.35 + 0.25 * np.sin(np.radians(hedge[:, 0] * 37)) + 0.2 * np.sin(np.radians(hedge[:, 0] * 91))
    depth = rng.random(count)
    hedge[:, 1] = top - depth * (top + 1.9)
    hedge[:, 3:6] = np.array(greens)[rng.integers(2, size=count)] * rng.normal(1, 0.07, (count, 3))
    hedge[:, 6] = 0.75 - 0.5 * depth + rng.normal(0, 0.14, count)
    blobs.append(hedge)
    return np.concatenate(blobs)


def _paint_trees(image: np.ndarray) -> None:
    blobs = _tree_blobs(np.random.default_rng(81))
    x = (blobs[:, 0] % 360) * PER_DEGREE
    y = (90 - blobs[:, 1]) * PER_DEGREE
    radius = blobs[:, 2] * PER_DEGREE
    dy, dx = (a.ravel() for a in np.mgrid[-2:3, -2:3])
    for part in np.array_split(np.arange(len(blobs)), 24):
        rows, columns = y[part].astype(int)[:, None] + dy, x[part].astype(int)[:, None] + dx
        inside = np.hypot(rows + 0.5 - y[part, None], columns + 0.5 - x[part, None]) < radius[part, None]
        inside &= (rows >= 0) & (rows < HEIGHT)
        paint = blobs[part, 3:6] * np.clip(blobs[part, 6, None], 0.10, 1.1) * 2.0
        # Later assignments win, so later blobs stand in front.
        owner = np.broadcast_to(np.arange(len(part))[:, None], rows.shape)[inside]
        image[rows[inside], columns[inside] % WIDTH] = paint[owner]


@cache
def panorama() -> Texture:
    """Return the panorama [HEIGHT, WIDTH, 3] of radiance: u is the azimuth, row 0 the zenith."""
    image = _paint_sky()
    land = image[-LAND:]
    _paint_hills(land)
    before = land.copy()
    _paint_trees(image)
    trees = (np.abs(land - before).max(-1, keepdims=True) > 1e-4).astype(np.float32)
    leafy = fractal(82, LAND, WIDTH, beta=0.35, low=200)[..., None]
    land *= 1 + trees * 0.22 * np.clip(leafy, -2, 2)
    land[:] = mix(land, rgb("b9c7d2"), 0.07 * trees)
    soft = (image + np.roll(image, 1, 1) + np.roll(image, 1, 0) + np.roll(image, (1, 1), (0, 1))) / 4
    return Texture(soft)


def look_up(d: np.ndarray, spread: np.ndarray | float) -> np.ndarray:
    """Return the radiance [3, N] along unit directions from the dome's center; `spread` in radians."""
    azimuth = np.arctan2(d[1], d[0]) / (2 * np.pi) % 1.0
    elevation = np.degrees(np.arcsin(np.clip(d[2], -1, 1)))
    v = np.minimum((90 - elevation) * PER_DEGREE / HEIGHT, 1 - 1.0 / HEIGHT)
    return panorama().sample(azimuth, v, np.degrees(spread) * PER_DEGREE)
