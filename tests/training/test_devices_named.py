"""No part of a training makes a tensor on whatever device happens to be the default one.

On a second GPU that would be the first one's memory, or the CPU's: an error that no machine with one GPU, and
no CPU, shows by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import RankPool
from sharded_training_tasks import Plan, config_of, train
from torch.overrides import TorchFunctionMode

from splatstudio.distributed.ranks import Ranks
from splatstudio.scene.scene import Scene
from splatstudio.training.trainer import Trainer

NAMES = ("tensor", "zeros", "ones", "empty", "full", "arange", "eye", "linspace")
NAMES += ("rand", "randn", "randint", "randperm")
FACTORIES = {getattr(torch, name) for name in NAMES}

GROWING: dict[str, Any] = {
    "sh_degree": 1,
    "densify.start_step": 3,
    "densify.every": 5,
    "densify.reset_every": 9,
    "densify.grow_grad": 1e-4,
    "densify.max_gaussians": 70,
}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"densify.stop_scale2d_step": 12, "densify.prune_scale2d": 10.0},
    "mcmc": {"strategy": "mcmc", "mcmc.start_step": 3, "mcmc.every": 4, "shapes.scale_weight": 0.01},
    "fast": {"strategy": "fast", "mcmc.every": 4},
    "corrected": {
        "exposure.enabled": True,
        "poses.enabled": True,
        "poses.start_step": 2,
        "sky.enabled": True,
        "shapes.min_views": 2,
        "shapes.min_views_every": 5,
        "shapes.max_scale": 0.1,
    },
}


class DevicesNamed(TorchFunctionMode):
    """Raises where the package makes a tensor and does not say on which device.

    A generator names the device as well.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES and "device" not in kwargs and kwargs.get("generator") is None:
            frame = sys._getframe(1)
            place = Path(frame.f_code.co_filename)
            assert "splatstudio" not in place.parts[-3:], f"{place.name}:{frame.f_lineno} {func.__name__}"
        return func(*args, **kwargs)


def train_with_names(ranks: Ranks, plan: Plan) -> int:
    with DevicesNamed():
        return train(ranks, plan).num_gaussians


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_training_names_its_devices(blob_scene: Scene, kind: str, batch_size: int) -> None:
    config = config_of({**GROWING, **KINDS[kind], "batch_size": batch_size}, 40)
    with DevicesNamed():
        trainer = Trainer(blob_scene, config)
        for _ in range(11):
            trainer.train_step()
        trainer.checkpoint()
    trainer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_on_ranks_names_its_devices(pool: RankPool, blob_folder: Path, kind: str) -> None:
    sizes = pool.run(2, train_with_names, Plan(blob_folder, {**GROWING, **KINDS[kind]}, 11))
    assert sizes[0] == sizes[1] > 0


def test_a_forgotten_device_is_found() -> None:
    source = compile("import torch\ntorch.zeros(3)", "/any/splatstudio/forgetful.py", "exec")
    with pytest.raises(AssertionError, match=r"forgetful.py:2 zeros"), DevicesNamed():
        exec(source, {})
