"""Checkpoints that ranks write together: nothing late, nothing held twice, no rank left without an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from splatstudio.checkpoints import saver as checkpoint_saver
from splatstudio.checkpoints import shared_saver
from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    abandon_checkpoint,
    begin_checkpoint,
    save_checkpoint,
    shard_rows,
)
from splatstudio.checkpoints.shard_file import named_tensors
from splatstudio.checkpoints.share import load_share
from splatstudio.checkpoints.shared_saver import PartSaver, SharedSaver
from splatstudio.distributed.ranks import Ranks
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.train.trainer import Trainer


class Second(Ranks):
    """What the middle one of three ranks knows."""

    rank = 1
    num_ranks = 3


@pytest.fixture
def whole(blob_scene: Scene) -> Checkpoint:
    trainer = Trainer(blob_scene, TrainConfig(steps=10, sh_degree=1))
    trainer.train_step()
    checkpoint = trainer.checkpoint()
    trainer.close()
    return checkpoint


def part(whole: Checkpoint, rank: int) -> Checkpoint:
    return replace(whole, population=shard_rows(whole.population, rank, 2))


def test_two_tries_of_one_step_have_folders_of_their_own(tmp_path: Path) -> None:
    first = begin_checkpoint(tmp_path, 7, 0)
    abandon_checkpoint(first)
    assert begin_checkpoint(tmp_path, 7, 0).name != first.name, "a late answer must not land in it"


def test_a_rank_holds_its_own_rows_and_not_the_files_that_they_came_from(
    whole: Checkpoint, tmp_path: Path
) -> None:
    for num_shards in (1, 2):
        share = load_share(save_checkpoint(tmp_path, whole, num_shards=num_shards), Second())
        assert 0 < len(share.population) < len(whole.population)
        for name, tensor in named_tensors(share.population).items():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


def test_memory_must_hold_the_copies_of_all_ranks(
    whole: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, other = SharedSaver(tmp_path, 2, lambda _: None), PartSaver(1, 2)
    staging = tmp_path / "staging"
    staging.mkdir()
    parts = [part(whole, rank) for rank in range(2)]
    copied = []
    snapshot = checkpoint_saver.snapshot

    def watched(checkpoint: Checkpoint) -> Checkpoint:
        copied.append(checkpoint)
        return snapshot(checkpoint)

    monkeypatch.setattr(checkpoint_saver, "snapshot", watched)
    monkeypatch.setattr(shared_saver, "_answer_of", lambda staging, rank: pytest.fail("not asked"))
    monkeypatch.setattr(saver, "_write", lambda checkpoint: None)
    for copies, expected in ((1.5, []), (2.5, parts)):
        free = int(checkpoint_saver.SPARE_BYTES + copies * 1.1 * parts[1].num_bytes)
        monkeypatch.setattr(checkpoint_saver, "free_memory", lambda free=free: free)
        saver.start(parts[0])
        saver.take(wait=True)
        other.write(staging, parts[1])
        assert copied == expected, copies
    saver.close()
    other.close()


@pytest.mark.parametrize("in_copy", [True, False])
def test_a_rank_that_fails_at_anything_answers(
    whole: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_copy: bool
) -> None:
    other = PartSaver(1, 2)
    saver = SharedSaver(tmp_path, 2, lambda staging: other.write(staging, part(whole, 1)))
    write = shared_saver.write_shard

    def short(staging: Path, population, rank: int, num_ranks: int):
        if rank == 1 and not in_copy:
            raise RuntimeError("the sky fell")
        return write(staging, population, rank, num_ranks)

    def no_memory(_: Checkpoint) -> Checkpoint:
        raise MemoryError

    monkeypatch.setattr(shared_saver, "write_shard", short)
    if in_copy:
        monkeypatch.setattr(checkpoint_saver, "snapshot", no_memory)
    result = saver.save(part(whole, 0))
    other.close()
    if in_copy:
        assert result.path is not None, "it is written without a copy"
    else:
        assert result.path is None and "rank 1: the sky fell" in str(result.error)
        assert list((tmp_path / "ckpts").iterdir()) == []
