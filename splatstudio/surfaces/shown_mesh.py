"""A mesh as it is shown on a page: few triangles, in its own colors or in those of how well it is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from splatstudio.surfaces.colors import reliability_colors
from splatstudio.surfaces.mesh import Mesh, can_simplify, simplified, vertex_normals
from splatstudio.surfaces.mesh_files import glb_bytes

MOST_TRIANGLES = 150_000  # that a browser gets: 5 MB
# Shading, as colors that say how well a surface is known do not show its shape: light from above on one side
# (z is up in the studio), and what comes from everywhere.
LIGHT_FROM, AMBIENT = (-0.35, -0.45, 0.82), 0.45

Look = Literal["photos", "reliability"]


@dataclass(frozen=True, eq=False)
class ShownMesh:
    """V vertices [V, 3] float32 in the studio's frame, T triangles [T, 3] int32, colors [V, 3] float32, 0..1,
    and how many photos saw each vertex, [V] int64.
    """

    vertices: np.ndarray
    faces: np.ndarray
    colors: np.ndarray
    num_seen: np.ndarray

    def glb(self, look: Look) -> bytes:
        """Return it as binary glTF in the studio's frame, as bright as its colors say."""
        mesh = Mesh(
            torch.from_numpy(self.vertices).double(),
            torch.from_numpy(self.faces).long(),
            torch.from_numpy(self.colors),
            torch.from_numpy(self.num_seen),
        )
        if look == "reliability":
            mesh = reliability_colors(mesh)
            assert mesh.colors is not None
            mesh = replace(mesh, colors=mesh.colors * _brightness(mesh)[:, None])
        return glb_bytes(mesh)


def _brightness(mesh: Mesh) -> Tensor:
    light = torch.nn.functional.normalize(torch.tensor(LIGHT_FROM), dim=0)
    return AMBIENT + (1.0 - AMBIENT) * (vertex_normals(mesh).float() @ light).clamp(min=0.0)


def shown_mesh(mesh: Mesh) -> ShownMesh | None:
    """Return a colored mesh as it is shown; None: it has too many triangles, and fewer cannot be had here."""
    assert mesh.colors is not None and mesh.num_seen is not None, "it has been colored"
    few = mesh
    if mesh.num_triangles > MOST_TRIANGLES:
        if not can_simplify():
            return None
        from scipy.spatial import KDTree  # takes a third of a second to load

        few = simplified(mesh, MOST_TRIANGLES)
        _, nearest = KDTree(mesh.vertices.numpy()).query(few.vertices.numpy())
        rows = torch.from_numpy(np.asarray(nearest))
        few = replace(few, colors=mesh.colors[rows], num_seen=mesh.num_seen[rows])
    assert few.colors is not None and few.num_seen is not None
    return ShownMesh(
        few.vertices.numpy().astype(np.float32),
        few.faces.numpy().astype(np.int32),
        few.colors.numpy(),
        few.num_seen.numpy(),
    )
