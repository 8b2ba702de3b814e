"""The gradient of the camera's place: as finite differences tell, in double precision and on the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera, CameraModel, look_at
from splatstudio.corrections.poses import (
    corrected_camera,
    of_correction,
    rotation_about,
    without_common_motion,
)
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops, reference
from splatstudio.kernels.reference_training import pose_gradient
from splatstudio.kernels.stages import ProjectSettings, RasterSettings
from splatstudio.optimization.gradients import backward, draw, gradient_of_pose
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions
from splatstudio.strategy.population import trainable

SIZE = (24, 20)  # px
STEP = 1e-8  # of finite differences: so small that no pixel crosses the threshold of alpha in between


def scene(sh_degree: int, dtype: torch.dtype = torch.float64) -> Gaussians:
    random = torch.Generator().manual_seed(5)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    num = 40
    return Gaussians(
        means=0.5 * numbers(num, 3),
        quats=2.0 * numbers(num, 4),
        scales=-1.5 + 0.3 * numbers(num, 3),
        opacities=-1.0 + 0.5 * numbers(num),
        sh0=0.5 * numbers(num, 1, 3),
        shN=0.3 * numbers(num, (sh_degree + 1) ** 2 - 1, 3),
    )


def camera_of(model: CameraModel = "pinhole") -> Camera:
    focal = {"pinhole": 24.0, "fisheye": 24.0, "ortho": 8.0}[model]
    K = np.array([[focal, 0.0, 12.3], [0.0, focal * 1.1, 9.6], [0.0, 0.0, 1.0]])
    viewmat = look_at(np.array([2.5, 0.7, 0.9]), np.array([0.1, 0.0, -0.1]), np.array([0.0, 0.0, 1.0]))
    return Camera(viewmat, K, *SIZE, model=model)


def weights(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(6)
    shape = (SIZE[1], SIZE[0])
    rgb = torch.randn(*shape, 3, generator=random, dtype=torch.float64)
    return rgb.to(dtype), torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)


def loss_in_double(gaussians: Gaussians, camera: Camera, settings: ProjectSettings) -> Tensor:
    means, quats, scales, opacities, sh0, shN = gaussians.tensors().values()
    projected = reference.project(
        means, quats, scales.exp(), opacities.sigmoid(), sh0, shN, camera=camera, settings=settings
    )
    raster = reference.rasterize(projected, RasterSettings(*SIZE, torch.zeros(3, dtype=torch.float64)))
    rgb, depth = weights()
    return (raster.rgb * rgb).sum() + (raster.depth_sum * depth).sum()


def analytic(gaussians: Gaussians, camera: Camera, settings: ProjectSettings) -> np.ndarray:
    leaves = trainable(gaussians)
    tensors = leaves.tensors()
    loss = loss_in_double(leaves, camera, settings)
    gradients = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True)
    return pose_gradient(
        leaves,
        dict(zip(tensors, gradients, strict=True)),
        camera=camera,
        sh_degree=settings.sh_degree,
        radii=torch.ones(len(leaves), 2, dtype=torch.int32),
    ).numpy()


def differences(gaussians: Gaussians, camera: Camera, settings: ProjectSettings) -> np.ndarray:
    slopes, step = [], STEP
    for axis in range(6):
        values = [
            float(
                loss_in_double(gaussians, corrected_camera(camera, sign * step * np.eye(6)[axis]), settings)
            )
            for sign in (1.0, -1.0)
        ]
        slopes.append((values[0] - values[1]) / (2 * step))
    return np.array(slopes)


@pytest.mark.parametrize("sh_degree", [0, 1, 3])
@pytest.mark.parametrize("model", ["pinhole", "fisheye", "ortho"])
def test_the_gradient_is_what_finite_differences_tell(sh_degree: int, model: CameraModel) -> None:
    gaussians, camera = scene(sh_degree), camera_of(model)
    settings = ProjectSettings(sh_degree, antialiased=sh_degree == 1)
    found, expected = analytic(gaussians, camera, settings), differences(gaussians, camera, settings)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_the_direction_of_the_harmonics_counts_when_the_camera_shifts_and_not_when_it_turns() -> None:
    # Strong harmonics: a gradient that took the scene for rigid in all would be far off here.
    gaussians, camera = scene(2), camera_of()
    gaussians = replace(gaussians, shN=5.0 * gaussians.shN)
    settings = ProjectSettings(2)
    expected = differences(gaussians, camera, settings)
    np.testing.assert_allclose(
        analytic(gaussians, camera, settings), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()
    )
    no_direction = replace(settings, sh_degree=0)
    assert not np.allclose(analytic(gaussians, camera, no_direction), expected, rtol=0.05)


@pytest.mark.skipif(not ops.is_available(), reason="the native kernels are not built")
def test_the_kernels_give_the_same_gradient() -> None:
    camera, settings = camera_of(), ProjectSettings(2)
    gaussians = trainable(scene(2, torch.float32))
    drawing = draw(gaussians, SplatAdam.zeros(gaussians), camera, RenderOptions(sh_degree=2), observed=False)
    rgb, depth = weights(torch.float32)
    gradients = backward(drawing, (drawing.rgb * rgb).sum() + (drawing.depth_sum * depth).sum())
    expected = analytic(scene(2), camera, settings)
    found = gradient_of_pose(drawing, gradients).numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


def test_the_gradient_of_a_correction_holds_away_from_none() -> None:
    gaussians, camera, settings = scene(1), camera_of(), ProjectSettings(1)
    correction = np.array([0.05, -0.03, 0.08, 0.2, -0.1, 0.15])
    twist = analytic(gaussians, corrected_camera(camera, correction), settings)
    slopes, step = [], STEP
    for axis in range(6):
        ends = [
            float(
                loss_in_double(
                    gaussians, corrected_camera(camera, correction + sign * step * np.eye(6)[axis]), settings
                )
            )
            for sign in (1.0, -1.0)
        ]
        slopes.append((ends[0] - ends[1]) / (2 * step))
    np.testing.assert_allclose(of_correction(twist, correction), slopes, rtol=1e-4, atol=1e-3)


def test_a_turn_is_about_its_axis_by_its_length() -> None:
    np.testing.assert_allclose(
        rotation_about(np.array([0.0, 0.0, np.pi / 2])), [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-15
    )


def ring(num: int) -> list[Camera]:
    angles = np.linspace(0.0, 2 * np.pi, num, endpoint=False)
    places = [np.array([2 * np.cos(a), 2 * np.sin(a), 0.3 * np.sin(3 * a)]) for a in angles]
    up = np.array([0.0, 0.0, 1.0])
    return [replace(camera_of(), viewmat=look_at(place, np.zeros(3), up)) for place in places]


def test_a_motion_of_all_cameras_together_is_taken_out_and_the_rest_stays() -> None:
    cameras = ring(9)
    # A small similarity of the world, as corrections of the cameras.
    turn, shift, growth = np.array([0.01, -0.02, 0.015]), np.array([0.02, 0.01, -0.03]), 0.01
    common = []
    for camera in cameras:
        rotation = camera.viewmat[:3, :3]
        moved = shift + np.cross(turn, camera.position) + growth * camera.position
        common.append(np.concatenate([-rotation @ moved, -rotation @ turn]))
    common = np.stack(common)
    assert np.abs(without_common_motion(common, cameras)).max() < 1e-12
    own = np.random.default_rng(3).normal(0.0, 0.01, (9, 6))
    left = without_common_motion(own + common, cameras)
    np.testing.assert_allclose(left, without_common_motion(own, cameras), atol=1e-12)
    assert np.linalg.norm(left) > 0.8 * np.linalg.norm(own)
