"""Free meshes with their photos, made by a renderer of the tests' own, to compare reconstructions with.

spot: Keenan Crane's cow, which he put into the public domain (CC0). The others are `ballA`, `angle_block` and
`featuretype` of trimesh (MIT, Copyright (c) 2023 Michael Dawson-Haggerty).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.surfaces.mesh import Mesh, sampled
from splatstudio.surfaces.quality import distances_to

FILE = Path(__file__).parents[1] / "data" / "known_meshes.npz"
NAMES = ("spot", "ball", "block", "part")


@dataclass(frozen=True, eq=False)
class KnownMesh:
    """A mesh whose box is centered at the origin and has a diagonal of 2.4, with the ways of a `Solid`."""

    name: str
    mesh: Mesh

    @property
    def diagonal(self) -> float:
        return self.mesh.diagonal

    def distance(self, points: Tensor) -> Tensor:
        """Return the distance of points [P, 3] to the surface, without a sign."""
        return distances_to(self.mesh, points, 200_000)

    def surface(self, num: int = 4000) -> Tensor:
        return sampled(self.mesh, num)[0]

    def trace(self, camera: Camera, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the depth [H, W] float32 (0: nothing) and the points [H, W, 3] that the rays of pixels meet.

        A ray meets a triangle where its pixel lies in the triangle's picture; the inverse of the depth is
        linear in it.
        """
        assert camera.model == "pinhole"
        K, viewmat = torch.from_numpy(camera.K), torch.from_numpy(camera.viewmat)
        seen = self.mesh.vertices * scale @ viewmat[:3, :3].T + viewmat[:3, 3]
        assert float(seen[self.mesh.faces.unique(), 2].min()) > 0, "the camera stands before it"
        at = seen[:, :2] / seen[:, 2:] * K.diagonal()[:2] + K[:2, 2]
        inverse = torch.zeros(camera.height * camera.width, dtype=torch.float64)
        for faces in self.mesh.faces.split(2000):
            pixel, value = _inverse_depths(at[faces] - 0.5, 1.0 / seen[:, 2][faces], camera)
            inverse.scatter_reduce_(0, pixel, value, reduce="amax")
        depth = torch.where(inverse > 0, 1.0 / inverse, 0.0).view(camera.height, camera.width)
        v, u = torch.meshgrid(
            torch.arange(camera.height) + 0.5, torch.arange(camera.width) + 0.5, indexing="ij"
        )
        x, y = (u - K[0, 2]) / K[0, 0] * depth, (v - K[1, 2]) / K[1, 1] * depth
        pose = torch.from_numpy(camera.camera_to_world)
        points = torch.stack([x, y, depth], dim=-1) @ pose[:3, :3].T + pose[:3, 3]
        return depth.float(), points / scale


def _inverse_depths(corners: Tensor, inverse: Tensor, camera: Camera) -> tuple[Tensor, Tensor]:
    """Return the pixels whose centers lie in triangles with `corners` [T, 3, 2], and 1 / depth there."""
    size = torch.tensor([camera.width, camera.height])
    low = torch.minimum(corners.amin(dim=1).ceil().clamp(min=0).long(), size)
    high = torch.minimum(corners.amax(dim=1).floor().clamp(min=-1).long(), size - 1)
    sides = (high - low + 1).clamp(min=0)
    counts = sides.prod(dim=1)
    which = torch.repeat_interleave(torch.arange(len(corners)), counts)
    within = torch.arange(len(which)) - (torch.cumsum(counts, 0) - counts)[which]
    x = low[which, 0] + within % sides[which, 0]
    y = low[which, 1] + torch.div(within, sides[which, 0], rounding_mode="floor")
    a, b, c = corners[which].unbind(1)
    beside = torch.stack([x, y], dim=1) - a
    area = _cross(b - a, c - a)
    second, third = _cross(beside, c - a) / area, _cross(b - a, beside) / area
    weights = torch.stack([1.0 - second - third, second, third], dim=1)
    inside = (weights >= -1e-9).all(dim=1) & (area != 0)
    value = (weights * inverse[which]).sum(dim=1)
    return (y * camera.width + x)[inside], value[inside]


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]


def known_mesh(name: str) -> KnownMesh:
    """Return one of NAMES."""
    with np.load(FILE) as arrays:
        vertices = torch.from_numpy(arrays[f"{name}_vertices"].astype(np.float64))
        faces = torch.from_numpy(arrays[f"{name}_faces"].astype(np.int64))
    return KnownMesh(name, Mesh(vertices, faces))
