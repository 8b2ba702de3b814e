"""What a training needs of the memory, told before it starts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from splatstudio import memory_plan
from splatstudio.config import TrainConfig
from splatstudio.device_options import DeviceOptions, with_fit_batch
from splatstudio.memory_plan import SEEN_BYTES, SEEN_SHARE, fitted, plan_memory, sizes_of
from splatstudio.rank_devices import RankDevices
from splatstudio.scene.scene import Scene

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


MEASURE = """
import sys
from dataclasses import replace
import numpy as np
from pathlib import Path
from splatstudio.config import TrainConfig, DensifyConfig
from splatstudio.scene import load_scene
from splatstudio.trainer import Trainer
num = int(sys.argv[2])
scene = load_scene(Path(sys.argv[1]))
low, high = np.quantile(scene.points, 0.1, axis=0), np.quantile(scene.points, 0.9, axis=0)
points = np.random.default_rng(0).uniform(low, high, (num, 3)).astype(np.float32)
scene = replace(scene, points=points, colors=np.full((num, 3), 128, np.uint8))
densify = DensifyConfig(start_step=1, every=2, max_gaussians=num)
trainer = Trainer(scene, TrainConfig(steps=60, densify=densify))
for _ in range(5):
    trainer.train_step()
# Not getrusage: its peak counts the process that started this one.
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def test_a_training_takes_what_the_plan_says(blob_folder: Path, blob_scene: Scene) -> None:
    peaks = {}
    # Many: the allocator keeps what it gave for tensors below 32 MB, so much the more the fewer there are.
    few, many = 10_000, 400_000
    for num in (few, many):
        command = [sys.executable, "-c", MEASURE, str(blob_folder), str(num)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        peaks[num] = 1024 * int(done.stdout)
    plan = plan_memory(TrainConfig(), sizes_of(blob_scene), RankDevices())
    measured = (peaks[many] - peaks[few]) / (many - few)
    planned = plan.per_splat + (1.0 - SEEN_SHARE) * SEEN_BYTES  # these photographs show all of them
    assert 0.75 < measured / planned < 1.3, (measured, planned)
    assert 0.6 < peaks[many] / plan.bytes_for(many) < 1.4, (peaks, plan.bytes_for(many))
