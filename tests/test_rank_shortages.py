"""A rank that is short of memory: the others never wait for it, and nothing that was trained is lost."""

from __future__ import annotations

from pathlib import Path

import torch
from rank_pool import RankPool
from shortage_tasks import copy_twice

from splatstudio.gaussians import concatenated


def test_a_copy_that_there_is_no_memory_for_is_refused_before_anything_is_sent(
    pool: RankPool, blob_folder: Path
) -> None:
    first, second = pool.run(2, copy_twice, blob_folder)
    assert first[0] == "out of memory on rank 0"
    expected = concatenated([first[2], second[2]])
    assert first[1] is not None
    for name, tensor in first[1].tensors().items():
        assert torch.equal(tensor, expected.tensors()[name]), name
