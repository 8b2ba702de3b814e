"""Ranks on devices that no machine has, each on its own: the group of the GPUs, to the CPU's bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import made_up_device
import pytest
import torch
from rank_pool import RankPool
from sharded_training_tasks import GROWING, Plan, train

from splatstudio.devices import accelerator
from splatstudio.distributed.process_ranks import ProcessRanks, gpu_group
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.intersection_capacity import IntersectionCapacity
from splatstudio.optimization import sharded_gradients

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "mcmc": {"strategy": "mcmc", "mcmc.start_step": 1, "mcmc.every": 2, "mcmc.max_gaussians": 90},
    "fast in 16 bits": {"strategy": "fast", "mcmc.start_step": 1, "mcmc.every": 2, "precision": "mixed"},
    "corrected": {"exposure.enabled": True, "poses.enabled": True, "poses.start_step": 1, "order": "morton"},
}
TIMEOUT = timedelta(seconds=60)


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RankPool]]:
    """Two and three processes: a group of the devices is made by all that have met."""
    made = {size: RankPool(tmp_path_factory.mktemp("ranks"), size) for size in (2, 3)}
    yield made
    for pool in made.values():
        pool.close()


@dataclass(frozen=True, eq=False)
class Found:
    """What a rank tells of a training."""

    device: str
    losses: list[float]
    num_gaussians: int
    psnr: float
    problems: list[str]
    whole: Gaussians | None


def on_devices(ranks: Ranks, plan: Plan) -> Found:
    """Train as rank of a group, on the device of that number."""
    device = accelerator.choose(ranks.rank)
    group = gpu_group(ranks, device, TIMEOUT)
    assert group is not None, "ranks on devices have a group of their own"
    return train_on(ProcessRanks(group, ranks._group), plan, device)  # type: ignore[attr-defined]


def on_the_cpu(ranks: Ranks, plan: Plan) -> Found:
    """Train as rank of a group on the CPU."""
    return train_on(ranks, plan, torch.device("cpu"))


def train_on(ranks: Ranks, plan: Plan, device: torch.device) -> Found:
    """Make the steps of a plan on a device and return what came of it."""
    done = train(ranks, plan, device)
    whole = None if done.whole is None else done.whole.to("cpu")
    return Found(str(device), done.losses, done.num_gaussians, done.psnr, done.problems, whole)


def on_cramped_devices(ranks: Ranks, plan: Plan) -> tuple[Found, int]:
    """Train where every third picture of rank 1 has too little room; return how often pictures were drawn."""
    held, all_rounds, calls = IntersectionCapacity.held, sharded_gradients._all_rounds, [0, 0]

    def cramped(self: IntersectionCapacity, needed: int) -> bool:
        fitted = held(self, needed)
        calls[0] += 1
        if ranks.rank == 1 and calls[0] % 3 == 0:
            self.size = 7
        return fitted

    def counted(*given: Any) -> sharded_gradients.ShardedStep:
        calls[1] += 1
        return all_rounds(*given)

    with (
        patch.object(IntersectionCapacity, "held", cramped),
        patch.object(sharded_gradients, "_all_rounds", counted),
    ):
        return on_devices(ranks, plan), calls[1]


def assert_alike(there: list[Found], here: list[Found]) -> None:
    """Check that ranks on devices have learned what ranks on the CPU have."""
    for one, other in zip(there, here, strict=True):
        assert one.losses == other.losses and one.num_gaussians == other.num_gaussians
        assert one.psnr == other.psnr and other.device == "cpu"
    assert there[0].whole is not None and here[0].whole is not None
    for name, tensor in there[0].whole.tensors().items():
        assert torch.equal(tensor, here[0].whole.tensors()[name]), name


def test_pictures_with_too_little_room_are_drawn_again_by_all(
    pools: dict[int, RankPool], blob_folder: Path
) -> None:
    plan = Plan(blob_folder, {**GROWING, "accumulate": 2}, 6)
    there: list[tuple[Found, int]] = pools[2].run(2, on_cramped_devices, plan)
    assert_alike([found for found, _ in there], pools[2].run(2, on_the_cpu, plan))
    assert there[0][1] == there[1][1] > plan.steps + 2


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_on_devices_have_the_bits_of_ranks_on_the_cpu(
    pools: dict[int, RankPool], blob_folder: Path, kind: str, num_ranks: int
) -> None:
    plan = Plan(blob_folder, {**GROWING, **KINDS[kind]}, 6)
    there: list[Found] = pools[num_ranks].run(num_ranks, on_devices, plan)
    here: list[Found] = pools[num_ranks].run(num_ranks, on_the_cpu, plan)
    assert [found.device for found in there] == list(map(str, made_up_device.DEVICES[:num_ranks]))
    assert_alike(there, here)


def test_a_rank_without_memory_is_told_of_on_all_and_leaves_none_waiting(
    pools: dict[int, RankPool], blob_folder: Path
) -> None:
    plan = Plan(blob_folder, GROWING, 6, fault="oom@step=5,rank=1,site=step")
    first, second = pools[2].run(2, on_devices, plan)
    assert first.problems == second.problems and "on rank 1" in first.problems[0]
    assert first.losses == second.losses and len(first.losses) == 6


def two_on_one(ranks: Ranks) -> str:
    """Say what ranks are told that share a device."""
    try:
        gpu_group(ranks, accelerator.choose(0), TIMEOUT)
    except ValueError as error:
        return str(error)
    return ""


def test_two_ranks_on_one_device_are_refused_alike(pools: dict[int, RankPool]) -> None:
    first, second = pools[2].run(2, two_on_one)
    assert first == second and "ranks 0 and 1 are on the same GPU" in first
