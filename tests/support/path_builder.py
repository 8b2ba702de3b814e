"""Keyframes for the tests of camera paths."""

from __future__ import annotations

import math

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import Keyframe

Z = np.array([0.0, 0.0, 1.0])


def turned(axis: np.ndarray, angle: float) -> np.ndarray:
    """Return the rotation [3, 3] by `angle` about `axis` (Rodrigues)."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def random_keys(seed: int, num: int, seconds: float | None = None) -> tuple[Keyframe, ...]:
    """Return keyframes of any position, orientation and angle."""
    rng = np.random.default_rng(seed)
    keys: list[Keyframe] = []
    for _ in range(num):
        pose = np.eye(4)
        pose[:3, :3] = turned(rng.normal(size=3), rng.uniform(0, math.pi))
        pose[:3, 3] = rng.normal(size=3)
        keys.append(Keyframe(pose, rng.uniform(0.3, 2.0), seconds))
    return tuple(keys)


def difference(camera: Camera, key: Keyframe) -> float:
    """Return how far a camera is from a keyframe: the largest of its numbers."""
    pose = np.abs(camera.camera_to_world - key.camera_to_world).max()
    return max(float(pose), abs(camera.fov_y - key.fov_y))
