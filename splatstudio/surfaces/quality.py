"""How good a mesh is: measured against the sparse points and the photos, as numbers and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatstudio.surfaces.colors import SEEN_BY_ENOUGH
from splatstudio.surfaces.mesh import Mesh, boundary_loops, face_areas, face_normals, sampled

NEAR = 0.01  # of the diagonal: what lies nearer to the surface counts as found
SAMPLES = 300_000  # points of the surface


@dataclass(frozen=True)
class MeshReport:
    """What is known of a mesh. Lengths are in the units of its file; None: it could not be measured.

    `accuracy` is the median distance of the sparse points to the surface, `completeness` the share of them
    that lie within 1 % of the diagonal. Both are of places that photos can match, not of bare walls.
    """

    step: int | None  # of the training whose model it is of, where that is known
    triangles: int
    vertices: int
    size: tuple[float, float, float]  # of the box around it
    diagonal: float
    voxel_size: float
    truncation_distance: float
    resolution_chosen_by: str
    views: int
    views_are: str  # "photos" or "an orbit"
    seen_by_three: float | None  # share of the surface that three photos or more see
    accuracy: float | None
    completeness: float | None
    sparse_points: int
    residual_color: float | None  # root mean square of what photos of a place differ from its color, of 255
    holes: int
    dropped_triangles: int  # in islands
    scale: float  # units of the file to one of the studio's frame
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Return it as a table of few rows for people."""
        unit = "units of the scene"
        rows = [] if self.step is None else [("Of", f"step {self.step:,}")]
        rows += [
            ("Triangles", f"{self.triangles:,}"),
            ("Size", " x ".join(f"{side:.4g}" for side in self.size) + f" {unit}"),
            ("Voxel", f"{self.voxel_size:.4g} {unit}: {self.resolution_chosen_by}"),
        ]
        if self.seen_by_three is not None:
            rows += [("Seen by 3 photos", f"{self.seen_by_three:.1%} of the surface")]
        if self.accuracy is not None and self.completeness is not None:
            percent = self.accuracy / self.diagonal if self.diagonal > 0 else 0.0
            rows += [
                ("Accuracy", f"{self.accuracy:.3g} ({percent:.2%} of the diagonal), median of the points"),
                ("Completeness", f"{self.completeness:.1%} of {self.sparse_points:,} points within 1 %"),
            ]
        if self.residual_color is not None:
            rows += [("Colors differ by", f"{self.residual_color:.1f} of 255 between photos")]
        rows += [("Holes", f"{self.holes:,}")]
        return rows


def seen_share(mesh: Mesh) -> float | None:
    """Return the share of the surface, by area, whose corners are seen by three photos or more."""
    areas = face_areas(mesh)
    if mesh.num_seen is None or not float(areas.sum()) > 0:
        return None
    enough = (mesh.num_seen >= SEEN_BY_ENOUGH)[mesh.faces].double().mean(dim=1)
    return float((areas * enough).sum() / areas.sum())


def distances_to(mesh: Mesh, points: Tensor, num_samples: int = SAMPLES) -> Tensor:
    """Return the distance of each point [P, 3] to the surface, [P]; infinite where there is none.

    It is that to the planes of the nearest of `num_samples` points of the surface.
    """
    samples, faces = sampled(mesh, num_samples)
    if not len(samples) or not len(points):
        return torch.full((len(points),), float("inf"), dtype=torch.float64)
    from scipy.spatial import KDTree  # takes a third of a second to load

    straight, nearest = KDTree(samples.numpy()).query(points.numpy())
    near = torch.from_numpy(np.asarray(nearest))
    normal = face_normals(mesh)[faces[near]]
    away = ((points - samples[near]) * normal).sum(dim=1).abs()
    spacing = float(face_areas(mesh).sum() / num_samples) ** 0.5
    # Beside the surface the distance to its plane says nothing.
    beside = (torch.from_numpy(straight) ** 2 - away**2).clamp(min=0.0).sqrt()
    return torch.where(beside < 2.0 * spacing, away, torch.from_numpy(straight))


def point_scores(mesh: Mesh, points: np.ndarray) -> tuple[float | None, float | None]:
    """Return accuracy and completeness of a mesh against points [P, 3] (see MeshReport); None without any."""
    if not len(points) or not mesh.num_triangles:
        return None, None
    distances = distances_to(mesh, torch.from_numpy(np.asarray(points, np.float64)))
    return float(distances.median()), float((distances < NEAR * mesh.diagonal).double().mean())


def num_holes(mesh: Mesh) -> int:
    """Return how many holes a mesh has, the outer edge of an open surface among them."""
    return len(boundary_loops(mesh))
