"""What a training needs of the memory, told before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from memory_tasks import peak_of_training
from rank_pool import RankPool

from splatstudio.distributed.rank_devices import RankDevices, choose_devices
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training import memory_plan
from splatstudio.training.device_options import DeviceOptions, with_fit_batch
from splatstudio.training.memory_plan import (
    EXCHANGED_BYTES,
    SEEN_BYTES,
    SEEN_SHARE,
    fitted,
    plan_memory,
    sizes_of,
)

SIZES = [(1000, 800)] * 20
GPU, TWO_GPUS = RankDevices((0,)), RankDevices((0, 1))
GIB = 1 << 30


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    """Set what is free on each rank."""

    def set_free(num_bytes: int) -> None:
        monkeypatch.setattr(memory_plan, "free_bytes", lambda _: num_bytes)

    set_free(24 * GIB)
    return set_free


def test_more_memory_smaller_colours_and_smaller_batches_hold_more_splats(free) -> None:
    config = TrainConfig()
    one = plan_memory(config, SIZES, GPU).num_splats
    # 16 bytes for each of 59 numbers and some more: gsplat's own figure is 1.6 kB.
    assert 24 * GIB * 0.85 / 1600 < one < 24 * GIB / 944
    assert plan_memory(replace(config, sh_degree=0), SIZES, GPU).num_splats > 2.5 * one
    assert plan_memory(replace(config, batch_size=8), SIZES, GPU).num_splats < one
    # What is accumulated leaves but its pictures; at once they would all be worked on.
    assert 0.98 * one < plan_memory(replace(config, accumulate=8), SIZES, GPU).num_splats < one
    two = plan_memory(config, SIZES, TWO_GPUS)
    assert one < two.num_splats < 2 * one, "both hold more than one, but the exchange takes its part"
    assert two.bytes_for(two.num_splats) <= 24 * GIB * memory_plan.SPARE
    free(12 * GIB)
    assert plan_memory(config, SIZES, GPU).num_splats < one / 2


def test_settings_are_made_to_fit_only_where_that_is_asked_for(free, blob_scene: Scene) -> None:
    config = TrainConfig(batch_size=6)
    free(2 * GIB)
    same, sentence = fitted(config, blob_scene, GPU, max_splats=None, fit_batch=False)
    assert same == config and "--max-splats auto" in sentence
    auto, sentence = fitted(config, blob_scene, GPU, max_splats="auto", fit_batch=False)
    plan = plan_memory(config, sizes_of(blob_scene), GPU)
    assert auto.densify.max_gaussians == plan.num_splats < config.densify.max_gaussians
    assert "auto" not in sentence and f"{plan.num_splats:,}" in sentence
    smaller, _ = fitted(config, blob_scene, GPU, max_splats=1_050_000, fit_batch=True)
    assert smaller.densify.max_gaussians == 1_050_000 and smaller.batch_size in (1, 2, 3)
    assert smaller.batch_size * smaller.accumulate == 6
    assert plan_memory(smaller, sizes_of(blob_scene), GPU).num_splats >= 1_050_000
    free(100 * GIB)
    assert fitted(config, blob_scene, GPU, max_splats=None, fit_batch=True)[0] == config
    free(GIB // 2)
    with pytest.raises(ValueError, match="no memory for a training"):
        fitted(config, blob_scene, GPU, max_splats="auto", fit_batch=True)


def test_auto_is_a_word_for_the_size_of_batches_too() -> None:
    assert with_fit_batch(["train", "S", "--batch-size", "auto", "--steps", "7"]) == [
        *("train", "S", "--fit-batch", "--steps", "7")
    ]
    assert with_fit_batch(["--batch-size=auto"]) == ["--fit-batch"]
    assert with_fit_batch(["--batch-size", "4", "--max-splats", "auto"])[-1] == "auto"
    assert with_fit_batch([]) == []
    with pytest.raises(ValueError, match="0,1"):
        DeviceOptions(gpus="a,b").chosen()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_training_takes_what_the_plan_says(
    pool: RankPool, blob_folder: Path, blob_scene: Scene, num_ranks: int
) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be counted anew on Linux only")
    # Many: the allocator keeps what it gave for tensors below 32 MB, so much the more the fewer there are.
    few, many = 10_000, 300_000
    first = pool.run(num_ranks, peak_of_training, blob_folder, TrainConfig(), few)
    peaks = pool.run(num_ranks, peak_of_training, blob_folder, TrainConfig(), many)
    plan = plan_memory(TrainConfig(), sizes_of(blob_scene), choose_devices(ranks=num_ranks))
    # These photographs show all Gaussians, each to every rank.
    hidden = num_ranks * (1.0 - SEEN_SHARE) * (SEEN_BYTES + (EXCHANGED_BYTES if num_ranks > 1 else 0))
    planned = plan.per_splat + hidden
    for before, peak in zip(first, peaks, strict=True):
        measured = (peak - before) * num_ranks / (many - few)
        assert 0.75 < measured / planned < 1.3, (measured, planned)
        assert 0.6 < peak / (plan.fixed + planned * many / num_ranks) < 1.4, (peak, plan)
