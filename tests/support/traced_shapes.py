"""Known solids, ray-traced: their depth, a scene of photos, and how near a mesh comes to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
import torch
from scene_builder import quaternion
from torch import Tensor

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.surfaces.mesh import Mesh, sampled
from splatstudio.surfaces.quality import distances_to
from splatstudio.surfaces.tsdf import DepthView, Grid, Tsdf, find_blocks, fuse

MOST_STEPS, HIT = 200, 1e-5
ARRIVED, FARTHEST = 1e-9, 10.0  # how near a ray has come to the surface, and where it has missed
UP = np.array([0.0, 0.0, 1.0])


class Shape(Protocol):
    """What can be photographed, and compared with."""

    @property
    def diagonal(self) -> float: ...

    def distance(self, points: Tensor, /) -> Tensor: ...

    def surface(self, num: int = 4000) -> Tensor: ...

    def trace(self, camera: Camera, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the depth [H, W] float32, 0 where nothing is, and the points that rays meet, [H, W, 3]."""
        ...


@dataclass(frozen=True, eq=False)
class Solid:
    """A solid of about size 1 around the origin: its signed distance, and points on its surface."""

    name: str
    distance: Callable[[Tensor], Tensor]  # [..., 3] to [...]
    diagonal: float

    def surface(self, num: int = 4000) -> Tensor:
        """Return points all over the surface, [num, 3]: random ones near it, brought there."""
        generator = torch.Generator().manual_seed(1)
        points = 2.6 * torch.rand(60 * num, 3, generator=generator, dtype=torch.float64) - 1.3
        points = points[self.distance(points).abs() < 0.05][:num]
        for _ in range(10):
            points = points - self.distance(points)[:, None] * self.normals(points)
        return points

    def normals(self, points: Tensor) -> Tensor:
        steps = 1e-4 * torch.eye(3, dtype=points.dtype)
        slopes = [self.distance(points + step) - self.distance(points - step) for step in steps]
        return torch.nn.functional.normalize(torch.stack(slopes, dim=-1), dim=-1)

    def trace(self, camera: Camera, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Find them by sphere tracing (Hart 1996)."""
        v, u = torch.meshgrid(
            torch.arange(camera.height) + 0.5, torch.arange(camera.width) + 0.5, indexing="ij"
        )
        K = camera.K
        ray = torch.stack(
            [(u - K[0, 2]) / K[0, 0], (v - K[1, 2]) / K[1, 1], torch.ones_like(u)], dim=-1
        ).double()
        length = ray.norm(dim=-1)
        way = (ray / length[..., None]) @ torch.from_numpy(camera.viewmat[:3, :3])
        place, along = torch.from_numpy(camera.position) / scale, torch.zeros_like(length)
        ends, ways, left = along.view(-1), way.reshape(-1, 3), torch.arange(along.numel())
        for _ in range(MOST_STEPS):
            step = self.distance(place + ends[left, None] * ways[left])
            ends[left] = (ends[left] + step).clamp(max=FARTHEST)
            left = left[(step.abs() > ARRIVED) & (ends[left] < FARTHEST)]  # a few creep along an edge
        points = place + along[..., None] * way
        hit = self.distance(points).abs() < 1e-3
        return torch.where(hit, along / length * scale, 0.0).float(), points


def _box(p: Tensor) -> Tensor:
    outside = p.abs() - torch.tensor([0.8, 0.6, 0.5], dtype=p.dtype)
    return outside.clamp(min=0).norm(dim=-1) + outside.amax(dim=-1).clamp(max=0)


def _torus(p: Tensor) -> Tensor:
    ring = p[..., :2].norm(dim=-1) - 0.8
    return torch.stack([ring, p[..., 2]], dim=-1).norm(dim=-1) - 0.35


SOLIDS = {
    "sphere": Solid("sphere", lambda p: p.norm(dim=-1) - 1.0, 2 * 3**0.5),
    "box": Solid("box", _box, 2 * (0.8**2 + 0.6**2 + 0.5**2) ** 0.5),
    "torus": Solid("torus", _torus, 2 * (2 * 1.15**2 + 0.35**2) ** 0.5),
}


def cameras_around(num: int = 8, pixels: int = 96, scale: float = 1.0) -> list[Camera]:
    """Return cameras on three rings of radius 3 around the origin, `num` each; lengths are times `scale`."""
    K = np.array([[1.1 * pixels, 0, pixels / 2], [0, 1.1 * pixels, pixels / 2], [0, 0, 1.0]])
    cameras = []
    for ring, height in enumerate((-1.0, 0.1, 1.0)):
        for angle in (np.arange(num) + ring / 3) * (2 * np.pi / num):
            place = 3.0 * np.array(
                [np.cos(angle) * np.cos(height), np.sin(angle) * np.cos(height), np.sin(height)]
            )
            cameras.append(Camera(look_at(scale * place, np.zeros(3), UP), K, pixels, pixels))
    return cameras


def views_of(solid: Shape, num: int = 8, pixels: int = 96, scale: float = 1.0) -> list[DepthView]:
    """Return the solid's depth from all sides, with all lengths times `scale`."""
    cameras = cameras_around(num, pixels, scale)
    return [DepthView(camera, solid.trace(camera, scale)[0]) for camera in cameras]


def field_of(views: list[DepthView], voxel_size: float = 0.04, reach: float = 1.6) -> Tsdf:
    """Return the field of views of what lies within `reach` of the origin."""
    grid = Grid(np.full(3, -reach), voxel_size)
    return fuse(grid, find_blocks(grid, views), views)


def f_score(mesh: Mesh, solid: Shape) -> tuple[float, float]:
    """Return the F-score at 1 % of the diagonal, and the Chamfer distance (mean of both ways) over that."""
    near = 0.01 * solid.diagonal
    ours = solid.distance(sampled(mesh, 20_000)[0]).abs()
    theirs = distances_to(mesh, solid.surface(), 100_000)
    precision, recall = float((ours < near).double().mean()), float((theirs < near).double().mean())
    chamfer = float(ours.mean() + theirs.mean()) / 2
    return 2 * precision * recall / max(precision + recall, 1e-9), chamfer / solid.diagonal


def paint(points: Tensor) -> Tensor:
    """Return the color of a solid's points, [..., 3] 0..1: a smooth pattern."""
    waves = torch.sin(7.0 * points + torch.tensor([0.0, 1.0, 2.0], dtype=points.dtype))
    return 0.5 + 0.2 * waves + 0.2 * waves.roll(1, dims=-1)


def write_traced_scene(
    folder: Path, solid: Shape, num: int = 8, pixels: int = 96, scale: float = 1.0
) -> Path:
    """Write photos of a painted solid on black as a COLMAP folder with points of its surface."""
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    (folder / "images").mkdir()
    lines, cameras = [], cameras_around(num, pixels, scale)
    for number, camera in enumerate(cameras, start=1):
        depth, points = solid.trace(camera, scale)
        rgb = torch.where((depth > 0)[..., None], paint(points), 0.0).numpy()
        name = f"view_{number:03d}.png"
        cv2.imwrite(str(folder / "images" / name), np.rint(rgb[..., ::-1] * 255).astype(np.uint8))
        numbers = [*quaternion(camera.viewmat[:3, :3]), *camera.viewmat[:3, 3]]
        lines += [f"{number} {' '.join(repr(float(value)) for value in numbers)} 1 {name}", ""]
    (model / "images.txt").write_text("\n".join(lines) + "\n")
    K = cameras[0].K
    (model / "cameras.txt").write_text(
        f"1 PINHOLE {pixels} {pixels} {K[0, 0]} {K[1, 1]} {K[0, 2]} {K[1, 2]}\n"
    )
    points = solid.surface(1500)
    colors = (paint(points) * 255).int().tolist()
    rows = zip((points * scale).tolist(), colors, strict=True)
    text = [
        f"{i + 1} {x!r} {y!r} {z!r} {r} {g} {b} 0.5 1 0 2 0" for i, ((x, y, z), (r, g, b)) in enumerate(rows)
    ]
    (model / "points3D.txt").write_text("\n".join(text) + "\n")
    return folder
