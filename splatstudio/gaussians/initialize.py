"""The Gaussians a training starts from: at the scene's points, or at random where all cameras look."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import Gaussians, rgb_to_sh0

NUM_NEIGHBORS = 3
LONE_SPACING = 0.1  # scene units: the spacing of a point without neighbors
CANDIDATES_PER_GAUSSIAN = 4
MAX_CAMERAS_ASKED = 100  # more do not change where the common volume lies
# Depths between which a camera may see something, over its distance to what it looks at.
NEAREST, FARTHEST = 0.2, 1.8
# Parallel axes do not say how far the scene is: such captures look from a stand about this many radii away.
DISTANCE_OVER_SPREAD = 4.0
WIDEST_ANGLE = math.radians(80.0)  # from a fisheye's axis; depth along the axis means little beyond


def from_points(
    points: np.ndarray,
    colors: np.ndarray,
    *,
    sh_degree: int,
    init_scale: float,
    init_opacity: float,
    generator: torch.Generator,
) -> Gaussians:
    """Return one round Gaussian for each point, as large as the distance to its neighbors.

    `points` [P, 3] world, `colors` [P, 3] uint8; points that are not finite are dropped. The standard
    deviation is `init_scale` times the root mean square distance to the 3 nearest other positions (as gsplat
    counts it), `init_opacity` is 0..1, the orientations are drawn from `generator`.
    Raises ValueError when no finite point is left.
    """
    finite = np.isfinite(points).all(axis=1)
    positions = torch.from_numpy(points[finite].astype(np.float32))
    num = len(positions)
    if num == 0:
        raise ValueError("the scene has no points with finite coordinates to start from")
    rgb = torch.from_numpy(colors[finite].astype(np.float32)) / 255.0
    sizes = torch.from_numpy(_spacing(points[finite].astype(np.float64)) * init_scale)
    return Gaussians(
        means=positions,
        quats=torch.nn.functional.normalize(torch.randn(num, 4, generator=generator), dim=1),
        scales=sizes.log().float()[:, None].repeat(1, 3),
        opacities=torch.full((num,), init_opacity, device="cpu").logit(),
        sh0=rgb_to_sh0(rgb)[:, None, :],
        shN=torch.zeros(num, (sh_degree + 1) ** 2 - 1, 3, device="cpu"),
    )


def _spacing(points: np.ndarray) -> np.ndarray:
    """Return each point's root mean square distance to its nearest other positions, [P], above 0."""
    # Points at one and the same place would have the distance 0, whose logarithm no optimizer can mend.
    places, place_of = np.unique(points, axis=0, return_inverse=True)
    if len(places) == 1:
        return np.full(len(points), LONE_SPACING)
    num_neighbors = min(NUM_NEIGHBORS, len(places) - 1)
    from scipy.spatial import KDTree  # takes a third of a second to load

    distances, _ = KDTree(places).query(places, k=num_neighbors + 1, workers=-1)
    spacing = np.sqrt((distances[:, 1:] ** 2).mean(axis=1))
    # Two positions may differ by less than float32 resolves.
    return np.maximum(spacing, np.finfo(np.float32).tiny)[place_of.reshape(-1)]


def random_in_cameras(
    cameras: Sequence[Camera],
    num: int,
    *,
    sh_degree: int,
    init_scale: float,
    init_opacity: float,
    generator: torch.Generator,
) -> Gaussians:
    """Return `num` round Gaussians of random colors, placed where as many cameras as possible look.

    Candidates are drawn evenly from the cameras' views, between a fifth and nearly twice the distance of what
    the cameras look at; those that most cameras see are kept. Sizes as in `from_points`.
    Raises ValueError without cameras.
    """
    if not cameras:
        raise ValueError("the scene has no cameras between which splats could be placed")
    every = -(-len(cameras) // MAX_CAMERAS_ASKED)
    asked = list(cameras)[::every]
    distance = _viewing_distance(asked)
    uniform = torch.rand(num * CANDIDATES_PER_GAUSSIAN, 4, generator=generator, dtype=torch.float64).numpy()
    candidates = _drawn_from_views(asked, uniform, distance)
    num_seeing = np.zeros(len(candidates), dtype=int)
    for camera in asked:
        num_seeing += _sees(camera, candidates, distance)
    # Stable, and the candidates come in random order: ties are broken at random.
    best = np.argsort(-num_seeing, kind="stable")[:num]
    colors = torch.randint(0, 256, (num, 3), generator=generator, dtype=torch.uint8).numpy()
    return from_points(
        candidates[best],
        colors,
        sh_degree=sh_degree,
        init_scale=init_scale,
        init_opacity=init_opacity,
        generator=generator,
    )


def _viewing_distance(cameras: Sequence[Camera]) -> float:
    """Return about how far from the cameras the scene is, scene units.

    Cameras around an object: the distance to the point nearest to all optical axes. Others (parallel axes,
    looking outwards): from how far the cameras are apart, or 1 for a single place.
    """
    positions = np.stack([camera.position for camera in cameras])
    axes = np.stack([camera.viewmat[2, :3] for camera in cameras])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]  # projections onto the planes across the axes
    if np.linalg.eigvalsh(across.mean(axis=0))[0] > 0.01:  # axes that differ by some 6 degrees or more
        focus = np.linalg.solve(across.sum(axis=0), (across @ positions[:, :, None]).sum(axis=0))[:, 0]
        ahead = ((focus - positions) * axes).sum(axis=1)
        apart = np.linalg.norm(focus - positions, axis=1)
        if np.median(ahead / np.maximum(apart, 1e-12)) > 0.5:
            return float(np.median(ahead))
    spread = float(np.sqrt(((positions - positions.mean(axis=0)) ** 2).sum(axis=1).mean()))
    return DISTANCE_OVER_SPREAD * spread if spread > 1e-6 else 1.0


def _drawn_from_views(cameras: Sequence[Camera], uniform: np.ndarray, distance: float) -> np.ndarray:
    """Return a point [n, 3] in the view of one of the cameras for each row of `uniform` [n, 4] in 0..1."""
    # The share of a frustum's volume below a depth grows with its cube.
    low, high = (NEAREST * distance) ** 3, (FARTHEST * distance) ** 3
    depths = np.cbrt(low + (high - low) * uniform[:, 3])
    points = np.empty((len(uniform), 3))
    chosen = np.minimum((uniform[:, 0] * len(cameras)).astype(int), len(cameras) - 1)
    for index, camera in enumerate(cameras):
        rows = np.flatnonzero(chosen == index)
        pixels = uniform[rows, 1:3] * (camera.width, camera.height)
        local = _unprojected(camera, pixels, depths[rows])
        points[rows] = (local - camera.viewmat[:3, 3]) @ camera.viewmat[:3, :3]
    return points


def _unprojected(camera: Camera, pixels: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Return the camera-space points [n, 3] at `pixels` [n, 2] and camera z `depths` [n]."""
    offsets = (pixels - camera.K[:2, 2]) / (camera.K[0, 0], camera.K[1, 1])
    if camera.model == "ortho":
        return np.column_stack([offsets, depths])
    if camera.model == "fisheye":
        angles = np.linalg.norm(offsets, axis=1)
        slopes = np.tan(np.minimum(angles, WIDEST_ANGLE))
        offsets = offsets * (slopes / np.maximum(angles, 1e-12))[:, None]
    return np.column_stack([offsets * depths[:, None], depths])


def _sees(camera: Camera, points: np.ndarray, distance: float) -> np.ndarray:
    """Return which world `points` [n, 3] lie in the image and at a plausible depth, [n] bool."""
    x, y, z = (points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]).T
    seen = (z > NEAREST * distance) & (z < FARTHEST * distance)
    z = np.where(seen, z, 1.0)
    if camera.model == "pinhole":
        x, y = x / z, y / z
    elif camera.model == "fisheye":
        radius = np.maximum(np.hypot(x, y), 1e-12)
        angle = np.arctan2(radius, z)
        seen &= angle < WIDEST_ANGLE
        x, y = x * angle / radius, y * angle / radius
    u, v = camera.K[0, 0] * x + camera.K[0, 2], camera.K[1, 1] * y + camera.K[1, 2]
    return seen & (u > 0) & (u < camera.width) & (v > 0) & (v < camera.height)
