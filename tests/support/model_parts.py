"""Files that are each a part of a model, as one rank of several wrote it: fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from blob_models import blobs

from splatstudio.checkpoints.checkpoint import Checkpoint, save_checkpoint
from splatstudio.optimization.optim import SplatAdam
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.population import Population


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """Return gsplat's file of rank 0 of 2, in a folder with that of rank 1."""
    for rank in range(2):
        splats = {name: tensor.clone() for name, tensor in blobs()[rank::2].tensors().items()}
        torch.save({"step": 9, "splats": splats}, tmp_path / f"ckpt_9_rank{rank}.pt")
    return tmp_path / "ckpt_9_rank0.pt"


@pytest.fixture
def shard(blob_scene: Scene, tmp_path: Path) -> Path:
    """Return the file of rank 0 of 2 of a checkpoint of ours."""
    gaussians = blobs()
    checkpoint = Checkpoint(
        step=7,
        config=TrainConfig(sh_degree=1, test_every=4),
        population=Population(gaussians, SplatAdam.zeros(gaussians), {}),
        scene_path=blob_scene.path,
        scene_transform=blob_scene.transform,
        rng_state=torch.Generator().get_state(),
        upcoming=(),
    )
    return save_checkpoint(tmp_path / "run", checkpoint, num_shards=2) / "rank00000-of-00002.safetensors"


STEP_OF_PARTS = 9


def content_of(rank: int) -> dict[str, Any]:
    """Return what gsplat's trainer writes of a rank, with optimizers and a module that all ranks share."""
    splats = dict(blobs(num=20 + rank).detach().tensors())
    optimizers = {
        name: {
            "state": {0: {"step": torch.tensor(7.0), "exp_avg": t + 1, "exp_avg_sq": t * t}},
            "param_groups": [{"lr": 0.1}],
        }
        for name, t in splats.items()
    }
    pose = {"embeds.weight": torch.tensor([[1.0, torch.nan]])}
    return {"step": STEP_OF_PARTS, "splats": splats, "optimizers": optimizers, "pose_adjust": pose}


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Return a folder with the files of two ranks."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    for rank in range(2):
        torch.save(content_of(rank), folder / f"ckpt_{STEP_OF_PARTS}_rank{rank}.pt")
    return folder
