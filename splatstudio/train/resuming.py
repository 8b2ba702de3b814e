"""What must hold for a training to go on from a checkpoint, and with which settings it does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.checkpoints.checkpoint import Checkpoint
from splatstudio.corrections import check_agreement
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed

FIXED_AT_START = (
    *("seed", "sh_degree", "init_opacity", "init_scale", "init", "init_random"),
    *("test_every", "test_images", "strategy"),
)


def config_to_go_on(
    checkpoint: Checkpoint, scene: Scene, overrides: Mapping[str, Any], folder: Path
) -> TrainConfig:
    """Return the settings of a checkpoint, read from `folder`, with `overrides` by their dotted paths.

    Raises ValueError when one of them cannot be changed any more, and when the checkpoint is of another scene
    than `scene` is now.
    """
    config = checkpoint.config
    for path, value in overrides.items():
        new = changed(config, path, value)
        if path in FIXED_AT_START and new != config:
            raise ValueError(f"setting {path} cannot be changed when a training is resumed")
        config = new
    if overrides:  # else what was saved goes on, in which a sky wins
        check_agreement(config)
    if not np.allclose(checkpoint.scene_transform, scene.transform, rtol=1e-6, atol=1e-6):
        raise ValueError(
            f"{folder} is not of {scene.path} as that is now: it is another scene, or its cameras have"
            " changed since; name the run's own scene, or train this one anew"
        )
    if (scene.test_every, scene.test_images) != (config.test_every, config.test_images):
        raise ValueError(
            f"{folder} was trained with {_split(config)}, but {scene.path} was "
            f"loaded with {_split(scene)}: test photographs would be trained on"
        )
    return config


def _split(of: TrainConfig | Scene) -> str:
    return f"test_images {','.join(of.test_images)}" if of.test_images else f"test_every {of.test_every}"
