"""A tiny scene of colored blobs, written as a COLMAP folder: of fixtures, all that a test on a GPU needs.

`-p blob_scenes` loads them where conftest.py, which needs what the page's tests need, is left out.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from blob_models import FOCAL, HEIGHT, NUM_VIEWS, WIDTH, blobs, ring_of_cameras
from scene_builder import quaternion

from splatstudio.rendering.render import render
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene


def write_blob_scene(folder: Path, num_views: int = NUM_VIEWS) -> Path:
    """Write photos of `blobs` and the COLMAP text files that tell their cameras and points."""
    gaussians, cameras = blobs(), ring_of_cameras(num_views)
    (folder / "images").mkdir(parents=True)
    (folder / "sparse" / "0").mkdir(parents=True)
    lines = []
    for number, camera in enumerate(cameras, start=1):
        with torch.no_grad():
            rgb = render(gaussians, camera).rgb.clamp(0, 1).numpy()
        name = f"view_{number:02d}.png"
        cv2.imwrite(str(folder / "images" / name), np.rint(rgb[..., ::-1] * 255).astype(np.uint8))
        quat = _wxyz(camera.viewmat[:3, :3])
        numbers = " ".join(repr(float(value)) for value in [*quat, *camera.viewmat[:3, 3]])
        lines += [f"{number} {numbers} 1 {name}", ""]
    model = folder / "sparse" / "0"
    (model / "images.txt").write_text("\n".join(lines) + "\n")
    (model / "cameras.txt").write_text(
        f"1 PINHOLE {WIDTH} {HEIGHT} {FOCAL} {FOCAL} {WIDTH / 2} {HEIGHT / 2}\n"
    )
    colors = ((gaussians.sh0[:, 0] * 0.2821 + 0.5).clamp(0, 1) * 255).int().tolist()
    points = [
        f"{i + 1} {x!r} {y!r} {z!r} {r} {g} {b} 0.5 1 0 2 0"
        for i, ((x, y, z), (r, g, b)) in enumerate(zip(gaussians.means.tolist(), colors, strict=True))
    ]
    (model / "points3D.txt").write_text("\n".join(points) + "\n")
    return folder


def _wxyz(rotation: np.ndarray) -> np.ndarray:
    """Return the unit quaternion of a rotation matrix, as an eigenvector (Bar-Itzhack 2000)."""
    (a, b, c), (d, e, f), (g, h, i) = rotation
    matrix = np.array(
        [
            [a + e + i, h - f, c - g, d - b],
            [h - f, a - e - i, b + d, c + g],
            [c - g, b + d, e - a - i, f + h],
            [d - b, c + g, f + h, i - a - e],
        ]
    )
    return np.linalg.eigh(matrix)[1][:, -1]


@pytest.fixture(scope="session")
def blob_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A COLMAP folder of nine 48x40 views of sixty colored blobs."""
    return write_blob_scene(tmp_path_factory.mktemp("scenes") / "blobs")


@pytest.fixture(scope="session")
def blob_scene(blob_folder: Path) -> Scene:
    """The scene of `blob_folder`, loaded."""
    return load_scene(blob_folder)


@pytest.fixture(scope="module")
def tracked(blob_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The blobs, whose images.txt tells that view k (from 1 on) shows the points k, k + 1 and one unknown."""
    folder = tmp_path_factory.mktemp("tracked") / "scene"
    shutil.copytree(blob_folder, folder)
    lines = []
    for number, camera in enumerate(ring_of_cameras(), start=1):
        pose = [*quaternion(camera.viewmat[:3, :3]), *camera.viewmat[:3, 3]]
        numbers = " ".join(repr(float(value)) for value in pose)
        lines += [f"{number} {numbers} 1 view_{number:02d}.png"]
        lines += [f"1.5 2.5 {number + 1} 3.5 4.5 -1 0.5 0.5 {number} 7 7 999999"]
    (folder / "sparse" / "0" / "images.txt").write_text("\n".join(lines) + "\n")
    return load_scene(folder)
