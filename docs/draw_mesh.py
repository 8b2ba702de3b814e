"""Draws the mesh of a run as four of its photos saw it, in its colors and by its shape alone.

For the guide: PYTHONPATH=tests/support python docs/draw_mesh.py RUN OUTPUT.jpg
"""

from __future__ import annotations

import sys
from pathlib import Path

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import cv2
import numpy as np
import torch
from known_meshes import KnownMesh
from scipy.spatial import KDTree

from splatstudio.cameras.camera import Camera
from splatstudio.models.model import load_model, scene_shown_by
from splatstudio.surfaces.make_mesh import mesh_of_model
from splatstudio.surfaces.mesh import Mesh, vertex_normals
from splatstudio.surfaces.shown_mesh import ShownMesh

VIEWS, HEIGHT, QUALITY = 4, 360, 88  # pictures, pixels, of a JPEG
BEHIND = 245  # gray of 255


def main() -> None:
    run, output = Path(sys.argv[1]), Path(sys.argv[2])
    scene = scene_shown_by(run, None, full_size=False)
    shown = mesh_of_model(load_model(run), scene).shown
    assert shown is not None, "fewer triangles need splatstudio[mesh]"
    chosen = np.linspace(0, len(scene.views) - 1, VIEWS).round().astype(int)
    columns = [np.concatenate(_drawn(shown, scene.views[number].camera)) for number in chosen]
    cv2.imwrite(str(output), np.concatenate(columns, axis=1)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])


def _drawn(shown: ShownMesh, camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Return the mesh in its colors, and its shape as lit from the camera, [H, W, 3] uint8."""
    camera = camera.resized(round(HEIGHT * camera.width / camera.height), HEIGHT)
    mesh = Mesh(torch.from_numpy(shown.vertices).double(), torch.from_numpy(shown.faces).long())
    before = (mesh.vertices @ torch.from_numpy(camera.viewmat[2, :3]) + camera.viewmat[2, 3]) > 0.05
    known = KnownMesh("run", Mesh(mesh.vertices, mesh.faces[before[mesh.faces].all(dim=1)]))
    depth, points = known.trace(camera)
    _, nearest = KDTree(shown.vertices).query(points.reshape(-1, 3).numpy(), workers=-1)
    toward = torch.nn.functional.normalize(torch.from_numpy(camera.position) - points, dim=-1)
    normals = vertex_normals(mesh)[torch.from_numpy(nearest)].view_as(points)
    light = 60.0 + 175.0 * (normals * toward).sum(dim=-1).clamp(min=0.0)
    there = (depth > 0)[..., None].numpy()
    colors = shown.colors[nearest].reshape(*depth.shape, 3) * 255.0
    shape = light[..., None].expand(-1, -1, 3).numpy()
    pictures = (np.where(there, picture, BEHIND).astype(np.uint8) for picture in (colors, shape))
    return next(pictures), next(pictures)


if __name__ == "__main__":
    main()
