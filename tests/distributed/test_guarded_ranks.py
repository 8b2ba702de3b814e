"""Work that a rank has to give up is given up by all, wherever each of them is, and they stay in step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_pool import RankPool
from sharded_training_tasks import config_of
from shortage_tasks import no_memory
from strategy_settings import COMMON, FAST
from wary_tasks import NUM_EXCHANGES, Ending, fail_at, grow_unread, tell_unless

from splatstudio.distributed.failures import OutOfMemory, is_out_of_memory
from splatstudio.scene.scene import Scene
from splatstudio.strategy import population
from splatstudio.training.trainer import Trainer

EACH = range(NUM_EXCHANGES + 1)


@pytest.mark.parametrize("nth", EACH)
def test_a_sentence_of_one_rank_is_raised_by_all_wherever_they_are(pool: RankPool, nth: int) -> None:
    sentence = f"photos/\udcff.png cannot be read, {nth}"  # a name that is no text
    told = Ending("FailedTogether", sentence, 1, 3)
    assert pool.run(3, fail_at, {1: (nth, sentence)}) == [told] * 3


@pytest.mark.parametrize("nth", EACH)
def test_memory_that_one_rank_lacks_is_told_by_all_wherever_they_are(pool: RankPool, nth: int) -> None:
    assert pool.run(3, fail_at, {0: (nth, "memory")}) == [Ending("OutOfMemory", (0,), 1, 3)] * 3


@pytest.mark.parametrize("nth", EACH)
def test_a_sentence_comes_before_memory_where_both_fail_in_one_place(pool: RankPool, nth: int) -> None:
    failures = {0: (nth, "memory"), 2: (nth, "wrong")}
    assert pool.run(3, fail_at, failures) == [Ending("FailedTogether", "wrong", 1, 3)] * 3


def test_of_failures_in_several_places_the_first_is_told(pool: RankPool) -> None:
    assert pool.run(2, fail_at, {0: (5, "late"), 1: (2, "memory")}) == [Ending("OutOfMemory", (1,), 1, 2)] * 2
    assert pool.run(2, fail_at, {0: (2, "early"), 1: (5, "memory")}) == (
        [Ending("FailedTogether", "early", 1, 2)] * 2
    )


def test_what_succeeds_is_not_taken_back(pool: RankPool) -> None:
    endings = pool.run(2, fail_at, {})
    assert [ending.kind for ending in endings] == ["", ""] and all(not each.num_undone for each in endings)
    assert [ending.told for ending in endings] == [
        [3, 1, 1, 2, 0, 1, 1, 2, 1, 2, 7],
        [3, 1, 1, 2, 0, 1, 1, 2, 1, 2, 7],
    ]


def test_ranks_tell_in_one_message_how_their_work_went_and_what_came_of_it(pool: RankPool) -> None:
    told = [((0, 2), []), ((1, 2), [1.1]), ((2, 2), [2.1])]
    assert pool.run(3, tell_unless, {}) == [(rank, told) for rank in range(3)]
    assert pool.run(3, tell_unless, {0: "memory", 2: "memory"}) == [(0, 2)] * 3
    assert pool.run(3, tell_unless, {0: "memory", 2: "a photo"}) == ["a photo"] * 3
    assert pool.run(1, tell_unless, {}) == [(0, told[:1])]
    assert pool.run(1, tell_unless, {0: "memory"}) == [(0,)]


def test_one_process_raises_its_own_error(pool: RankPool) -> None:
    assert pool.run(1, fail_at, {0: (3, "wrong")}) == [Ending("ValueError", "wrong", 1, 1)]


@pytest.mark.parametrize(("num_ranks", "failing"), [(1, 0), (2, 0), (2, 1)])
def test_an_unreadable_photo_in_a_change_leaves_all_ranks_as_they_were(
    pool: RankPool, blob_folder: Path, num_ranks: int, failing: int
) -> None:
    told = pool.run(num_ranks, grow_unread, blob_folder, {**COMMON, **FAST}, failing)
    for kind, named, unchanged, num_changed, whole in told:
        assert kind == ("ValueError" if num_ranks == 1 else "FailedTogether") and named and unchanged
        assert num_changed > 0, "with the photo the same change is made"
        assert not whole, "of the step a part is missing: it is not saved"


def test_a_change_that_cannot_be_taken_back_ends_a_training_that_nobody_saves(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPLATSTUDIO_FAULT", "oom@step=11,rank=0,site=growth")
    monkeypatch.setattr(population, "_as_before", no_memory)
    trainer = Trainer(blob_scene, config_of(COMMON, 200))
    with pytest.raises(MemoryError, match="the model is torn") as raised:
        for _ in range(11):
            trainer.train_step()
    assert not isinstance(raised.value, OutOfMemory), "which would be survived"
    assert trainer.step == 10 and not trainer.whole
    trainer.close()


def test_memory_that_cuda_itself_lacks_is_memory_and_what_nccl_lacks_ends_the_process() -> None:
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemory'"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not is_out_of_memory(torch.AcceleratorError("CUDA error: an illegal memory access"))
    assert not is_out_of_memory(
        RuntimeError("NCCL error: unhandled cuda error, Cuda failure 'out of memory'")
    )
