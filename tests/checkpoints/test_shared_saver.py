"""Checkpoints that two ranks write together, and what becomes of them when the disk of one fails."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splatstudio.checkpoints import shared_saver
from splatstudio.checkpoints.checkpoint import Checkpoint, load_checkpoint
from splatstudio.checkpoints.shared_saver import PartSaver, SharedSaver
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.parts import shard_rows
from splatstudio.train.trainer import Trainer


@pytest.fixture
def parts(blob_scene: Scene) -> list[Checkpoint]:
    """The parts of two ranks of one training, after three steps."""
    trainer = Trainer(blob_scene, TrainConfig(steps=10, sh_degree=1))
    for _ in range(3):
        trainer.train_step()
    whole = trainer.checkpoint()
    trainer.close()
    return [replace(whole, population=shard_rows(whole.population, rank, 2)) for rank in range(2)]


def test_both_ranks_write_in_the_background_what_they_had_when_it_began(
    parts: list[Checkpoint], tmp_path: Path
) -> None:
    other = PartSaver(1, 2)
    saver = SharedSaver(tmp_path, 2, lambda staging: other.write(staging, parts[1]))
    expected = torch.cat([part.gaussians.means.detach().clone() for part in parts])
    saver.start(parts[0])
    with torch.no_grad():
        for part in parts:
            part.gaussians.means.add_(1.0)  # the training goes on
    result = saver.take(wait=True)
    assert result is not None and result.path is not None
    assert torch.equal(load_checkpoint(result.path).gaussians.means, expected)
    assert sorted(path.name for path in result.path.iterdir()) == [
        *("manifest.json", "rank00000-of-00002.safetensors", "rank00001-of-00002.safetensors")
    ]
    saver.close()
    other.close()


@pytest.mark.parametrize("room_for_words", [True, False])
def test_a_rank_that_cannot_write_leaves_no_half_checkpoint(
    parts: list[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_for_words: bool
) -> None:
    write, write_text = shared_saver.write_shard, Path.write_text

    def full_on_rank_1(staging: Path, population, rank: int, num_ranks: int):
        if rank == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(staging, population, rank, num_ranks)

    def no_words(path: Path, text: str) -> int:
        if path.suffix == ".part" and not room_for_words:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, text)

    other = PartSaver(1, 2)
    saver = SharedSaver(tmp_path, 2, lambda staging: other.write(staging, parts[1]))
    with monkeypatch.context() as patched:
        patched.setattr(shared_saver, "write_shard", full_on_rank_1)
        patched.setattr(Path, "write_text", no_words)
        result = saver.save(parts[0])
        other.close()
    assert result.path is None and "rank 1: " in str(result.error)
    assert ("No space left" if room_for_words else "full") in str(result.error)
    assert list((tmp_path / "ckpts").iterdir()) == []
    again = PartSaver(1, 2)
    saver = SharedSaver(tmp_path, 2, lambda staging: again.write(staging, parts[1]))
    assert saver.save(parts[0]).path is not None
    again.close()


def test_what_cannot_even_begin_is_told_and_nobody_else_is_asked(
    parts: list[Checkpoint], tmp_path: Path
) -> None:
    (tmp_path / "ckpts").write_text("in the way")
    saver = SharedSaver(tmp_path, 2, lambda staging: pytest.fail("nobody is to write"))
    result = saver.save(parts[0])
    assert result.path is None and result.error is not None
