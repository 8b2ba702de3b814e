"""Ranks over groups that take only what NCCL takes, with tensors that say that they are on a GPU.

No machine of these tests has several GPUs: this is what can be known of such a training without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pretended_gpus import GPU, GpuGroup, is_marked, pretended
from rank_pool import RankPool
from sharded_training_tasks import GROWING, Plan, train, waits_of_steps
from strict_tasks import Known, train_on_gpus

from splatstudio.distributed.ranks import Ranks

KINDS: dict[str, dict[str, Any]] = {
    "mcmc": {"strategy": "mcmc", "mcmc.start_step": 1, "mcmc.every": 2, "mcmc.max_gaussians": 90}
    | {"shapes.opacity_weight": 0.01},
    "fast in 16 bits": {"strategy": "fast", "mcmc.start_step": 1, "mcmc.every": 2, "precision": "mixed"},
    "corrected": {"exposure.enabled": True, "poses.enabled": True, "poses.start_step": 1}
    | {"sky.enabled": True, "order": "morton", "accumulate": 2},
}


def assert_alike(ours: list[Known], theirs: list[Any]) -> None:
    """Check that where tensors are said to lie makes no difference."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.losses == other.losses and one.num_gaussians == other.num_gaussians
    assert ours[0].whole is not None and theirs[0].whole is not None
    for name, tensor in ours[0].whole.tensors().items():
        assert torch.equal(tensor, theirs[0].whole.tensors()[name]), name


def test_a_training_that_grows_is_saved_and_goes_on_keeps_to_what_nccl_takes(
    pool: RankPool, blob_folder: Path, tmp_path: Path
) -> None:
    first = pool.run(2, train_on_gpus, Plan(blob_folder, GROWING, 6, save=tmp_path))
    assert_alike(first, pool.run(2, train, Plan(blob_folder, GROWING, 6)))
    assert first[0].num_changed > 20 and first[0].saved == first[1].saved is not None
    rest = pool.run(2, train_on_gpus, Plan(blob_folder, {}, 2, resume=first[0].saved))
    whole = pool.run(2, train, Plan(blob_folder, GROWING, 8))
    assert rest[0].losses == whole[0].losses[6:] and rest[0].psnr == whole[0].psnr


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_training_keeps_to_what_nccl_takes(
    pool: RankPool, blob_folder: Path, kind: str
) -> None:
    plan = Plan(blob_folder, {**GROWING, **KINDS[kind]}, 6)
    parts = pool.run(2, train_on_gpus, plan)
    assert_alike(parts, pool.run(2, train, plan))
    assert parts[0].num_changed > 0 and parts[0].calls == parts[1].calls


@pytest.mark.parametrize("site", ["step", "growth"])
def test_a_rank_without_memory_leaves_none_in_an_exchange_of_nccl(
    pool: RankPool, blob_folder: Path, site: str
) -> None:
    plan = Plan(blob_folder, GROWING, 6, fault=f"oom@step=5,rank=1,site={site}")
    parts = pool.run(2, train_on_gpus, plan)
    assert_alike(parts, pool.run(2, train, plan))
    assert len(parts[0].problems) == 1 and "on rank 1" in parts[0].problems[0]


def test_a_step_needs_few_messages(pool: RankPool, blob_folder: Path) -> None:
    steps = 4
    settings = {**GROWING, "densify.enabled": False, "shapes.opacity_weight": 0.01}
    calls = pool.run(2, train_on_gpus, Plan(blob_folder, settings, steps))[0].calls
    # The views' cameras; how much is seen; room for it; losses. Rows, and their gradients in two runs.
    assert calls == {("host", "all_to_all"): 4 * steps, ("GPU", "all_to_all"): 3 * steps}


def test_the_host_waits_for_a_gpu_only_where_it_reads_counts_and_losses(
    pool: RankPool, blob_folder: Path
) -> None:
    settings = {**GROWING, "densify.enabled": False, "batch_size": 2}
    assert pool.run(2, waits_of_steps, Plan(blob_folder, settings, 3)) == [[], []]


def refused(ranks: Ranks, what: str) -> str:
    """Do what NCCL does not take, and say what was raised."""
    with pretended(ranks) as (strict_ranks, strict):
        gpu, host = torch.ones(3, 2, device=GPU), torch.ones(3, 2, device="cpu")
        assert is_marked(gpu) and not is_marked(host) and is_marked(gpu[:2] + 1.0)
        assert gpu.device == GPU and host.device.type == gpu.cpu().device.type == "cpu"
        group = GpuGroup(strict.carrier)
        try:
            if what == "host":
                strict.all_reduce(host, group=group)
            elif what == "dtype":
                strict.all_reduce(gpu.to(torch.int16), group=group)
            elif what == "gaps":
                strict.all_to_all_single(torch.empty_like(gpu), gpu.t(), [3, 0], [2, 0], group=group)
            elif what == "both":
                torch.add(gpu, host)
            elif what == "numpy":
                gpu.numpy()
            elif what == "order":
                strict_ranks.all_reduce(gpu if ranks.rank else host)
            elif what == "splits":
                strict_ranks.all_to_all(gpu, [1, 2], [1, 1 + ranks.rank])
            return ""
        except (AssertionError, TypeError) as error:
            return str(error)


REFUSED = {
    "host": "all_reduce in the wrong group",
    "dtype": "all_reduce of torch.int16",
    "gaps": "all_to_all of a tensor with gaps",
    "both": "of tensors of the GPU and of the host",
    "numpy": "has no numpy array",
    "order": "another rank does something else",
    "splits": "rows come for",
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_pretended_gpus_refuse_what_real_ones_would(pool: RankPool, what: str) -> None:
    assert all(REFUSED[what] in told for told in pool.run(2, refused, what))
    assert pool.run(2, refused, "") == ["", ""]


def gathered_rows(ranks: Ranks, dtype: torch.dtype, num: int) -> list[list[float]]:
    """Gather rows of which rank r has r * `num`."""
    rows = torch.arange(3 * ranks.rank * num).view(-1, 3).to(dtype) + ranks.rank
    return [part.double().sum(dim=1).tolist() for part in ranks.all_gather(rows)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8, torch.int64])
@pytest.mark.parametrize("num", [0, 1, 30, 200])
def test_rows_of_all_lengths_come_together(pool: RankPool, dtype: torch.dtype, num: int) -> None:
    expected = []
    for rank in range(3):
        rows = torch.arange(3 * rank * num).view(-1, 3).to(dtype) + rank
        expected.append(rows.double().sum(dim=1).tolist())
    assert pool.run(3, gathered_rows, dtype, num) == [expected] * 3


def summed(ranks: Ranks) -> list[Any]:
    own = torch.tensor([1, 200, 255], dtype=torch.uint8) // (1 + ranks.rank)
    scalar = ranks.all_reduce(torch.tensor(1 << 60) + ranks.rank)
    large = ranks.all_reduce(torch.full((3000,), 0.25, dtype=torch.float64))
    return [ranks.all_reduce(own).tolist(), int(scalar), scalar.shape, float(large.sum())]


def test_sums_are_exact_however_long(pool: RankPool) -> None:
    found = pool.run(3, summed)
    assert found[0] == found[1] == found[2]
    assert found[0] == [[1, (200 + 100 + 66) % 256, (255 + 127 + 85) % 256], 3 * (1 << 60) + 3, (), 2250.0]
