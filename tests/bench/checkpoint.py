"""How long a training step waits for a checkpoint: written at once, and in the background.

    python tests/bench/checkpoint.py [--gaussians 500000] [--folder FOLDER]

Trains Gaussians at random on the demo scene, takes the time of single steps, of the call that saves, and of
the steps while the background save runs, and of loading the checkpoint again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from splatstudio.checkpoints.checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint
from splatstudio.checkpoints.saver import CheckpointSaver, snapshot
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.trainer import Trainer

DEMO = Path(__file__).parent.parent.parent / "assets" / "demo"


def milliseconds(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--gaussians", type=int, default=500_000)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    scene = load_scene(DEMO, downscale=4)
    scene = replace(scene, points=np.zeros((0, 3), np.float32), colors=np.zeros((0, 3), np.uint8))
    config = TrainConfig(steps=1000, init_random=arguments.gaussians, densify=DensifyConfig(enabled=False))
    trainer = Trainer(scene, config)

    def step() -> float:
        started = time.perf_counter()
        trainer.train_step()
        return milliseconds(started)

    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        plain = [step() for _ in range(10)]
        size = trainer.checkpoint().num_bytes / 1e6
        print(f"{arguments.gaussians:,} Gaussians, {size:.0f} MB; a step {statistics.median(plain):.0f} ms")
        for _ in range(2):
            started = time.perf_counter()
            saved = save_checkpoint(folder, trainer.checkpoint())
            print(f"written at once: the step waits {milliseconds(started):.0f} ms")
        started = time.perf_counter()
        snapshot(trainer.checkpoint())
        print(f"a copy alone: {milliseconds(started):.0f} ms")
        saver = CheckpointSaver(folder)
        for _ in range(2):
            started = time.perf_counter()
            saver.start(trainer.checkpoint())
            wait = milliseconds(started)
            during: list[float] = []
            while saver.busy:
                during.append(step())
            assert (result := saver.take(wait=True)) is not None and result.path is not None
            print(
                f"in the background: the step waits {wait:.0f} ms; {len(during)} steps meanwhile,"
                f" median {statistics.median(during):.0f} ms, longest {max(during):.0f} ms"
            )
        saver.close()
        started = time.perf_counter()
        verify_checkpoint(saved)
        print(f"verified in {milliseconds(started):.0f} ms", end=", ")
        started = time.perf_counter()
        load_checkpoint(saved)
        print(f"verified and loaded in {milliseconds(started):.0f} ms")
    trainer.close()


if __name__ == "__main__":
    main()
