"""A truncated signed distance field (TSDF) of depth images, in a sparse grid of blocks of voxels.

Each depth image tells of the points of the grid before it how far they lie from the surface; their means are
the field (Curless and Levoy 1996, "A Volumetric Method for Building Complex Models from Range Images"). Only
blocks near a surface are there (Niessner et al. 2013, "Real-time 3D Reconstruction at Scale using Voxel
Hashing"), so that memory grows with the surface and not with the volume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera

BLOCK = 8  # voxels along a side of a block
NUM_VOXELS = BLOCK**3
TRUNCATION = 4  # voxels: half a block, so that the 8 blocks around a point hold all that is near it
BLOCK_BYTES = NUM_VOXELS * 2 * 4  # distance and weight
KEY_BITS = 21  # of a block's place along an axis, and of that of half a block
MAX_BLOCKS_A_SIDE = 1 << KEY_BITS - 1
CHUNK = 1024  # blocks that are worked on at a time


@dataclass(frozen=True, eq=False)
class DepthView:
    """A pinhole camera and the depth that it sees, [H, W] float32 along its axis; 0: nothing is known."""

    camera: Camera
    depth: Tensor


@dataclass(frozen=True, eq=False)
class Grid:
    """Where voxels lie: the point (i, j, k) of the grid is `origin` + `voxel_size` * (i, j, k)."""

    origin: np.ndarray  # [3] float64
    voxel_size: float  # scene units

    @property
    def truncation(self) -> float:
        """Return the truncation distance in scene units."""
        return TRUNCATION * self.voxel_size


@dataclass(frozen=True, eq=False)
class Tsdf:
    """B blocks of a grid, in the order of their keys.

    `distance` [B, 512] is the signed distance over the truncation distance, -1 (behind the surface) to 1, and
    `weight` [B, 512] counts the views that told it: 0 where nothing was seen.
    """

    grid: Grid
    keys: Tensor  # [B] int64, sorted
    distance: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.keys)


def keys_of(places: Tensor) -> Tensor:
    """Return a number for each place of a block, [..., 3] int64 from 0 on; their order is that of x, y, z."""
    x, y, z = places.unbind(-1)
    return (x << 2 * KEY_BITS) | (y << KEY_BITS) | z


def places_of(keys: Tensor) -> Tensor:
    """Return the places [..., 3] int64 that `keys_of` made into `keys`."""
    mask = (1 << KEY_BITS) - 1
    return torch.stack([keys >> 2 * KEY_BITS, (keys >> KEY_BITS) & mask, keys & mask], dim=-1)


def points_seen(view: DepthView, stride: int = 1) -> Tensor:
    """Return the points of the surface in the world, [P, 3] float64, of every `stride`-th pixel each way."""
    depth = view.depth[::stride, ::stride]
    rows, columns = torch.nonzero(_is_depth(depth), as_tuple=True)
    z = depth[rows, columns].double()
    K = view.camera.K
    x = (columns * stride + 0.5 - K[0, 2]) / K[0, 0] * z
    y = (rows * stride + 0.5 - K[1, 2]) / K[1, 1] * z
    pose = torch.from_numpy(view.camera.camera_to_world)
    return torch.stack([x, y, z], dim=-1) @ pose[:3, :3].T + pose[:3, 3]


def _is_depth(depth: Tensor) -> Tensor:
    return (depth > 0) & depth.isfinite()


def blocks_near(view: DepthView, grid: Grid) -> Tensor:
    """Return the keys, int64, of all blocks that are nearer to what a view sees than the truncation distance.

    What lies outside of the grid has none.
    """
    # A cell is as large as the truncation distance: what is near a point in it lies in the cells around it.
    known = view.depth[_is_depth(view.depth)]
    farthest = float(known.max()) if known.numel() else 1.0
    # Half a cell from point to point, at most.
    stride = max(1, int(0.5 * grid.truncation * min(view.camera.K[0, 0], view.camera.K[1, 1]) / farthest))
    cells = ((points_seen(view, stride) - torch.from_numpy(grid.origin)) / grid.truncation).floor()
    inside = ((cells >= 1) & (cells < 2 * MAX_BLOCKS_A_SIDE - 1)).all(dim=1)
    cells = places_of(torch.unique(keys_of(cells[inside].long())))
    near = []
    for corner in range(8):
        step = torch.tensor([1 if corner >> axis & 1 else -1 for axis in range(3)])
        near.append(torch.unique(keys_of((cells + step) // 2)))
    return torch.unique(torch.cat(near))


def empty_tsdf(grid: Grid, keys: Tensor) -> Tsdf:
    """Return a field of the blocks `keys` [B] in which nothing was seen yet."""
    shape = (len(keys), NUM_VOXELS)
    return Tsdf(grid, keys, torch.zeros(shape), torch.zeros(shape))


def find_blocks(
    grid: Grid, views: Iterable[DepthView], on_view: Callable[[int], object] = lambda number: None
) -> Tensor:
    """Return the keys of all blocks near what any view sees, [B] int64 in their order."""
    keys = torch.empty(0, dtype=torch.int64)
    for number, view in enumerate(views):
        keys = torch.unique(torch.cat([keys, blocks_near(view, grid)]))
        on_view(number + 1)
    return keys


def fuse(
    grid: Grid,
    keys: Tensor,
    views: Iterable[DepthView],
    on_view: Callable[[int], object] = lambda number: None,
) -> Tsdf:
    """Return the field of all depth images in the blocks `keys`; `on_view` is told how many were taken in."""
    field = empty_tsdf(grid, keys)
    for number, view in enumerate(views):
        integrate(field, view)
        on_view(number + 1)
    return field


def integrate(field: Tsdf, view: DepthView) -> None:
    """Take one depth image into the field: points of the grid in front of it, and those shortly behind."""
    camera, size, reach = view.camera, field.grid.voxel_size, field.grid.truncation
    assert camera.model == "pinhole", "depth images are those of pinhole cameras"
    rotation = torch.from_numpy(camera.viewmat[:3, :3])
    shift = rotation @ torch.from_numpy(field.grid.origin) + torch.from_numpy(camera.viewmat[:3, 3])
    middle = (places_of(field.keys).double() + 0.5 - 0.5 / BLOCK) * (BLOCK * size)
    centers = (middle @ rotation.T + shift).float()
    rows = _in_view(centers, view, size)
    axis = (torch.arange(BLOCK) - (BLOCK - 1) / 2) * size
    offsets = torch.cartesian_prod(axis, axis, axis).float() @ rotation.float().T
    depth = torch.where(_is_depth(view.depth), view.depth, 0.0).float().flatten()
    fx, fy, cx, cy = (float(camera.K[i]) for i in ((0, 0), (1, 1), (0, 2), (1, 2)))
    for part in rows.split(CHUNK):
        x, y, z = (centers[part][:, None] + offsets).unbind(-1)
        ahead = z > 0
        z = torch.where(ahead, z, 1.0)
        u, v = (x / z).mul_(fx).add_(cx), (y / z).mul_(fy).add_(cy)
        inside = ahead & (u >= 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
        pixel = torch.where(inside, v.long() * camera.width + u.long(), 0)
        there = depth[pixel]
        gap = there - z
        told = inside & (there > 0) & (gap > -reach)
        weight, distance = field.weight[part], field.distance[part]
        total = weight + told
        gap = (gap / reach).clamp_(max=1.0)
        field.distance[part] = torch.where(told, (distance * weight + gap) / total.clamp(min=1.0), distance)
        field.weight[part] = total


def _in_view(centers: Tensor, view: DepthView, size: float) -> Tensor:
    """Return the rows of blocks of which a view may tell something; `centers` [B, 3] in its axes."""
    camera, radius = view.camera, BLOCK * size
    x, y, z = centers.unbind(-1)
    known = view.depth[_is_depth(view.depth)]
    if known.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    seen = (z > -radius) & (z < float(known.max()) + TRUNCATION * size + radius)
    for across, focal, center, length in (
        (x, camera.K[0, 0], camera.K[0, 2], camera.width),
        (y, camera.K[1, 1], camera.K[1, 2], camera.height),
    ):
        # Planes through the edges of the picture, moved out by the radius of a block.
        low, high = -center / focal, (length - center) / focal
        seen &= (across - low * z) > -radius * float(np.hypot(1.0, low))
        seen &= (across - high * z) < radius * float(np.hypot(1.0, high))
    return torch.nonzero(seen).flatten()
