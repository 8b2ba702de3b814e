"""Corrections on several ranks: all ranks have the same, of all ranks' photographs, and save them once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from correction_tasks import corrections_after
from rank_pool import RankPool

from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.distributed.ranks import ALONE
from splatstudio.models.merging import merge
from splatstudio.settings.capture_config import ExposureConfig, PoseConfig, ShapeConfig, SkyConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig

CONFIG = TrainConfig(
    steps=100,
    sh_degree=1,
    sh_degree_every=3,
    densify=DensifyConfig(enabled=False),
    exposure=ExposureConfig(enabled=True),
    poses=PoseConfig(enabled=True, start_step=2),
    sky=SkyConfig(enabled=True, degree=1),
    shapes=ShapeConfig(min_views=1, min_views_every=4),
)
NUM_STEPS = 8


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_learn_what_one_process_learns_of_the_same_batch(
    blob_folder: Path, tmp_path: Path, pool: RankPool, num_ranks: int
) -> None:
    alone = corrections_after(
        ALONE, blob_folder, replace(CONFIG, batch_size=num_ranks), NUM_STEPS, tmp_path / "alone"
    )
    found = pool.run(num_ranks, corrections_after, blob_folder, CONFIG, NUM_STEPS, tmp_path / "ranks")
    first = found[0]
    assert set(first[0]) == set(alone[0])
    for name, tensor in first[0].items():
        for other in found[1:]:
            assert torch.equal(tensor, other[0][name]), name
        assert tensor.any(), f"{name} has learnt nothing"
        if name.endswith((".values", ".exp_avg")):
            scale = float(alone[0][name].abs().max())
            torch.testing.assert_close(tensor, alone[0][name], rtol=0.02, atol=0.02 * scale)
    assert first[1] == pytest.approx(alone[1], rel=1e-4)


def test_ranks_save_their_corrections_once_and_a_merged_model_has_them(
    blob_folder: Path, tmp_path: Path, pool: RankPool
) -> None:
    found = pool.run(2, corrections_after, blob_folder, CONFIG, NUM_STEPS, tmp_path / "run")
    folder = Path(found[0][2])
    assert len(list(folder.glob("rank*"))) == 2 and len(list(folder.glob("corrections*"))) == 1
    model = merge(folder, tmp_path / "merged")
    assert model.options.sky is not None
    for place in (folder, tmp_path / "merged"):
        saved = load_checkpoint(place).corrections
        assert saved is not None
        for name, tensor in found[0][0].items():
            assert torch.equal(saved.tensors[name], tensor), name
