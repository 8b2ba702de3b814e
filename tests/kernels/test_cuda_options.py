"""Trainings of every kind on a real GPU: `pytest -m cuda` on a machine that has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from blob_scenes import write_blob_scene
from training_options import OPTIONS, short_training

from splatstudio.evaluation.evaluate import evaluate
from splatstudio.kernels import ops
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.training.trainer import Trainer

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]

STEPS = 12


@pytest.fixture(scope="module")
def cut_out(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The scene of blobs with photos that have an alpha channel."""
    folder = write_blob_scene(tmp_path_factory.mktemp("scenes") / "cut_out")
    for path in (folder / "images").glob("*.png"):
        rgb = cv2.imread(str(path))
        assert rgb is not None
        alpha = np.full(rgb.shape[:2], 255, np.uint8)
        alpha[:10], alpha[10:14] = 0, 100
        cv2.imwrite(str(path), np.dstack([rgb, alpha]))
    return load_scene(folder)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("scene_name", ["blob_scene", "cut_out"])
def test_a_training_goes_on_from_a_checkpoint_and_is_evaluated(
    options: dict[str, Any], scene_name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if scene_name == "cut_out" and not {"sky.enabled", "random_background"} & set(options):
        pytest.skip("alpha matters to what lies behind alone")
    scene: Scene = request.getfixturevalue(scene_name)
    config = short_training(options, STEPS)
    first = Trainer(scene, config, device="cuda")
    try:
        for _ in range(STEPS // 2):
            first.train_step()
        checkpoint = first.save(tmp_path)
    finally:
        first.close()
    second = Trainer.resume(scene, checkpoint, device="cuda")
    try:
        while second.step < STEPS:
            second.train_step()
        assert second.gaussians.device.type == "cuda"
        assert all(torch.isfinite(tensor).all() for tensor in second.gaussians.tensors().values())
        assert evaluate(second.gaussians, scene, options=second.display_options).psnr > 8.0
    finally:
        second.close()
