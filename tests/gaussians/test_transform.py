"""Moving a model and its camera alike changes nothing in the picture."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from splatstudio.cameras.camera import Camera, CameraModel, look_at
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.spherical_harmonics import shade
from splatstudio.gaussians.transform import sh_band_matrix, transformed
from splatstudio.rendering.render import render


def random_gaussians(num: int, degree: int, seed: int = 0) -> Gaussians:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return Gaussians(
        means=normal(num, 3) * 0.4,
        quats=normal(num, 4),
        scales=normal(num, 3) * 0.4 - 2.0,
        opacities=normal(num),
        sh0=normal(num, 1, 3) * 0.5,
        shN=normal(num, (degree + 1) ** 2 - 1, 3) * 0.4,
    )


def random_similarity(seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    similarity = np.eye(4)
    similarity[:3, :3] = Rotation.from_quat(generator.normal(size=4)).as_matrix() * generator.uniform(
        0.2, 5.0
    )
    similarity[:3, 3] = generator.normal(size=3) * 3.0
    return similarity


@pytest.mark.parametrize("model", ["pinhole", "ortho", "fisheye"])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_the_picture_stays(degree: int, model: CameraModel) -> None:
    gaussians, similarity = random_gaussians(30, degree), random_similarity(degree)
    viewmat = look_at(np.array([1.5, -1.0, 1.2]), np.zeros(3), np.array([0.0, 0.0, 1.0]))
    camera = Camera(viewmat, np.array([[40.0, 0, 24], [0, 40, 16], [0, 0, 1]]), 48, 32, model)
    before = render(gaussians, camera)
    after = render(transformed(gaussians, similarity), camera.transformed(similarity))
    assert before.alpha.max() > 0.5
    # The fisheye formulae hold a small constant length that does not scale with the scene.
    tolerance = 1e-5 if model == "fisheye" else 1e-9
    torch.testing.assert_close(after.rgb, before.rgb, rtol=0, atol=tolerance)
    torch.testing.assert_close(after.alpha, before.alpha, rtol=0, atol=tolerance)
    scale = np.cbrt(np.linalg.det(similarity[:3, :3]))
    torch.testing.assert_close(after.depth, before.depth * scale, rtol=tolerance, atol=tolerance)


def test_there_and_back() -> None:
    gaussians, similarity = random_gaussians(10, 3), random_similarity()
    back = transformed(transformed(gaussians, similarity), np.linalg.inv(similarity))
    assert (transformed(gaussians, similarity).means - gaussians.means).abs().max() > 1.0
    for name, tensor in back.tensors().items():
        expected = gaussians.tensors()[name]
        if name == "quats":  # both signs are the same rotation
            tensor = tensor * (tensor * expected).sum(dim=1, keepdim=True).sign()
        torch.testing.assert_close(tensor, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("band", [1, 2, 3])
def test_band_matrices_compose_and_are_orthogonal(band: int) -> None:
    first, second = Rotation.from_quat(np.random.default_rng(band).normal(size=(2, 4))).as_matrix()
    matrix = sh_band_matrix(band, first)
    identity = torch.eye(2 * band + 1, dtype=torch.float64)
    torch.testing.assert_close(matrix @ matrix.T, identity, rtol=0, atol=1e-12)
    both = sh_band_matrix(band, second) @ matrix
    torch.testing.assert_close(both, sh_band_matrix(band, second @ first), rtol=0, atol=1e-12)


def test_a_quarter_turn_of_one_lobe() -> None:
    """The lobe along +z, turned about x by 90 degrees, lies along -y."""
    rotation = Rotation.from_euler("x", 90, degrees=True).as_matrix()
    lobe = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)  # (y, z, x)
    turned = sh_band_matrix(1, rotation) @ lobe
    sh = torch.zeros(1, 4, 3, dtype=torch.float64)
    sh[0, 1:, 0] = turned
    along = torch.tensor([[0.0, -1.0, 0.0]], dtype=torch.float64)
    assert shade(along, sh)[0, 0].item() == pytest.approx(0.5 + math.sqrt(3 / (4 * math.pi)))


@pytest.mark.parametrize(
    "linear",
    [np.diag([1.0, 1.0, -1.0]), np.diag([1.0, 2.0, 1.0]), np.zeros((3, 3)), np.full((3, 3), np.nan)],
    ids=["mirror", "stretch", "flat", "nan"],
)
def test_other_matrices_are_refused(linear: np.ndarray) -> None:
    similarity = np.eye(4)
    similarity[:3, :3] = linear
    with pytest.raises(ValueError, match="only be moved, turned and scaled"):
        transformed(random_gaussians(2, 1), similarity)
