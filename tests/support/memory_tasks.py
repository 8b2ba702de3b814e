"""What the ranks of the tests of memory do; functions of a module, as other processes run them."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import replace
from pathlib import Path

import numpy as np

from splatstudio.distributed.ranks import Ranks
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.trainer import Trainer


def peak_of_training(ranks: Ranks, folder: Path, config: TrainConfig, num: int) -> int:
    """Return the most bytes that this process holds while `num` Gaussians are trained for a few steps.

    All photos show all of the Gaussians. What the process has freed before is given back first.
    """
    scene = load_scene(folder)
    low, high = np.quantile(scene.points, 0.1, axis=0), np.quantile(scene.points, 0.9, axis=0)
    points = np.random.default_rng(0).uniform(low, high, (num, 3)).astype(np.float32)
    scene = replace(scene, points=points, colors=np.full((num, 3), 128, np.uint8))
    densify = DensifyConfig(start_step=1, every=2, max_gaussians=num)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    trainer = Trainer(scene, replace(config, steps=60, densify=densify), ranks=ranks)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    for _ in range(5):
        trainer.train_step()
    # Not getrusage: its peak counts the process that started this one.
    peak = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    trainer.close()
    return peak
