"""Evaluating what lies on the disk: models of other programs, in their frames."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import blobs

from splatstudio.formats.gsplat_checkpoint import write_gsplat_checkpoint
from splatstudio.model import load_model
from splatstudio.rendering import render
from splatstudio.scene import load_scene
from splatstudio.scoring import OTHER_FRAME, EvaluationTask, evaluate_task

SHARED = Path(__file__).parent.parent.parent / "shared"
PLY = SHARED / "bench" / "banana_114k.ply"


@pytest.mark.skipif(not PLY.exists(), reason="needs the shared workloads")
def test_another_trainers_model_opens_renders_and_evaluates_on_its_scene() -> None:
    banana = SHARED / "scenes" / "banana"
    scored = evaluate_task(EvaluationTask(PLY, banana, downscale=4))
    evaluation = scored.evaluation
    assert evaluation.num_gaussians == 113_684 and len(evaluation.images) == 2
    # Its program sorts wrongly and was judged at 19.6 dB before it was split: no pretty model, but the scene.
    assert 16.5 < evaluation.psnr < 20.0 and scored.file is None
    scene = load_scene(banana, downscale=4)
    with torch.no_grad():
        picture = render(load_model(PLY).in_frame_of(scene).gaussians, scene.cameras[0])
    assert float(picture.alpha.mean()) > 0.9


def test_a_model_in_a_frame_of_its_own_is_told(blob_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "ckpt_29_rank0.pt"
    write_gsplat_checkpoint(file, blobs(), step=29)
    right = evaluate_task(EvaluationTask(file, blob_folder))
    assert right.evaluation.psnr > 50.0 and right.evaluation.notes == () and right.step is None
    moved = blobs()
    moved.means[:] = moved.means * 0.3 + 40.0
    write_gsplat_checkpoint(file, moved, step=29)
    beside = evaluate_task(EvaluationTask(file, blob_folder))
    assert beside.evaluation.notes == (OTHER_FRAME,)
