"""Checkpoints that one rank or two write together: nothing late, nothing held twice, all answer."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from splatstudio.checkpoints import saver as checkpoint_saver
from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    begin_checkpoint,
    complete_checkpoint,
    load_checkpoint,
    load_share,
    save_checkpoint,
)
from splatstudio.checkpoints.manifest import Shard, named_tensors
from splatstudio.checkpoints.saver import CheckpointSaver
from splatstudio.distributed.ranks import Ranks
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy.global_order import shard_rows
from splatstudio.training.trainer import Trainer


class Known(Ranks):
    """What a rank knows of how many there are."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks


@pytest.fixture
def whole(blob_scene: Scene) -> Checkpoint:
    """A training of one process after three steps."""
    trainer = Trainer(blob_scene, TrainConfig(steps=10, sh_degree=1))
    for _ in range(3):
        trainer.train_step()
    checkpoint = trainer.checkpoint()
    trainer.close()
    return checkpoint


@pytest.fixture
def parts(whole: Checkpoint) -> list[Checkpoint]:
    """The same as two ranks have it."""
    return [replace(whole, population=shard_rows(whole.population, rank, 2)) for rank in range(2)]


def savers(run_dir: Path, second: Checkpoint) -> tuple[CheckpointSaver, CheckpointSaver]:
    """Return the savers of two ranks, of which the second writes `second` when the first says where."""
    other = CheckpointSaver(None, Known(1, 2))
    return CheckpointSaver(run_dir, Known(0, 2), lambda staging: other.write_part(staging, second)), other


def test_both_ranks_write_in_the_background_what_they_had_when_it_began(
    parts: list[Checkpoint], tmp_path: Path
) -> None:
    saver, other = savers(tmp_path, parts[1])
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
    write, write_text = checkpoint_saver.write_shard, Path.write_text

    def full_on_rank_1(staging: Path, population, rank: int, num_ranks: int):
        if rank == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(staging, population, rank, num_ranks)

    def no_words(path: Path, text: str) -> int:
        if path.suffix == ".part" and not room_for_words:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, text)

    saver, other = savers(tmp_path, parts[1])
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_saver, "write_shard", full_on_rank_1)
        patched.setattr(Path, "write_text", no_words)
        result = saver.save(parts[0])
        other.close()
    assert result.path is None and "rank 1: " in str(result.error)
    assert ("No space left" if room_for_words else "full") in str(result.error)
    assert list((tmp_path / "ckpts").iterdir()) == []
    saver, again = savers(tmp_path, parts[1])
    assert saver.save(parts[0]).path is not None
    again.close()


def test_a_rank_whose_disk_takes_nothing_at_all_ends_with_the_reason(
    parts: list[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    staging = begin_checkpoint(tmp_path, 3, 0)
    other = CheckpointSaver(None, Known(1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_saver, "write_shard", read_only)
        patched.setattr(Path, "write_text", read_only)
        patched.setattr(Path, "unlink", read_only)
        other.write_part(staging, parts[1])
        with pytest.raises(OSError, match="Read-only"):
            while True:
                other.check_part()
    other.close()


def test_a_save_ends_though_a_rank_has_gone(
    parts: list[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_saver, "LAST_SECONDS", 0.1)
    saver = CheckpointSaver(tmp_path, Known(0, 2), lambda staging: None)  # nobody writes the other part
    saver.start(parts[0])
    assert saver.take(wait=False) is None
    saver.give_up()
    result = saver.take(wait=True)
    assert result is not None and result.path is None and "rank 1 has gone" in str(result.error)
    assert list((tmp_path / "ckpts").iterdir()) == []
    saver.close()


def test_what_is_written_already_is_waited_for_though_a_rank_has_gone(
    parts: list[Checkpoint], tmp_path: Path
) -> None:
    saver, other = savers(tmp_path, parts[1])
    saver.start(parts[0])
    saver.give_up()
    other.close()
    result = saver.take(wait=True)
    assert result is not None and result.path is not None
    saver.close()


def test_what_cannot_even_begin_is_told_and_nobody_else_is_asked(
    parts: list[Checkpoint], tmp_path: Path
) -> None:
    (tmp_path / "ckpts").write_text("in the way")
    saver = CheckpointSaver(tmp_path, Known(0, 2), lambda staging: pytest.fail("nobody is to write"))
    result = saver.save(parts[0])
    assert result.path is None and result.error is not None


def test_two_tries_of_one_step_have_folders_of_their_own(whole: Checkpoint, tmp_path: Path) -> None:
    first = begin_checkpoint(tmp_path, 7, 0)
    with pytest.raises(OSError, match="no answer"):
        complete_checkpoint(first, whole, no_shards)
    assert not first.exists()
    assert begin_checkpoint(tmp_path, 7, 0).name != first.name, "a late answer must not land in it"


def no_shards() -> list[Shard]:
    raise OSError("no answer")


def test_a_rank_holds_its_own_rows_and_not_the_files_that_they_came_from(
    whole: Checkpoint, tmp_path: Path
) -> None:
    for num_shards in (1, 2):
        share = load_share(save_checkpoint(tmp_path, whole, num_shards=num_shards), Known(1, 3))
        assert 0 < len(share.population) < len(whole.population)
        for name, tensor in named_tensors(share.population).items():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


def test_memory_must_hold_the_copies_of_all_ranks(
    parts: list[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, other = savers(tmp_path, parts[1])
    copied = []
    snapshot = checkpoint_saver.snapshot

    def watched(checkpoint: Checkpoint) -> Checkpoint:
        copied.append(checkpoint)
        return snapshot(checkpoint)

    monkeypatch.setattr(checkpoint_saver, "snapshot", watched)
    for copies, expected in ((1.5, []), (2.5, [parts[1], parts[0]])):
        free = int(checkpoint_saver.SPARE_BYTES + copies * 1.1 * parts[1].num_bytes)
        monkeypatch.setattr(checkpoint_saver, "free_memory", lambda free=free: free)
        saver.start(parts[0])
        assert saver.take(wait=True) is not None
        assert copied == expected, copies
    saver.close()
    other.close()


@pytest.mark.parametrize("in_copy", [True, False])
def test_a_rank_that_fails_at_anything_answers(
    parts: list[Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_copy: bool
) -> None:
    saver, other = savers(tmp_path, parts[1])
    write = checkpoint_saver.write_shard

    def short(staging: Path, population, rank: int, num_ranks: int):
        if rank == 1 and not in_copy:
            raise RuntimeError("the sky fell")
        return write(staging, population, rank, num_ranks)

    def no_memory(_: Checkpoint) -> Checkpoint:
        raise MemoryError

    monkeypatch.setattr(checkpoint_saver, "write_shard", short)
    if in_copy:
        monkeypatch.setattr(checkpoint_saver, "snapshot", no_memory)
    result = saver.save(parts[0])
    other.close()
    if in_copy:
        assert result.path is not None, "it is written without a copy"
    else:
        assert result.path is None and "rank 1: the sky fell" in str(result.error)
        assert list((tmp_path / "ckpts").iterdir()) == []
