"""A tiny scene of coloured blobs, written as a COLMAP folder, for the tests of training and beyond."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from fake_nvml import nvml  # noqa: F401 - a fixture of the tests of devices
from rank_pool import pool  # noqa: F401 - a fixture of the tests on ranks
from studio_page import browser, open_page  # noqa: F401 - fixtures of the tests of the page

from splatstudio.camera import Camera, look_at
from splatstudio.gaussians import Gaussians, rgb_to_sh0
from splatstudio.rendering import render
from splatstudio.scene import load_scene
from splatstudio.scene.scene import Scene

# These load an extension of their own in place of the real one: see the Makefile.
collect_ignore = [] if "SPLATSTUDIO_EXTENSION" in os.environ else ["cuda_on_cpu"]

WIDTH, HEIGHT, FOCAL = 48, 40, 45.0
NUM_VIEWS = 9  # the first and the last are test views


def blobs(seed: int = 0, num: int = 60) -> Gaussians:
    """Return `num` coloured, fairly opaque Gaussians within about 1 unit of the origin."""
    generator = torch.Generator().manual_seed(seed)
    rgb = torch.rand(num, 3, generator=generator)
    return Gaussians(
        means=torch.randn(num, 3, generator=generator) * 0.5,
        quats=torch.nn.functional.normalize(torch.randn(num, 4, generator=generator), dim=1),
        scales=torch.log(0.05 + 0.15 * torch.rand(num, 3, generator=generator)),
        opacities=torch.full((num,), 2.0),
        sh0=rgb_to_sh0(rgb)[:, None, :],
        shN=torch.zeros(num, 3, 3),
    )


def ring_of_cameras(num: int = NUM_VIEWS) -> list[Camera]:
    """Return `num` cameras on a ring of radius 3, looking at the origin."""
    K = np.array([[FOCAL, 0.0, WIDTH / 2], [0.0, FOCAL, HEIGHT / 2], [0.0, 0.0, 1.0]])
    cameras = []
    for angle in np.linspace(0.0, 2.0 * np.pi, num, endpoint=False):
        position = np.array([3.0 * np.cos(angle), 3.0 * np.sin(angle), 0.8])
        viewmat = look_at(position, np.zeros(3), np.array([0.0, 0.0, 1.0]))
        cameras.append(Camera(viewmat, K, WIDTH, HEIGHT))
    return cameras


def write_blob_scene(folder: Path, num_views: int = NUM_VIEWS) -> Path:
    """Write photographs of `blobs` and the COLMAP text files that tell their cameras and points."""
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
    """A COLMAP folder of nine 48x40 views of sixty coloured blobs."""
    return write_blob_scene(tmp_path_factory.mktemp("scenes") / "blobs")


@pytest.fixture(scope="session")
def blob_scene(blob_folder: Path) -> Scene:
    """The scene of `blob_folder`, loaded."""
    return load_scene(blob_folder)
