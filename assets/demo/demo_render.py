"""Ray tracing of the demo scene: sun with soft shadows, sky and bounce light, reflections, tone curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from demo_geometry import CHUNK, Dome, Ground, Hits, Shape, dot, normalized, trace, vec
from demo_panorama import SUN, sky
from demo_scene import scene

SUN_LIGHT = vec(2.35, 2.08, 1.66)  # radiance of a white surface that faces the sun
SUN_SPREAD = 0.045  # radians: a sun behind thin haze, so shadows are soft
SUN_RAYS, SKY_RAYS = 2, 3  # per sample; neighboring samples share theirs through the filter
EXPOSURE = 0.62
OVERSAMPLING = 2  # samples along each axis of a pixel


@dataclass(frozen=True, eq=False)
class Pinhole:
    """A camera: `rotation` [3, 3] and `position` [3] in world to camera sense (OpenCV axes), pixels."""

    rotation: np.ndarray
    position: np.ndarray
    focal: float
    width: int
    height: int

    def rays(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return origins and unit directions [3, N] through pixel coordinates."""
        local = np.stack(
            [(x - self.width / 2) / self.focal, (y - self.height / 2) / self.focal, np.ones_like(x)]
        )
        d = normalized((self.rotation.T @ local).astype(np.float32))
        return np.broadcast_to(self.position.astype(np.float32)[:, None], d.shape).copy(), d

    def project(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pixel coordinates [2, N] and depths [N] of world points [3, N]."""
        q = self.rotation @ (p - self.position[:, None])
        return q[:2] / q[2] * self.focal + np.array([[self.width / 2], [self.height / 2]]), q[2]


@dataclass(frozen=True, eq=False)
class Shaded:
    """What is known at N hits: place, normals (`ng` geometric, facing the ray; `n` shading), surface."""

    t: np.ndarray
    shape: np.ndarray
    p: np.ndarray
    ng: np.ndarray
    n: np.ndarray
    albedo: np.ndarray
    rough: np.ndarray
    f0: np.ndarray
    through: np.ndarray


def surfaces(o: np.ndarray, d: np.ndarray, hits: Hits, spread: float) -> Shaded:
    """Return the surfaces at the hits; `spread` is the angle of a sample's cone in radians."""
    shapes, count = scene(), o.shape[1]
    p = o + d * np.where(np.isfinite(hits.t), hits.t, 0)
    three = [np.zeros((3, count), np.float32) for _ in range(3)]
    scalars = [np.zeros(count, np.float32) for _ in range(3)]
    for number in np.unique(hits.shape):
        if number < 0:
            continue
        index, shape = np.flatnonzero(hits.shape == number), shapes[number]
        local, direction = shape.local(p[:, index], d[:, index])
        normal = shape.normal(local, hits.sub[index])
        normal = np.where(dot(normal, direction) > 0, -normal, normal).astype(np.float32)
        tilt = np.maximum(np.abs(dot(normal, direction)), 0.05)
        # Between the cone's narrow and its long width: sharp enough without shimmer.
        foot = hits.t[index] * spread / tilt**0.6
        found = shape.material.surface(shape, local, normal, hits.sub[index], foot)
        turn = shape.rotation.T
        for target, value in zip(three, (turn @ normal, turn @ found.normal, found.albedo), strict=True):
            target[:, index] = value
        for target, value in zip(scalars, (found.rough, found.f0, found.through), strict=True):
            target[index] = value
    return Shaded(hits.t, hits.shape, p, three[0], three[1], three[2], *scalars)


def _low_discrepancy(
    x: np.ndarray, y: np.ndarray, rays: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return `rays` points of the unit square a sample; 4x4 neighbors together fill it evenly."""
    order = np.array([0, 8, 2, 10, 12, 4, 14, 6, 3, 11, 1, 9, 15, 7, 13, 5])
    tile = order[(x % 4) + 4 * (y % 4)]
    total = 16 * rays
    # A hash instead of a generator: the same sample gets the same numbers however the work is cut.
    mixed = (
        (x.astype(np.uint32) * np.uint32(73856093))
        ^ (y.astype(np.uint32) * np.uint32(19349663))
        ^ np.uint32(seed * 83492791 % 2**32)
    )
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(2246822519)
    jitter_a, jitter_b = (
        (mixed >> np.uint32(8) & np.uint32(255)) / 256,
        (mixed >> np.uint32(16) & np.uint32(255)) / 256,
    )
    points = []
    for ray in range(rays):
        k = tile * rays + ray
        a, b = (
            k * 0.7548776662 + 0.7 * jitter_a / np.sqrt(total),
            k * 0.5698402910 + 0.7 * jitter_b / np.sqrt(total),
        )
        points.append(((a % 1).astype(np.float32), (b % 1).astype(np.float32)))
    return points


def _basis(n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two unit vectors perpendicular to unit `n`, [3, N] each (Duff et al. 2017)."""
    sign = np.where(n[2] >= 0, np.float32(1), np.float32(-1))
    a = -1 / (sign + n[2])
    b = n[0] * n[1] * a
    return np.stack([1 + sign * n[0] ** 2 * a, sign * b, -sign * n[0]]), np.stack(
        [b, sign + n[1] ** 2 * a, -n[1]]
    )


_SUN_AXES = [axis.astype(np.float32) for axis in _basis(SUN[:, None])]


def occluded(shapes: Sequence[Shape], o: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Return whether anything but the ground and the dome stands in the way, [N] bool."""
    blocked = np.zeros(o.shape[1], bool)
    for shape in shapes:
        if isinstance(shape, (Dome, Ground)):
            continue
        live = np.flatnonzero(~blocked)
        far = np.broadcast_to(np.float32(np.inf), live.shape)
        index = live[shape.candidates(o[:, live], d[:, live], far)]
        if index.size:
            blocked[index] = np.isfinite(shape.hit(*shape.local(o[:, index], d[:, index]))[0])
    return blocked


def sun_visibility(s: Shaded, points: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the visible part of the sun's disc at the surfaces, [N] 0..1."""
    total = np.zeros(s.t.size, np.float32)
    facing = dot(s.ng, SUN[:, None])
    # Leaves pass light, so their far side is asked for too.
    lit = np.flatnonzero((facing > -0.1) | (s.through > 0))
    start = s.p[:, lit] + s.ng[:, lit] * np.where(facing[lit] > 0, 1e-3, -1e-3).astype(np.float32)
    for a, b in points:
        radius, angle = SUN_SPREAD * np.sqrt(a[lit]), 2 * np.pi * b[lit]
        d = SUN[:, None] + _SUN_AXES[0] * (radius * np.cos(angle)) + _SUN_AXES[1] * (radius * np.sin(angle))
        total[lit] += ~occluded(scene(), start, normalized(d))
    return total / len(points)


def indirect(d: np.ndarray, hits: Hits) -> np.ndarray:
    """Return the light [3, N] that comes back along rays: the sky's, or what the shapes send on average."""
    bounce = np.concatenate([shape.material.bounce for shape in scene()], axis=1).astype(np.float32)
    light = np.float32(0.8) * bounce[:, hits.shape]
    out = hits.shape == len(scene()) - 1
    # Close to the horizon trees and hills stand before the sky.
    open_sky = sky(d[2, out], dot(d[:, out], SUN[:, None]))
    light[:, out] = np.where(d[2, out] > 0.07, open_sky, vec(0.16, 0.19, 0.10))
    return light


def sky_light(s: Shaded, points: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the mean radiance over the cosine-weighted hemisphere of the surfaces, [3, N]."""
    u, v = _basis(s.ng)
    start = s.p + s.ng * np.float32(1e-3)
    total = np.zeros_like(s.p)
    for a, b in points:
        radius, angle = np.sqrt(a), 2 * np.pi * b
        d = u * (radius * np.cos(angle)) + v * (radius * np.sin(angle)) + s.ng * np.sqrt(np.maximum(1 - a, 0))
        total += indirect(d, trace(scene(), start, d))
    return total / len(points)


def radiance(s: Shaded, d: np.ndarray, sun: np.ndarray, ambient: np.ndarray) -> np.ndarray:
    """Return the light [3, N] that leaves the surfaces against `d`: diffuse, passed through, highlights."""
    facing = dot(s.n, SUN[:, None])
    direct = SUN_LIGHT * sun
    light = ambient + direct * np.maximum(facing, 0) * (1 - s.through)
    light = light + direct * s.through * np.maximum(-facing, 0) * vec(1.05, 1.15, 0.5)
    out = s.albedo * light
    half = normalized(SUN[:, None] - d)
    cosine = np.clip(-dot(s.n, d), 0.05, 1)
    a2 = np.maximum(s.rough, 0.05) ** 4
    lobe = a2 / (np.pi * ((np.clip(dot(s.n, half), 0, 1) ** 2) * (a2 - 1) + 1) ** 2)
    fresnel = s.f0 + (1 - s.f0) * (1 - np.clip(-dot(d, half), 0, 1)) ** 5
    spread = np.maximum(facing, 0) / (4 * np.maximum(facing, 0.15) * cosine)
    out = out + np.where(s.f0 > 0, np.minimum(lobe * fresnel * spread * np.pi, 14), 0) * direct
    sheen = s.f0 + (np.maximum(1 - s.rough, s.f0) - s.f0) * (1 - cosine) ** 5
    dull = (s.f0 > 0) & (s.rough >= 0.25)
    return out + np.where(dull, sheen * (1 - 0.6 * s.rough), 0) * ambient


def reflected(
    s: Shaded, d: np.ndarray, x: np.ndarray, y: np.ndarray, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the glossy samples' numbers and the mirrored light [3, M] they add."""
    index = np.flatnonzero((s.f0 > 0) & (s.rough < 0.25))
    n, view = s.n[:, index], d[:, index]
    mirror = normalized(view - 2 * dot(n, view) * n)
    start = s.p[:, index] + s.ng[:, index] * np.float32(1e-3)
    second = surfaces(start, mirror, trace(scene(), start, mirror), spread * 4)
    far = second.shape == len(scene()) - 1
    sun = sun_visibility(second, _low_discrepancy(x[index], y[index], 2, 77))
    height = 0.5 + 0.5 * second.ng[2]
    ambient = height * vec(0.42, 0.52, 0.70) + (1 - height) * vec(0.22, 0.19, 0.15)
    light = np.where(far, second.albedo, radiance(second, mirror, sun, ambient))
    cosine = np.clip(-dot(n, view), 0, 1)
    fresnel = s.f0[index] + (1 - s.f0[index]) * (1 - cosine) ** 5
    return index, light * fresnel * (1 - 2 * s.rough[index])


def smooth(light: np.ndarray, s: Shaded, shape: tuple[int, int], step: int) -> np.ndarray:
    """Return light [C, N] averaged over 3x3 samples `step` apart on the same flat piece of surface."""
    height, width = shape
    image, n, p = (a.reshape(-1, height, width) for a in (light, s.ng, s.p))
    number, t = s.shape.reshape(shape), s.t.reshape(shape)
    total, weights = image * np.float32(0.25), np.full(shape, np.float32(0.25))
    for dy in (-step, 0, step):
        for dx in (-step, 0, step):
            if dx == dy == 0 or abs(dy) >= height or abs(dx) >= width:
                continue
            here = (slice(max(-dy, 0), height - max(dy, 0)), slice(max(-dx, 0), width - max(dx, 0)))
            there = (slice(max(dy, 0), height + min(dy, 0)), slice(max(dx, 0), width + min(dx, 0)))
            ah, at = (slice(None), *here), (slice(None), *there)
            same = np.maximum(dot(n[ah], n[at]), 0) ** 2
            same = same * same
            same = same * same
            off = np.abs(dot(n[ah], p[at] - p[ah])) / (t[here] * np.float32(0.0012 * step))
            weight = np.where(number[here] == number[there], same * np.maximum(1 - off * off, 0), 0)
            weight = weight * np.float32(0.125 if dx == 0 or dy == 0 else 0.0625)
            total[ah] += image[at] * weight
            weights[here] += weight
    return (total / weights).reshape(light.shape).astype(np.float32)


def tone(light: np.ndarray) -> np.ndarray:
    """Return display-linear 0..1 of radiance, a filmic curve (Narkowicz 2015, fit of ACES)."""
    x = np.maximum(light * EXPOSURE, 0)
    return np.clip(x * (2.51 * x + 0.03) / (x * (2.43 * x + 0.59) + 0.14), 0, 1)


def _stitched(pieces: list[Shaded]) -> Shaded:
    names = ("t", "shape", "p", "ng", "n", "albedo", "rough", "f0", "through")
    return Shaded(*(np.concatenate([getattr(piece, name) for piece in pieces], axis=-1) for name in names))


def render(camera: Pinhole) -> np.ndarray:
    """Return the photo uint8 [H, W, 3] (sRGB) that `camera` takes."""
    k = OVERSAMPLING
    height, width = camera.height * k, camera.width * k
    y, x = (a.ravel() for a in np.mgrid[0:height, 0:width])
    spread = 1.0 / (camera.focal * k) * 1.3
    pieces, directions, suns, ambients = [], [], [], []
    for start in range(0, height * width, CHUNK):
        part = slice(start, start + CHUNK)
        o, d = camera.rays((x[part] + 0.5) / k, (y[part] + 0.5) / k)
        s = surfaces(o, d, trace(scene(), o, d), spread)
        near = np.flatnonzero(s.shape < len(scene()) - 1)
        sun, ambient = np.zeros(s.t.size, np.float32), np.zeros_like(s.p)
        close = Shaded(*(getattr(s, name)[..., near] for name in s.__dataclass_fields__))
        sun[near] = sun_visibility(close, _low_discrepancy(x[part][near], y[part][near], SUN_RAYS, 1))
        ambient[:, near] = sky_light(close, _low_discrepancy(x[part][near], y[part][near], SKY_RAYS, 2))
        pieces.append(s)
        directions.append(d)
        suns.append(sun)
        ambients.append(ambient)
    s, d = _stitched(pieces), np.concatenate(directions, axis=1)
    sun, ambient = np.concatenate(suns), np.concatenate(ambients, axis=1)
    for step in (1, 2, 4):
        ambient = smooth(ambient, s, (height, width), step)
        if step <= 2:
            sun = smooth(sun[None], s, (height, width), step)[0]
    far = s.shape == len(scene()) - 1
    light = np.where(far, s.albedo, radiance(s, d, sun, ambient))
    index, mirrored = reflected(s, d, x, y, spread)
    light[:, index] += mirrored
    image = tone(light).reshape(3, height, width).transpose(1, 2, 0)
    return encode(_shrink(image, k))


def _shrink(image: np.ndarray, k: int) -> np.ndarray:
    """Return the image averaged over pixels with a tent that reaches half a pixel over their borders."""
    padded = np.pad(image, ((k // 2, k // 2), (k // 2, k // 2), (0, 0)), mode="edge")
    taps = np.ones(k) / k if k == 1 else np.array([0.125, *([0.75 / k] * k), 0.125])[: k + 2]
    rows = sum(w * padded[i : i + image.shape[0] : k] for i, w in enumerate(taps))
    assert isinstance(rows, np.ndarray)
    out = sum(w * rows[:, i : i + image.shape[1] : k] for i, w in enumerate(taps))
    assert isinstance(out, np.ndarray)
    return out


def encode(linear: np.ndarray) -> np.ndarray:
    """Return sRGB bytes of display-linear light."""
    s = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * np.maximum(linear, 1e-9) ** (1 / 2.4) - 0.055)
    return (np.clip(s, 0, 1) * 255 + 0.5).astype(np.uint8)
