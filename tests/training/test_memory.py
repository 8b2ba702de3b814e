"""How much memory a real training needs at its peak, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corrected_scenes import ALL_ON, repainted
from memory_tasks import peak_of_training
from rank_pool import RankPool

from splatstudio.checkpoints.manifest import named_tensors
from splatstudio.distributed.rank_devices import RankDevices, choose_devices
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import DepthConfig, ShapeConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig, McmcConfig
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
from splatstudio.training.trainer import Trainer

BYTES_A_GAUSSIAN, BYTES_A_PIXEL = 1200, 150  # float32, harmonics of degree 3, Adam
SCRIPT = """
import json, sys
from pathlib import Path
import splatstudio
import blob_models

# Photos large enough to count beside the Gaussians.
blob_models.WIDTH, blob_models.HEIGHT, blob_models.FOCAL = 480, 360, 430.0
import conftest
from splatstudio.settings.config import DensifyConfig, TrainConfig
from splatstudio.scene.load import load_scene
from splatstudio.training.trainer import Trainer


def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def train(scene, num, steps):
    cap = num + num // 5
    densify = DensifyConfig(start_step=2, every=4, grow_grad=1e-4, reset_every=7, max_gaussians=cap)
    config = TrainConfig(
        steps=2 * steps, init_random=num, sh_degree_every=1, densify=densify, init_scale=0.3
    )
    trainer = Trainer(scene, config)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    most = max(trainer.train_step().num_gaussians for _ in range(steps))
    trainer.close()
    return most


folder = conftest.write_blob_scene(Path(sys.argv[1]))
(folder / "sparse" / "0" / "points3D.txt").write_text("")  # so that the first Gaussians are random
scene = load_scene(folder)
train(scene, 500, 12)  # loads every library and starts every thread
before = status("VmRSS")
most = train(scene, int(sys.argv[2]), 12)
peak = status("VmHWM") - before
print(json.dumps({"num_gaussians": most, "num_pixels": 480 * 360, "peak": peak}))
"""


def test_a_training_stays_within_its_memory(tmp_path: Path) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be counted anew on Linux only")
    tests = Path(__file__).parents[1]
    code = f"import sys; sys.path[:0] = {[str(tests / 'support'), str(tests)]!r}\n" + SCRIPT
    command = [sys.executable, "-c", code, str(tmp_path / "scene"), "100000"]
    # Every large tensor has pages of its own, which go with it: what lies in the heap depends on chance.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout.splitlines()[-1])
    allowed = BYTES_A_GAUSSIAN * measured["num_gaussians"] + BYTES_A_PIXEL * measured["num_pixels"]
    assert measured["num_gaussians"] > 103_400, "nothing was born"
    # The model and its moments alone are 708 bytes a Gaussian: less cannot have been measured rightly.
    assert 708 * measured["num_gaussians"] < measured["peak"] < allowed, measured


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


def test_more_memory_smaller_colors_and_smaller_batches_hold_more_splats(free) -> None:
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


def test_photos_stay_on_a_gpu_where_splats_leave_room(free) -> None:
    plan = plan_memory(TrainConfig(), SIZES, GPU)
    photos = 4 * 20 * 1000 * 800
    assert plan.kept_photos(1_000_000) == photos
    assert "The photos stay on the GPU, too (0.1 GB)" in memory_plan.describe(plan, 1_000_000)
    most = plan.num_splats
    assert plan.kept_photos(most) < photos / 100, "splats come first"
    half = most - int(photos / 2 / plan.per_splat)
    assert 0.4 * photos < plan.kept_photos(half) < 0.6 * photos
    assert "Of the photos (0.1 GB) 50 % stay on the GPU" in memory_plan.describe(plan, half)
    on_cpu = plan_memory(TrainConfig(), SIZES, RankDevices())
    assert on_cpu.kept_photos(1000) == 0 and "photos" not in memory_plan.describe(on_cpu, 1000)


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
    # These photos show all Gaussians, each to every rank.
    hidden = num_ranks * (1.0 - SEEN_SHARE) * (SEEN_BYTES + (EXCHANGED_BYTES if num_ranks > 1 else 0))
    planned = plan.per_splat + hidden
    for before, peak in zip(first, peaks, strict=True):
        measured = (peak - before) * num_ranks / (many - few)
        assert 0.75 < measured / planned < 1.3, (measured, planned)
        assert 0.6 < peak / (plan.fixed + planned * many / num_ranks) < 1.4, (peak, plan)


STEPS = 40
EVERYTHING = replace(
    ALL_ON,
    steps=STEPS,
    eval_steps=(10, 20),
    exposure=replace(ALL_ON.exposure, grid=True),
    depth=DepthConfig(weight=0.1),
    shapes=ShapeConfig(min_views=2, min_views_every=15),
    densify=DensifyConfig(start_step=5, every=10, grow_grad=1e-5),
    fast=FastConfig(thin_at=0.7),
    mcmc=McmcConfig(every=10, max_gaussians=90),
)


def after_training(scene: Scene, config: TrainConfig) -> tuple[dict[str, torch.Tensor], float]:
    """Return all that a training has learned, and its score in the middle, which it must not use."""
    trainer = Trainer(scene, config)
    for _ in range(STEPS // 2):
        trainer.train_step()
    score = evaluate(trainer.gaussians, scene, options=trainer.display_options).psnr
    for _ in range(STEPS // 2):
        trainer.train_step()
    checkpoint = trainer.checkpoint()
    trainer.close()
    assert checkpoint.corrections is not None
    assert {name.partition(".")[0] for name in checkpoint.corrections.tensors} == {"exposure", "poses", "sky"}
    learned = {**named_tensors(checkpoint.population), **checkpoint.corrections.tensors}
    return {name: tensor.clone() for name, tensor in learned.items()}, score


@pytest.mark.parametrize("strategy", ["default", "mcmc", "fast"])
def test_other_test_photos_make_the_same_model(
    tracked: Scene,
    tmp_path: Path,
    strategy: str,
) -> None:
    test = set(tracked.test_indices)
    assert test and test < set(range(len(tracked.views)))

    def blackened(number: int, rgb: np.ndarray) -> np.ndarray:
        return np.zeros_like(rgb) if number in test else rgb

    other = load_scene(repainted(tracked.path, tmp_path / "scene", blackened))
    assert all(view.name == own.name for view, own in zip(other.views, tracked.views, strict=True))
    config = replace(EVERYTHING, strategy=strategy)  # type: ignore[arg-type]
    (ours, score), (theirs, other_score) = (after_training(scene, config) for scene in (tracked, other))
    assert abs(score - other_score) > 1.0, "the photos are others indeed"
    assert ours.keys() == theirs.keys() and any(tensor.any() for tensor in ours.values())
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
