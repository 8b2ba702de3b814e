"""What the test photographs show changes no bit of a training, whatever is learnt beside the Gaussians."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corrected_scenes import ALL_ON, repainted

from splatstudio.checkpoints.manifest import named_tensors
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import DepthConfig, ShapeConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig, McmcConfig
from splatstudio.training.trainer import Trainer

STEPS = 40
EVERYTHING = replace(
    ALL_ON,
    steps=STEPS,
    eval_steps=(10, 20),
    exposure=replace(ALL_ON.exposure, grid=True),
    depth=DepthConfig(weight=0.1),
    shapes=ShapeConfig(min_views=2, min_views_every=15),
    densify=DensifyConfig(start_step=5, every=10, grow_grad=1e-5),
    fast=FastConfig(every=10, grow_grad=1e-5, views=3, thin_at=(0.7,)),
    mcmc=McmcConfig(every=10, max_gaussians=90),
)


def after_training(scene: Scene, config: TrainConfig) -> tuple[dict[str, torch.Tensor], float]:
    """Return all that a training has learnt, and its score in the middle, which it must not use."""
    trainer = Trainer(scene, config)
    for _ in range(STEPS // 2):
        trainer.train_step()
    score = evaluate(trainer.gaussians, scene, options=trainer.display_options).psnr
    for _ in range(STEPS // 2):
        trainer.train_step()
    checkpoint = trainer.checkpoint()
    trainer.close()
    assert checkpoint.corrections is not None
    assert {name.partition(".")[0] for name in checkpoint.corrections.tensors} == {"exposure", "poses", "sky"}
    learnt = {**named_tensors(checkpoint.population), **checkpoint.corrections.tensors}
    return {name: tensor.clone() for name, tensor in learnt.items()}, score


@pytest.mark.parametrize("strategy", ["default", "mcmc", "fast"])
def test_other_test_photographs_make_the_same_model(
    tracked: Scene,
    tmp_path: Path,
    strategy: str,
) -> None:
    test = set(tracked.test_indices)
    assert test and test < set(range(len(tracked.views)))

    def blackened(number: int, rgb: np.ndarray) -> np.ndarray:
        return np.zeros_like(rgb) if number in test else rgb

    other = load_scene(repainted(tracked.path, tmp_path / "scene", blackened))
    assert all(view.name == own.name for view, own in zip(other.views, tracked.views, strict=True))
    config = replace(EVERYTHING, strategy=strategy)  # type: ignore[arg-type]
    (ours, score), (theirs, other_score) = (after_training(scene, config) for scene in (tracked, other))
    assert abs(score - other_score) > 1.0, "the photographs are others indeed"
    assert ours.keys() == theirs.keys() and any(tensor.any() for tensor in ours.values())
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
