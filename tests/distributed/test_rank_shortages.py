"""A rank that is short of memory: the others never wait for it, and nothing that was trained is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compared_trainings import SETTINGS, assert_same
from rank_pool import RankPool
from sharded_tasks import Case
from sharded_training_tasks import Plan, train
from shortage_tasks import copy_twice, descend_short, look_twice, train_short_of_photographs


def test_a_copy_that_there_is_no_memory_for_is_refused_before_anything_is_sent(
    pool: RankPool, blob_folder: Path, tmp_path: Path
) -> None:
    (refused, model), _ = pool.run(2, copy_twice, blob_folder, tmp_path / "run")
    assert refused == "out of memory on rank 0"
    ((_, whole),) = pool.run(1, copy_twice, blob_folder, tmp_path / "alone")
    assert model is not None and whole is not None
    for name, tensor in model.tensors().items():
        assert torch.equal(tensor, whole.tensors()[name]), name


@pytest.mark.parametrize(
    "what",
    [
        ("splatstudio.distributed.exchange", "_buffers"),
        ("splatstudio.optimization.sharded_gradients", "return_buffers"),
        ("splatstudio.optimization.sharded_gradients", "_add_cameras"),
        ("splatstudio.optimization.sharded_gradients", "_observations"),
    ],
)
def test_all_ranks_leave_a_step_out_wherever_one_has_no_memory_in_it(
    pool: RankPool, what: tuple[str, str]
) -> None:
    case = Case((0, 100, 200), (((0,), (1,), (2,)), ((3,), (4, 5), (6,))), absgrad=True)
    assert pool.run(3, descend_short, case, what, 1) == [((1,), True)] * 3
    assert pool.run(3, descend_short, case, what, -1) == [((), False)] * 3


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_photographs_without_memory_are_left_out_by_all(
    pool: RankPool, blob_folder: Path, num_ranks: int
) -> None:
    hit = pool.run(num_ranks, train_short_of_photographs, Plan(blob_folder, SETTINGS, 8), num_ranks - 1)
    spared = pool.run(num_ranks, train, Plan(blob_folder, SETTINGS, 8, drop_before=4))
    for ours, theirs in zip(hit, spared, strict=True):
        assert ours.losses == theirs.losses and len(ours.problems) == 1
    assert_same(hit[0].whole, spared[0].whole)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_picture_lacks_what_a_rank_has_no_memory_for_and_says_so(
    pool: RankPool, blob_folder: Path, failing: int
) -> None:
    short, good = pool.run(2, look_twice, blob_folder, failing)[0]
    assert short[0] is not None and f"no memory for this picture on rank {failing}," in short[0]
    assert good[0] is None and 0 < short[1] < good[1]
