"""The first Gaussians: sizes from neighbors, positions where the cameras look."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.gaussians.gaussians import SH_C0, Gaussians
from splatstudio.gaussians.initialize import from_points, random_in_cameras
from splatstudio.rendering.render import render

UP = np.array([0.0, 0.0, 1.0])
K = np.array([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]])


def start(points: np.ndarray, colors: np.ndarray | None = None, *, init_scale: float = 1.0) -> Gaussians:
    colors = np.full((len(points), 3), 128, np.uint8) if colors is None else colors
    return from_points(
        points.astype(np.float32),
        colors,
        sh_degree=3,
        init_scale=init_scale,
        init_opacity=0.1,
        generator=torch.Generator().manual_seed(0),
    )


def at_random(cameras: list[Camera], num: int = 2000, seed: int = 0) -> Gaussians:
    return random_in_cameras(
        cameras,
        num,
        sh_degree=1,
        init_scale=1.0,
        init_opacity=0.1,
        generator=torch.Generator().manual_seed(seed),
    )


def views_of(camera: Camera, points: np.ndarray) -> np.ndarray:
    """Return which points lie in a pinhole's image."""
    x, y, z = (points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]).T
    u, v = K[0, 0] * x / z + K[0, 2], K[1, 1] * y / z + K[1, 2]
    return (z > 0) & (u > 0) & (u < camera.width) & (v > 0) & (v < camera.height)


def test_the_size_is_the_distance_to_three_neighbors() -> None:
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3], [50, 0, 0]])
    gaussians = start(points, init_scale=0.5)
    expected = 0.5 * math.sqrt((1 + 4 + 9) / 3)
    torch.testing.assert_close(gaussians.scales[0].exp(), torch.full((3,), expected))
    torch.testing.assert_close(gaussians.means, torch.from_numpy(points).float())
    torch.testing.assert_close(gaussians.opacities.sigmoid(), torch.full((5,), 0.1))
    torch.testing.assert_close(gaussians.quats.norm(dim=1), torch.ones(5))
    assert gaussians.sh_degree == 3 and not gaussians.shN.any()


def test_colors_are_seen_as_they_were() -> None:
    gaussians = start(np.eye(3), np.array([[255, 0, 51], [0, 0, 0], [1, 2, 3]], np.uint8))
    torch.testing.assert_close(gaussians.sh0[0, 0] * SH_C0 + 0.5, torch.tensor([1.0, 0.0, 0.2]))


def test_points_at_one_place_get_the_distance_to_the_others() -> None:
    gaussians = start(np.array([[0, 0, 0]] * 5 + [[1, 0, 0], [0, 1, 0], [0, 0, 1]]))
    torch.testing.assert_close(gaussians.scales[:5].exp(), torch.ones(5, 3))


@pytest.mark.parametrize("num", [1, 2, 3])
def test_very_few_points(num: int) -> None:
    gaussians = start(np.arange(3 * num).reshape(num, 3))
    assert len(gaussians) == num
    assert all(tensor.isfinite().all() for tensor in gaussians.tensors().values())


def test_points_that_are_not_finite_are_dropped() -> None:
    points = np.array([[0, 0, 0], [np.nan, 0, 0], [1, 0, 0], [0, np.inf, 0]])
    gaussians = start(points, np.array([[1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4]], np.uint8))
    assert gaussians.means[:, 0].tolist() == [0.0, 1.0]
    torch.testing.assert_close(gaussians.sh0[1, 0] * SH_C0 + 0.5, torch.full((3,), 3 / 255))
    with pytest.raises(ValueError, match="no points"):
        start(np.full((2, 3), np.nan))


def test_a_seed_repeats_itself() -> None:
    cameras = [Camera(look_at(np.array([0, -3.0, 1.0]), np.zeros(3), UP), K, 64, 48)]
    first, again, other = at_random(cameras), at_random(cameras), at_random(cameras, seed=1)
    for name, tensor in first.tensors().items():
        assert torch.equal(tensor, again.tensors()[name])
    assert not torch.equal(first.means, other.means)


def test_an_orbit_gets_its_gaussians_around_its_center() -> None:
    center = np.array([5.0, -2.0, 1.0])
    angles = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    places = center + 4 * np.stack([np.cos(angles), np.sin(angles), np.full(12, 0.3)], axis=1)
    cameras = [Camera(look_at(place, center, UP), K, 64, 48) for place in places]
    gaussians = at_random(cameras)
    points = gaussians.means.double().numpy()
    assert len(points) == 2000
    seen = np.mean([views_of(camera, points) for camera in cameras], axis=0)
    assert np.mean(seen > 0.99) > 0.9  # nearly all are seen by all
    assert np.linalg.norm(points.mean(axis=0) - center) < 0.3
    assert np.linalg.norm(points - center, axis=1).max() < 4.0  # none at the cameras or behind them
    assert np.ptp(points, axis=0).min() > 1.0  # a volume, not a spot
    assert render(gaussians, cameras[0]).alpha.mean() > 0.2


def test_forward_facing_cameras_get_theirs_ahead() -> None:
    places = [np.array([x, 0.0, z]) for x in (-0.5, 0.0, 0.5) for z in (-0.2, 0.2)]
    cameras = [Camera(look_at(place, place + np.array([0, 1, 0]), UP), K, 64, 48) for place in places]
    points = at_random(cameras).means.double().numpy()
    assert np.mean([views_of(camera, points) for camera in cameras]) > 0.95
    assert points[:, 1].min() > 0.1 and points[:, 1].max() < 10.0


@pytest.mark.parametrize("model", ["pinhole", "ortho", "fisheye"])
def test_one_camera_sees_them_all(model) -> None:
    camera = Camera(look_at(np.array([0, -3.0, 1.0]), np.zeros(3), UP), K, 64, 48, model)
    gaussians = at_random([camera], num=300)
    drawn = render(gaussians, camera)
    assert (drawn.radii > 0).all()
    # Spread over the picture, not gathered in a part of it.
    quarters = [
        drawn.alpha[rows, columns].mean()
        for rows in (slice(0, 24), slice(24, 48))
        for columns in (slice(0, 32), slice(32, 64))
    ]
    assert min(quarters) > 0.3 * max(quarters) > 0


def test_no_cameras_are_refused() -> None:
    with pytest.raises(ValueError, match="no cameras"):
        at_random([])
