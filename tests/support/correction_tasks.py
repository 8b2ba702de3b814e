"""What the ranks of the tests of corrections do; functions of a module, as other processes run them."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from splatstudio.distributed.ranks import Ranks
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer


def corrections_after(
    ranks: Ranks, scene: Path, config: TrainConfig, num_steps: int, run: Path
) -> tuple[dict[str, Tensor], list[float], str]:
    """Train and save; return the corrections, the losses and the checkpoint's folder."""
    trainer = Trainer(load_scene(scene), config, ranks=ranks)
    losses = [trainer.train_step().loss for _ in range(num_steps)]
    folder = trainer.save(run)
    trainer.close()
    saved = trainer.checkpoint().corrections
    assert saved is not None
    return {name: tensor.clone() for name, tensor in saved.tensors.items()}, losses, str(folder)
