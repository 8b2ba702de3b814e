"""Scenes whose photos need corrections, and the settings that learn them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from splatstudio.settings.capture_config import ExposureConfig, PoseConfig, SkyConfig
from splatstudio.settings.config import TrainConfig

ALL_ON = TrainConfig(
    steps=100,
    sh_degree=1,
    sh_degree_every=5,
    exposure=ExposureConfig(enabled=True),
    poses=PoseConfig(enabled=True, start_step=4, lr=1e-3),
    sky=SkyConfig(enabled=True),
)


def repainted(folder: Path, target: Path, paint: Callable[[int, np.ndarray], np.ndarray]) -> Path:
    """Copy a scene with other colors; `paint` gets a view's number and its pixels, RGB in 0..1."""
    shutil.copytree(folder, target)
    for number, file in enumerate(sorted((target / "images").iterdir())):
        stored = cv2.imread(str(file))
        assert stored is not None
        pixels = stored[..., ::-1] / 255.0
        changed = np.clip(paint(number, pixels), 0.0, 1.0)
        cv2.imwrite(str(file), np.rint(changed[..., ::-1] * 255.0).astype(np.uint8))
    return target
